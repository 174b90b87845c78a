"""Learning: tables of outcomes, training, what was learned, and reports on it."""
