"""Second derivatives of an objective: products with the Hessian matrix, and residuals with their Jacobian."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.losses import Loss, MSELoss, SquaredLoss
from chains.network import calls, derivatives, jacobian_direction
from chains.network.call import Call
from chains.network.network import Network
from chains.penalties import Penalty
from chains.residuals.loss import ResidualLoss
from chains.support.memory import on_host

BLOCK_BYTES = 32 << 20  # the size of the blocks of a Jacobian J for J'J


@dataclass(frozen=True)
class SecondOrder:
    """Products with the Hessian matrix and, for sums of squares, residuals. The data of a call are float64, by buffer name."""

    network: Network
    loss: Loss
    penalty: Penalty | None

    def hessian_product(self, p: np.ndarray, data: Mapping[str, Any], v: np.ndarray) -> np.ndarray:
        absent = dict.fromkeys(("weights", "state", "out"))
        given = absent | {**data, "lengths": lengths_in(data, slice(None)), "loss": self.loss, "penalty": self.penalty}
        product: np.ndarray = derivatives.hvp(self.network, p=p, v=v, **given)
        return product

    def residuals(self, p: np.ndarray, data: Mapping[str, Any]) -> np.ndarray:
        factors, every = self.factors(data), slice(0, len(data["x"]))
        if isinstance(self.loss, ResidualLoss):
            r = derivatives.residuals(self._call(p, data, every), with_jacobian=False)["r"].ravel()
        else:
            r = self._differences(p, data, every).ravel()
        _weigh(r, factors)
        return r

    def jacobian(self, p: np.ndarray, data: Mapping[str, Any]) -> np.ndarray:
        return self._linearised(p, data, slice(0, len(data["x"])), self.factors(data))[1]

    def normal_equations(self, p: np.ndarray, data: Mapping[str, Any]) -> tuple[float, np.ndarray, np.ndarray]:
        factors = self.factors(data)
        value, g, matrix = 0.0, np.zeros(len(p)), None
        for part in self._blocks(data):
            r, j = self._linearised(p, data, part, factors)
            value += 0.5 * float(r @ r)
            g += r @ j
            matrix = j.T @ j if matrix is None else matrix + j.T @ j
        return value, g, np.zeros((len(p), len(p))) if matrix is None else matrix

    @property
    def per_sample(self) -> int:
        """Residuals of a sample."""
        return self.loss.equations if isinstance(self.loss, ResidualLoss) else math.prod(self.network.output_shape)

    def _blocks(self, data: Mapping[str, Any]) -> Iterator[slice]:
        samples = len(data["x"])
        size = max(1, BLOCK_BYTES // (8 * max(1, self.network.n_params * self.per_sample)))
        for start in range(0, samples, size):
            yield slice(start, min(samples, start + size))

    def _linearised(
        self, p: np.ndarray, data: Mapping[str, Any], part: slice, factors: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The residuals of some samples, and their Jacobian."""
        own = factors[part.start * self.per_sample : part.stop * self.per_sample]
        if isinstance(self.loss, ResidualLoss):
            found = derivatives.residuals(self._call(p, data, part), with_jacobian=True)
            r, j = found["r"], found["j"]
        else:
            r, j = self._differences_with_jacobian(p, data, part)
        r, j = r.ravel(), j.reshape(r.size, len(p))
        _weigh(r, own)
        _weigh(j, own[:, None])
        return r, j

    def _differences_with_jacobian(self, p: np.ndarray, data: Mapping[str, Any], part: slice) -> tuple[np.ndarray, np.ndarray]:
        """Outputs minus targets of some samples, and the Jacobian of the outputs."""
        x, lengths, state = data["x"][part], lengths_in(data, part), data.get("state")
        call = Call(self.network, {"p": p, "x": x, "lengths": lengths, "state": state})
        found = derivatives.outputs_and_jacobian(call)
        if found is not None:
            return found[0] - self._targets(data, part), found[1]
        j = derivatives.jacobian(self.network, p, x, lengths, jacobian_direction.REVERSE, state, None)
        return self._differences(p, data, part), j

    def _targets(self, data: Mapping[str, Any], part: slice) -> Any:
        return data["t"][part].reshape(-1, *self.network.output_shape)

    def _call(self, p: np.ndarray, data: Mapping[str, Any], part: slice) -> Call:
        """A call on some samples."""
        call = Call(self.network, {"p": p, "loss": self.loss, "state": data.get("state")})
        call.data = {name: data[name][part] for name in ("x", "t")}
        return call

    def _differences(self, p: np.ndarray, data: Mapping[str, Any], part: slice) -> np.ndarray:
        x = data["x"][part]
        y = np.empty((len(x), *self.network.output_shape))
        with suppress(FloatingPointError):  # a solution that ends early is NaN, from which minimisers step back
            calls.forward(self.network, x, p, lengths_in(data, part), data.get("state"), "eval", 0, y)
        return y - self._targets(data, part)

    @property
    def has_residuals(self) -> bool:
        """Whether the value is half the sum of squares of residuals."""
        return type(self.loss) in (SquaredLoss, MSELoss, ResidualLoss) and self.penalty is None

    def factors(self, data: Mapping[str, Any]) -> np.ndarray:
        """The factors of the residuals that make half the sum of their squares the loss; 0 after a sample's length."""
        if not self.has_residuals:
            beside = "" if self.penalty is None else f" with {self.penalty!r}"
            raise ValueError(
                "residuals are those of SquaredLoss, MSELoss or a ResidualProblem's loss without a penalty, not of "
                f"{self.loss!r}{beside}"
            )
        samples, size = len(data["x"]), self.per_sample
        factor = {SquaredLoss: 1.0 / samples, MSELoss: 2.0 / (samples * size), ResidualLoss: 2.0 / samples}[type(self.loss)]
        weights, lengths = data.get("weights"), lengths_in(data, slice(None))
        if weights is None:
            factors = np.full(samples * size, math.sqrt(factor))
        elif weights.min() < 0.0:
            raise ValueError(f"`weights` must not be negative where residuals are asked for, but there is {weights.min()}")
        else:
            factors = np.repeat(np.sqrt(weights * factor).ravel(), size * samples // weights.size)
        if lengths is not None and (steps := self._steps):
            factors[np.repeat(np.arange(steps) >= lengths[:, None], size // steps)] = 0.0
        return factors

    @property
    def _steps(self) -> int:
        """Steps of the outputs, if their residuals follow a sample's length; else 0."""
        if isinstance(self.loss, ResidualLoss):
            raise ValueError(f"the residuals of {self.loss!r} are those of points, which have no steps: leave `lengths` out")
        return self.network.declaration.output_steps


def lengths_in(data: Mapping[str, Any], part: slice) -> np.ndarray | None:
    """The lengths of some samples as whole numbers, which an objective keeps as numbers of its programs' type."""
    return on_host(data["lengths"][part]).astype(np.int64) if "lengths" in data else None


def _weigh(numbers: np.ndarray, factors: np.ndarray) -> None:
    """Multiply by factors in place. A factor of 0 gives 0, also for NaN."""
    np.copyto(numbers, 0.0, where=factors == 0.0)
    numbers *= factors
