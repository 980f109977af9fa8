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
from chains.history import History
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
from chains.minimize import minimize
from chains.objective import Objective
from chains.optimizers import SGD, Adagrad, Adam, AdamW, Optimizer, RMSProp
from chains.penalties import FrontLastPenalty, L1Penalty, L2Penalty, Penalty
from chains.program import Program, Recorder
from chains.steps import Updater
from chains.train import TrainingState, train
from chains.view import View

__version__ = "0.1.0"
