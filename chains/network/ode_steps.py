"""The steps that a network's differential equation takes, and why a solution ends before its last time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.backends.places import is_elsewhere
from chains.layers.ode import ODE
from chains.layers.ode_trace import trace_of
from chains.messages import counted
from chains.network import arguments
from chains.network.recorded import Recorded


@dataclass(frozen=True)
class Trajectory:
    """The way of one solution.

    Parameters
    ----------
    times : array, shape (steps + 1,)
        The ends of the steps that were taken, behind the first time.
    states : array, shape (steps + 1, n)
        The states there.
    refused : int
        How many further steps were tried, and refused by step control.
    problem : str
        Why the last time is not reached, or where the state is not finite; empty where all is well.
    """

    times: np.ndarray
    states: np.ndarray
    refused: int
    problem: str


def ode_steps(net: Recorded, p: Any, x: Any) -> list[Trajectory]:
    """The steps of a network's differential equation for each of a batch of inputs.

    Parameters
    ----------
    net : Chain
        A network with an `ODE` among its layers; the first of them counts.
    p, x : array, shapes (n_params,) and (batch, *input_shape)
        As in a call of the network.

    Returns
    -------
    list of Trajectory
        One for each sample: `times`, `states`, `refused`, and `problem` in words.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for a network without such a layer.
    """
    arguments.check_is("net", net, Recorded, "a network, such as Chain(ODE(rhs, times))")
    at = next((k for k, layer in enumerate(net.layers) if isinstance(layer, ODE)), None)
    if at is None:
        raise ValueError(f"`net` (={net!r}) has no ODE among its layers")
    p = arguments.check_params(p, net.n_params)
    before, ode = net[:at], net.layers[at]
    assert isinstance(ode, ODE)
    start = before(x, p[: before.n_params]) if at else arguments.check_input(x, net.input_shape)
    trace = type(net)(trace_of(ode), input_shape=net.network.declaration.children[at].input, backend=net.backend)
    rows = trace(np.asarray(start, p.dtype), p[before.n_params :][: trace.n_params])
    return [_trajectory(ode, number, own, np.asarray(row)) for number, (own, row) in enumerate(zip(start, rows, strict=True))]


def controls_steps(net: Recorded) -> bool:
    """Whether a layer of the network chooses the lengths of its steps, so that it may fail."""
    return any(isinstance(layer, ODE) and layer.rtol is not None and layer.checked for layer in net.layers)


def check_solved(net: Recorded, p: Any, x: Any, results: np.ndarray) -> None:
    """Raise FloatingPointError where results are NaN since some solution ends before its last time."""
    if is_elsewhere(results) or not np.isnan(results).any():
        return
    problem = next((way.problem for way in ode_steps(net, p, x) if way.problem), "")
    if problem:
        raise FloatingPointError(problem)


def _trajectory(ode: ODE, number: int, start: np.ndarray, rows: np.ndarray) -> Trajectory:
    """The steps in the rows of a trace."""
    (begins, lengths, tried), states = rows[:-1, :3].T, rows[:, 3:]
    wanted = np.array(ode.times) if isinstance(ode.times, tuple) else np.asarray(start[-ode.times :], np.float64)
    if ode.rtol is None:
        taken = waiting = np.flatnonzero(begins < wanted.max())
        times = np.append(wanted[:1], np.append(begins[1:], begins[-1] + lengths[-1])[taken])
        reached = True
    else:
        clock = _clock(ode, start, rows.dtype)
        waiting, taken = np.flatnonzero(begins < clock.max()), np.flatnonzero(lengths)
        since = np.append(clock[:1], rows[1:, 0][taken])
        here = since[:, None] == clock
        times = np.where(here.any(1), wanted[here.argmax(1)], since + wanted[0])
        reached = since[-1] >= clock.max()
    way = times, np.concatenate([states[:1], states[taken + 1]])
    refused = len(waiting) - len(taken)
    return Trajectory(*way, refused, _problem(ode, number, wanted, way, refused, tried, bool(reached)))


def _clock(ode: ODE, start: np.ndarray, dtype: Any) -> np.ndarray:
    """The times since the first one, as step control has them."""
    if isinstance(ode.times, tuple):
        return (np.array(ode.times) - ode.times[0]).astype(dtype)
    times = np.asarray(start[-ode.times :], dtype)
    return times - times[0]


def _problem(
    ode: ODE,
    number: int,
    wanted: np.ndarray,
    way: tuple[np.ndarray, np.ndarray],
    refused: int,
    tried: np.ndarray,
    reached: bool,
) -> str:
    """What ended a solution early, with what to do about it."""
    (times, states), last = way, wanted.max()
    if ode.rtol is not None and not (wanted >= wanted[0]).all():
        return f"trajectory {number} has times {wanted}, but the first must come before the others"
    bad = ~np.isfinite(states).all(1)
    if bad[0]:
        return f"trajectory {number} starts from a state that is not finite, {states[0]}"
    if bad.any():
        k = int(np.argmax(bad))
        step = f"step {k} of {len(times) - 1}, from t = {times[k - 1]:g} to {times[k]:g}"
        remedy = "more steps, or step control by `rtol`" if ode.rtol is None else "a smaller rtol"
        return f"trajectory {number} is not finite behind {step}: the solution grows without bound, or it needs {remedy}"
    if ode.rtol is None or reached:
        return ""
    return (
        f"trajectory {number} stops at t = {times[-1]:.9g} of {last:.9g}, after {counted(len(tried), 'tried step')} "
        f"(`max_steps`), {refused} of them refused, the last one {tried[-1]:.2g} long. The problem is stiff there, or its "
        f"solution grows without bound; otherwise raise max_steps, or rtol (={ode.rtol:g})"
    )
