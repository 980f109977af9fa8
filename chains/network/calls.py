"""Calls of a network: outputs, loss, gradient, vector-Jacobian product.

Each function is what is particular to a method of `Chain`; `chains.network.call` has what all have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

import numpy as np

from chains.backends import Executable
from chains.network import executables, member_calls, record
from chains.network.agreement import agreement
from chains.network.call import (
    Call,
    Method,
    add_shortcut,
    check_lengths,
    check_numbers,
    check_point,
    check_problem,
    door,
    is_pair,
    run,
)
from chains.network.failed_solutions import check_solved
from chains.support import arguments
from chains.support.checks import check_flags
from chains.support.memory import is_elsewhere
from chains.support.messages import counted, shown


@door(Method("call", "net(x, p)", "x p lengths state mode seed out", "p x", ("y",), plain="lengths state seed"))
def forward(call: Call) -> np.ndarray:
    """The outputs at a batch of inputs; see `Chain.__call__`."""
    network, out = call.network, call.out
    call.training = arguments.check_mode(call.mode)
    if call.is_ensemble:
        return member_calls.outputs(call, forward)
    check_point(call)
    executable = executables.forward_pass(network, call.p, call.training, call.lengths is not None)
    check_lengths(call)
    x, shape = call.data["x"], (len(call.x), *network.output_shape)
    to_host = isinstance(out, np.ndarray) and is_elsewhere(call.p) and not is_elsewhere(x) and not is_elsewhere(out)
    if to_host:
        arguments.check_out(out, shape, call.dtype, {"x": x})
    result = run(call, executable, {"y": (shape, None if to_host else out, "out")})["y"]
    if network.may_fail:
        check_solved(call, result)
    else:
        add_shortcut(call, executable)
    if not to_host:
        return result
    call.memory.assign(out, result)
    return out


GRADIENT = Method(
    "value_and_grad", "net.value_and_grad(p, x, t, loss)",
    "p x t loss weights lengths penalty state mode seed out check_finite comm",
    "p x t", ("g",), may="weights", plain="lengths state seed check_finite comm",
)  # fmt: skip


@door(GRADIENT)
def value_and_grad(call: Call) -> tuple[float, np.ndarray]:
    """The loss, plus the penalty, and its gradient with respect to the parameters; see `Chain.value_and_grad`."""
    if call.comm is None:
        return _gradient(call)
    with agreement(call.comm) as call.processes:
        return _gradient(call)


def _gradient(call: Call) -> tuple[float, np.ndarray]:
    call.training = arguments.check_mode(call.mode)
    if call.is_ensemble:
        return member_calls.value_and_grad(call, value_and_grad, _gradient_program)
    check_problem(call)
    executable = _gradient_program(call)
    if call.check_finite:
        check_flags(check_finite=call.check_finite)
        check_numbers(call, call.dtype, p=call.p)
    found = run(call, executable, {"g": (call.p.shape, call.out, "out"), "value": ((), None, "")})
    value = found["value"]
    if call.network.may_fail:
        check_solved(call, value)
        if call.processes is not None and np.isnan(value):
            raise FloatingPointError("the loss is nan: a solution of another process ends before its last time")
    else:
        add_shortcut(call, executable)
    return value.item(), found["g"]


def _gradient_program(call: Call) -> Executable:
    return _found(call, partial(executables.gradient_of, call), call.training, call.processes is not None)


@door(
    Method(
        "loss", "net.loss(p, x, t, loss)", "p x t loss weights lengths penalty state", "p x t", plain="weights lengths state"
    )
)
def loss(call: Call) -> float:
    """The loss, plus the penalty; see `Chain.loss`."""
    check_problem(call)
    executable = _found(call, partial(executables.of_criterion, call, "loss", record.loss))
    value = run(call, executable, {"value": ((), None, "")})["value"]
    add_shortcut(call, executable)
    return float(value)


def _found(call: Call, find: Callable[[], Executable], *kind: Hashable) -> Executable:
    """The program of a loss and a penalty, which are found faster by identity than by equality."""
    kind = call.usage, call.p.dtype, *call.shapes, *kind
    return call.network.programs_at(call.p).recent(kind, (call.loss, call.penalty), find)


@door(
    Method("vjp", "net.vjp(p, x, dy)", "p x dy lengths state mode seed out", "p x dy", ("g", "dx"), plain="lengths state seed")
)
def vjp(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of ``sum(dy * net(x, p))`` with respect to parameters and inputs; see `Chain.vjp`."""
    out = (None, None) if call.out is None else call.out
    if call.out is not None and not is_pair(out):
        raise TypeError(f"`out` (={shown(out)}) must be a pair of arrays, for the parameters and for the inputs")
    call.training = arguments.check_mode(call.mode)
    check_point(call)
    x, dy = call.data["x"], arguments.check_input(call.dy, call.network.output_shape, "dy", "output")
    if len(dy) != len(x):
        raise ValueError(f"`dy` has shape {dy.shape}, but `x` is a batch of {len(x)}: both need {counted(len(x), 'sample')}")
    executable = executables.backward_pass(call.network, call.p, call.training, call.lengths is not None)
    call.data["dy"] = dy
    check_lengths(call)
    found = run(call, executable, {"g": (call.p.shape, out[0], "out[0]"), "dx": (x.shape, out[1], "out[1]")})
    add_shortcut(call, executable)
    return found["g"], found["dx"]
