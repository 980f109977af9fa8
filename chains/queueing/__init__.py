"""Calls that return immediately: memory that they share decides their order, workers run them, reading a result waits."""
