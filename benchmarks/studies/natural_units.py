"""Ten equations in their natural units, solved with guessed scales: ``python -m benchmarks.studies.natural_units``.

Each has an exact solution, or one by SciPy at 1e-10. A row has the relative L2 error of each seed, the seconds with
compilation, and whether `solve` says that it has succeeded. ``--plain`` solves without scales.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains import Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.expr import exp, sin


@dataclass(frozen=True)
class Equation:
    """The terms of a problem, and its solution at some places."""

    coordinates: tuple[str, ...]
    terms: list[Term]
    places: np.ndarray
    solution: dict[str, np.ndarray]


def _line(low: float, high: float, count: int, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.uniform(low, high, count))[:, None]


def _at(*places: float) -> np.ndarray:
    return np.array(places)[:, None]


def _start(length: float, count: int) -> np.ndarray:
    return np.column_stack([np.zeros(count), np.linspace(0.0, length, count)])


def _sides(end: float, length: float, count: int, rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([rng.uniform(0.0, end, 2 * count), np.repeat([0.0, length], count)])


def plate(rng: np.random.Generator) -> Equation:
    """A plate that cools between two sides: 0.1 m, a minute, 300 to 400 K."""
    end, length, diffusivity = 60.0, 0.1, 1.2e-5
    terms = [
        Term(lambda u: u.t - diffusivity * u.xx, rng.uniform([0.0, 0.0], [end, length], (500, 2))),
        Term(lambda u, x: u - 300.0 - 100.0 * sin(math.pi / length * x), _start(length, 100)),
        Term(lambda u: u - 300.0, _sides(end, length, 50, rng)),
    ]
    places = rng.uniform([0.0, 0.0], [end, length], (2000, 2))
    t, x = places.T
    decay = np.exp(-diffusivity * (math.pi / length) ** 2 * t)
    return Equation(("t", "x"), terms, places, {"u": 300.0 + 100.0 * decay * np.sin(math.pi * x / length)})


def oscillator(rng: np.random.Generator) -> Equation:
    """A gram on a spring, 16 Hz, damped: 2 mm, 0.15 s."""
    mass, damping, spring, end = 1e-3, 0.02, 10.0, 0.15
    terms = [
        Term(lambda u: mass * u.tt + damping * u.t + spring * u, _line(0.0, end, 300, rng)),
        Term(lambda u: (u - 2e-3, u.t), _at(0.0)),
    ]
    t = np.linspace(0.0, end, 1000)
    rate = damping / (2.0 * mass)
    frequency = math.sqrt(spring / mass - rate**2)
    wave = np.cos(frequency * t) + rate / frequency * np.sin(frequency * t)
    return Equation(("t",), terms, t[:, None], {"u": 2e-3 * np.exp(-rate * t) * wave})


def beam(rng: np.random.Generator) -> Equation:
    """A steel beam of 5 m under 10 kN/m, with forces and moments in N and N m."""
    stiffness, load, length = 210e9 * 8e-6, 1e4, 5.0
    terms = [
        Term(lambda w: stiffness * w.xxxx - load, _line(0.0, length, 100, rng)),
        Term(lambda w: (w, stiffness * w.xx), _at(0.0, length)),
    ]
    x = np.linspace(0.0, length, 200)
    exact = load * x / (24.0 * stiffness) * (length**3 - 2.0 * length * x**2 + x**3)
    return Equation(("x",), terms, x[:, None], {"w": exact})


def growth(rng: np.random.Generator) -> Equation:
    """Logistic growth to 14 million in 200 years."""
    rate, capacity, first, end = 0.03, 1.4e7, 5e5, 200.0
    terms = [
        Term(lambda n: n.t - rate * n * (1.0 - n * (1.0 / capacity)), _line(0.0, end, 300, rng)),
        Term(lambda n: n - first, _at(0.0)),
    ]
    t = np.linspace(0.0, end, 500)
    exact = capacity / (1.0 + (capacity / first - 1.0) * np.exp(-rate * t))
    return Equation(("t",), terms, t[:, None], {"n": exact})


def catalyst(rng: np.random.Generator) -> Equation:
    """Diffusion and reaction in a pore of a millimetre."""
    diffusivity, rate, length, outside = 1e-9, 1e-2, 1e-3, 40.0
    terms = [
        Term(lambda c: diffusivity * c.xx - rate * c, _line(0.0, length, 200, rng)),
        Term(lambda c: c - outside, _at(length)),
        Term(lambda c: c.x, _at(0.0)),
    ]
    x, thiele = np.linspace(0.0, length, 300), math.sqrt(rate / diffusivity)
    return Equation(("x",), terms, x[:, None], {"c": outside * np.cosh(thiele * x) / math.cosh(thiele * length)})


def sound(rng: np.random.Generator) -> Equation:
    """A standing wave of 100 Pa in a pipe of a metre, 3 ms."""
    speed, length, end = 343.0, 1.0, 3e-3
    terms = [
        Term(lambda p: p.tt - speed**2 * p.xx, rng.uniform([0.0, 0.0], [end, length], (800, 2))),
        Term(lambda p, x: (p - 100.0 * sin(math.pi * x), p.t), _start(length, 60)),
        Term(lambda p: p, _sides(end, length, 40, rng)),
    ]
    places = rng.uniform([0.0, 0.0], [end, length], (2000, 2))
    t, x = places.T
    return Equation(("t", "x"), terms, places, {"p": 100.0 * np.sin(math.pi * x) * np.cos(math.pi * speed * t)})


def duct(rng: np.random.Generator) -> Equation:
    """Water in a duct of a square centimetre under 10 Pa/m."""
    viscosity, gradient, width = 1e-3, 10.0, 1e-2
    walls = _sides(width, width, 50, rng)
    terms = [
        Term(lambda u: viscosity * (u.yy + u.zz) + gradient, rng.uniform(0.0, width, (600, 2))),
        Term(lambda u: u, np.concatenate([walls, walls[:, ::-1]])),
    ]
    places = rng.uniform(0.0, width, (1000, 2))
    y, z = places.T
    exact = np.zeros(len(places))
    for k in math.pi / width * np.arange(1, 200, 2):
        shape = 1.0 - np.cosh(k * (z - width / 2)) / math.cosh(k * width / 2)
        exact += 4.0 * gradient / (viscosity * width * k**3) * shape * np.sin(k * y)
    return Equation(("y", "z"), terms, places, {"u": exact})


def well(rng: np.random.Generator) -> Equation:
    """The head around a well from 1 to 50 m, with its discharge in m3/s."""
    transmissivity, discharge, near, far, head = 1e-3, 5e-3, 1.0, 50.0, 20.0
    terms = [
        Term(lambda h, r: r * h.rr + h.r, _line(near, far, 300, rng)),
        Term(lambda h: h - head, _at(far)),
        Term(lambda h, r: 2.0 * math.pi * transmissivity * r * h.r - discharge, _at(near)),
    ]
    r = np.linspace(near, far, 300)
    return Equation(("r",), terms, r[:, None], {"h": head + discharge / (2.0 * math.pi * transmissivity) * np.log(r / far)})


def double_layer(rng: np.random.Generator) -> Equation:
    """Poisson and Boltzmann's potential of 50 mV at a wall, 40 nm of salt water."""
    charge, energy, permittivity, ions, length, wall = 1.602e-19, 4.11e-21, 7.08e-10, 6.022e24, 4e-8, 0.05
    source, unit = charge * ions / permittivity, charge / energy
    terms = [
        Term(lambda v: v.xx - source * (exp(unit * v) - exp(-unit * v)), _line(0.0, length, 300, rng)),
        Term(lambda v: v - wall, _at(0.0)),
        Term(lambda v: v, _at(length)),
    ]
    x, screening = np.linspace(0.0, length, 300), math.sqrt(2.0 * source * unit)
    exact = 4.0 / unit * np.arctanh(math.tanh(unit * wall / 4.0) * np.exp(-screening * x))
    return Equation(("x",), terms, x[:, None], {"v": exact})


