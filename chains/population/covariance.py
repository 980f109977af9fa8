"""The covariance of random effects as numbers without bounds: a Cholesky factor with logarithms on its diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class CovarianceFactor:
    """Omega = L L', of n effects; the numbers are the logarithms of the diagonal of L, then its rows below the diagonal."""

    n: int
    full: bool

    @property
    def size(self) -> int:
        return self.n + self.full * self.n * (self.n - 1) // 2

    def factor(self, numbers: np.ndarray) -> np.ndarray:
        """L, (n, n)."""
        found = np.diag(np.exp(numbers[: self.n]))
        if self.full:
            found[np.tril_indices(self.n, -1)] = numbers[self.n :]
        return found

    def precision(self, factor: np.ndarray) -> np.ndarray:
        """The inverse of L L'; NaN where a variance has vanished, so that the point is one without effects."""
        try:
            whitening = np.linalg.inv(factor)
        except np.linalg.LinAlgError:
            return np.full_like(factor, np.nan)
        return whitening.T @ whitening

    def numbers(self, covariance: np.ndarray) -> np.ndarray:
        """The numbers of a covariance. Raises LinAlgError unless it is positive definite."""
        factor = np.linalg.cholesky(covariance)
        below = factor[np.tril_indices(self.n, -1)] if self.full else np.empty(0)
        return np.concatenate([np.log(np.diag(factor)), below])

    def pulled(self, numbers: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """The gradients by the numbers, (..., size), of functions with these symmetric slopes by Omega, (..., n, n)."""
        factor = self.factor(numbers)
        by_factor = 2.0 * slopes @ factor
        own = np.einsum("...ii->...i", by_factor) * np.diag(factor)
        if not self.full:
            return own
        rows, columns = np.tril_indices(self.n, -1)
        return np.concatenate([own, by_factor[..., rows, columns]], axis=-1)
