"""Five methods give error bars of a small network: how wide are they where a curve has a gap in its data?

Sixty noisy points of sin(3 x), none between -0.4 and 0.5; a network 1-8-8-1 with a normal prior on its parameters. The methods:

- an ensemble: networks from several starts, each on its own bootstrap of the data;
- SWAG: the moments of the last part of one descent;
- SGLD: many noisy descents in one call, each of which ends at a draw;
- Hamiltonian Monte Carlo: many chains in one call;
- emcee's stretch moves, where it is installed, whose walkers are an ensemble that `net` is called with.

    python examples/posterior.py

takes half a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import HMC, SGLD, SWAG, Adam, Chain, Dense, L2Penalty, SquaredLoss, sample, schedules, tanh, train

NOISE, PRIOR, SAMPLES = 0.1, 1.0, 60  # standard deviations of noise and of parameters
GAP = (-0.4, 0.5)
LOSS = SquaredLoss()
TEMPERATURE = NOISE**2 / SAMPLES  # of a mean over the samples
PENALTY = L2Penalty(TEMPERATURE / (2 * PRIOR**2))


class Problem:
    """The data, and the posterior as a function of parameters in rows."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.x = np.concatenate([rng.uniform(-1.2, GAP[0], SAMPLES // 2), rng.uniform(GAP[1], 1.2, SAMPLES // 2)])[:, None]
        self.t = np.sin(3 * self.x) + NOISE * rng.normal(size=self.x.shape)
        self.net = Chain(Dense(1, 8, tanh), Dense(8, 8, tanh), Dense(8, 1))
        self.rng = rng

    def energy(self, p: np.ndarray) -> np.ndarray:
        """Minus the logarithm of the posterior's density, for each row."""
        values, _ = self.net.value_and_grad(p, self.x, self.t, LOSS, penalty=PENALTY)
        return values / TEMPERATURE

    def descend(self, count: int, epochs: int) -> np.ndarray:
        """Networks at the posterior's maxima, from several starts."""
        p = self.net.init_many(count, seed=1, dtype=np.float64)
        train(self.net, p, self.x, self.t, LOSS, Adam(schedules.cosine(0.02, epochs)), epochs=epochs, penalty=PENALTY)
        return p


def ensemble(problem: Problem, draws: int, epochs: int) -> np.ndarray:
    p = problem.net.init_many(draws, seed=2, dtype=np.float64)
    weights = problem.rng.multinomial(SAMPLES, np.full(SAMPLES, 1 / SAMPLES), draws)
    optimizer = Adam(schedules.cosine(0.02, epochs))
    train(problem.net, p, problem.x, problem.t, LOSS, optimizer, epochs=epochs, weights=weights, penalty=PENALTY)
    return p


def swag(problem: Problem, draws: int, epochs: int) -> np.ndarray:
    (p,) = problem.descend(1, epochs)
    optimizer = SWAG(0.005, momentum=0.9, every=10)
    history = train(problem.net, p, problem.x, problem.t, LOSS, optimizer, epochs=epochs, batch_size=10, penalty=PENALTY)
    return optimizer.draw(history.optimizer_state, draws)


def sgld(problem: Problem, draws: int, epochs: int) -> np.ndarray:
    p = problem.descend(draws, epochs)
    optimizer = SGLD(0.02, TEMPERATURE)
    train(problem.net, p, problem.x, problem.t, LOSS, optimizer, epochs=10 * epochs, penalty=PENALTY)
    return p


def hamiltonian(problem: Problem, draws: int, epochs: int) -> np.ndarray:
    """The last draws of as many chains, which begin at different maxima."""
    p = problem.descend(draws, epochs)
    method = HMC(TEMPERATURE, leapfrog_steps=50)
    found = sample(problem.net, p, problem.x, problem.t, LOSS, method, draws=1, warmup=epochs // 10, penalty=PENALTY)

    return found.ensemble()


def stretched(problem: Problem, draws: int, epochs: int) -> np.ndarray:
    """emcee's affine-invariant sampler (Goodman and Weare 2010)."""
    from emcee import EnsembleSampler

    p = problem.descend(max(draws, 2 * problem.net.n_params + 2), epochs)

    def density(rows: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(rows)
        errors = ((problem.net(problem.x, rows) - problem.t) ** 2).sum((1, 2)) / NOISE**2
        return -(errors + (rows**2).sum(1) / PRIOR**2) / 2

    sampler = EnsembleSampler(*p.shape, density, vectorize=True)
    return np.asarray(sampler.run_mcmc(p, epochs).coords[:draws])


METHODS: dict[str, Callable[[Problem, int, int], np.ndarray]] = {
    "ensemble": ensemble,
    "SWAG": swag,
    "SGLD": sgld,
    "Hamiltonian": hamiltonian,
    "emcee": stretched,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=200, help="networks drawn by each method")
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    add_plot(parser, "posterior.png")
    chosen = parser.parse_args(arguments)

    problem = Problem(chosen.seed)
    grid = np.linspace(-1.4, 1.4, 141)[:, None]
    gap = ((grid > GAP[0]) & (grid < GAP[1])).ravel()
    bands = {}
    print(f"{problem.net.n_params} parameters, {SAMPLES} points, {chosen.draws} networks; standard deviations of their outputs")
    print(f"{'':12}{'seconds':>9}{'in the gap':>12}{'outside':>11}{'error':>9}{'energy':>9}")
    for name, draws_of in METHODS.items():
        if name == "emcee" and find_spec("emcee") is None:
            print(f"{name:12}not installed")
            continue
        begin = time.perf_counter()
        p = draws_of(problem, chosen.draws, chosen.epochs)
        seconds = time.perf_counter() - begin
        y = problem.net(grid, np.ascontiguousarray(p))[..., 0]
        bands[name] = y.mean(0), y.std(0)
        inside = np.abs(grid.ravel()) < 1.2
        error = np.sqrt(((y.mean(0) - np.sin(3 * grid.ravel()))[inside] ** 2).mean())
        spread = y.std(0)
        energy = problem.energy(p).mean()
        line = f"{spread[gap].max():12.3f}{spread[inside & ~gap].mean():11.3f}{error:9.3f}{energy:9.1f}"
        print(f"{name:12}{seconds:9.2f}{line}")
    size = (3 * len(bands), 3)
    save_picture(chosen.plot, size, lambda figure: draw(figure, problem, grid.ravel(), bands))


def draw(figure: Any, problem: Problem, grid: np.ndarray, bands: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """The band of two standard deviations of each method."""
    axes = figure.subplots(1, len(bands), sharey=True, squeeze=False)[0]
    for ax, (name, (mean, spread)) in zip(axes, bands.items(), strict=True):
        ax.plot(grid, np.sin(3 * grid), color="0.6", linewidth=1)
        ax.plot(grid, mean, color="C0")
        ax.fill_between(grid, mean - 2 * spread, mean + 2 * spread, color="C0", alpha=0.25, linewidth=0)
        ax.plot(problem.x, problem.t, ".", color="black", markersize=3)
        ax.set(title=name, xlabel="x", ylim=(-2, 2))


if __name__ == "__main__":
    main()
