"""Neural differential equations of the literature, fitted to the same error: ``python -m benchmarks.studies.whole_fits``.

From the same starts: Levenberg-Marquardt (BFGS for the spiral) and Adam of chains; those of optimistix and optax through
diffrax; and PyTorch's Adam through torchdiffeq. The data have errors of a known size. A fit ends where the root mean square
of the residuals is at most 1.05 times this size, or after a number of iterations, PyTorch's also after some seconds. Adam of
chains does the number of iterations that an earlier run needed. All is float64. A problem takes about a minute.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from benchmarks.harness.machine import describe
from chains import ODE, Adam, Chain, Dense, Equations, MSELoss, Select, SquaredLoss, minimize, tanh, train

STARTS, TARGET = 3, 1.05
MOST = {"LM": 300, "BFGS": 600, "Adam": 3000}  # iterations
SECONDS = 8.0  # of PyTorch's fit
THIN = 1  # every so many of the times
CONTROL = {"rtol": 1e-4, "atol": 1e-6, "max_steps": 256, "interpolate": True}

Fitted = tuple[np.ndarray, int]
Fit = Callable[[np.ndarray], Fitted]


@dataclass(frozen=True)
class Problem:
    """A right-hand side with a network, and what was observed of its solutions."""

    formula: Callable[..., Any]  # of the states, the time, the forcing, the network's outputs and the parameters, by name
    states: tuple[str, ...]
    widths: tuple[int, ...]  # of the network
    seen: tuple[str, ...]  # the network's inputs
    learned: tuple[str, ...]  # its outputs
    times: np.ndarray
    x: np.ndarray  # (trajectories, states)
    t: np.ndarray  # (trajectories, times, observed)
    noise: float
    observed: tuple[int, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)
    power: int = 1  # of the network's two inputs
    learning_rate: float = 0.01
    method: str = "LM"  # beside Adam
    forcing: Mapping[str, np.ndarray] = field(default_factory=dict)  # at the times; with it there are equal steps of RK4

    @property
    def takes_time(self) -> bool:
        return "t" in self.seen

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.states, *("t",) * self.takes_time, *self.forcing)

    def net(self) -> Chain:
        last = len(self.widths) - 1
        sizes = zip(self.widths[:-1], self.widths[1:], strict=True)
        layers = [Dense(a, b, tanh) if k < last else Dense(a, b, weight_init=0.0) for k, (a, b) in enumerate(sizes, 1)]
        powers = Equations(lambda a, b: (a**self.power, b**self.power), ("a", "b")) if self.power != 1 else None
        network = Chain(powers, *layers) if powers else Chain(*layers)
        rhs = Equations(
            self.formula, self.inputs, networks={"network": (network, self.seen, self.learned)}, parameters=self.parameters
        )
        how: dict[str, Any] = dict(CONTROL)
        if self.forcing:
            how = {"method": "rk4", "forcing": (self.times, np.stack(list(self.forcing.values()), 1))}
        solution = ODE(rhs, self.times, time=self.takes_time, **how)
        return Chain(solution, Select(list(self.observed)), input_shape=(len(self.states),), backend="native")

    def slopes(self, library: Any, t: Any, y: Any, forcing: Sequence[Any], p: Mapping[str, Any]) -> Any:
        """The right-hand side by `jax.numpy` or `torch`."""
        values = {name: y[..., k] for k, name in enumerate(self.states)} | dict(zip(self.forcing, forcing, strict=True))
        if self.takes_time:
            values["t"] = t + 0.0 * y[..., 0]
        h = library.stack([values[name] + 0.0 * y[..., 0] for name in self.seen], -1) ** self.power
        for k in range(last := len(self.widths) - 1):
            h = h @ p[f"weight {k}"] + p[f"bias {k}"]
            h = library.tanh(h) if k + 1 < last else h
        values |= {name: h[..., k] for k, name in enumerate(self.learned)}
        return library.stack(self.formula(**values, **{name: p[name] for name in self.parameters}), -1)

    def layout(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names, as `slopes` has them, and shapes of the parts of the flat vector."""
        net, found, counts = self.net(), [], {"weight": 0, "bias": 0}
        for name, view in net.views(net.init(0, np.float64)).items():
            last = name.rpartition(".")[2]
            found.append((f"{last} {counts[last]}" if last in counts else last, view.shape))
            if last in counts:
                counts[last] += 1
        return found

    def error(self, net: Chain, p: np.ndarray) -> float:
        """The root mean square of the residuals, in units of the errors of the data."""
        return float(np.sqrt(np.mean((net(self.x, p) - self.t) ** 2))) / self.noise


