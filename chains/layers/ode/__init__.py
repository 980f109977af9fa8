"""Ordinary differential equations as a layer."""

from chains.layers.ode.doses import Doses
from chains.layers.ode.layer import ODE
from chains.layers.ode.methods import METHODS
from chains.layers.ode.trace import trace_of

__all__ = ["METHODS", "ODE", "Doses", "trace_of"]
