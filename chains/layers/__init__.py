"""Layers, one family a file."""

from chains.layers.base import Declaration, Layer
from chains.layers.batch_norm import BatchNorm
from chains.layers.combine import Parallel, Residual, Series
from chains.layers.dense import Dense
from chains.layers.dropout import Dropout, SpatialDropout
from chains.layers.elementwise import Activation, Scale, Shift
from chains.layers.norm import GroupNorm, LayerNorm, RMSNorm
from chains.layers.shape import Flatten, Reshape
from chains.layers.softmax import LogSoftmax, Softmax

__all__ = [
    "Activation",
    "BatchNorm",
    "Declaration",
    "Dense",
    "Dropout",
    "Flatten",
    "GroupNorm",
    "Layer",
    "LayerNorm",
    "LogSoftmax",
    "Parallel",
    "RMSNorm",
    "Reshape",
    "Residual",
    "Scale",
    "Series",
    "Shift",
    "Softmax",
    "SpatialDropout",
]
