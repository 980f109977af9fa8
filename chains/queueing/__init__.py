"""Calls that return at once: what they read and write decides their order, workers run them, reading a result waits."""
