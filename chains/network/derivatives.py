"""Derivatives beyond the gradient, for users; `Chain` inherits them.

The programs are recorded by `chains.network.record_derivatives`. All calls are in the mode "eval": dropout is off, and batch
normalisation uses its running statistics. At a kink, such as relu's at 0, the slope is that of the activation's own derivative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.arrays import as_array
from chains.backends import Executable
from chains.backends.places import place_of
from chains.checks import check_flags
from chains.losses import Loss
from chains.messages import shown
from chains.network import arguments, record, record_derivatives
from chains.network.recorded import Recorded
from chains.penalties import Penalty
from chains.program.program import Program
from chains.residuals.loss import ResidualLoss

MOST_ORDER = 4
DIRECTIONS_AT_ONCE = 16  # the most directions, or cotangents, in one program; more take several calls


class Derivatives(Recorded):
    """A network with derivatives by its inputs and by its parameters."""

    # By the inputs

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
        if not isinstance(order, int) or isinstance(order, bool) or not 1 <= order <= MOST_ORDER:
            raise ValueError(f"`order` (={shown(order)}) must be a whole number from 1 to {MOST_ORDER}")
        check_flags(full=full)
        if full and (order != 2 or directions is not None):
            raise ValueError(f"`full` is for order 2 (got {order}) and for the inputs, without `directions`")
        p, x = self._point(p, x, real=True)
        given = directions is not None
        vectors = self._directions(directions, x, p) if given else self._axes(p.dtype, full)
        count, axis = vectors.shape[-1 - len(self.input_shape)], vectors.ndim - 1 - len(self.input_shape)
        along = (count,) if given else self.input_shape
        shapes = [(len(x), *self.output_shape)] + [(len(x), *self.output_shape, *along)] * order
        if full:
            shapes[2] = (*shapes[1], *self.input_shape)
        inputs = {"p": p, "x": x, "v": vectors}
        results = self._outs(out, shapes, inputs)
        whole = [each.reshape(len(x), *self.output_shape, -1) for each in results[1:]]
        if full or count > DIRECTIONS_AT_ONCE:
            whole = [place_of(p).empty((*results[0].shape, count), p.dtype) for _ in range(order)]
        for start in range(0, count, DIRECTIONS_AT_ONCE):
            part = slice(start, min(count, start + DIRECTIONS_AT_ONCE))
            some = whole
            if count > DIRECTIONS_AT_ONCE:
                some = [place_of(p).empty((*each.shape[:-1], part.stop - part.start), p.dtype) for each in whole]
            v = vectors[:, part] if axis else vectors[part]
            self._derivatives({**inputs, "v": v}, order, axis == 1, state, [results[0], *some])
            for each, found in zip(whole, some, strict=True):
                if each is not found:
                    each[..., part] = found
        if full or count > DIRECTIONS_AT_ONCE:
            size = math.prod(self.input_shape)
            first, *others = whole
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
        part = total if size <= DIRECTIONS_AT_ONCE else place_of(p).empty(total.shape, p.dtype)
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
                None if out is None else (place_of(p).empty(shapes[0], p.dtype), out), shapes, {"p": p, "x": x}
            )
            return self.derivatives(p, x, 1, state=state, out=tuple(results))[1]
        return self._pulled("dx", record_derivatives.input_jacobian, p, x, self.input_shape, state, out)

    # By the parameters

    def jacobian(self, p: Any, x: Any, *, state: Any = None, out: np.ndarray | None = None) -> np.ndarray:
        """The derivatives of each sample's outputs by the parameters, (batch, *output_shape, n_params); zero for frozen ones.

        Parameters
        ----------
        p, x, state
            As of `derivatives`.
        out : array, optional
            Filled instead of a fresh one.
        """
        try:
            return self._pulled("j", record_derivatives.jacobian, p, x, (self.n_params,), state, out)
        except NotImplementedError:
            return self._stacked(p, x, state, out)

    def hvp(
        self,
        p: Any,
        x: Any,
        t: Any,
        loss: Loss,
        v: Any,
        *,
        weights: Any = None,
        penalty: Penalty | None = None,
        state: Any = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The product of the loss's Hessian matrix at `p` with a vector, shape (n_params,), exact.

        Parameters
        ----------
        p, x, t, loss
            As of `value_and_grad`, in the mode "eval".
        v : array, shape (n_params,)
            The vector. Frozen parameters have no part in the matrix.
        weights, penalty, state
            As of `value_and_grad`.
        out : array, shape (n_params,), optional
            Filled instead of a fresh one.
        """
        return self._product("hvp", record_derivatives.hessian_product, p, x, t, loss, v, weights, penalty, state, out)

    def gauss_newton(
        self,
        p: Any,
        x: Any,
        t: Any,
        loss: Loss,
        v: Any,
        *,
        weights: Any = None,
        penalty: Penalty | None = None,
        state: Any = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The product of the Gauss-Newton matrix, the Hessian of the loss with the network linearised, with a vector.

        For losses that are convex in the outputs the matrix has no negative eigenvalue.

        Parameters
        ----------
        p, x, t, loss, v, weights, penalty, state, out
            As of `hvp`; the penalty is left out.
        """
        make = record_derivatives.gauss_newton_product
        return self._product("gauss_newton", make, p, x, t, loss, v, weights, None, state, out)

    def sample_gradients(
        self, p: Any, x: Any, t: Any, loss: Loss, *, weights: Any = None, state: Any = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """The gradient of each sample's own loss, shape (batch, n_params): their mean is the gradient of `value_and_grad`.

        Parameters
        ----------
        p, x, t, loss, weights, state
            As of `value_and_grad`, in the mode "eval".
        out : array, shape (batch, n_params), optional
            Filled instead of a fresh one.
        """
        p = arguments.check_params(p, self.n_params)
        data, problem = self.problem(x, t, loss, weights, None)
        inputs = {"p": p, **arguments.together(p, data)}
        (result,) = self._outs(None if out is None else (out,), [(len(data["x"]), self.n_params)], inputs)
        kind = ("sample gradients", p.dtype)
        make = partial(record_derivatives.sample_gradients, self.network, problem, p.dtype)
        run = self._program(p, kind, make, problem)
        self._run(run, inputs, state, {"j": result})
        return result

    def residuals_and_jacobian(
        self, p: np.ndarray, x: np.ndarray, t: np.ndarray, loss: ResidualLoss, *, state: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The equations of each point, (batch, equations), times the roots of the weights in `t`; their Jacobian."""
        make = partial(record_derivatives.residuals, self.network, loss, t.shape[1:], p.dtype)
        run = self._program(p, ("residuals", p.dtype), make, record.Criterion(loss, t.shape[1:]))
        inputs = {"p": p, "x": x, "t": t}
        r, j = self._outs(None, [(len(x), loss.equations), (len(x), loss.equations, self.n_params)], inputs)
        self._run(run, inputs, state, {"r": r, "j": j})
        return r, j

    # Helpers

    def _point(self, p: Any, x: Any, *, real: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The checked parameters and inputs. Raises TypeError if inputs must be `real` and are ids."""
        if real and self.network.id_count is not None:
            raise TypeError("the inputs of this network are ids, by which nothing can be derived")
        p = arguments.check_params(p, self.n_params)
        x = arguments.check_input(x, self.input_shape, ids=self.network.id_count)
        return p, arguments.together(p, {"x": x})["x"]

    def _outs(self, given: Any, shapes: Sequence[tuple[int, ...]], inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays to fill: fresh ones, or the given ones, checked."""
        p = inputs["p"]
        if given is None:
            return [place_of(p).empty(shape, p.dtype) for shape in shapes]
        if not isinstance(given, tuple) or len(given) != len(shapes):
            raise TypeError(f"`out` must be a tuple of {len(shapes)} arrays, not {shown(given)}")
        taken = dict(inputs)
        for number, (array, shape) in enumerate(zip(given, shapes, strict=True)):
            name = "out" if len(shapes) == 1 else f"out[{number}]"
            taken[name] = arguments.check_out(array, shape, p.dtype, taken, name)
        return list(given)

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
                "directions of each point's own"
            )
        return place_of(p).contiguous(v, p.dtype)

    def _derivatives(self, inputs: dict[str, Any], order: int, own: bool, state: Any, results: list[np.ndarray]) -> None:
        p, count = inputs["p"], results[1].shape[-1]
        kind = ("derivatives", p.dtype, count, order, own)
        make = partial(record_derivatives.derivatives, self.network, count, order, p.dtype, own=own)
        names = ["y", *(f"d{power}" for power in range(1, order + 1))]
        self._run(self._program(p, kind, make), inputs, state, dict(zip(names, results, strict=True)))

    def _run(self, run: Executable, inputs: dict[str, Any], state: Any, results: dict[str, Any]) -> None:
        p = inputs["p"]
        inputs |= {name: place_of(p).contiguous(inputs[name]) for name in ("v", "dy") if name in inputs}
        inputs |= self.state_for(run.program, state, p.dtype, False, inputs)
        run(len(inputs["x"]), {**inputs, **results})

    def _pulled(
        self, name: str, make: Callable[..., Program], p: Any, x: Any, shape: tuple[int, ...], state: Any, out: Any
    ) -> np.ndarray:
        """Pullbacks of each output of each sample: (batch, *output_shape, *shape)."""
        p, x = self._point(p, x)
        outputs = math.prod(self.output_shape)
        inputs = {"p": p, "x": x}
        whole = (len(x), *self.output_shape, *shape)
        (result,) = self._outs(None if out is None else (out,), [whole], inputs)
        rows = result.reshape(len(x), outputs, *shape)
        eye = np.eye(outputs, dtype=p.dtype).reshape(outputs, *self.output_shape)
        for start in range(0, outputs, DIRECTIONS_AT_ONCE):
            dy = eye[start : start + DIRECTIONS_AT_ONCE]
            run = self._program(p, (name, p.dtype, len(dy)), partial(make, self.network, len(dy), p.dtype))
            part = rows if outputs <= DIRECTIONS_AT_ONCE else place_of(p).empty((len(x), len(dy), *shape), p.dtype)
            self._run(run, {**inputs, "dy": dy}, state, {name: part})
            if part is not rows:
                rows[:, start : start + DIRECTIONS_AT_ONCE] = part
        return result

    def _stacked(self, p: Any, x: Any, state: Any, out: Any) -> np.ndarray:
        """The Jacobian for layers without a rule for single samples: a pullback for each sample and output."""
        p, x = self._point(p, x)
        outputs = math.prod(self.output_shape)
        (result,) = self._outs(None if out is None else (out,), [(len(x), *self.output_shape, self.n_params)], {"p": p, "x": x})
        rows = result.reshape(len(x), outputs, self.n_params)
        eye = np.eye(outputs, dtype=p.dtype).reshape(outputs, 1, *self.output_shape)
        for sample, output in itertools.product(range(len(x)), range(outputs)):
            rows[sample, output] = self.vjp(p, x[sample : sample + 1], eye[output], state=state)[0]
        return result

    def _product(
        self, name: str, make: Callable[..., Program], p: Any, x: Any, t: Any, loss: Loss, v: Any, weights: Any,
        penalty: Penalty | None, state: Any, out: Any,
    ) -> np.ndarray:  # fmt: skip
        """The product of a matrix of second derivatives of the loss with a vector."""
        kind = (name,)
        plain = weights is None and state is None
        quick = self._shortcuts.find(kind, p, x, loss, penalty) if plain else None
        if quick is not None and (found := quick(p, x, t, v, out)) is not None:
            return found
        p = arguments.check_params(p, self.n_params)
        data, problem = self.problem(x, t, loss, weights, penalty)
        inputs = {"p": p, **arguments.together(p, data), "v": self._vector(v, p)}
        run = self._program(p, (name, p.dtype), partial(make, self.network, problem, p.dtype), problem)
        (result,) = self._outs(None if out is None else (out,), [(self.n_params,)], inputs)
        self._run(run, inputs, state, {"hv": result})
        if plain:
            self._shortcuts.add(kind, run, {name: inputs[name] for name in ("p", "x", "t", "v")}, ["hv"], loss, penalty)
        return result

    def _vector(self, v: Any, p: np.ndarray) -> np.ndarray:
        v = as_array("v", v)
        if v.shape != (self.n_params,):
            raise ValueError(f"`v` has shape {v.shape}: wanted ({self.n_params},), a number for each parameter")
        return place_of(p).contiguous(v, p.dtype)


def _matrix(second: np.ndarray, size: int) -> np.ndarray:
    """The matrices of second derivatives, from those along the inputs and along sums of two inputs."""
    result = place_of(second).empty((*second.shape[:-1], size, size), second.dtype)
    diagonal = second[..., :size]
    for i in range(size):
        result[..., i, i] = diagonal[..., i]
    for number, (i, j) in enumerate(itertools.combinations(range(size), 2), size):
        # The second derivative along the sum is those by i and by j, plus twice the mixed one.
        result[..., i, j] = result[..., j, i] = 0.5 * (second[..., number] - diagonal[..., i] - diagonal[..., j])
    return result
