"""scikit-learn's MLPRegressor, where it can express the problem."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from benchmarks.harness.machine import blas_modes
from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contestant, in_modes
from benchmarks.problems.dense import Problem

_NAME = "scikit-learn MLPRegressor"


def step_rows(problem: Problem, options: Options) -> list[Contestant | Absent]:
    """Adam with all samples. Its loss is half the sum over outputs; to Adam a factor means nothing but through eps."""
    if problem.last != "linear" or problem.optimizer != "adam":
        return [Absent(_NAME, "no sigmoid outputs with a squared loss")]
    model = MLPRegressor(
        hidden_layer_sizes=problem.sizes[1:-1], activation=problem.hidden, solver="adam", alpha=0.0, batch_size=problem.samples,
        learning_rate_init=problem.rate, shuffle=False, tol=0.0, n_iter_no_change=10**9, max_iter=1, warm_start=True,
    )  # fmt: skip
    y = problem.t

    def fit(n: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # that max_iter was reached is the purpose
            model.set_params(max_iter=n).fit(problem.x, y)

    fit(1)

    def start() -> None:
        for k, (w, b) in enumerate(problem.layers(problem.p)):
            model.coefs_[k][...], model.intercepts_[k][...] = w, b

    def result() -> np.ndarray:
        pairs = zip(model.coefs_, model.intercepts_, strict=True)
        return np.concatenate([part for w, b in pairs for part in (w.ravel(), b)])

    return list(in_modes(Contestant(f"{_NAME}, {problem.dtype}", start, fit, result), blas_modes()))


def epoch_rows(problem: Problem, options: Options) -> list[Absent]:
    return [Absent(_NAME, "no sigmoid outputs with a squared loss")]


def gradient_rows(problem: Problem, options: Options) -> list[Absent]:
    return [Absent(_NAME, "no public call for a gradient")]


call_rows = gradient_rows
