"""Layers, one family a file."""

from chains.layers.attention import Attention, PositionalEncoding, TransformerBlock
from chains.layers.base import Declaration, Layer
from chains.layers.combine import Parallel, Residual, Series
from chains.layers.compartments import Compartments
from chains.layers.constrained import Convex, Monotone
from chains.layers.conv import CausalConv, Conv, ConvTranspose
from chains.layers.dense import Dense
from chains.layers.dropout import Dropout, SpatialDropout
from chains.layers.elementwise import Activation, Scale, Shift
from chains.layers.embedding import Embedding
from chains.layers.equations import Equations
from chains.layers.expansions import Chebyshev, FourierSeries
from chains.layers.fourier import Fourier, Periodic
from chains.layers.norm import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from chains.layers.ode import ODE, Doses
from chains.layers.pool import AvgPool, GlobalAvgPool, MaxPool
from chains.layers.recurrent import Cell, Recurrent
from chains.layers.rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from chains.layers.sde import SDE
from chains.layers.shape import Append, Flatten, Pad, Reshape, Select, Upsample
from chains.layers.softmax import LogSoftmax, Softmax
from chains.layers.steady import SteadyState

__all__ = [
    "GRU", "LSTM", "ODE", "RNN", "SDE", "Activation", "Append", "Attention", "AvgPool", "BatchNorm", "CausalConv", "Cell",
    "Chebyshev", "Compartments", "Conv", "ConvTranspose", "Convex", "Declaration", "Dense", "Doses", "Dropout", "Embedding",
    "Equations", "Flatten", "Fourier", "FourierSeries", "GRUCell", "GlobalAvgPool", "GroupNorm", "LSTMCell", "Layer",
    "LayerNorm", "LogSoftmax", "MaxPool", "Monotone", "Pad", "Parallel", "Periodic", "PositionalEncoding", "RMSNorm",
    "RNNCell", "Recurrent", "Reshape", "Residual", "Scale", "Select", "Series", "Shift", "Softmax", "SpatialDropout",
    "SteadyState", "TransformerBlock", "Upsample",
]  # fmt: skip
