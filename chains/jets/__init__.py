"""Derivatives of recorded programs: every array becomes a truncated Taylor series, every cotangent its adjoint."""
