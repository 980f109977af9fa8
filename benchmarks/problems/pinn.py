"""Burgers' equation: value and gradient of the residual loss of a physics-informed network."""

from __future__ import annotations

from benchmarks.problems import derivatives

contests = derivatives.pinn
