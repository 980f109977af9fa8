"""The losses of the members of an ensemble on their own data as a function of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np

from chains.backends.base import Fitter
from chains.minimize.rows import CompiledFits
from chains.network import ensembles
from chains.network.agreement import agreement
from chains.network.call import Call, Method, door
from chains.network.network import network_of
from chains.objectives.fits import fitter_of, started
from chains.objectives.free import FreeEnsembleObjective
from chains.objectives.objective import Objective, objective
from chains.support.arrays import as_array
from chains.support.checks import check_count
from chains.support.memory import HOST, memory_of
from chains.support.messages import counted


def own_members(call: Call) -> int | None:
    """The number of members that have separate data, along a first axis of `x`, `t` or `weights`; None if data are shared."""
    x, t, weights, loss = as_array("x", call.x), as_array("t", call.t), call.weights, call.loss
    shape = call.network.input_shape
    if x.ndim == len(shape) + 2 and x.shape[2:] == shape:
        return len(x)
    if x.ndim != len(shape) + 1:
        return None
    samples = len(x)
    if t.ndim > 1 and t.shape[1] == samples and not ensembles.fits(t, samples, call.network.output_shape, loss):
        return len(t)
    weights = None if weights is None else as_array("weights", weights)
    if weights is not None and weights.ndim > 1 and weights.shape[1] == samples:
        of_targets = weights.ndim == t.ndim and all(n in (1, m) for n, m in zip(weights.shape, t.shape, strict=True))
        if len(weights) != samples or not of_targets:
            return len(weights)
    return None


@door(Method("objective", "net.objective(x, t, loss)", "net x t loss penalty weights lengths state mode seed comm"))
def objective_of(call: Call) -> Objective | EnsembleObjective:
    """The loss on this data as a function of the parameters alone; see `Chain.objective`."""
    with agreement(call.comm) as call.processes:
        count = own_members(call)
        if count is not None and (call.lengths is not None or call.comm is not None):
            raise ValueError("`lengths` and `comm` are for data of one network, but here each member has its own")
        if count is None:
            return objective(call)
    if not count:
        raise ValueError("`x`, `t` or `weights` is of no members: data of members need one row at least")
    data = ensembles.check_data(call, ensembles.Members(count))
    shared = {name: getattr(call, name) for name in ("net", "loss", "penalty", "state", "mode", "seed")}
    return EnsembleObjective(data, partial(_made, shared))


def _made(shared: Mapping[str, Any], **own: Any) -> Objective:
    """The objective of a member, from its own data and the shared arguments."""
    return objective(Call(network_of(shared["net"]), {**shared, **own}), check_finite=False)  # others may fit


class EnsembleObjective:
    """``objective(P)`` returns the value and the gradient of each member on its own data. Made by `Chain.objective`.

    `chains.minimize` fits all members with it in one call. Each has the bits that it has alone.
    """

    def __init__(self, data: ensembles.Members, make: Callable[..., Objective]) -> None:
        self._data, self._make = data, make
        self._made: dict[int, Objective] = {}
        self.members = data.count
        self.n_params = self.member(0).n_params

    def member(self, k: int) -> Objective:
        """The objective of one member.

        Parameters
        ----------
        k : int
            Its number, from 0 to members - 1.
        """
        k = check_count("k", k, 0)
        if k >= self.members:
            raise ValueError(f"`k` (={k}) must be less than {self.members}, the number of members")
        if k not in self._made:
            self._made[k] = self._make(**self._data.of(k))
        return self._made[k]

    def __call__(self, p: Any) -> tuple[np.ndarray, Any]:
        """The values, shape (members,), and the gradients, shape (members, n_params).

        Parameters
        ----------
        p : array, shape (members, n_params)
            The parameters.
        """
        p = self._rows(p)
        values, g = np.empty(len(p)), memory_of(p).empty(p.shape, np.dtype(np.float64))
        for k, row in enumerate(p):
            values[k], g[k] = self.member(k)(row)
        return values, g

    def compiled_fits(self, p: np.ndarray, low: np.ndarray, high: np.ndarray, gtol: float, ftol: float) -> CompiledFits | None:
        """Levenberg-Marquardt from a row for each member in machine code, for `chains.minimize`, or None."""
        return started(self._fitter, p, low, high, gtol, ftol)

    @property
    def free(self) -> FreeEnsembleObjective:
        """The objective as a function of the parameters that are not frozen; a new one, with frozen numbers of its own."""
        return FreeEnsembleObjective(self, self.member(0)._trained)

    @cached_property
    def _fitter(self) -> Fitter | None:
        if any(memory_of(array) is not HOST for array in self._data.arrays.values()):
            return None
        first = self.member(0)
        return fitter_of(first.second_order, {**first.state, **self._data.arrays}, self._data.own, self.members)

    def value(self, p: Any) -> np.ndarray:
        """The values alone, shape (members,).

        Parameters
        ----------
        p : array, shape (members, n_params)
            The parameters.
        """
        return self(p)[0]

    def normal_equations(self, p: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `Objective.normal_equations`, with a first axis of members.

        Parameters
        ----------
        p : array, shape (members, n_params)
            The parameters.
        """
        found = [self.member(k).normal_equations(row) for k, row in enumerate(self._rows(p))]
        values, gradients, matrices = (np.array(each) for each in zip(*found, strict=True))
        return values, gradients, matrices

    def _rows(self, p: Any) -> Any:
        p = as_array("p", p)
        if p.shape != (self.members, self.n_params):
            raise ValueError(f"`p` has shape {p.shape}: wanted ({self.members}, {self.n_params}), a row for each member")
        return p

    def __reduce__(self) -> tuple[Any, ...]:
        return EnsembleObjective, (self._data, self._make)

    def __repr__(self) -> str:
        return f"<objectives of {counted(self.members, 'member')}, {counted(self.n_params, 'parameter')} each>"
