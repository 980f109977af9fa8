"""Residuals of differential equations as losses: the problem that a user states, its tracing, and its loss."""
