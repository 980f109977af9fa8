"""The minimum of a population's objective, sought in units of standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.minimize.minimize import minimize
from chains.minimize.result import Result
from chains.population.likelihood import PopulationObjective

LEAST = 1e-3  # of the largest eigenvalue: directions about which the subjects say less count as unknown


def whitening(products: np.ndarray) -> np.ndarray:
    """A matrix D for which the objective of ``theta + D u`` has a Hessian matrix by u of about one.

    The Hessian matrix of minus two times a logarithm of a likelihood is about half the sum of the outer products of the
    subjects' gradients, `products`.
    """
    sums = 0.5 * products
    scale = np.sqrt(np.diag(sums))
    scale[scale == 0.0] = 1.0
    values, vectors = np.linalg.eigh(sums / np.outer(scale, scale))
    return vectors / np.sqrt(np.maximum(values, LEAST * values[-1])) / scale[:, None]


def descend(
    objective: PopulationObjective, theta: np.ndarray, tolerances: tuple[float, float], maxiter: int, progress: bool | None
) -> tuple[np.ndarray, Result]:
    """BFGS from `theta` with the tolerances `gtol` and `ftol`: the minimum, where frozen numbers keep their bits, and the
    result in other units.
    """
    free = objective.free
    q = free.restrict(theta)
    if not np.isfinite(free(q)[0]):
        raise ValueError("`theta`: the likelihood is not finite at the start, or the effects of a subject are not found there")
    root = whitening(objective.products(theta))

    def function(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = free(q + root @ u)
        return value, root.T @ g

    start, state = np.zeros(len(q)), np.eye(len(q))
    found = minimize(function, start, gtol=tolerances[0], ftol=tolerances[1], maxiter=maxiter, state=state, progress=progress)
    return free.complete(q + root @ found.x), found


def hessian(objective: PopulationObjective, theta: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """The Hessian matrix by the numbers that are not frozen, from central differences of exact gradients."""
    free = objective.free
    q = free.restrict(theta)
    root = whitening(objective.products(theta))
    columns = [(free(q + step * d)[1] - free(q - step * d)[1]) / (2.0 * step) for d in root.T]
    found = np.linalg.solve(root.T, np.array(columns)).T  # the differences are products with the columns of the root
    return 0.5 * (found + found.T)


def names_and_values(model: Any, theta: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The names of all estimates, their values, and the derivatives of the values by the flat vector.

    Estimates are the network's parameters within their bounds, the upper triangle of the covariance, the errors' parameters.
    """
    p, numbers, errors = model._split(theta)
    names, values, slopes = [], [], []
    for entry in model.net.layout:
        stored = p[entry.start : entry.stop]
        size = entry.stop - entry.start
        names += [entry.name] if size == 1 else [f"{entry.name}[{k}]" for k in range(size)]
        value, slope = (stored, np.ones(size)) if entry.bounds is None else entry.bounds.value_and_slope(stored)
        values.append(value)
        slopes.append(slope)
    covariance = model._split.covariance
    omega = covariance.factor(numbers) @ covariance.factor(numbers).T
    effects = [*model.effects]
    chosen = [(i, j) for i in range(len(effects)) for j in range(i, len(effects)) if i == j or covariance.full]
    names += [f"variance({effects[i]})" if i == j else f"covariance({effects[i]}, {effects[j]})" for i, j in chosen]
    names += [*model.error.start]
    jacobian = np.zeros((len(names), len(theta)))
    jacobian[: len(p), : len(p)] = np.diag(np.concatenate([*slopes, []]))
    for row, (i, j) in enumerate(chosen, len(p)):
        unit = np.zeros_like(omega)
        unit[i, j] += 0.5
        unit[j, i] += 0.5
        jacobian[row, len(p) : len(p) + covariance.size] = covariance.pulled(numbers, unit)
    for k, value in enumerate(np.exp(errors), 1 - len(errors)):
        jacobian[k - 1, k - 1] = value
    found = np.concatenate([*values, [omega[i, j] for i, j in chosen], np.exp(errors)])
    return names, found, jacobian
