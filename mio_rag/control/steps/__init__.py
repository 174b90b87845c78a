"""What controllers do: find passages, write queries, notes and answers. Protocols and their usual parts."""
