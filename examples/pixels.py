"""One call fits the decay of the signal in each pixel of an image, with error bars.

A magnetic resonance scan gives each pixel a decaying signal, a exp(-t / T) + c. Each of the three numbers has an error bar from
the normal equations, as `scipy.optimize.curve_fit` gives it. The image is synthetic, so the true errors are known too.

    python examples/pixels.py

fits 1,024 pixels. Bounds keep T positive.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import Chain, Equations, SquaredLoss, minimize
from chains.expr import exp

NOISE = 0.02


def image(size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times in milliseconds, the numbers a, T and c of each pixel (pixels, 3), and the signals (pixels, times)."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[-1.0 : 1.0 : size * 1j, -1.0 : 1.0 : size * 1j]
    inside = np.exp(-2.0 * ((rows - 0.2) ** 2 + columns**2))
    truth = np.stack([0.5 + inside, 30.0 + 60.0 * inside * (1.0 + 0.5 * np.sin(4.0 * columns)), 0.05 + 0.05 * rows**2], -1)
    a, decay, offset = np.moveaxis(truth.reshape(-1, 3)[:, :, None], 1, 0)
    times = np.linspace(5.0, 320.0, 32)
    return times, truth.reshape(-1, 3), a * np.exp(-times / decay) + offset + NOISE * rng.normal(size=(size * size, len(times)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=32, help="pixels of a side")
    parser.add_argument("--seed", type=int, default=0)
    add_plot(parser, "pixels.png")
    chosen = parser.parse_args(arguments)

    times, truth, signals = image(chosen.size, chosen.seed)
    names = {"a": 1.0, "T": 50.0, "c": 0.0}
    net = Chain(Equations(lambda t, a, T, c: a * exp(-t / T) + c, ("t",), parameters=names))
    objective = net.objective(times[:, None], signals[:, :, None], SquaredLoss())
    starts = np.tile([*names.values()], (len(signals), 1))
    begun = time.perf_counter()
    fits = minimize(objective, starts, "LM", bounds=([0.0, 1.0, -1.0], [10.0, 1000.0, 1.0]))
    seconds = time.perf_counter() - begun
    values, _, normal = objective.normal_equations(fits.x)
    variance = 2.0 * values / (len(times) - len(names))
    bars = np.sqrt(variance[:, None] * np.diagonal(np.linalg.inv(normal), axis1=1, axis2=2))
    print(fits)
    print(f"{len(signals)} fits in {1e3 * seconds:.0f} ms, with the compilation if it is the first run")
    for k, name in enumerate(names):
        within = float((abs(fits.x[:, k] - truth[:, k]) < bars[:, k]).mean())
        print(f"{name}: the median error bar is {np.median(bars[:, k]):.3g}; {within:.0%} of the pixels are within theirs")
    save_picture(chosen.plot, (14, 3.2), lambda figure: draw(figure, times, truth, signals, fits.x, bars))


def draw(figure: Any, times: np.ndarray, truth: np.ndarray, signals: np.ndarray, found: np.ndarray, bars: np.ndarray) -> None:
    """T and its error bar in each pixel, and the signals of two pixels."""
    size = int(len(truth) ** 0.5)
    axes = figure.subplots(1, 4)
    images = {"T, truth (ms)": truth[:, 1], "T, fitted (ms)": found[:, 1], "error bar of T (ms)": bars[:, 1]}
    for ax, (title, values) in zip(axes, images.items(), strict=False):
        shown = ax.imshow(values.reshape(size, size), vmin=None if "bar" in title else truth[:, 1].min())
        ax.set(title=title, xticks=[], yticks=[])
        figure.colorbar(shown, ax=ax)
    for pixel, color in ((0, "tab:blue"), (len(truth) // 2 + size // 2, "tab:red")):
        a, decay, offset = found[pixel]
        axes[3].plot(times, signals[pixel], ".", color=color)
        axes[3].plot(
            times, a * np.exp(-times / decay) + offset, color=color, label=f"T = {decay:.0f} ± {bars[pixel, 1]:.0f} ms"
        )
    axes[3].set(title="two pixels", xlabel="time (ms)")
    axes[3].legend()


if __name__ == "__main__":
    main()
