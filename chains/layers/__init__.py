"""Layers, one family a file."""

from chains.layers.base import Declaration, Layer
from chains.layers.combine import Parallel, Residual, Series
from chains.layers.conv import Conv, ConvTranspose
from chains.layers.dense import Dense
from chains.layers.dropout import Dropout
from chains.layers.elementwise import Activation, Scale, Shift
from chains.layers.pool import AvgPool, GlobalAvgPool, MaxPool
from chains.layers.resample import Pad, Upsample
from chains.layers.shape import Flatten, Reshape
from chains.layers.softmax import LogSoftmax, Softmax

__all__ = [
    "Activation",
    "AvgPool",
    "Conv",
    "ConvTranspose",
    "Declaration",
    "Dense",
    "Dropout",
    "Flatten",
    "GlobalAvgPool",
    "Layer",
    "LogSoftmax",
    "MaxPool",
    "Pad",
    "Parallel",
    "Reshape",
    "Residual",
    "Scale",
    "Series",
    "Shift",
    "Softmax",
    "Upsample",
]
