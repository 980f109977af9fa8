"""Helpers for writing code, which backends and exports share: loops over axes, formulas in C, tiles of samples, polynomials."""
