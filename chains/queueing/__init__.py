"""Calls that return immediately. Shared memory decides their order, workers run them, and reading a result waits."""
