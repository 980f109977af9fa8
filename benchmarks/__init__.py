"""Chains and its peers on the same problems, side by side: ``python -m benchmarks``."""
