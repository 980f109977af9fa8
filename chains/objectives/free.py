"""An objective as a function of its trained parameters alone, for samplers and searches that know no frozen ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.minimize.minimize import minimize as minimize_in_place
from chains.objectives.minimize_with_scipy import minimize_with_scipy
from chains.support.arrays import as_array
from chains.support.memory import HOST, memory_of
from chains.support.messages import counted


class FreeObjective:
    """``free(q)`` is the value and the gradient for the parameters that are not frozen. Made by ``objective.free``.

    ``free.restrict(p)`` returns `q`, and keeps the frozen numbers of `p` for all calls until the next ``restrict``. Each access
    of ``objective.free`` makes a new one, so that others do not change these numbers. Calls take rows (members, n_params) where
    those of the objective do.
    """

    def __init__(self, objective: Any, trained: Sequence[tuple[int, int]]) -> None:
        self._objective, self._trained = objective, list(trained)
        self.n_params = sum(stop - start for start, stop in trained)
        self._point: Any = None  # the latest `p` of `restrict`, or its rows if their frozen numbers differ

    def restrict(self, p: Any) -> np.ndarray:
        """The trained parameters of `p`, fresh and in float64. The frozen numbers of `p` are kept for later calls.

        Parameters
        ----------
        p : array, shape (objective.n_params,) or (members, objective.n_params)
            All parameters. Rows may have different frozen numbers; later calls then take as many rows.

        Raises
        ------
        ValueError
            For another shape.
        """
        p = as_array("p", p)
        if p.ndim not in (1, 2) or p.shape[-1] != self._objective.n_params:
            n = self._objective.n_params
            raise ValueError(f"`p` has shape {p.shape}, but must have shape ({n},) or (members, {n})")
        p = memory_of(p).contiguous(p.astype(np.float64))  # a copy
        if p.ndim == 1 or not len(p) or not bool(((p != p[:1]) & self._is_frozen(p)).any()):
            self._point = p if p.ndim == 1 else p[0] if len(p) else None
        else:
            self._point = p
        return self.select(p)

    def select(self, vectors: Any) -> Any:
        """The entries of the trained parameters along the last axis, fresh.

        Parameters
        ----------
        vectors : array, shape (..., objective.n_params)
            Any vectors of the length of all parameters, such as gradients and bounds.
        """
        selected = memory_of(vectors).empty((*vectors.shape[:-1], self.n_params), vectors.dtype)
        for start, stop, first in self._parts():
            selected[..., first : first + stop - start] = vectors[..., start:stop]
        return selected

    def expand(self, vectors: Any) -> Any:
        """Vectors of all parameters with these entries of the trained ones, and zero for the frozen ones.

        Parameters
        ----------
        vectors : array, shape (..., n_params)
            Vectors such as gradients and directions.
        """
        whole = memory_of(vectors).empty((*vectors.shape[:-1], self._objective.n_params), vectors.dtype)
        whole[...] = 0.0
        return self._assign(whole, vectors)

    def complete(self, q: Any) -> np.ndarray:
        """All parameters, fresh and in float64: `q`, and the frozen numbers of the latest `restrict`, with their bits.

        Parameters
        ----------
        q : array, shape (n_params,) or (members, n_params)
            The trained parameters.

        Raises
        ------
        ValueError
            For another shape, and if there are frozen parameters but no `restrict` before.
        """
        q, n = as_array("q", q), self.n_params
        if q.ndim not in (1, 2) or q.shape[-1] != n:
            raise ValueError(f"`q` has shape {q.shape}, but must have shape ({n},) or (members, {n}): the trained parameters")
        place = memory_of(q)
        whole = place.empty((*q.shape[:-1], self._objective.n_params), np.dtype(np.float64))
        if n < self._objective.n_params:
            if self._point is None:
                raise ValueError(
                    "the frozen numbers are unknown: call `restrict(p)` of this one first, which keeps those of `p`. Each "
                    "access of `objective.free` makes another one: write `free = objective.free`, and use `free`"
                )
            if self._point.ndim == 2 and q.shape[:-1] != self._point.shape[:-1]:
                raise ValueError(
                    f"`q` has shape {q.shape}, but the {len(self._point)} rows of the latest `restrict` have different frozen "
                    "numbers: pass as many rows"
                )
            whole[...] = place.contiguous(self._point)
        return self._assign(whole, q)

    def __call__(self, q: Any) -> tuple[Any, np.ndarray]:
        """The value, and the gradient with respect to `q`; for rows, the values and the gradients.

        Parameters
        ----------
        q : array, shape (n_params,) or (members, n_params)
            The trained parameters.
        """
        value, g = self._objective(self.complete(q))
        return value, self.select(g)

    def value(self, q: Any) -> Any:
        """The value alone; for rows, the values.

        Parameters
        ----------
        q : array, shape (n_params,) or (members, n_params)
            The trained parameters.
        """
        return self(q)[0]

    def gradient(self, q: Any) -> np.ndarray:
        """The gradient alone, fresh.

        Parameters
        ----------
        q : array, shape (n_params,) or (members, n_params)
            The trained parameters.
        """
        return self(q)[1]

    def hessp(self, q: Any, v: Any) -> np.ndarray:
        """The Hessian matrix of the trained parameters times a vector, shape (n_params,).

        Parameters
        ----------
        q, v : array, shape (n_params,)
            The trained parameters and the vector.
        """
        v = as_array("v", v)
        if v.shape != (self.n_params,):
            raise ValueError(f"`v` has shape {v.shape}, but must have shape ({self.n_params},)")
        found: np.ndarray = self.select(self._objective.hessp(self.complete(q), self.expand(v)))
        return found

    def residuals(self, q: Any) -> np.ndarray:
        """The residuals, as of `Objective.residuals`.

        Parameters
        ----------
        q : array, shape (n_params,)
            The trained parameters.
        """
        found: np.ndarray = self._objective.residuals(self.complete(q))
        return found

    def jacobian(self, q: Any) -> np.ndarray:
        """The derivatives of the residuals with respect to `q`, shape (len(residuals), n_params).

        Parameters
        ----------
        q : array, shape (n_params,)
            The trained parameters.
        """
        found: np.ndarray = self.select(self._objective.jacobian(self.complete(q)))
        return found

    def normal_equations(self, q: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """The value r'r / 2, J'r and J'J for the residuals r and their Jacobian J with respect to `q`.

        Parameters
        ----------
        q : array, shape (n_params,), or (members, n_params) for separate data
            The trained parameters.
        """
        value, g, matrix = self._objective.normal_equations(self.complete(q))
        return value, self.select(g), self.select(self.select(matrix).swapaxes(-1, -2)).swapaxes(-1, -2)

    def minimize(self, q: Any, method: str = "BFGS", *, progress: bool | None = None, **options: Any) -> Any:
        """``scipy.optimize.minimize`` from `q`: the result, its bounds, constraints and options are of trained parameters.

        Parameters
        ----------
        q : array, shape (n_params,)
            The starting point. For a vector on a GPU, it is `chains.minimize`.
        method : str
            A method of SciPy.
        progress : bool, optional
            Whether to show a bar that counts evaluations, as of `Objective.minimize`.
        **options
            SciPy's keyword arguments.
        """
        if memory_of(q) is not HOST:
            return minimize_in_place(self, q, method, progress=progress, **options)
        return minimize_with_scipy(self, q, method, progress, options)

    def _parts(self) -> list[tuple[int, int, int]]:
        """Start and stop of each trained range in `p`, and its start in `q`."""
        parts, first = [], 0
        for start, stop in self._trained:
            parts.append((start, stop, first))
            first += stop - start
        return parts

    def _assign(self, whole: Any, q: Any) -> Any:
        for start, stop, first in self._parts():
            whole[..., start:stop] = q[..., first : first + stop - start]
        return whole

    def _is_frozen(self, p: Any) -> Any:
        ones = memory_of(p).contiguous(np.ones(self.n_params))
        return self.expand(ones) == 0.0

    def __repr__(self) -> str:
        return f"<{self._objective!r} for {counted(self.n_params, 'trained parameter')}>"


class FreeEnsembleObjective(FreeObjective):
    """As `FreeObjective`, for members with separate data: ``free(Q)`` has a row for each member."""

    @property
    def members(self) -> int:
        """The number of members."""
        count: int = self._objective.members
        return count

    def member(self, k: int) -> FreeObjective:
        """The objective of one member, with its frozen numbers.

        Parameters
        ----------
        k : int
            Its number, from 0 to members - 1.
        """
        one = FreeObjective(self._objective.member(k), self._trained)
        one._point = self._point if self._point is None or self._point.ndim == 1 else self._point[k]
        return one
