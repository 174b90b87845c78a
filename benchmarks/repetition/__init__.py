"""What merged reading and shared costs bring on corpora that repeat themselves."""
