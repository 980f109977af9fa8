"""Derivatives beyond the gradient, for users; `Chain` inherits them.

The programs are recorded by `chains.network.record_derivatives`. All calls are in the mode "eval": dropout is off, and batch
normalisation uses its running statistics. At a kink, such as relu's at 0, the slope is that of the activation's own derivative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from chains.losses import Loss
from chains.network import arguments, record, record_derivatives
from chains.network.input_derivatives import InputDerivatives
from chains.penalties import Penalty
from chains.program.program import Program
from chains.residuals.loss import ResidualLoss
from chains.support.arrays import as_array
from chains.support.memory import memory_of


class Derivatives(InputDerivatives):
    """A network with derivatives by its inputs and by its parameters."""

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
        return memory_of(p).contiguous(v, p.dtype)
