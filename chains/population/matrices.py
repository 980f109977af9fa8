"""Many small symmetric matrices at once: entries first, (n, n, many), so that each operation is one on long rows."""

from __future__ import annotations

import numpy as np

from chains.population.programs import pairs


def full(upper: np.ndarray, n: int) -> np.ndarray:
    """The matrices (n, n, many) of upper triangles, (n (n + 1) / 2, many)."""
    found = np.empty((n, n, upper.shape[-1]))
    for k, (i, j) in enumerate(pairs(n)):
        found[i, j] = found[j, i] = upper[k]
    return found


def cholesky(a: np.ndarray) -> np.ndarray:
    """The lower factors; NaN where a matrix is not positive definite."""
    n = len(a)
    factor = np.zeros_like(a)
    with np.errstate(invalid="ignore", divide="ignore"):
        for j in range(n):
            rest = a[j:, j] - (factor[j:, :j] * factor[j, :j]).sum(1)
            pivot = np.where(rest[0] > 0.0, rest[0], np.nan)
            factor[j:, j] = rest / np.sqrt(pivot)
    return factor


def solve(factor: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The solutions, (n, many), of L L' x = b."""
    n = len(b)
    x = np.empty_like(b)
    for i in range(n):
        x[i] = (b[i] - (factor[i, :i] * x[:i]).sum(0)) / factor[i, i]
    for i in reversed(range(n)):
        x[i] = (x[i] - (factor[i + 1 :, i] * x[i + 1 :]).sum(0)) / factor[i, i]
    return x


def inverse(factor: np.ndarray) -> np.ndarray:
    """The inverses of L L', (n, n, many)."""
    n, many = len(factor), factor.shape[-1]
    found = np.empty_like(factor)
    for k in range(n):
        column = np.zeros((n, many))
        column[k] = 1.0
        found[:, k] = solve(factor, column)
    return found


def log_determinant(factor: np.ndarray) -> np.ndarray:
    """log det L L', (many,)."""
    return 2.0 * np.log(np.einsum("iik->ik", factor)).sum(0)
