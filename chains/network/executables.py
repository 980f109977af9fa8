"""The executables of a network: its programs, found or recorded, ready to be run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from chains.activations import sigmoid
from chains.backends import Executable
from chains.layers.combine import last_layer
from chains.layers.softmax import Softmax
from chains.network import checks, record
from chains.network.call import Call, check_data
from chains.network.network import Network
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.program.program import Program
from chains.support.checks import check_is


def problem(call: Call) -> tuple[dict[str, np.ndarray], Criterion]:
    """The checked data of a call by buffer name, and the criterion to minimise."""
    check_data(call)
    return call.data, criterion(call)


def criterion(call: Call) -> Criterion:
    """The criterion of a call with checked data."""
    target, weights, masked = call.shapes
    return check_criterion(call.network, Criterion(call.loss, target, weights, call.penalty, masked))


def check_criterion(network: Network, criterion: Criterion) -> Criterion:
    """The criterion. Raises TypeError or ValueError for a loss that does not fit the last layer."""
    loss = criterion.loss
    checks.check_loss(loss)
    if loss.takes_logits:
        last = last_layer(network.declaration.layer)
        activations = getattr(last, "activation", None), getattr(last, "f", None)
        extra = "that layer" if isinstance(last, Softmax) else "its sigmoid" if sigmoid in activations else ""
        if extra:
            raise ValueError(f"{loss!r} takes logits, but the last layer is {last!r}: leave {extra} out")
    if criterion.penalty is not None:
        check_is("penalty", criterion.penalty, Penalty, "a penalty such as L2Penalty(1e-4)")
    return criterion


def forward_pass(network: Network, p: Any, training: bool, masked: bool = False) -> Executable:
    """A call of the network with these parameters."""
    make = partial(record.forward, network, p.dtype, training, masked=masked)
    return network.program(p, ("forward", p.dtype, training, masked), make)


def backward_pass(network: Network, p: Any, training: bool = False, masked: bool = False) -> Executable:
    """The pullback of a call with these parameters."""
    make = partial(record.vjp, network, p.dtype, training, masked=masked)
    return network.program(p, ("vjp", p.dtype, training, masked), make)


def gradient_of(call: Call, *, pure: bool = False) -> Executable:
    """The value and the gradient of a call's criterion."""
    kind, found = (call.dtype, call.training, pure, call.processes is not None), criterion(call)

    def make() -> Program:
        dtype, training, pure, parallel = kind
        return record.gradient(call.network, found, dtype, training, pure=pure, parallel=parallel)

    return call.network.program(call.like, ("gradient", *kind), make, found)


def of_criterion(call: Call, name: str, make: Callable[..., Program]) -> Executable:
    """A program of a call's criterion in the mode "eval", recorded by ``make(network, criterion, dtype)``."""
    found = criterion(call)
    return call.network.program(call.like, (name, call.dtype), partial(make, call.network, found, call.dtype), found)


def training_step(
    network: Network, p: Any, criterion: Criterion, optimizer: Optimizer, *, parallel: bool = False
) -> Executable:
    """A training step from `p`, for training loops."""
    make = partial(record.training_step, network, criterion, optimizer, p.dtype, parallel=parallel)
    return network.program(p, ("training step", p.dtype, parallel), make, criterion, optimizer)
