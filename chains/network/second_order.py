"""What an objective knows beyond its gradient: products with the Hessian matrix, and, of squared losses, residuals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.losses import Loss, MSELoss, SquaredLoss
from chains.network.derivatives import Derivatives
from chains.penalties import Penalty

BLOCK_BYTES = 32 << 20  # of a Jacobian, in which its products with itself are made


@dataclass(frozen=True)
class SecondOrder:
    """A network and what is minimised; the data, in float64 by the names of their buffers, are given with each call."""

    net: Derivatives
    loss: Loss
    penalty: Penalty | None

    def hessian_product(self, p: np.ndarray, data: Mapping[str, Any], v: np.ndarray) -> np.ndarray:
        weights, state = data.get("weights"), data.get("state")
        return self.net.hvp(p, data["x"], data["t"], self.loss, v, weights=weights, penalty=self.penalty, state=state)

    def residuals(self, p: np.ndarray, data: Mapping[str, Any]) -> np.ndarray:
        factors = self._factors(data)
        return self._differences(p, data, slice(None)).ravel() * factors

    def jacobian(self, p: np.ndarray, data: Mapping[str, Any]) -> np.ndarray:
        factors = self._factors(data)
        return self._rows(p, data, slice(None)) * factors[:, None]

    def normal_equations(self, p: np.ndarray, data: Mapping[str, Any]) -> tuple[float, np.ndarray, np.ndarray]:
        factors, outputs = self._factors(data), math.prod(self.net.output_shape)
        value, g, matrix = 0.0, np.zeros(len(p)), None
        for part in self._blocks(data):
            own = factors[part.start * outputs : part.stop * outputs]
            r = self._differences(p, data, part).ravel() * own
            j = self._rows(p, data, part)
            j *= own[:, None]
            value += 0.5 * float(r @ r)
            g += r @ j
            matrix = j.T @ j if matrix is None else matrix + j.T @ j
        return value, g, np.zeros((len(p), len(p))) if matrix is None else matrix

    def _blocks(self, data: Mapping[str, Any]) -> Iterator[slice]:
        samples = len(data["x"])
        size = max(1, BLOCK_BYTES // (8 * self.net.n_params * math.prod(self.net.output_shape)))
        for start in range(0, samples, size):
            yield slice(start, min(samples, start + size))

    def _differences(self, p: np.ndarray, data: Mapping[str, Any], part: slice) -> np.ndarray:
        return self.net(data["x"][part], p, state=data.get("state")) - data["t"][part].reshape(-1, *self.net.output_shape)

    def _rows(self, p: np.ndarray, data: Mapping[str, Any], part: slice) -> np.ndarray:
        return self.net.jacobian(p, data["x"][part], state=data.get("state")).reshape(-1, len(p))

    def _factors(self, data: Mapping[str, Any]) -> np.ndarray:
        """What each residual is multiplied by, so that half the sum of their squares is the loss."""
        if type(self.loss) not in (SquaredLoss, MSELoss) or self.penalty is not None:
            beside = "" if self.penalty is None else f" with {self.penalty!r}"
            raise ValueError(f"residuals are those of SquaredLoss or MSELoss without a penalty, not of {self.loss!r}{beside}")
        samples, outputs = len(data["x"]), math.prod(self.net.output_shape)
        factor = 1.0 / samples if isinstance(self.loss, SquaredLoss) else 2.0 / (samples * outputs)
        weights = data.get("weights")
        if weights is None:
            return np.full(samples * outputs, math.sqrt(factor))
        if weights.min() < 0.0:
            raise ValueError(f"`weights` must not be negative where residuals are asked for, but there is {weights.min()}")
        return np.repeat(np.sqrt(weights * factor), outputs)
