"""Measurements that anyone can repeat: `python -m benchmarks run NAME` writes the JSON of its figures."""
