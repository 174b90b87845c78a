"""Sentences as units: their relevance, and what choosing them brings."""
