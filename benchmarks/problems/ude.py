"""Lynx and hare: the gradient through 210 Tsit5 steps of two known linear terms and a 2-5-5-5-2 network, and the whole fit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import error, repeated
from chains import ODE, Adam, Chain, Dense, Equations, MSELoss, tanh, train
from chains.backends.native import NativeBackend

STEPS = 10  # a year
CONTROL = {"rtol": 1e-6, "atol": 1e-6, "max_steps": 64}
CHECKPOINTS = (None, 100, 32, 10)
ADAM = BFGS = 300


class Problem:
    """The equation with starting values, and numbers of hares and lynxes to be met in each year, (years, 2), float64."""

    def __init__(self, pelts: np.ndarray) -> None:
        self.t = pelts[None]
        self.x = self.t[:, 0].copy()

    def net(self, backend: str = "native", **control: Any) -> Chain:
        """The network, with equal steps unless `control` has the settings of step control."""
        learned = Chain(Dense(2, 5, tanh), Dense(5, 5, tanh), Dense(5, 5, tanh), Dense(5, 2, weight_init=0.0))
        rhs = Equations(
            lambda hare, lynx, u, v, birth, death: (birth * hare + u, -death * lynx + v),
            inputs=("hare", "lynx"),
            network=learned,
            outputs=("u", "v"),
            parameters={"birth": 0.05, "death": 0.05},
        )
        steps = control or {"steps": STEPS}
        return Chain(ODE(rhs, np.arange(float(self.t.shape[1])), "tsit5", **steps), backend=backend)

    def start(self, seed: int) -> np.ndarray:
        return self.net("numpy").init(np.random.default_rng(seed), np.float64)  # as in the stored results

    def fit(self, seed: int) -> float:
        """Adam, then BFGS: the final error."""
        net, p = self.net(), self.start(seed)
        train(net, p, self.x, self.t, MSELoss(), Adam(0.02), epochs=ADAM, batch_size=None, progress=False)
        objective = net.objective(self.x, self.t, MSELoss())
        return float(objective.minimize(p, progress=False, options={"maxiter": BFGS}).fun)


def counts() -> np.ndarray:
    """Thousands of pelts of hares and lynxes, 1900 to 1920. Raises OSError where $CHAINS_DATA has none."""
    path = Path(os.environ.get("CHAINS_DATA", "data"), "sciml", "hudson-bay-lynx-hare.csv")
    return np.loadtxt(path, delimiter=",", skiprows=3)[:, [2, 1]]


def cycles() -> np.ndarray:
    """Two cycles that resemble the counts, over 21 years: for times, which do not depend on the numbers."""
    phase = 2.0 * np.pi * np.arange(22.0) / 10.0
    return np.stack([1.6 + np.cos(phase - 1.9), 1.3 + np.cos(phase - 2.8)], 1)


def contests(options: Options) -> list[Contest]:
    problem = Problem(cycles())
    net, p, loss = problem.net(), problem.start(0), MSELoss()
    controlled, longer = problem.net(**CONTROL), problem.net(**(CONTROL | {"max_steps": 256}))
    own: list[Contestant | Absent] = [
        repeated("chains native", lambda: net.value_and_grad(p, problem.x, problem.t, loss)[1]),
        repeated("forward solve, chains native", lambda: net(problem.x, p)),
        repeated("step control, chains native", lambda: controlled.value_and_grad(p, problem.x, problem.t, loss)[1]),
        repeated("step control, forward solve, chains native", lambda: controlled(problem.x, p)),
        repeated("step control, 256 attempts, chains native", lambda: longer.value_and_grad(p, problem.x, problem.t, loss)[1]),
        repeated("step control, 256 attempts, forward solve, chains native", lambda: longer(problem.x, p)),
    ]
    wanted = problem.net("numpy").value_and_grad(p, problem.x, problem.t, loss)[1]
    if "jax" in options.peers:
        if all(map(find_spec, ("jax", "diffrax", "equinox", "optax"))):
            from benchmarks.peers import diffrax_ude as ude_diffrax

            own += [repeated(f"diffrax {name}", call) for name, call in ude_diffrax.gradients(problem, net.views(p)).items()]
        else:
            own.append(Absent("diffrax", "not installed"))
    return [
        Contest(
            key="ude",
            title="gradient through 210 Tsit5 steps, 2-5-5-5-2 and two linear terms, one trajectory, float64",
            unit="call",
            contestants=own,
            judged="relative error of the gradient",
            judge=lambda found: error(wanted)(found) if np.shape(found) == wanted.shape else 0.0,
            criteria=_criteria,
        ),
        _checkpoints(),
    ]


def _checkpoints() -> Contest:
    """The gradient through 1,000 steps, by how much is kept of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 16)).astype(np.float32)
    nets = {}
    for every in CHECKPOINTS:
        rate = Chain(Dense(16, 64, tanh), Dense(64, 16))
        net = Chain(ODE(rate, (0.0, 1.0), "rk4", 1000, checkpoint_every=every), backend="native")
        kept = NativeBackend(threads=1).scratch_bytes(net.program(MSELoss()), len(x)) / 1e6
        nets[f"checkpoint_every={every}, {kept:.2f} MB"] = net
    p, t = net.init(seed=0), np.zeros((64, 2, 16), np.float32)
    gradients = {name: partial(_gradient, net, p, x, t) for name, net in nets.items()}
    wanted = next(iter(gradients.values()))()
    return Contest(
        key="ude_checkpoints",
        title="gradient through 1,000 RK4 steps of 16-64-16, 64 trajectories, float32, with the scratch memory of a thread",
        unit="call",
        contestants=[repeated(name, call) for name, call in gradients.items()],
        judged="relative error of the gradient",
        judge=error(wanted),
        criteria=lambda table: [],
    )