def _observed(rate: Callable[..., Any], times: np.ndarray, start: Sequence[float], **how: Any) -> np.ndarray:
    """The exact states at the times, (times, states)."""
    how = {"rtol": 1e-9, "atol": 1e-10} | how
    return solve_ivp(rate, (times[0], times[-1]), start, "DOP853", times, **how).y.T


def _noisy(exact: np.ndarray, noise: float) -> np.ndarray:
    return exact + noise * np.random.default_rng(0).normal(size=exact.shape)


def spiral() -> Problem:
    """Chen et al., 2018: 1,000 times of a spiral in 40 pieces, 2-50-2 of the cubes."""
    matrix, noise, pieces = np.array([[-0.1, 2.0], [-2.0, -0.1]]), 0.01, 40
    times = np.linspace(0.0, 25.0, 1000)
    states = _observed(lambda t, y: (y**3) @ matrix, times, (2.0, 0.0)).reshape(pieces, -1, 2)[:, ::THIN]
    return Problem(
        lambda x, y, u, v: (u, v), ("x", "y"), (2, 50, 2), ("x", "y"), ("u", "v"), times[: 1000 // pieces : THIN],
        states[:, 0], _noisy(states, noise), noise, (0, 1), power=3, method="BFGS",
    )  # fmt: skip


def hares() -> Problem:
    """Lotka-Volterra with 2-5-5-5-2 in place of the encounters, as in Rackauckas et al., 2020."""
    times, noise, start = np.linspace(0.0, 3.0, 61)[::THIN], 0.02, (0.44249, 4.6280)
    states = _observed(lambda t, y: (1.3 * y[0] - 0.9 * y[0] * y[1], 0.8 * y[0] * y[1] - 1.8 * y[1]), times, start)
    return Problem(
        lambda hare, lynx, u, v, birth, death: (birth * hare + u, v - death * lynx), ("hare", "lynx"), (2, 5, 5, 5, 2),
        ("hare", "lynx"), ("u", "v"), times, np.array([start]), _noisy(states, noise)[None], noise, (0, 1),
        parameters={"birth": 1.0, "death": 1.0},
    )  # fmt: skip


def epidemic() -> Problem:
    """SEIR whose contact rate is 1-8-1 of the time; the infectious at 61 days. The unit of time is a month."""
    times, noise, start = np.linspace(0.0, 2.0, 61)[::THIN], 0.001, (0.99, 0.005, 0.005)

    def flows(s: Any, e: Any, i: Any, contact: Any, incubation: Any, recovery: Any) -> Any:
        return -contact * s * i, contact * s * i - incubation * e, incubation * e - recovery * i

    states = _observed(lambda t, y: flows(*y, 6.0 + 12.0 / (1.0 + np.exp(8.0 * (t - 0.8))), 9.0, 4.5), times, start)
    return Problem(
        lambda s, e, i, t, a, incubation, recovery: flows(s, e, i, 15.0 + 12.0 * a, incubation, recovery), ("s", "e", "i"),
        (1, 8, 1), ("t",), ("a",), times, np.array([start]), _noisy(states[None, :, 2:], noise), noise, (2,),
        parameters={"incubation": 6.0, "recovery": 3.0},
    )  # fmt: skip


def building() -> Problem:
    """Air and walls as two capacities; 2-6-1 of sun and air for what is left. A week of half hours, the air measured."""
    times, noise = np.linspace(0.0, 7.0, 337)[::THIN], 0.02  # days and tens of kelvins
    rng = np.random.default_rng(1)
    sun = np.maximum(0.0, np.sin(2.0 * np.pi * (times - 0.25))) * np.interp(times, np.arange(8.0), rng.uniform(0.3, 1.0, 8))
    out = -0.5 + 0.4 * np.sin(2.0 * np.pi * (times - 0.4)) + np.interp(times, np.arange(8.0), rng.normal(0.0, 0.3, 8))
    heat = np.repeat(rng.integers(0, 3, 85) / 2.0, 4)[: len(times)]

    def flows(air: Any, wall: Any, out: Any, heat: Any, rest: Any, inner: Any, outer: Any, gain: Any, slow: Any) -> Any:
        return inner * (wall - air) + outer * (out - air) + gain * heat + rest, slow * (air - wall)

    def exact(t: float, y: np.ndarray) -> Any:
        at = [np.interp(t, times, values) for values in (out, heat, sun)]
        return flows(*y, *at[:2], 3.0 * at[2] ** 2 / (1.0 + np.exp(4.0 * (y[0] - 0.3))), 6.0, 2.0, 4.0, 0.8)

    states = _observed(exact, times, (0.0, -0.2), max_step=times[1] - times[0], rtol=1e-6, atol=1e-8)
    return Problem(
        lambda air, wall, out, heat, sun, rest, inner, outer, gain, slow: flows(
            air, wall, out, heat, rest, inner, outer, gain, slow
        ),
        ("air", "wall"), (2, 6, 1), ("sun", "air"), ("rest",), times, np.array([[0.0, -0.2]]),
        _noisy(states[None, :, :1], noise), noise, (0,), parameters={"inner": 4.0, "outer": 1.0, "gain": 2.0, "slow": 1.0},
        forcing={"out": out, "heat": heat, "sun": sun},
    )  # fmt: skip


def pendulum() -> Problem:
    """1,000 noisy positions, as from a video; 2-12-1 beside a spring for all forces."""
    times, noise, start = np.linspace(0.0, 10.0, 1000)[::THIN], 0.02, (1.5, 0.0)
    states = _observed(lambda t, y: (y[1], -4.0 * np.sin(y[0]) - 0.1 * y[1] - 0.05 * y[1] * abs(y[1])), times, start)
    return Problem(
        lambda q, v, f, stiffness: (v, f - stiffness * q), ("q", "v"), (2, 12, 1), ("q", "v"), ("f",), times,
        np.array([start]), _noisy(states[None, :, :1], noise), noise, (0,), parameters={"stiffness": 3.0},
    )  # fmt: skip


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "spiral": spiral, "hares": hares, "epidemic": epidemic, "building": building, "pendulum": pendulum,
}  # fmt: skip


