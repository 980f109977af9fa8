"""The plan of a program: threads, order and memory, decided before any assembly is written."""
