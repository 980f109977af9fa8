"""Calls of a network: outputs, loss, gradient, vector-Jacobian product.

A repeated call finds its function in machine code (`chains.network.programs.Shortcuts`). Any other one checks its arguments,
finds its program, or records it, and runs that on the arrays (`chains.network.executables`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.losses import Loss
from chains.network import checks, ensembles, executables, record
from chains.network.failed_solutions import check_solved
from chains.network.network import Network
from chains.penalties import Penalty
from chains.support import arguments
from chains.support.checks import check_flags
from chains.support.memory import is_elsewhere, memory_of
from chains.support.messages import counted, shown

_SEED = 0  # the default


def forward(network: Network, x: Any, p: Any, lengths: Any, state: Any, mode: str, seed: int, out: Any) -> np.ndarray:
    """The outputs at a batch of inputs; see `Chain.__call__`."""
    plain = state is None and lengths is None and seed is _SEED
    quick = network.shortcuts.find("forward", mode, p, x) if plain else None
    if quick is not None and (found := quick(p, x, out)) is not None:
        return found
    training = arguments.check_mode(mode)
    if ensembles.is_ensemble(p):
        checks.check_order(network, p, x, "net(x, p)")
        return ensembles.call(network, forward, x, p, lengths, state, mode, seed, out)
    p = checks.check_params(network, p, x, "net(x, p)")
    x = arguments.check_input(x, network.input_shape, ids=network.id_count)
    executable = executables.forward_pass(network, p, training, lengths is not None)
    data = {"x": x, **checks.lengths_of(lengths, x, network.declaration)}
    shape = (len(x), *network.output_shape)
    to_host = isinstance(out, np.ndarray) and is_elsewhere(p) and not is_elsewhere(x) and not is_elsewhere(out)
    if to_host:
        arguments.check_out(out, shape, p.dtype, {"x": x})
    y = shape, None if to_host else out, "out"
    result = executables.run(network, executable, p, data, {"y": y}, state, training, seed)["y"]
    if network.may_fail:
        check_solved(network, p, x, result, lengths=lengths)
    elif plain:
        network.shortcuts.add("forward", mode, executable, {"p": p, "x": x}, ["y"])
    if not to_host:
        return result
    memory_of(p).assign(out, result)
    return out


def value_and_grad(
    network: Network, p: Any, x: Any, t: Any, loss: Loss, weights: Any, lengths: Any, penalty: Penalty | None, state: Any,
    mode: str, seed: int, out: Any, check_finite: bool, comm: Any,
) -> tuple[float, np.ndarray]:  # fmt: skip
    """The loss, plus the penalty, and its gradient with respect to the parameters; see `Chain.value_and_grad`."""
    plain = lengths is None and state is None and seed is _SEED and not check_finite and comm is None
    way, given = ("gradient", ()) if weights is None else (("gradient", getattr(weights, "ndim", 0)), (weights,))
    quick = network.shortcuts.find(way, mode, p, x, loss, penalty) if plain else None
    if quick is not None:
        found = quick(p, x, t, *given, out)
        if found is None and type(t) is np.ndarray and checks.is_column(t, network.output_shape, loss):
            found = quick(p, x, t[:, None], *given, out)
        if found is not None:
            return found
    with executables.agreement(comm) as processes:
        return _value_and_grad(
            network, p, x, t, loss, weights, lengths, penalty, state, mode, seed, out, check_finite, processes,
            way if plain else None,
        )  # fmt: skip


def _value_and_grad(
    network: Network, p: Any, x: Any, t: Any, loss: Loss, weights: Any, lengths: Any, penalty: Penalty | None, state: Any,
    mode: str, seed: int, out: Any, check_finite: bool, processes: executables.Agreement | None, way: Any,
) -> tuple[float, np.ndarray]:  # fmt: skip
    """The general path of `value_and_grad`. Provides a shortcut in this `way`, unless that is None."""
    training = arguments.check_mode(mode)
    if ensembles.is_ensemble(p):
        checks.check_order(network, p, x, "net.value_and_grad(p, x, t, loss)")
        one = partial(value_and_grad, network, loss=loss, penalty=penalty, mode=mode, comm=processes)
        return ensembles.value_and_grad(network, one, p, x, t, loss, weights, lengths, state, mode, seed, out, check_finite)
    p = checks.check_params(network, p, x, "net.value_and_grad(p, x, t, loss)")
    data = checks.check_data(network.declaration, x, t, loss, weights, lengths)
    shapes, parallel = checks.target_shapes(data), processes is not None

    def find() -> Executable:
        return executables.gradient_of(
            network, p, executables.criterion(network, loss, *shapes, penalty), p.dtype, training, parallel
        )

    kind = ("gradient", p.dtype, training, *shapes, parallel)
    executable = network.programs_at(p).recent(kind, (loss, penalty), find)
    if check_finite:
        check_flags(check_finite=check_finite)
        arguments.check_finite(p.dtype, p=p, **checks.with_counted_targets(network.declaration, data))
    outs = {"g": (p.shape, out, "out"), "value": ((), None, "")}
    found = executables.run(network, executable, p, data, outs, state, training, seed, processes)
    value, g = found["value"], found["g"]
    if network.may_fail:
        check_solved(network, p, data["x"], value, lengths=lengths)
        if processes is not None and np.isnan(value):
            raise FloatingPointError("the loss is nan: a solution of another process ends before its last time")
    elif way is not None:
        check = checks.target_check(network.output_shape, loss)
        if weights is None or check is None:  # of targets with weights, only some are checked
            network.shortcuts.add(way, mode, executable, {"p": p, **data}, ["g"], loss, penalty, check)
    return value.item(), g


def loss(
    network: Network, p: Any, x: Any, t: Any, loss: Loss, weights: Any, lengths: Any, penalty: Penalty | None, state: Any
) -> float:
    """The loss, plus the penalty; see `Chain.loss`."""
    plain = weights is None and lengths is None and state is None
    quick = network.shortcuts.find("loss", None, p, x, loss, penalty) if plain else None
    if quick is not None:
        found = quick(p, x, t)
        if found is None and type(t) is np.ndarray and checks.is_column(t, network.output_shape, loss):
            found = quick(p, x, t[:, None])
        if found is not None:
            return found[0]
    p = checks.check_params(network, p, x, "net.loss(p, x, t, loss)")
    data = checks.check_data(network.declaration, x, t, loss, weights, lengths)
    shapes = checks.target_shapes(data)

    def find() -> Executable:
        criterion = executables.criterion(network, loss, *shapes, penalty)
        return network.program(p, ("loss", p.dtype), partial(record.loss, network, criterion, p.dtype, False), criterion)

    executable = network.programs_at(p).recent(("loss", p.dtype, *shapes), (loss, penalty), find)
    value = executables.run(network, executable, p, data, {"value": ((), None, "")}, state)["value"]
    if plain:
        network.shortcuts.add(
            "loss", None, executable, {"p": p, **data}, [], loss, penalty, checks.target_check(network.output_shape, loss)
        )
    return float(value)


def vjp(
    network: Network, p: Any, x: Any, dy: Any, lengths: Any, state: Any, mode: str, seed: int, out: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of ``sum(dy * net(x, p))`` with respect to parameters and inputs; see `Chain.vjp`."""
    if out is not None and (not isinstance(out, tuple) or len(out) != 2 or out[0] is None or out[1] is None):
        raise TypeError(f"`out` (={shown(out)}) must be a pair of arrays, for the parameters and for the inputs")
    given = (None, None) if out is None else out
    plain = state is None and lengths is None and seed is _SEED
    quick = network.shortcuts.find("vjp", mode, p, x) if plain else None
    if quick is not None and (found := quick(p, x, dy, given[0], given[1])) is not None:
        return found
    training = arguments.check_mode(mode)
    p = checks.check_params(network, p, x, "net.vjp(p, x, dy)")
    x = arguments.check_input(x, network.input_shape, ids=network.id_count)
    dy = arguments.check_input(dy, network.output_shape, "dy", "output")
    if len(dy) != len(x):
        raise ValueError(f"`dy` has shape {dy.shape}, but `x` is a batch of {len(x)}: both need {counted(len(x), 'sample')}")
    executable = executables.backward_pass(network, p, training, lengths is not None)
    data = {"x": x, "dy": dy, **checks.lengths_of(lengths, x, network.declaration)}
    outs = {"g": (p.shape, given[0], "out[0]"), "dx": (x.shape, given[1], "out[1]")}
    found = executables.run(network, executable, p, data, outs, state, training, seed)
    if plain:
        network.shortcuts.add("vjp", mode, executable, {"p": p, "x": x, "dy": dy}, ["g", "dx"])
    return found["g"], found["dx"]
