"""Neural networks so small that the framework is the bottleneck, and the same code when they grow.

>>> from chains import Chain, Dense, σ
>>> net = Chain(Dense(784, 30, σ), Dense(30, 10, σ))
"""

# The public names. `x as x` marks names as public for type checkers if `__all__` below leaves them out.
import typing

from chains import expr as expr
from chains.activations import activation as activation
from chains.activations import (
    elu,
    gelu,
    identity,
    leaky_relu,
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
from chains.backends import FallbackWarning as FallbackWarning
from chains.backends import NumpyOnlyWarning as NumpyOnlyWarning
from chains.chain import Chain
from chains.layers import (
    GRU,
    LSTM,
    ODE,
    RNN,
    SDE,
    Activation,
    Append,
    Attention,
    AvgPool,
    BatchNorm,
    CausalConv,
    Conv,
    ConvTranspose,
    Dense,
    Doses,
    Dropout,
    Embedding,
    Equations,
    Flatten,
    GlobalAvgPool,
    GroupNorm,
    LayerNorm,
    LogSoftmax,
    MaxPool,
    Pad,
    PositionalEncoding,
    Recurrent,
    Reshape,
    Residual,
    RMSNorm,
    Scale,
    Select,
    Shift,
    Softmax,
    SpatialDropout,
    SteadyState,
    TransformerBlock,
    Upsample,
)
from chains.layers import Layer as Layer
from chains.layers import Parallel as Parallel
from chains.layers import Series as Series
from chains.losses import BCEWithLogitsLoss, CrossEntropyLoss, HuberLoss, L1Loss, MSELoss, SquaredLoss
from chains.losses import Loss as Loss
from chains.losses import loss as loss
from chains.metrics import accuracy as accuracy
from chains.minimize.minimize import minimize as minimize
from chains.network.ode_steps import ode_steps as ode_steps
from chains.optimizers import SGD, Adagrad, Adam, AdamW, RMSProp
from chains.optimizers import Optimizer as Optimizer
from chains.penalties import FrontLastPenalty, L1Penalty, L2Penalty
from chains.penalties import Penalty as Penalty
from chains.support import late as _late
from chains.support.streams import member_seeds as member_seeds
from chains.support.threads import get_num_threads as get_num_threads
from chains.support.threads import num_threads as num_threads
from chains.support.threads import set_num_threads as set_num_threads
from chains.version import __version__ as __version__

# What not every program needs is imported when it is first used: a module takes about half a millisecond.
if typing.TYPE_CHECKING:
    from chains import data as data
    from chains import models as models
    from chains import schedules as schedules
    from chains import testing as testing
    from chains.callbacks import EarlyStopping
    from chains.exporting.export import export as export
    from chains.files import load as load
    from chains.files import save as save
    from chains.queueing.queue import Queue as Queue
    from chains.residuals.problem import ResidualProblem, Term
    from chains.residuals.weights import AdaptiveWeights as AdaptiveWeights
    from chains.sampling.laplace import Laplace as Laplace
    from chains.sampling.sample import HMC as HMC
    from chains.sampling.sample import sample as sample
    from chains.sampling.samplers import SGLD, SWAG
    from chains.solving.shooting import MultipleShooting as MultipleShooting
    from chains.solving.solve import solve as solve
    from chains.training.checkpoint import Checkpoint as Checkpoint
    from chains.training.history import History as History
    from chains.training.train import train as train
    from chains.training.updater import Updater as Updater

_ROOMS = frozenset(
    ("callbacks", "data", "exporting", "files", "models", "queueing", "sampling", "schedules", "solving", "testing", "training")
)
_LATE = {
    **{name: f"chains.{name}" for name in _ROOMS},
    "EarlyStopping": "chains.callbacks",
    "export": "chains.exporting.export",
    "load": "chains.files",
    "save": "chains.files",
    "Queue": "chains.queueing.queue",
    "ResidualProblem": "chains.residuals.problem",
    "Term": "chains.residuals.problem",
    "AdaptiveWeights": "chains.residuals.weights",
    "Laplace": "chains.sampling.laplace",
    "HMC": "chains.sampling.sample",
    "sample": "chains.sampling.sample",
    "SGLD": "chains.sampling.samplers",
    "SWAG": "chains.sampling.samplers",
    "MultipleShooting": "chains.solving.shooting",
    "solve": "chains.solving.solve",
    "Checkpoint": "chains.training.checkpoint",
    "History": "chains.training.history",
    "train": "chains.training.train",
    "Updater": "chains.training.updater",
}
if not typing.TYPE_CHECKING:  # to which any attribute would exist
    __getattr__ = _late.late_names(globals(), _LATE)


def __dir__() -> list[str]:
    """The public names, which editors offer."""
    modules = {"data", "expr", "models", "schedules", "testing"}
    own = {name for name in globals() if name.startswith("_") and not name.endswith("__")}
    shown = {name for name, thing in globals().items() if not isinstance(thing, type(typing))} - own
    return sorted(modules | shown | (_LATE.keys() - _ROOMS))


# The parts of networks. A star import leaves out names that are likely to have another meaning in the importing module:
# joblib's Parallel, pandas' Series, scipy.optimize's minimize, the user's own train, loss and data.
__all__ = [
    "GRU",
    "LSTM",
    "ODE",
    "RNN",
    "SDE",
    "SGD",
    "SGLD",
    "SWAG",
    "Activation",
    "Adagrad",
    "Adam",
    "AdamW",
    "Append",
    "Attention",
    "AvgPool",
    "BCEWithLogitsLoss",
    "BatchNorm",
    "CausalConv",
    "Chain",
    "Conv",
    "ConvTranspose",
    "CrossEntropyLoss",
    "Dense",
    "Doses",
    "Dropout",
    "EarlyStopping",
    "Embedding",
    "Equations",
    "Flatten",
    "FrontLastPenalty",
    "GlobalAvgPool",
    "GroupNorm",
    "HuberLoss",
    "L1Loss",
    "L1Penalty",
    "L2Penalty",
    "LayerNorm",
    "LogSoftmax",
    "MSELoss",
    "MaxPool",
    "MultipleShooting",
    "Pad",
    "PositionalEncoding",
    "RMSNorm",
    "RMSProp",
    "Recurrent",
    "Reshape",
    "Residual",
    "ResidualProblem",
    "Scale",
    "Select",
    "Shift",
    "Softmax",
    "SpatialDropout",
    "SquaredLoss",
    "SteadyState",
    "Term",
    "TransformerBlock",
    "Upsample",
    "elu",
    "gelu",
    "identity",
    "leaky_relu",
    "mish",
    "relu",
    "selu",
    "sigmoid",
    "silu",
    "sine",
    "softplus",
    "softsign",
    "tanh",
    "σ",
]
