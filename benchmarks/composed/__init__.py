"""`python -m benchmarks composed`: what one policy over all controllers is worth."""
