"""SimpleChains.jl's headline: a small network learns the exponentials of 2x2 matrices, full batch, Adam."""

from __future__ import annotations

import numpy as np

from benchmarks.harness.peers import Options, rows
from benchmarks.harness.timing import Contest, Criterion, Table
from benchmarks.peers.chains_dense import native_criteria
from benchmarks.problems.dense import Problem, gradient_error, initial, value_and_grad

SIZES = (4, 32, 16, 4)
SAMPLES = (10_000, 200, 1)  # of the problems


def problem(samples: int, dtype: str) -> Problem:
    """N(0, 1) matrices, flattened, and their exponentials."""
    matrices = np.random.default_rng(0).normal(size=(10_000, 2, 2)).astype(np.float32)[:samples]
    x = matrices.reshape(samples, 4).astype(dtype)
    t = matrix_exponentials(matrices.astype(np.float64)).reshape(samples, 4).astype(dtype)
    return Problem(SIZES, "tanh", "linear", "mse", "adam", 1e-3, x, t, initial(SIZES, "glorot", 0, dtype))


def matrix_exponentials(a: np.ndarray, squarings: int = 10, terms: int = 12) -> np.ndarray:
    """exp of each matrix in (..., n, n), by scaling and squaring of the power series."""
    a = a / 2.0**squarings
    identity = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    result = identity
    for k in range(terms, 0, -1):  # Horner's scheme
        result = identity + a @ result / k
    for _ in range(squarings):
        result = result @ result
    return result


def contests(options: Options) -> list[Contest]:
    """Adam steps, then gradients alone."""
    problems = [problem(samples, options.dtype) for samples in SAMPLES]
    steps = [_steps(p, options) for p in problems]
    return steps if options.quick else steps + [_gradients(p, options) for p in problems]


def _name(p: Problem) -> str:
    return f"matrix_exp, {p.samples:,} sample{'s' * (p.samples > 1)}"


def _steps(p: Problem, options: Options) -> Contest:
    name = _name(p)

    def criteria(table: Table) -> list[Criterion]:
        text = f"{name}: a step of chains numpy against NumPy by hand"
        wanted = {10_000: {"PyTorch": 10, "JAX jit": 8, "JAX scan": 6}, 200: {"PyTorch": 60, "JAX jit": 12, "JAX scan": 5}}
        share = 0.6 if p.samples == 10_000 else 0.0
        return [
            *table.compare(text, table.best("chains numpy"), table.best("NumPy by hand"), "<= 1.25"),
            *native_criteria(p, table, wanted.get(p.samples, {}), share, "all threads"),
        ]

    return Contest(
        key=f"matrix_exp_{p.samples}_step",
        title=f"{name}, Adam step",
        unit="step",
        contestants=rows("step", p, options),
        judged="loss after 100 steps",
        judge=lambda trained: value_and_grad(p, trained)[0],
        check=100,
        criteria=criteria,
    )


def _gradients(p: Problem, options: Options) -> Contest:
    return Contest(
        key=f"matrix_exp_{p.samples}_gradient",
        title=f"{_name(p)}, gradient alone",
        unit="gradient",
        contestants=rows("gradient", p, options),
        judged="relative error",
        judge=lambda result: gradient_error(p, result),
    )
