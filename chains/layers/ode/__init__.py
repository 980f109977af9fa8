"""Ordinary differential equations as a layer."""

from chains.layers.ode.layer import ODE, trace_of
from chains.layers.ode.methods import METHODS

__all__ = ["METHODS", "ODE", "trace_of"]
