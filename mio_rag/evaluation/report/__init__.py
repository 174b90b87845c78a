"""The report of a run: one page that works without a network."""
