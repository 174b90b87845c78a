"""How much does a question need? `python -m benchmarks router`."""
