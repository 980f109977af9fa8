"""Small symmetric matrices as lists of lists of symbols or arrays: each operation is one on all subjects at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chains.expr import log, sqrt

Matrix = list[list[Any]]


def dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    """The sum of the products; 0 for none."""
    products = [x * y for x, y in zip(a, b, strict=True)]
    return sum(products[1:], products[0]) if products else 0.0


def symmetric(upper: Sequence[Any], n: int) -> Matrix:
    """The matrix of an upper triangle, row by row."""
    entries, found = iter(upper), [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i, n):
            found[i][j] = found[j][i] = next(entries)
    return found


def upper(a: Matrix) -> list[Any]:
    """The upper triangle, row by row."""
    return [a[i][j] for i in range(len(a)) for j in range(i, len(a))]


def cholesky(a: Matrix) -> Matrix:
    """The lower factor; NaN from the first pivot on that is not positive."""
    n = len(a)
    factor: Matrix = [[0.0] * n for _ in range(n)]
    for j in range(n):
        factor[j][j] = sqrt(a[j][j] - dot(factor[j][:j], factor[j][:j]) if j else a[j][j])
        for i in range(j + 1, n):
            rest = a[i][j] - dot(factor[i][:j], factor[j][:j]) if j else a[i][j]
            factor[i][j] = rest / factor[j][j]
    return factor


def solve(factor: Matrix, b: Sequence[Any]) -> list[Any]:
    """The solution of L L' x = b."""
    n, x = len(factor), list(b)
    for i in range(n):
        x[i] = ((x[i] - dot(factor[i][:i], x[:i])) if i else x[i]) / factor[i][i]
    for i in reversed(range(n)):
        below = [factor[k][i] for k in range(i + 1, n)]
        x[i] = ((x[i] - dot(below, x[i + 1 :])) if below else x[i]) / factor[i][i]
    return x


def inverse(factor: Matrix) -> Matrix:
    """The inverse of L L'."""
    columns = [solve(factor, [1.0 if i == k else 0.0 for i in range(len(factor))]) for k in range(len(factor))]
    return [[columns[max(i, j)][min(i, j)] for j in range(len(factor))] for i in range(len(factor))]


def log_determinant(factor: Matrix) -> Any:
    """log det L L'."""
    logs = [log(factor[i][i]) for i in range(len(factor))]
    return 2.0 * sum(logs[1:], logs[0])
