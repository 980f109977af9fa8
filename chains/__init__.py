"""Neural networks so small that the framework is the bottleneck, and the same code when they grow.

>>> from chains import Chain, Dense, σ
>>> net = Chain(Dense(784, 30, σ), Dense(30, 10, σ))
"""

from chains import data, expr, models, schedules, testing
from chains.activations import (
    activation,
    elu,
    gelu,
    identity,
    leaky_relu,
    make_elu,
    make_leaky_relu,
    mish,
    relu,
    selu,
    sigmoid,
    silu,
    sine,
    softplus,
    softsign,
    tanh,
    σ,
)
from chains.callbacks import EarlyStopping
from chains.chain import Chain
from chains.initializers import Constant, Normal, Uniform, VarianceScaling
from chains.layers import (
    Activation,
    AvgPool,
    BatchNorm,
    Conv,
    ConvTranspose,
    Declaration,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GroupNorm,
    Layer,
    LayerNorm,
    LogSoftmax,
    MaxPool,
    Pad,
    Parallel,
    Reshape,
    Residual,
    RMSNorm,
    Scale,
    Series,
    Shift,
    Softmax,
    SpatialDropout,
    Upsample,
)
from chains.losses import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, Loss, MSELoss, SquaredLoss, loss
from chains.metrics import accuracy
from chains.minimize import minimize as minimize  # not for `from chains import *`: scipy.optimize has one too
from chains.network.objective import Objective
from chains.optimizers import SGD, Adagrad, Adam, AdamW, Optimizer, RMSProp
from chains.penalties import FrontLastPenalty, L1Penalty, L2Penalty, Penalty
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.training.history import History
from chains.training.steps import Updater
from chains.training.train import TrainingState, train

__version__ = "0.1.0"
__all__ = [
    "SGD",
    "Activation",
    "Adagrad",
    "Adam",
    "AdamW",
    "AvgPool",
    "BCEWithLogitsLoss",
    "BatchNorm",
    "Chain",
    "Constant",
    "Conv",
    "ConvTranspose",
    "CrossEntropyLoss",
    "Declaration",
    "Dense",
    "Dropout",
    "EarlyStopping",
    "Flatten",
    "FrontLastPenalty",
    "GlobalAvgPool",
    "GroupNorm",
    "History",
    "HuberLoss",
    "L1Loss",
    "L1Penalty",
    "L2Penalty",
    "Layer",
    "LayerNorm",
    "LogSoftmax",
    "Loss",
    "MSELoss",
    "MaxPool",
    "Normal",
    "Objective",
    "Optimizer",
    "Pad",
    "Parallel",
    "Penalty",
    "Program",
    "RMSNorm",
    "RMSProp",
    "Recorder",
    "Reshape",
    "Residual",
    "Scale",
    "Series",
    "Shift",
    "Softmax",
    "SpatialDropout",
    "SquaredLoss",
    "TrainingState",
    "Uniform",
    "Updater",
    "Upsample",
    "VarianceScaling",
    "View",
    "accuracy",
    "activation",
    "data",
    "elu",
    "expr",
    "gelu",
    "identity",
    "leaky_relu",
    "loss",
    "make_elu",
    "make_leaky_relu",
    "mish",
    "models",
    "relu",
    "schedules",
    "selu",
    "sigmoid",
    "silu",
    "sine",
    "softplus",
    "softsign",
    "tanh",
    "testing",
    "train",
    "σ",
]
