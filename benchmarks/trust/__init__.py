"""Checks of every certificate of the exact kernel."""
