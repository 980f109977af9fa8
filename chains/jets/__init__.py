"""Derivatives of recorded programs: arrays become truncated Taylor series, cotangents become their adjoints."""
