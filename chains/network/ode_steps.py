"""The steps of a network's differential equation, and the reason if a solution ends before its last time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.layers.base import Declaration
from chains.layers.ode import ODE, trace_of
from chains.network import checks, inner_layers
from chains.network.network import Network, network_of
from chains.support import arguments
from chains.support.messages import counted

SMALL = 1e-4  # of the whole time: a shorter step of step control is a sign of a stiff problem,
MANY = 0.1  # and so is a larger share of refused steps
LEAST_RTOL = 1e-6  # below which rounding in float32 refuses steps


@dataclass(frozen=True)
class Trajectory:
    """One solution.

    Parameters
    ----------
    times : array, shape (steps + 1,)
        The first time, then the ends of the steps.
    states : array, shape (steps + 1, n)
        The states at these times.
    refused : int
        The number of steps that step control refused.
    problem : str
        The reason why the last time is not reached or the state is not finite; else empty.
    """

    times: np.ndarray
    states: np.ndarray
    refused: int
    problem: str

    def __repr__(self) -> str:
        steps = (
            f"{counted(len(self.times) - 1, 'step')} from {self.times[0]:.4g} to {self.times[-1]:.4g}, {self.refused} refused"
        )
        return f"<{steps}{self.problem and f': {self.problem}'}>"


def ode_steps(net: Any, p: Any, x: Any, *, lengths: Any = None) -> list[Trajectory]:
    """The steps of a network's differential equation for each of a batch of inputs.

    Parameters
    ----------
    net : Chain
        A network with an `ODE` among its layers, or within chains, `Residual` or `Parallel`; the first one is used.
    p, x : array, shapes (n_params,) and (batch, *input_shape)
        As in a call of the network.
    lengths : array, shape (batch,), optional
        The number of times of each trajectory, as in a call: it ends at the last of these.

    Returns
    -------
    list of Trajectory
        One for each sample, with `times`, `states`, `refused` and `problem`.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for a network without such a layer.
    """
    network = network_of(net)
    whole = network.declaration
    odes = list(inner_layers.find(whole, (ODE,)))
    if not odes:
        raise ValueError(f"`net` (={net!r}) has no ODE among its layers")
    p = checks.check_params(network, p, x, "ode_steps(net, p, x)")
    x = arguments.check_input(x, network.input_shape, ids=network.id_count)
    lengths = checks.lengths_of(lengths, x, whole).get("lengths")
    found = next(inner_layers.with_inputs(network, whole, p, x, (ODE,), lengths), None)
    if found is None:
        raise ValueError(f"`net` has layer {odes[0].name}, {odes[0].layer!r}, within a layer whose computation is not followed")
    return trajectories(network, *found, lengths)


def trajectories(network: Network, d: Declaration, p: np.ndarray, x: Any, lengths: Any) -> list[Trajectory]:
    """The solutions of a differential equation from each of a batch of inputs."""
    ode = d.layer
    assert isinstance(ode, ODE)
    if network.declaration.has_time_axis:  # lengths are those of another layer's input
        lengths = None
    rows = inner_layers.outputs(network.part(trace_of(ode), d.input), p, np.asarray(x, p.dtype), lengths)
    sound = bool(np.isfinite(p).all())
    counts = [None] * len(rows) if lengths is None else np.asarray(lengths).tolist()
    return [
        _trajectory(ode, number, _times(ode, own, count), np.asarray(row), sound, _misfit(ode, own, count))
        for number, (own, row, count) in enumerate(zip(x, rows, counts, strict=True))
    ]


def _times(ode: ODE, sample: np.ndarray, count: int | None) -> np.ndarray:
    """The times of a sample, up to its length."""
    return np.asarray(ode.times if isinstance(ode.times, tuple) else sample[-ode.times :], np.float64)[:count]


def _misfit(ode: ODE, sample: np.ndarray, count: int | None) -> str:
    """Why the doses of a sample do not fit its times, if it has any."""
    if ode.doses is None:
        return ""
    end = len(sample) - ode.own_times
    return ode.doses.problem(sample[end - ode.doses.width : end], _times(ode, sample, count))


def _trajectory(ode: ODE, number: int, requested: np.ndarray, rows: np.ndarray, sound: bool, misfit: str) -> Trajectory:
    """The steps in the rows of a trace up to the `requested` times; `sound` says whether parameters are finite."""
    (begins, lengths, tried), states = rows[:-1, :3].T, rows[:, 3:]
    if ode.rtol is None:
        taken = waiting = np.flatnonzero(begins < requested.max())
        times = np.append(requested[:1], np.append(begins[1:], begins[-1] + lengths[-1])[taken])
        reached = True
    else:
        clock = _clock(ode, requested, rows.dtype)
        waiting, taken = np.flatnonzero(begins < clock.max()), np.flatnonzero(lengths)
        since = np.append(clock[:1], rows[1:, 0][taken])
        here = since[:, None] == clock
        times = np.where(here.any(1), requested[here.argmax(1)], since + requested[0])
        reached = since[-1] >= clock.max()
    states = np.concatenate([states[:1], states[taken + 1]])
    refused = len(waiting) - len(taken)
    if ode.doses is not None:  # between doses at equal times there are steps of length 0
        refused -= int(np.sum((tried == 0.0)[np.setdiff1d(waiting, taken)]))
    found = Trajectory(times, states, refused, "")
    problem = misfit and f"trajectory {number}: {misfit}"
    problem = problem or _bad_times(ode, number, requested) or _not_finite(ode, number, found)
    if not problem and ode.rtol is not None and not reached:
        problem = _out_of_steps(ode, number, requested, found, tried)
    if problem and not sound:
        problem = f"trajectory {number}: the parameters of the right-hand side are not finite"
    return replace(found, problem=problem)


def _clock(ode: ODE, times: np.ndarray, dtype: Any) -> np.ndarray:
    """The times since the first one, as in step control."""
    if isinstance(ode.times, tuple):
        return (times - times[0]).astype(dtype)
    return times.astype(dtype) - times[:1].astype(dtype)


def _bad_times(ode: ODE, number: int, requested: np.ndarray) -> str:
    """Why there is no solution at these times; else empty."""
    if not np.isfinite(requested).all():
        return f"trajectory {number} has times {requested}, but they must be finite"
    if ode.rtol is not None and not (requested >= requested[0]).all():
        return f"trajectory {number} has times {requested}, but the first must come before the others"
    if (ode.rtol is None or ode.doses is not None) and (falls := np.diff(requested) < 0.0).any():
        k = int(np.argmax(falls))
        return f"trajectory {number} has times that must ascend, but {requested[k + 1]:g} comes after {requested[k]:g}"
    return ""


def _not_finite(ode: ODE, number: int, found: Trajectory) -> str:
    """The step after which a solution is not finite, with advice; else empty."""
    times, states = found.times, found.states
    bad = ~np.isfinite(states).all(1)
    if bad[0]:
        return f"trajectory {number} starts from a state that is not finite, {states[0]}"
    if bad.any():
        k = int(np.argmax(bad))
        step = f"step {k} of {len(times) - 1}, from t = {times[k - 1]:g} to {times[k]:g}"
        remedy = "more steps, or step control by `rtol`" if ode.rtol is None else "a smaller rtol"
        if ode.implicit:
            remedy += ", for Newton's iterations to converge"
        reasons = f"the solution grows without bound, the right-hand side is not defined there, or it needs {remedy}"
        return f"trajectory {number} is not finite after {step}: {reasons}"
    return ""


def _out_of_steps(ode: ODE, number: int, requested: np.ndarray, found: Trajectory, tried: np.ndarray) -> str:
    """Why step control did not reach the last time, with advice."""
    times, refused, last = found.times, found.refused, requested.max()
    if np.isnan(tried[-1]):
        return f"trajectory {number} stops at t = {times[-1]:.9g} of {last:.9g}: the right-hand side is not finite there"
    if found.states.dtype == np.float32 and (ode.rtol or 1.0) < LEAST_RTOL:
        reason = "Float32 rounds by more than rtol allows: pass parameters of float64, or raise"
    elif refused > MANY * len(tried) or tried[-1] < SMALL * (last - requested[0]):
        cause = "Perhaps the" if ode.implicit else "The problem is stiff there, which method='kvaerno5' is for, or its"
        reason = f"{cause} solution grows without bound; otherwise raise max_steps, or"
    else:
        reason = "Raise max_steps, or"
    return (
        f"trajectory {number} stops at t = {times[-1]:.9g} of {last:.9g}, after {counted(len(tried), 'tried step')} "
        f"(`max_steps`), {refused} of them refused, the last one {tried[-1]:.2g} long. {reason} rtol (={ode.rtol:g})"
    )
