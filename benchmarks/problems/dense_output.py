"""A neural differential equation observed at many times: 2-64-64-2 tanh, 32 trajectories, step control by Tsit5."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import error, repeated
from chains import ODE, Chain, Dense, MSELoss, tanh

TIMES, TRAJECTORIES, END = (2, 20, 100, 1000), 32, 10.0
TOLERANCES = {"float32": (1e-3, 1e-6), "float64": (1e-8, 1e-11)}  # rtol and atol
EXACT = (1e-11, 1e-13)
SCALE = 2.5  # of the initial parameters: solutions then turn, and take 10 to 16 steps


class Problem:
    """The trajectories, with targets of zero, at a number of times."""

    def __init__(self, dtype: str, count: int) -> None:
        self.tolerances, self.times = TOLERANCES[dtype], np.linspace(0.0, END, count)
        self.x = np.random.default_rng(0).uniform(-0.6, 1.0, (TRAJECTORIES, 2)).astype(dtype)
        self.p = SCALE * self.net().init(seed=0, dtype=np.dtype(dtype).type)
        self.targets = np.zeros((TRAJECTORIES, count, 2), dtype)

    def net(self, tolerances: tuple[float, float] | None = None, **how: Any) -> Chain:
        rtol, atol = tolerances or self.tolerances
        rate = Chain(Dense(2, 64, tanh), Dense(64, 64, tanh), Dense(64, 2))
        return Chain(ODE(rate, self.times, rtol=rtol, atol=atol, **how), backend="native")

    def forward(self, net: Chain) -> Any:
        return net(self.x, self.p)

    def gradient(self, net: Chain) -> Any:
        return net.value_and_grad(self.p, self.x, self.targets, MSELoss())[1]

    def exact(self) -> Problem:
        """The same in float64."""
        made = Problem("float64", len(self.times))
        made.x, made.p = self.x.astype(np.float64), self.p.astype(np.float64)
        return made


def contests(options: Options) -> list[Contest]:
    return [contest for count in TIMES for contest in _contests(options, count)]


def _contests(options: Options, count: int) -> list[Contest]:
    problem = Problem(options.dtype, count)
    nets = {"chains native": problem.net(interpolate=True), "chains native, steps to the times": problem.net(interpolate=False)}
    peers, promised = _peers(options, problem), count == 100 and options.dtype == "float32"
    exact, net, found = problem.exact(), problem.exact().net(EXACT, max_steps=5000, interpolate=False), []
    for kind, right in (("forward", exact.forward(net)), ("gradient", exact.gradient(net))):
        own: list[Contestant | Absent] = [
            repeated(name, lambda net=net, kind=kind: getattr(problem, kind)(net)) for name, net in nets.items()
        ]
        sizes = f"2-64-64-2, {TRAJECTORIES} trajectories, rtol {problem.tolerances[0]:g}, {options.dtype}"
        found.append(Contest(
            key=f"dense_output_{kind}_{count}",
            title=f"{kind}, {count} times, {sizes}",
            unit="call",
            contestants=own + peers[kind],
            judged="relative error",
            judge=error(right),
            criteria=lambda table, kind=kind: _criteria(table, kind, count, promised=promised),
        ))  # fmt: skip
    return found


def _peers(options: Options, problem: Problem) -> dict[str, list[Contestant | Absent]]:
    if "jax" not in options.peers:
        return {"forward": [], "gradient": []}
    if not all(map(find_spec, ("jax", "diffrax"))):
        return {kind: [Absent("diffrax", "not installed")] for kind in ("forward", "gradient")}
    from benchmarks.peers import diffrax_dense_output

    calls = diffrax_dense_output.calls(problem, problem.net().views(problem.p))
    return {kind: [repeated(f"diffrax {name}", call) for name, call in own.items()] for kind, own in calls.items()}


def _criteria(table: Table, kind: str, count: int, *, promised: bool) -> list[Criterion]:
    own = table.best("chains native")
    most = {"forward": 1.0, "gradient": 7.0}[kind]
    title = f"dense_output: {kind} at {count} times"
    found = [] if own is None or not promised else [Criterion(f"{title}, ms", 1e3 * own.median, f"<= {most:g}")]
    return found + table.compare(f"{title}, diffrax's best against chains", table.best("diffrax"), own, ">= 2")
