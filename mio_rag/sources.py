"""Open what a person has."""