@dataclass
class Row:
    """Fits of one library by one method."""

    name: str
    compiling: float = 0.0  # seconds of the first fit beyond those of the same fit once more
    seconds: list[float] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, seconds: float, iterations: int, error: float) -> None:
        self.seconds.append(seconds)
        self.iterations.append(iterations)
        self.errors.append(error)

    def __str__(self) -> str:
        middle = median(self.seconds)
        errors = ", ".join(f"{error:.2f}" for error in sorted(self.errors))
        return f"{self.name} | {middle:.3g} | {middle + self.compiling:.3g} | {median(self.iterations):g} | {errors}"


def chains_rows(problem: Problem, starts: list[np.ndarray]) -> Iterator[Row]:
    """The iterations that are needed are counted beforehand: the same start gives the same fit."""
    net = problem.net()
    objective = net.objective(problem.x, problem.t, SquaredLoss())

    def newton(p: np.ndarray, most: int) -> np.ndarray:
        return np.asarray(minimize(objective, p, problem.method, maxiter=most, gtol=0.0, progress=False).x)

    def adam(p: np.ndarray, most: int) -> Any:
        rule, p = Adam(problem.learning_rate), p.copy()
        history = train(net, p, problem.x, problem.t, MSELoss(), rule, epochs=most, batch_size=None, progress=False)
        return p, history.loss

    def counted(p: np.ndarray) -> int:
        met = np.sqrt(adam(p, MOST["Adam"])[1]) <= TARGET * problem.noise
        return int(np.argmax(met)) + 1 if met.any() else MOST["Adam"]

    def fewest(p: np.ndarray) -> int:
        return _fewest(lambda most: problem.error(net, newton(p, most)) <= TARGET, MOST[problem.method])

    ways: dict[str, tuple[Callable[..., Any], Callable[..., int]]] = {
        problem.method: (newton, fewest), "Adam": (lambda p, most: adam(p, most)[0], counted),
    }  # fmt: skip
    for name, (fit, count) in ways.items():
        row = Row(f"chains, {name}")
        row.compiling = _timed(fit, starts[0], 1)[1]
        for p in starts:
            most = count(p)
            found, seconds = _fastest(fit, p, most)
            row.add(seconds, most, problem.error(net, found))
        yield row


