"""Implicit and explicit methods on a stiff and on a mild equation (docs/stiff.md): ``python -m benchmarks.studies.stiff``.

One trajectory, float64, native; the shortest of some calls, in microseconds, and how many steps are taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.machine import describe
from chains import ODE, Chain, Equations, ode_steps
from chains.expr import sin

SECONDS, LEAST = 0.5, 3  # of calls, and how many at least
REACTION = Equations(
    lambda a, b, c, k1, k2, k3: (-k1 * a + k3 * b * c, k1 * a - k3 * b * c - k2 * b * b, k2 * b * b),
    inputs=("a", "b", "c"), parameters={"k1": 0.04, "k2": 3e7, "k3": 1e4},
)  # fmt: skip
PENDULUM = Equations(lambda q, v, g: (v, -g * sin(q)), inputs=("q", "v"), parameters={"g": 1.0})
PROBLEMS: dict[str, tuple[Equations, tuple[float, ...], float, Any]] = {  # right-hand side, state, last time, atol
    "reaction": (REACTION, (1.0, 0.0, 0.0), 40.0, (1e-9, 1e-12, 1e-9)),
    "pendulum": (PENDULUM, (1.0, 0.0), 20.0, None),
}
MAX_STEPS = {("reaction", "tsit5"): 40_000}


def shortest(call: Callable[[], Any]) -> float:
    """Microseconds of a call that was made before."""
    call()
    found, end = list[float](), time.perf_counter() + SECONDS
    while len(found) < LEAST or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found) * 1e6


def main() -> None:
    print(*(f"{name:>9}  {fact}" for name, fact in describe(sgemm=False).items()), "", sep="\n")
    print("| | forward | with its pullback |", "| --- | --- | --- |", sep="\n")
    for name, (rhs, start, last, atol) in PROBLEMS.items():
        for method in ("kvaerno5", "tsit5"):
            most = MAX_STEPS.get((name, method))
            net = Chain(ODE(rhs, (0.0, last), method, rtol=1e-6, atol=atol, max_steps=most), backend="native")
            p, x = net.init(dtype=np.float64), np.array([start])
            dy = np.ones((1, 2, len(start)))
            times = shortest(lambda: net(x, p)), shortest(lambda: net.vjp(p, x, dy))  # noqa: B023 - called here
            steps = len(ode_steps(net, p, x)[0].times) - 1
            print(f"| {name}, {method} ({steps:,} steps) | {times[0]:,.0f} | {times[1]:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
