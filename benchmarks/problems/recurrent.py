"""Small recurrences: value and gradient of GRU 4 -> 32 and LSTM 8 -> 16 over 50 steps, and one step alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options, libraries
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import error, repeated
from chains import GRU, LSTM, Chain, Dense, MSELoss

STEPS = 50
SIZES = {"GRU": (4, 32), "LSTM": (8, 16)}
# Goals: of one sample in microseconds, and how many times as long PyTorch and JAX take.
GOALS: dict[tuple[str, int], dict[str, float]] = {
    ("GRU", 1): {"us": 30.0, "PyTorch": 70.0, "JAX": 7.0},
    ("GRU", 32): {"PyTorch": 4.0, "JAX": 4.0},
    ("LSTM", 32): {"PyTorch": 4.0, "JAX": 4.0},
}


class Problem:
    """A network of one kind with starting values, and random data."""

    def __init__(self, kind: str, batch: int) -> None:
        self.kind, self.batch = kind, batch
        self.inputs, self.units = SIZES[kind]
        self.p = self.net("numpy").init(seed=0)
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(batch, STEPS, self.inputs)).astype(np.float32)
        self.t = rng.normal(size=(batch, 1)).astype(np.float32)
        self.carried: np.ndarray | None = None  # before a step

    def net(self, backend: str) -> Chain:
        layer = {"GRU": GRU, "LSTM": LSTM}[self.kind](self.inputs, self.units)
        return Chain(layer, Dense(self.units, 1), input_shape=(STEPS, self.inputs), backend=backend)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name."""
        return self.net("numpy").views(self.p)


def contests(options: Options) -> list[Contest]:
    problems = [Problem(kind, batch) for kind in SIZES for batch in (1, 32)]
    return [*(_gradient(problem, options) for problem in problems), _step(Problem("GRU", 1), options)]


def _peers(options: Options, kind: str, problem: Problem) -> list[Contestant | Absent]:
    found, modules = libraries("recurrent", options)
    for name, module in modules.items():
        found += [repeated(f"{name} {text}", call) for text, call in getattr(module, kind)(problem).items()]
    return found


def _gradient(problem: Problem, options: Options) -> Contest:
    loss = MSELoss()
    own: list[Contestant | Absent] = []
    for name in options.backends or ("native", "numpy"):
        net = problem.net(name)
        own.append(repeated(f"chains {name}", partial(_second, net.value_and_grad, problem.p, problem.x, problem.t, loss)))
    exact = [each.astype(np.float64) for each in (problem.p, problem.x, problem.t)]
    wanted = problem.net("numpy").value_and_grad(*exact, loss)[1]
    kind, batch = problem.kind, problem.batch
    return Contest(
        key=f"recurrent_{kind}_{batch}",
        title=f"value and gradient of {kind} {problem.inputs} -> {problem.units}, {STEPS} steps, {batch} samples, float32",
        unit="call",
        contestants=own + _peers(options, "gradient", problem),
        judged="relative error of the gradient",
        judge=error(wanted),
        criteria=partial(_criteria, f"{kind}, batch {batch}", GOALS.get((kind, batch), {})),
    )


def _second(function: Any, *arguments: Any) -> Any:
    return function(*arguments)[1]


def _step(problem: Problem, options: Options) -> Contest:
    net, x = problem.net("native"), problem.x[:, 0].copy()
    _, carried = net.step(x, problem.p)
    own: list[Contestant | Absent] = [repeated("chains native", lambda: net.step(x, problem.p, carried)[0], 100)]
    after = problem.net("numpy").step(x, problem.p, carried)[0]
    problem.carried = carried
    return Contest(
        key="recurrent_step",
        title="one step of GRU 4 -> 32 with a linear output, one sample, float32",
        unit="call",
        contestants=own + _peers(options, "step", problem),
        judged="relative error",
        judge=error(after),
        criteria=partial(_criteria, "one step", {"us": 1.5}),
    )


def _criteria(what: str, goals: dict[str, float], table: Table) -> list[Criterion]:
    own = table.best("chains native")
    found = []
    for name, wanted in goals.items() if own is not None else ():
        if name == "us":
            found.append(Criterion(f"{what}: microseconds of chains native", own.median * 1e6, f"<= {wanted:g}"))
        else:
            found += table.compare(f"{what}: {name}'s best mode against chains native", table.best(name), own, f">= {wanted:g}")
    return found
