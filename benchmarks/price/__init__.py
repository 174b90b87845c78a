"""One price for every token: `python -m benchmarks pacing`."""
