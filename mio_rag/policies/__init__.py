"""Policies by name or by file, each a row of deciders over one session."""
