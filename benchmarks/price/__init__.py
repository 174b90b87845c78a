"""One price for every token: `python -m benchmarks price` and `python -m benchmarks pacing`."""
