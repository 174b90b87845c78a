"""What calibrated relevance and evidence links are worth: `python -m benchmarks relevance`."""
