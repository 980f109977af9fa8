"""Derivatives of a network by its inputs.

Derivatives along a direction are the coefficients of a series. Mixed second derivatives come from those along sums of inputs.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np

from chains.network import record_derivatives
from chains.network.derivative_runs import DIRECTIONS_AT_ONCE, DerivativeRuns
from chains.support.arrays import as_array
from chains.support.checks import check_flags
from chains.support.memory import memory_of
from chains.support.messages import shown

MAX_ORDER = 4


class InputDerivatives(DerivativeRuns):
    """A network with derivatives by its inputs."""

    def derivatives(
        self, p: Any, x: Any, order: int = 2, directions: Any = None, *, full: bool = False, state: Any = None, out: Any = None
    ) -> tuple[np.ndarray, ...]:
        """The outputs and their exact derivatives with respect to the inputs.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters, whose type is that of the computation.
        x : array, shape (batch, *input_shape)
            The points.
        order : int
            The highest order, from 1 to 4.
        directions : array, optional
            Derivatives along these directions, shape (directions, *input_shape), or (batch, directions, *input_shape) for
            separate directions at each point. By default along each input.
        full : bool
            Whether second derivatives are full matrices; for order 2, without `directions`.
        state : array, optional
            As in a call of the network.
        out : tuple of arrays, optional
            Filled instead of fresh arrays.

        Returns
        -------
        tuple of arrays
            ``(u, du, d2u, ...)``: u of shape (batch, *output_shape); the others (batch, *output_shape, *input_shape), or
            (batch, *output_shape, directions) with `directions`: ``d2u[..., i]`` is the second derivative by input i. With
            `full`, d2u is (batch, *output_shape, *input_shape, *input_shape).

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, before anything is written.
        NotImplementedError
            For layers without a rule for derivatives, such as max pools of overlapping windows.
        """
        if not isinstance(order, int) or isinstance(order, bool) or not 1 <= order <= MAX_ORDER:
            raise ValueError(f"`order` (={shown(order)}) must be a whole number from 1 to {MAX_ORDER}")
        check_flags(full=full)
        if full and (order != 2 or directions is not None):
            raise ValueError(f"`full` is for order 2 (got {order}) and for the inputs, without `directions`")
        p, x = self._point(p, x, real=True)
        given = directions is not None
        vectors = self._directions(directions, x, p) if given else self._axes(p.dtype, full)
        count, own = vectors.shape[-1 - len(self.input_shape)], vectors.ndim > 1 + len(self.input_shape)
        along = (count,) if given else self.input_shape
        shapes = [(len(x), *self.output_shape)] + [(len(x), *self.output_shape, *along)] * order
        if full:
            shapes[2] = (*shapes[1], *self.input_shape)
        inputs = {"p": p, "x": x, "v": vectors}
        results = self._outs(out, shapes, inputs)
        if not full and count <= DIRECTIONS_AT_ONCE:
            filled = [each.reshape(len(x), *self.output_shape, -1) for each in results[1:]]
            self._derivatives(inputs, order, own, state, [results[0], *filled])
            return tuple(results)
        first, *others = self._in_parts(inputs, order, own, state, results[0])
        size = math.prod(self.input_shape)
        results[1][...] = (first[..., :size] if full else first).reshape(results[1].shape)
        for target, each in zip(results[2:], others, strict=True):
            target[...] = (_matrix(each, size) if full else each).reshape(target.shape)
        return tuple(results)

    def laplacian(self, p: Any, x: Any, *, state: Any = None, out: np.ndarray | None = None) -> np.ndarray:
        """The sum of the second derivatives by each input, shape (batch, *output_shape).

        Parameters
        ----------
        p, x, state
            As of `derivatives`.
        out : array, optional
            Filled instead of a fresh one.
        """
        p, x = self._point(p, x, real=True)
        size = math.prod(self.input_shape)
        inputs = {"p": p, "x": x}
        (total,) = self._outs(None if out is None else (out,), [(len(x), *self.output_shape)], inputs)
        axes = self._axes(p.dtype, False)
        part = total if size <= DIRECTIONS_AT_ONCE else memory_of(p).empty(total.shape, p.dtype)
        for start in range(0, size, DIRECTIONS_AT_ONCE):
            v = axes[start : start + DIRECTIONS_AT_ONCE]
            kind = ("laplacian", p.dtype, len(v))
            run = self._program(p, kind, partial(record_derivatives.laplacian, self.network, len(v), p.dtype))
            self._run(run, {**inputs, "v": v}, state, {"laplacian": part})
            if part is not total:
                total[...] = part if start == 0 else total + part
        return total

    def input_jacobian(self, p: Any, x: Any, *, state: Any = None, out: np.ndarray | None = None) -> np.ndarray:
        """The derivatives of the outputs by the inputs, (batch, *output_shape, *input_shape), in the cheaper direction.

        Parameters
        ----------
        p, x, state
            As of `derivatives`.
        out : array, optional
            Filled instead of a fresh one.
        """
        self._point(p, x, real=True)
        inputs, outputs = math.prod(self.input_shape), math.prod(self.output_shape)
        if inputs <= outputs and inputs <= DIRECTIONS_AT_ONCE:
            p, x = self._point(p, x)
            shapes = [(len(x), *self.output_shape), (len(x), *self.output_shape, *self.input_shape)]
            results = self._outs(
                None if out is None else (memory_of(p).empty(shapes[0], p.dtype), out), shapes, {"p": p, "x": x}
            )
            return self.derivatives(p, x, 1, state=state, out=tuple(results))[1]
        return self._pulled("dx", record_derivatives.input_jacobian, p, x, self.input_shape, state, out)

    def _axes(self, dtype: Any, diagonals: bool) -> np.ndarray:
        """The directions of the inputs; with `diagonals`, also the sums of each two of them."""
        size = math.prod(self.input_shape)
        axes = np.eye(size, dtype=dtype)
        if diagonals:
            sums = [axes[i] + axes[j] for i, j in itertools.combinations(range(size), 2)]
            axes = np.concatenate([axes, np.array(sums, dtype).reshape(len(sums), size)])
        return axes.reshape(-1, *self.input_shape)

    def _directions(self, directions: Any, x: np.ndarray, p: np.ndarray) -> np.ndarray:
        """The user's directions in the type of the parameters."""
        v = as_array("directions", directions)
        shared = v.ndim == 1 + len(self.input_shape)
        if v.shape[v.ndim - len(self.input_shape) :] != self.input_shape or not (
            shared or (v.ndim == 2 + len(self.input_shape) and len(v) == len(x))
        ):
            text = ", ".join(map(str, self.input_shape))
            raise ValueError(
                f"`directions` has shape {v.shape}: wanted (directions, {text}), or ({len(x)}, directions, {text}) for "
                "separate directions at each point"
            )
        return memory_of(p).contiguous(v, p.dtype)

    def _in_parts(self, inputs: dict[str, Any], order: int, own: bool, state: Any, y: np.ndarray) -> list[np.ndarray]:
        """Fill `y`; the derivatives of each order, (batch, *output_shape, directions), some directions at a time."""
        p, vectors = inputs["p"], inputs["v"]
        count = vectors.shape[1 if own else 0]
        whole = [memory_of(p).empty((*y.shape, count), p.dtype) for _ in range(order)]
        if count <= DIRECTIONS_AT_ONCE:
            self._derivatives(inputs, order, own, state, [y, *whole])
            return whole
        for start in range(0, count, DIRECTIONS_AT_ONCE):
            part = slice(start, min(count, start + DIRECTIONS_AT_ONCE))
            some = [memory_of(p).empty((*y.shape, part.stop - start), p.dtype) for _ in range(order)]
            v = vectors[:, part] if own else vectors[part]
            self._derivatives({**inputs, "v": v}, order, own, state, [y, *some])
            for each, found in zip(whole, some, strict=True):
                each[..., part] = found
        return whole

    def _derivatives(self, inputs: dict[str, Any], order: int, own: bool, state: Any, results: list[np.ndarray]) -> None:
        """Fill the outputs and their derivatives along few directions; each point may have its `own`."""
        p, count = inputs["p"], results[1].shape[-1]
        kind = ("derivatives", p.dtype, count, order, own)
        make = partial(record_derivatives.derivatives, self.network, count, order, p.dtype, own=own)
        names = ["y", *(f"d{power}" for power in range(1, order + 1))]
        self._run(self._program(p, kind, make), inputs, state, dict(zip(names, results, strict=True)))


def _matrix(second: np.ndarray, size: int) -> np.ndarray:
    """The matrices of second derivatives, from those along the inputs and along sums of two inputs."""
    result = memory_of(second).empty((*second.shape[:-1], size, size), second.dtype)
    diagonal = second[..., :size]
    for i in range(size):
        result[..., i, i] = diagonal[..., i]
    for number, (i, j) in enumerate(itertools.combinations(range(size), 2), size):
        # The second derivative along the sum is those by i and by j, plus twice the mixed one.
        result[..., i, j] = result[..., j, i] = 0.5 * (second[..., number] - diagonal[..., i] - diagonal[..., j])
    return result
