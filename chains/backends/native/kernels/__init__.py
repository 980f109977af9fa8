"""Kernels: the assembly of each kind of operation, as register-blocked loops over vectors."""
