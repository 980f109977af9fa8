"""Solutions to compare with: tables of the benchmark's authors in a folder, a closed form, and spectral methods.

The tables are those of the folder ``ref`` of https://github.com/i207M/PINNacle. They are no part of this repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

Places = tuple[np.ndarray, dict[str, np.ndarray]]  # points (n, coordinates), and outputs (n,) there by name
CONTOUR = 32  # points of the integrals of exponential steps


def table(folder: Path, name: str, coordinates: int, outputs: str) -> Places:
    """A stationary solution: columns of coordinates, then of outputs."""
    numbers = np.loadtxt(folder / name, comments="%")
    return numbers[:, :coordinates], {each: numbers[:, coordinates + k] for k, each in enumerate(outputs)}


def table_in_time(folder: Path, name: str, outputs: str) -> Places:
    """A solution at points (t, x, y): columns of x and y, then of all outputs for each time in the last line of the header."""
    lines = (folder / name).read_text(encoding="utf-8").splitlines()
    times = [float(found) for found in re.findall(r"@ t=([0-9.eE+-]+)", [each for each in lines if each.startswith("%")][-1])]
    numbers = np.loadtxt(folder / name, comments="%")
    t = np.array(times[:: len(outputs)])
    points = np.column_stack([np.tile(t, len(numbers)), np.repeat(numbers[:, :2], len(t), axis=0)])
    return points, {each: numbers[:, 2 + k :: len(outputs)].ravel() for k, each in enumerate(outputs)}


def burgers(points: np.ndarray, viscosity: float) -> np.ndarray:
    """Burgers' equation from -sin(pi x) at points (t, x), after Cole and Hopf."""
    z = np.linspace(-13.0, 13.0, 1301)
    t, x = points[:, :1], points[:, 1:]
    y = x - z * np.sqrt(4.0 * viscosity * t)
    exponent = -np.cos(np.pi * y) / (2.0 * np.pi * viscosity) - z * z
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return np.asarray(-(np.sin(np.pi * y) * weights).sum(axis=1) / weights.sum(axis=1))


def periodic(
    start: np.ndarray, linear: np.ndarray, rest: Callable[[np.ndarray], np.ndarray], times: np.ndarray, steps: int
) -> np.ndarray:
    """States (times, ...) of ``u_t = linear * u + rest(u)`` for the Fourier coefficients u, by exponential steps of order four.

    Parameters
    ----------
    start : array
        The coefficients at the first time.
    linear : array
        The factor of each coefficient.
    rest : callable
        What is left of the right-hand side, from coefficients to coefficients.
    times : array
        Equally spaced times.
    steps : int
        Steps from one time to the next.

    Notes
    -----
    Source: Kassam and Trefethen, "Fourth-order time-stepping for stiff PDEs", SIAM Journal on Scientific Computing 26, 2005.
    """
    step = (times[1] - times[0]) / steps
    roots = np.exp(2j * np.pi * (np.arange(CONTOUR) + 0.5) / CONTOUR)
    z = step * linear[..., None] + roots
    whole, half = np.exp(step * linear), np.exp(step * linear / 2.0)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.asarray(step * values.mean(axis=-1).real)

    middle = mean((np.exp(z / 2.0) - 1.0) / z)
    first = mean((-4.0 - z + np.exp(z) * (4.0 - 3.0 * z + z**2)) / z**3)
    second = mean((2.0 + z + np.exp(z) * (z - 2.0)) / z**3)
    third = mean((-4.0 - 3.0 * z - z**2 + np.exp(z) * (4.0 - z)) / z**3)
    u, found = start, [start]
    for number in range(1, steps * (len(times) - 1) + 1):
        at_u = rest(u)
        a = half * u + middle * at_u
        at_a = rest(a)
        at_b = rest(half * u + middle * at_a)
        at_c = rest(half * a + middle * (2.0 * at_b - at_u))
        u = whole * u + first * at_u + 2.0 * second * (at_a + at_b) + third * at_c
        if number % steps == 0:
            found.append(u)
    return np.array(found)


def kuramoto(alpha: float, beta: float, gamma: float) -> Places:
    """Kuramoto and Sivashinsky's equation from cos(x) (1 + sin(x)), 0 to 1, on a ring of length 2 pi."""
    count, times = 512, np.linspace(0.0, 1.0, 51)
    x = 2.0 * np.pi * np.arange(count) / count
    k = np.fft.rfftfreq(count, 1.0 / count)
    kept = k < count / 3

    def rest(u: np.ndarray) -> np.ndarray:
        return np.asarray(-0.5j * alpha * k * kept * np.fft.rfft(np.fft.irfft(u, count) ** 2))

    start = np.fft.rfft(np.cos(x) * (1.0 + np.sin(x)))
    u = np.fft.irfft(periodic(start, beta * k**2 - gamma * k**4, rest, times, 100), count)
    points = np.column_stack([np.repeat(times, count), np.tile(x, len(times))])
    return points, {"u": u.ravel()}


def gray_scott(feed: float, removal: float, diffusions: tuple[float, float]) -> Places:
    """Gray and Scott's equations on the square from -1 to 1, 0 to 200, with periodic sides."""
    count, times = 128, np.linspace(0.0, 200.0, 21)
    x = -1.0 + 2.0 * np.arange(count) / count
    grid = np.stack(np.meshgrid(x, x, indexing="ij"))
    k = np.pi * np.fft.fftfreq(count, 1.0 / count)
    square = k[:, None] ** 2 + k[: count // 2 + 1] ** 2

    def rest(u: np.ndarray) -> np.ndarray:
        first, second = np.fft.irfft2(u, (count, count))
        rate = first * second**2
        return np.asarray(np.fft.rfft2(np.stack([feed - rate, rate])))

    start = np.stack([
        1.0 - np.exp(-80.0 * ((grid[0] + 0.05) ** 2 + (grid[1] + 0.02) ** 2)),
        np.exp(-80.0 * ((grid[0] - 0.05) ** 2 + (grid[1] - 0.02) ** 2)),
    ])  # fmt: skip
    linear = np.stack([-diffusions[0] * square - feed, -diffusions[1] * square - removal])
    states = np.fft.irfft2(periodic(np.fft.rfft2(start), linear, rest, times, 20), (count, count))[..., ::4, ::4]
    thin = grid[:, ::4, ::4].reshape(2, -1)
    points = np.column_stack([np.repeat(times, thin.shape[1]), np.tile(thin.T, (len(times), 1))])
    return points, {"u": states[:, 0].ravel(), "v": states[:, 1].ravel()}
