"""A kernel, or a call of a library, for each kind of operation."""
