"""What a newcomer gets, against the best ranking of each set: `python -m benchmarks default`."""
