"""The plan of a program: what runs where and in which order, decided before any assembly is written."""