def _gradient(net: Chain, p: np.ndarray, x: np.ndarray, t: np.ndarray) -> np.ndarray:
    return net.value_and_grad(p, x, t, MSELoss())[1]


def _criteria(table: Table) -> list[Criterion]:
    own, forward = table.best("chains native"), table.best("forward solve, chains native")
    found: list[Criterion] = []
    if own is not None and forward is not None:
        found.append(Criterion("ude: gradient against the forward solve", own.median / forward.median, "<= 3.5"))
    return found + table.compare("ude: diffrax's best adjoint against chains native", table.best("diffrax"), own, ">= 8")


def accuracies(options: Options) -> list[tuple[str, list[Criterion]]]:
    """Five whole fits, compiled before; and diffrax's of the same starts, by Equinox, Optax and SciPy's BFGS."""
    problem, seeds = Problem(counts() / 20.0), options.seeds or range(5)
    lines, found = [], []
    ways: dict[str, Callable[[int], float]] = {"chains native": problem.fit}
    if "jax" in options.peers and all(map(find_spec, ("jax", "diffrax", "equinox", "optax"))):
        from benchmarks.peers import diffrax_ude as ude_diffrax

        ways["diffrax"] = partial(ude_diffrax.fit, problem)
    medians: dict[str, float] = {}
    for name, fit in ways.items():
        results = [_timed(partial(fit, seed)) for seed in seeds]
        medians[name] = float(np.median([value for value, _ in results]))
        seconds = float(np.median([time for _, time in results]))
        each = ", ".join(f"{value:.2e}" for value, _ in results)
        lines.append(f"ude, whole fit, {name}: {seconds:.2f} s, the first one {results[0][1]:.2f} s; final errors {each}")
        if name == "chains native":
            found.append(Criterion("ude: median seconds of a fit", seconds, "<= 5"))
            found.append(Criterion("ude: seconds of the first fit, compilation included", results[0][1], "<= 5"))
    if "diffrax" in medians:
        ratio = medians["chains native"] / medians["diffrax"]
        found.append(Criterion("ude: median final error against diffrax's", ratio, "<= 1"))
    return [("\n".join(lines), found)]


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    return call(), time.perf_counter() - begin
