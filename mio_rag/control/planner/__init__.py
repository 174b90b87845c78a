"""Workflows: which steps a question goes through, in what order, by which model; policies that choose."""
