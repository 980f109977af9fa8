"""Layers, one family a file."""

from chains.layers.base import Declaration, Layer
from chains.layers.combine import Parallel, Residual, Series
from chains.layers.dense import Dense
from chains.layers.dropout import Dropout
from chains.layers.elementwise import Activation, Scale, Shift
from chains.layers.shape import Flatten, Reshape
from chains.layers.softmax import LogSoftmax, Softmax

__all__ = [
    "Activation",
    "Declaration",
    "Dense",
    "Dropout",
    "Flatten",
    "Layer",
    "LogSoftmax",
    "Parallel",
    "Reshape",
    "Residual",
    "Scale",
    "Series",
    "Shift",
    "Softmax",
]