def _fewest(met: Callable[[int], bool], most: int) -> int:
    """The smallest number that is enough, or `most`."""
    enough = 1
    while enough < most and not met(enough):
        enough = min(2 * enough, most)
    less = enough // 2
    while enough - less > 1:
        middle = (less + enough) // 2
        less, enough = (less, middle) if met(middle) else (middle, enough)
    return enough


def peer_row(name: str, fit: Fit, problem: Problem, starts: list[np.ndarray], compiled: bool = True) -> Row:
    """Fits of another library, which end by themselves."""
    net, row = problem.net(), Row(name)
    first = _timed(fit, starts[0])[1] if compiled else 0.0
    for p in starts:
        (found, iterations), seconds = _fastest(fit, p)
        row.add(seconds, iterations, problem.error(net, found))
    row.compiling = max(0.0, first - row.seconds[0])
    return row


def _timed(call: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    return call(*given), time.perf_counter() - begin


def _fastest(call: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """The result, and the least seconds of three calls, or of as many as fit in one second."""
    found, least = _timed(call, *given)
    left, total = 2, least
    while left and total < 1.0:
        seconds = _timed(call, *given)[1]
        left, total, least = left - 1, total + seconds, min(least, seconds)
    return found, least


def rows(problem: Problem, peers: Sequence[str], count: int) -> Iterator[Row]:
    net = problem.net()
    starts = [net.init(seed, np.float64) for seed in range(count)]
    if "chains" in peers:
        yield from chains_rows(problem, starts)
    if "diffrax" in peers and all(map(find_spec, ("diffrax", "optimistix", "optax"))):
        from benchmarks.peers import diffrax_fits

        for name, fit in diffrax_fits.fits(problem, TARGET, MOST).items():
            yield peer_row(f"diffrax, {name}", fit, problem, starts)
    if "torchdiffeq" in peers and find_spec("torchdiffeq"):
        from benchmarks.peers import torchdiffeq_fits

        fit = torchdiffeq_fits.fit(problem, TARGET, MOST["Adam"], SECONDS)
        yield peer_row("torchdiffeq, Adam", fit, problem, starts[:1], compiled=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.whole_fits", description="Fits to the same error.")
    parser.add_argument("problems", nargs="*", metavar="problem", help=f"of {', '.join(PROBLEMS)}; all by default")
    parser.add_argument("--peers", nargs="+", default=["chains", "diffrax", "torchdiffeq"])
    parser.add_argument("--starts", type=int, default=STARTS)
    options = parser.parse_args(arguments)
    print("\n".join(f"{name:>9}  {fact}" for name, fact in describe(sgemm=False).items()), "", sep="\n", flush=True)
    print("| problem | parameters | numbers | fit | seconds | with compilation | iterations | errors |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # so that all is compiled
        try:
            for name in options.problems or PROBLEMS:
                problem = PROBLEMS[name]()
                size = f"| {name} | {problem.net().n_params} | {problem.t.size} |"
                for row in rows(problem, options.peers, options.starts):
                    print(size, row, "|", flush=True)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            os.environ.update({} if before is None else {"XDG_CACHE_HOME": before})
    return 0


if __name__ == "__main__":
    sys.exit(main())
