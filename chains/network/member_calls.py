"""Calls of an ensemble: outputs and gradients of all members, in one call of machine code where the backend has such calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.network import checks, executables
from chains.network.call import Call, state_of
from chains.network.ensembles import Members, add_inputs, add_state, check_data, check_members
from chains.network.failed_solutions import check_solved
from chains.network.programs import Repeated
from chains.support import arguments
from chains.support.memory import HOST, memory_of
from chains.support.streams import member_seeds


def outputs(call: Call, one: Callable[..., np.ndarray]) -> np.ndarray:
    """The outputs of all members, shape (members, batch, *output_shape); `one` computes those of a member."""
    if (quick := _repeated(call)) is not None:
        y: np.ndarray = quick
        return y
    members = _members(call)
    shape = (members.count, add_inputs(members, call), *call.network.output_shape)
    y = _checked(call, members, shape)
    executable = executables.forward_pass(call.network, call.p[0], call.training, call.lengths is not None)
    seeds = _seeds(call, executable)
    if _run(call, members, executable, {"y": y}, seeds):
        return y
    for member, own in enumerate(seeds):
        given = members.of(member) | {"p": call.p[member], "seed": own, "out": y[member]}
        with _named(member):
            one(call.network, **{**call.given, **given})
    return y


def value_and_grad(call: Call, one: Callable[..., Any], program: Callable[[Call], Executable]) -> tuple[Any, np.ndarray]:
    """The losses of all members, shape (members,), float64, and their gradients.

    `one` computes those of a member, and `program` finds the executable of a member's call.
    """
    if (quick := _repeated(call)) is not None:
        return quick[0].astype(np.float64), quick[1]
    members = check_data(call, _members(call))
    if call.check_finite:
        arguments.check_finite(call.dtype, p=call.p, **members.with_counted_targets(call.network.declaration))
    g, values = _checked(call, members, call.p.shape), np.empty(members.count)
    executable = program(_member(call, members, 0))
    seeds, found = _seeds(call, executable), np.empty(members.count, call.dtype)
    if _run(call, members, executable, {"value": found, "g": g}, seeds):
        return found.astype(np.float64), g
    rest = {**call.given, "check_finite": False, "comm": call.processes}
    for member, own in enumerate(seeds):
        given = members.of(member) | {"p": call.p[member], "seed": own, "out": g[member]}
        with _named(member):
            values[member], _ = one(call.network, **{**rest, **given})
    return values, g


def _member(call: Call, members: Members, member: int) -> Call:
    """The call of one member, with its checked data."""
    own = members.of(member)
    one = Call(call.network, {**call.given, **own, "p": call.p[member]}, call.method)
    one.data = {name: array for name, array in own.items() if name != "state"}
    one.training, one.processes = call.training, call.processes
    return one


def _run(call: Call, members: Members, executable: Executable, results: dict[str, np.ndarray], seeds: list[int]) -> bool:
    """Run an executable for all members together, which fills the `results`. Returns whether its backend can.

    All other arguments are checked before anything is written.
    """
    if memory_of(call.p) is not HOST or call.processes is not None:
        return False
    whole = executable.for_members(members.count, {"p", "state", "random", *members.own, *results})
    if whole is None:
        return False
    if call.training:
        call.network.check_batch(members.samples)
    if call.state is None:
        state_of(call, executable.program, {})
    arrays = {**members.arrays, "p": call.p, **results}
    if "random" in executable.program.buffers:
        arrays["random"] = np.array([[seed, 0] for seed in seeds], np.uint64)
    whole(members.samples, arrays)
    if call.network.may_fail:
        for member, result in enumerate(next(iter(results.values()))):
            if np.isnan(result).any():
                with _named(member):
                    check_solved(_member(call, members, member), result)
    else:
        _add_shortcut(call, members, whole, tuple(results))
    return True


def _repeated(call: Call) -> Any:
    """The results of a function in machine code for such calls; None if there is none, or if it declines these arrays.

    It takes contiguous arrays. Others are copied here, once for all members.
    """
    inputs = [array for array in (call.x, _column(call), call.weights) if array is not None]
    if not call.plain or not all(type(array) is np.ndarray for array in (call.p, *inputs)):
        return None
    quick = call.network.shortcuts.find(_kind(call), call.mode, call.p, call.x, call.loss, call.penalty)
    if quick is None:
        return None
    outs = (call.out,) if call.loss is None else (None, call.out)
    return quick(call.p, *(array if array.flags.c_contiguous else array.copy() for array in inputs), *outs)


def _column(call: Call) -> Any:
    """The targets; those of shape (samples,) that mean (samples, 1) in this shape."""
    t = call.t
    return t[:, None] if type(t) is np.ndarray and checks.is_column(t, call.network.output_shape, call.loss) else t


def _kind(call: Call) -> tuple[Any, ...]:
    """The kind of a call with a shortcut."""
    shapes = [None if array is None else array.shape for array in (call.p, call.t, call.weights)]
    return call.usage, *shapes


def _add_shortcut(call: Call, members: Members, whole: Executable, results: tuple[str, ...]) -> None:
    """Provide a function in machine code for calls like this one, unless it has arguments that such a function cannot check."""
    data = members.arrays
    inputs: dict[str, Any] = {name: data[name] for name in ("x", "t", "weights") if name in data}
    given: dict[str, Any] = {"x": call.x, "t": _column(call), "weights": call.weights}
    if not call.plain or any(type(given[name]) is not np.ndarray or given[name].shape != data[name].shape for name in inputs):
        return
    check = None if "t" not in data else checks.target_check(call.network.output_shape, call.loss)
    if check is not None and ("weights" in data or "t" in members.own):
        return
    arrays = {"p": call.p, **inputs}
    repeated = Repeated(_kind(call), call.mode, arrays, results, call.loss, call.penalty, check, members.samples)
    call.network.shortcuts.add(whole, repeated)


def _members(call: Call) -> Members:
    """The members whose parameters are the rows of `p`, which are checked here."""
    checks.check_order(call.network, call.p, call.x, call.usage)
    call.p = check_members(call.p, call.network.n_params)
    return Members(len(call.p))


def _seeds(call: Call, executable: Executable) -> list[int]:
    """The seeds of the members; the given one for all where no random numbers are drawn, since calls with 0 are the fastest."""
    seed, count = arguments.check_seed(call.seed), len(call.p)
    return member_seeds(count, seed) if "random" in executable.program.buffers else [seed] * count


def _checked(call: Call, members: Members, shape: tuple[int, ...]) -> np.ndarray:
    """The array to fill with results of all members. Adds their states."""
    add_state(call, members, updated=call.training)
    arguments.to_device_of(call.p, members.arrays, move=False)
    if call.out is None:
        return call.memory.empty(shape, call.dtype)
    return arguments.check_out(call.out, shape, call.dtype, members.arrays | {"p": call.p})


@contextmanager
def _named(member: int) -> Iterator[None]:
    """A context: errors about numbers name the member."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"member {member}: {error}") from None