def epidemic(rng: np.random.Generator) -> Equation:
    """Susceptible, infected, recovered: a million persons, of whom a thousand are infected at first."""
    from scipy.integrate import solve_ivp

    persons, contact, recovery, end = 1e6, 0.4, 0.1, 100.0
    first = [persons - 1000.0, 1000.0, 0.0]
    terms = [
        Term(
            lambda s, i, r: (
                s.t + contact / persons * s * i, i.t - contact / persons * s * i + recovery * i, r.t - recovery * i
            ),
            _line(0.0, end, 400, rng),
        ),
        Term(lambda s, i, r: (s - first[0], i - first[1], r), _at(0.0)),
    ]  # fmt: skip
    t = np.linspace(0.0, end, 500)

    def slope(_: float, y: np.ndarray) -> list[float]:
        infected = contact / persons * y[0] * y[1]
        return [-infected, infected - recovery * y[1], recovery * y[1]]

    found = solve_ivp(slope, (0.0, end), first, t_eval=t, rtol=1e-10, atol=1e-3).y
    return Equation(("t",), terms, t[:, None], dict(zip("sir", found, strict=True)))


EQUATIONS: list[Callable[[np.random.Generator], Equation]] = [
    plate, oscillator, beam, growth, catalyst, sound, duct, well, double_layer, epidemic
]  # fmt: skip


def solved(
    make: Callable[[np.random.Generator], Equation], seed: int, iterations: int, scales: Any
) -> tuple[float, float, bool]:
    """The largest relative L2 error of an output, the seconds, and whether `solve` reports success."""
    equation = make(np.random.default_rng(seed))
    outputs = tuple(equation.solution)
    problem = ResidualProblem(equation.coordinates, outputs, equation.terms, scales=scales)
    net = Chain(Dense(len(equation.coordinates), 20, tanh), Dense(20, 20, tanh), Dense(20, len(outputs)))
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers far from one, with --plain
        found = solve(net, net.init(seed, np.float64), problem, iterations=iterations, progress=False)
    seconds = time.perf_counter() - begin
    values = problem.evaluate(net, found.p, equation.places)
    errors = [np.linalg.norm(values[name] - true) / np.linalg.norm(true) for name, true in equation.solution.items()]
    return float(max(errors)), seconds, found.success


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="equations, by default all: " + ", ".join(each.__name__ for each in EQUATIONS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--plain", action="store_true", help="without scales")
    given = parser.parse_args(arguments)
    print("| equation | " + " | ".join(f"error, seed {seed} | seconds | success" for seed in range(given.seeds)) + " |")
    print("| --- |" + " --- | --- | --- |" * given.seeds)
    for make in EQUATIONS:
        if given.names and make.__name__ not in given.names:
            continue
        cells = []
        for seed in range(given.seeds):
            error, seconds, success = solved(make, seed, given.iterations, None if given.plain else {})
            cells += [f"{error:.1e}", f"{seconds:.1f}", "yes" if success else "no"]
        print(f"| {make.__name__.replace('_', ' ')} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
