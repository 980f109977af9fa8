"""What ``python -m chains COMMAND`` does, a command a file."""
