"""Central differences, extrapolated, at points where a function is smooth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Kink(Exception):  # noqa: N818 - no error, but a place
    """A function was not smooth where it was to be differentiated."""


def central_difference(f: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """The gradient of a function at an array: central differences, extrapolated to step zero.

    Parameters
    ----------
    f : callable
        A function of an array that returns a number.
    at : array of float64
        Where.
    step : float
        The longest step.

    Raises
    ------
    Kink
        Where steps of different lengths disagree, as they do where a slope or a curvature jumps.
    """
    gradient = np.empty(at.shape)
    for index in np.ndindex(at.shape):
        wide, middle, narrow = (_slope(f, at, index, h) for h in (step, step / 2, step / 4))
        coarse, fine = (4.0 * middle - wide) / 3.0, (4.0 * narrow - middle) / 3.0
        if abs(coarse - fine) > 1e-8 * max(1.0, abs(fine)):
            raise Kink
        gradient[index] = fine
    return gradient


def _slope(f: Callable[[np.ndarray], float], at: np.ndarray, index: tuple[int, ...], h: float) -> float:
    up, down = at.copy(), at.copy()
    up[index] += h
    down[index] -= h
    return (f(up) - f(down)) / (up[index] - down[index])


def away_from_kinks(make: Callable[[int], T], first: int = 0, tries: int = 12) -> T:
    """``make(seed)`` for the first seed that raises no Kink. Raises AssertionError where all of them do.

    Parameters
    ----------
    make : callable
        A function of a seed.
    first, tries : int
        The first seed, and how many of them.
    """
    for seed in range(first, first + tries):
        try:
            return make(seed)
        except Kink:
            continue
    raise AssertionError(f"{tries} random points all lay at a kink: is the function smooth anywhere?")


def assert_close(actual: Any, wanted: Any, tolerance: float, what: str = "") -> None:
    """Raise AssertionError unless two arrays are equal, to within `tolerance` times the scale of `wanted` (at least 1).

    Parameters
    ----------
    actual, wanted : array
        The arrays.
    tolerance : float
        The difference allowed.
    what : str
        Of what the message speaks.
    """
    actual, wanted = np.asarray(actual, np.float64), np.asarray(wanted, np.float64)
    if actual.shape != wanted.shape:
        raise AssertionError(f"{what}: must have shape {wanted.shape}, got {actual.shape}")
    scale = max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
    np.testing.assert_allclose(actual, wanted, rtol=0.0, atol=tolerance * scale, err_msg=what)
