"""Measurements that anyone can repeat: `python -m benchmarks NAME` writes the JSON that figures are drawn
from."""
