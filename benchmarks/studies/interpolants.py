"""``python -m benchmarks.studies.interpolants``: errors of interpolated states, and those at the ends of the steps.

Against SciPy's DOP853 at 1e-12, in units of the tolerance ``rtol * (1 + the largest state)``, by method and tolerance.
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

from chains import ODE, Chain, Equations, ode_steps
from chains.expr import sin

PROBLEMS = {
    "pendulum": (Equations(lambda q, v: (v, -sin(q)), ("q", "v")), [1.0, 0.5], 6.0),
    "hares and lynxes": (Equations(lambda h, y: (h - h * y, 0.5 * h * y - y), ("h", "y")), [2.0, 0.5], 6.0),
    "van der Pol": (Equations(lambda x, v: (v, 3.0 * (1.0 - x * x) * v - x), ("x", "v")), [2.0, 0.0], 6.0),
}
METHODS = {"tsit5": (1e-3, 1e-6, 1e-9), "kvaerno3": (1e-2, 1e-3, 1e-4), "kvaerno5": (1e-3, 1e-6, 1e-8)}
COUNT = 101


def measured(problem: str, method: str, rtol: float) -> tuple[int, float, float]:
    """The number of steps, and the largest errors at their ends and at the times."""
    rate, start, end = PROBLEMS[problem]
    times, x, none = np.linspace(0.0, end, COUNT), np.array([start]), np.zeros(0)
    one = Chain(rate, backend="numpy")

    def exact(at: np.ndarray) -> np.ndarray:
        return solve_ivp(lambda t, y: one(y[None], none)[0], (0.0, end), start, "DOP853", at, rtol=1e-12, atol=1e-13).y.T

    net = Chain(ODE(rate, times, method, rtol=rtol, atol=rtol, max_steps=2000, interpolate=True), backend="native")
    (way,), y = ode_steps(net, none, x), net(x, none)[0]
    unit = rtol * (1.0 + np.max(np.abs(y)))
    return len(way.times) - 1, np.max(np.abs(way.states - exact(way.times))) / unit, np.max(np.abs(y - exact(times))) / unit


def main() -> None:
    print("| method | rtol |", " | ".join(PROBLEMS), "|")
    print("| --- | --- |", " | ".join("---" for _ in PROBLEMS), "|")
    for method, tolerances in METHODS.items():
        for rtol in tolerances:
            found = (measured(problem, method, rtol) for problem in PROBLEMS)
            cells = [f"{steps}: {ends:.2g}, {times:.2g}" for steps, ends, times in found]
            print(f"| {method} | {rtol:g} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
