"""Whole fits of differential equations by each method, from the same starts: ``python -m benchmarks.studies.ode_fits``.

An epidemic (SEIR) whose contact rate is a network of the time, and an oscillator whose friction is a network. The data have
errors of one per cent. It takes about a minute. The first fit of a method compiles.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.machine import describe
from chains import ODE, Chain, Dense, Equations, Select, SquaredLoss, minimize, tanh
from chains.expr import exp

STARTS, NOISE = 5, 0.01
ITERATIONS = {"LM": 300, "BFGS": 3000, "SSBroyden": 3000, "L-BFGS": 3000}
MONTHS = np.linspace(0.0, 2.0, 61)  # 60 days
SECONDS = np.linspace(0.0, 15.0, 61)

Problem = tuple[Chain, np.ndarray, np.ndarray]


def epidemic() -> Problem:
    """The infectious share of a population at 61 days: 27 parameters, of which two are rates a month."""

    def flows(s: Any, e: Any, i: Any, contact: Any, incubation: Any, recovery: Any) -> Any:
        return -contact * s * i, contact * s * i - incubation * e, incubation * e - recovery * i

    def solved(rhs: Equations, **how: Any) -> Chain:
        return Chain(ODE(rhs, MONTHS, time=True, **how), Select([2]), input_shape=(3,), backend="native")

    rates = {"incubation": 6.0, "recovery": 3.0}
    contact = Chain(Dense(1, 8, tanh), Dense(8, 1, tanh))
    learned = Equations(
        lambda s, e, i, t, a, incubation, recovery: flows(s, e, i, 15.0 + 12.0 * a, incubation, recovery),
        inputs=("s", "e", "i", "t"), networks={"a": (contact, ("t",))}, parameters=rates,
        bounds=dict.fromkeys(rates, (0.5, 30.0)),
    )  # fmt: skip
    known = Equations(
        lambda s, e, i, t: flows(s, e, i, 6.0 + 12.0 / (1.0 + exp(8.0 * (t - 0.8))), 9.0, 4.5), inputs=("s", "e", "i", "t")
    )
    return _problem(solved(learned, method="tsit5", steps=2), solved(known, rtol=1e-9, max_steps=2000), (0.99, 0.005, 0.005))


def oscillator() -> Problem:
    """Both states at 61 times: 31 parameters."""

    def solved(rhs: Equations, **how: Any) -> Chain:
        return Chain(ODE(rhs, SECONDS, **how), input_shape=(2,), backend="native")

    friction = Chain(Dense(1, 10, tanh), Dense(10, 1))
    learned = Equations(lambda h, v, f: (v, -h - f), inputs=("h", "v"), networks={"f": (friction, ("v",))})
    known = Equations(lambda h, v: (v, -h - 0.3 * v - 0.2 * v * v * v), inputs=("h", "v"))
    return _problem(solved(learned, method="rk4", steps=4), solved(known, rtol=1e-9, max_steps=2000), (1.0, 0.0))


def _problem(net: Chain, true: Chain, start: tuple[float, ...]) -> Problem:
    x = np.array([start])
    t = true(x, true.init(0, np.float64))
    return net, x, t + NOISE * np.abs(t).max() * np.random.default_rng(0).normal(size=t.shape)


def fits(problem: Problem, method: str) -> str:
    """The time of the first fit, and medians of all of them from the second on."""
    net, x, t = problem
    objective = net.objective(x, t, SquaredLoss())
    seconds, iterations, values = [], [], []
    for seed in range(STARTS + 1):
        p = net.init(max(0, seed - 1), np.float64)  # the first fit is repeated
        begin = time.perf_counter()
        found = minimize(objective, p, method, maxiter=ITERATIONS[method], ftol=1e-9, progress=False)
        seconds.append(time.perf_counter() - begin)
        iterations.append(found.nit)
        values.append(found.fun / (0.5 * t.size * (NOISE * np.abs(t).max()) ** 2))
    numbers = f"{seconds[0]:>8.2f} {median(seconds[1:]):>8.3f} {median(iterations[1:]):>10g}"
    return f"  {method:<10} {numbers}   {', '.join(f'{value:.3g}' for value in sorted(values[1:]))}"


def main() -> int:
    print("\n".join(f"{name:>9}  {fact}" for name, fact in describe().items()), "", sep="\n", flush=True)
    problems: dict[str, Callable[[], Problem]] = {"epidemic": epidemic, "oscillator": oscillator}
    for name, make in problems.items():
        print(f"{name}: seconds of the first fit, medians of {STARTS}: seconds, iterations; losses over that of the errors")
        for method in ITERATIONS:
            print(fits(make(), method), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
