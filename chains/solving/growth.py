"""How many times the outputs of a problem can grow from their start, by its own equations.

A network fits numbers of one size. From a start that is a thousandth of the end, it can leave the solution by a residual that
is too small to see, and follow another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.residuals.loss import Piece, Residual
from chains.residuals.problem import ResidualProblem
from chains.solving.causal import time_axis

STEP = 1e-6  # of a difference, as a share of a number's scale


def growth(net: Any, p: np.ndarray, problem: ResidualProblem) -> float:
    """The logarithm of the largest growth from the start to the end; 0 where no equations of first order in time say it.

    It is the extent of time times the largest rate of the equations, linear around the network's outputs at the start, without
    the derivatives by other coordinates.
    """
    axis = time_axis(problem)
    if axis is None:
        return 0.0
    near = problem.points[:, axis] <= problem.points[:, axis].min() + 1e-6 * np.ptp(problem.points[:, axis])
    data = np.zeros((near.sum(), len(problem.loss.data)))  # of other terms
    fixed = np.concatenate([problem.points[near], data], axis=1)
    begin, found = 0, 0.0
    for term, residual in zip(problem.terms, problem.loss.residuals, strict=True):
        rows = slice(begin, begin + len(term.points))
        begin = rows.stop
        if not term.data and _is_flow(residual, axis, len(problem.outputs)):
            rate = _rate(residual, axis, fixed, problem.evaluate(net, p, problem.points[near]), problem)
            found = max(found, rate * float(np.ptp(problem.points[rows, axis])))
    return found


def _is_flow(residual: Residual, axis: int, outputs: int) -> bool:
    """Whether a term has as many equations as outputs, each output's first derivative by time and none of higher order."""
    by_time = {(output, by.count(axis)) for output, by in residual.pieces if axis in by}
    return len(residual.formula.outputs) == outputs and by_time == {(output, 1) for output in range(outputs)}


def _rate(residual: Residual, axis: int, fixed: np.ndarray, outputs: dict[str, np.ndarray], problem: ResidualProblem) -> float:
    """The largest real part of an eigenvalue of the rates' derivatives by outputs."""
    lengths = [length for _, length in problem.guessed_scales().outputs]
    values: dict[Piece, np.ndarray] = {(k, ()): each for k, each in enumerate(outputs.values())}

    def slopes(by: tuple[int, ...]) -> np.ndarray:
        columns = []
        for k, length in enumerate(lengths):
            upper, lower = (_equations(residual, fixed, values, {(k, by): sign * STEP * length}) for sign in (1.0, -1.0))
            columns.append((upper - lower) / (2.0 * STEP * length))
        return np.moveaxis(np.array(columns), (0, 1), (2, 1))  # (points, equations, outputs)

    with np.errstate(all="ignore"):
        by_time, by_output = slopes((axis,)), slopes(())
    kept = np.isfinite(by_time).all(axis=(1, 2)) & np.isfinite(by_output).all(axis=(1, 2))
    kept &= abs(np.linalg.det(np.where(kept[:, None, None], by_time, 0.0))) > 0.0
    rates = np.linalg.eigvals(-np.linalg.solve(by_time[kept], by_output[kept]))
    return float(rates.real.max(initial=0.0))


def _equations(residual: Residual, fixed: np.ndarray, values: dict[Piece, np.ndarray], moved: dict[Piece, float]) -> np.ndarray:
    """The equations at points and data, with some numbers moved; derivatives are 0 otherwise."""
    pieces = [values.get(piece, 0.0) + np.full(len(fixed), moved.get(piece, 0.0)) for piece in residual.pieces]
    return np.array([np.broadcast_to(each, len(fixed)) for each in residual.values(*pieces, *fixed.T)])
