"""Derivatives beyond the gradient: of inputs, a Hessian product, a Jacobian; in `pinn`, the gradient of a residual.

Each is timed beside a plain call of the same network at the same points, which is its floor, and beside JAX and PyTorch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options, libraries
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems import matrix_exp
from chains import Chain, Dense, MSELoss, ResidualProblem, SquaredLoss, Term, identity, tanh

VISCOSITY = 0.01 / math.pi
WIDTHS = (2, 20, 20, 20, 1)


class Burgers:
    """2-20-20-20-1 tanh at 2,540 points within and 100 on the boundary, float64."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.inside = np.column_stack([rng.uniform(0.0, 1.0, 2540), rng.uniform(-1.0, 1.0, 2540)])
        self.edge = np.column_stack([np.zeros(100), np.linspace(-1.0, 1.0, 100)])
        self.values = -np.sin(np.pi * self.edge[:, 1])
        self.p = network("native").init(seed=0, dtype=np.float64)
        residual = Term(lambda u: u.t + u * u.x - VISCOSITY * u.xx, self.inside)
        start = Term(lambda u, value: u - value, self.edge, {"value": self.values})
        self.problem = ResidualProblem(("t", "x"), ("u",), [residual, start])


def network(backend: str) -> Chain:
    layers = [Dense(a, b, tanh if b > 1 else identity) for a, b in itertools.pairwise(WIDTHS)]
    return Chain(*layers, backend=backend)


def repeated(name: str, call: Callable[[], Any], chunk: int = 1) -> Contestant:
    """A contestant whose unit of work is a call."""
    last: list[Any] = []

    def run(count: int) -> None:
        for _ in range(count):
            last[:] = [call()]

    return Contestant(name, lambda: None, run, lambda: np.asarray(last[0], np.float64), chunk)


def peers(options: Options, kind: str, *arguments: Any) -> list[Contestant | Absent]:
    """JAX's and PyTorch's ways to do it, where they are installed and wanted."""
    found, modules = libraries("derivatives", options)
    for name, module in modules.items():
        found += [repeated(f"{name} {text}", call) for text, call in getattr(module, kind)(*arguments).items()]
    return found


def error(wanted: np.ndarray) -> Callable[[np.ndarray], float]:
    """The largest difference to what is right, over its largest entry."""
    return lambda found: float(np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())


def contests(options: Options) -> list[Contest]:
    return [_inputs(options), *(_hessian(samples, options) for samples in (200, 1)), _jacobian(options)]


def _inputs(options: Options) -> Contest:
    burgers, net = Burgers(), network("native")
    x, p = burgers.inside, burgers.p
    own = [
        repeated("chains native", lambda: net.derivatives(p, x, 2)[2]),
        repeated("chains native, forward pass alone", lambda: net(x, p)),
    ]
    return Contest(
        key="input_derivatives",
        title="u, u_x and u_xx of 2-20-20-20-1 by both inputs, 2,540 points, float64",
        unit="call",
        contestants=own + peers(options, "input_derivatives", p, x),
        judged="relative error of u_xx",
        judge=_ignoring_the_floor(error(network("numpy").derivatives(p, x, 2)[2])),
        criteria=partial(_criteria, "u, u_x, u_xx", 3.2, {"JAX": 3.0}),
    )


def _hessian(samples: int, options: Options) -> Contest:
    problem, loss = matrix_exp.problem(samples, "float32"), MSELoss()
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4), backend="native")
    p, x, t = problem.p, problem.x, problem.t
    v = np.random.default_rng(1).normal(size=len(p)).astype(np.float32)
    wanted = net.hvp(*(each.astype(np.float64) for each in (p, x, t)), loss, v.astype(np.float64))
    own = [
        repeated("chains native", lambda: net.hvp(p, x, t, loss, v), 10),
        repeated("chains native, gradient alone", lambda: net.value_and_grad(p, x, t, loss)[1], 10),
    ]
    return Contest(
        key=f"hessian_product_{samples}",
        title=f"Hessian product of matrix_exp, {samples} samples, float32",
        unit="call",
        contestants=own + peers(options, "hessian_product", p, x, t, v),
        judged="relative error",
        judge=_ignoring_the_floor(error(wanted)),
        criteria=partial(_criteria, f"Hessian product, {samples} samples", 2.3, {"JAX": 4.0 if samples > 1 else 15.0}),
    )


def _jacobian(options: Options) -> Contest:
    problem = matrix_exp.problem(200, "float32")
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4), backend="native")
    p, x = problem.p, problem.x
    j = np.empty((200, 4, len(p)), np.float32)
    own = [
        repeated("chains native", lambda: net.jacobian(p, x, out=j), 5),
        repeated("writing as many bytes", lambda: j.fill(0.0) or j, 5),
    ]
    return Contest(
        key="jacobian",
        title="Jacobian of matrix_exp by its parameters, 200 samples, float32",
        unit="call",
        contestants=own + peers(options, "jacobian", p, x),
        judged="relative error",
        judge=_ignoring_the_floor(error(network_jacobian(p, x))),
        criteria=_jacobian_criteria,
    )


def network_jacobian(p: np.ndarray, x: np.ndarray) -> np.ndarray:
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4), backend="numpy")
    return net.jacobian(p.astype(np.float64), x.astype(np.float64))


def _ignoring_the_floor(judge: Callable[[np.ndarray], float]) -> Callable[[np.ndarray], float]:
    """NaN for a floor, which computes something else."""

    def judged(found: np.ndarray) -> float:
        try:
            return judge(found)
        except ValueError:
            return math.nan

    return judged


def _criteria(what: str, factor: float, against: dict[str, float], table: Table) -> list[Criterion]:
    own, floor = (next((row for row in table.rows if row.name.startswith("chains") and ("alone" in row.name) == alone), None)
                  for alone in (False, True))  # fmt: skip
    found = table.compare(f"{what}: over the plain call", own, floor, f"<= {factor}")
    for peer, wanted in against.items():
        found += table.compare(f"{what}: {peer}'s best mode against chains native", table.best(peer), own, f">= {wanted}")
    return found


def _jacobian_criteria(table: Table) -> list[Criterion]:
    own = table.best("chains native")
    found = table.compare("Jacobian: share of the rate of writing", table.best("writing"), own, ">= 0.5")
    return found + table.compare("Jacobian: JAX's best mode against chains native", table.best("JAX"), own, ">= 4")


def pinn(options: Options) -> list[Contest]:
    """The contest of `benchmarks.problems.pinn`."""
    burgers, net = Burgers(), network("native")
    problem, p = burgers.problem, burgers.p
    t = np.zeros((len(problem.x), 1))
    squared = SquaredLoss()
    own = [
        repeated("chains native", lambda: net.value_and_grad(p, problem.x, problem.t, problem.loss)[1]),
        repeated("chains native, plain gradient alone", lambda: net.value_and_grad(p, problem.x, t, squared)[1]),
    ]
    wanted = network("numpy").value_and_grad(p, problem.x, problem.t, problem.loss)[1]
    contest = Contest(
        key="pinn",
        title="value and gradient of Burgers' residual, 2-20-20-20-1, 2,640 points, float64",
        unit="call",
        contestants=own + peers(options, "pinn", p, burgers),
        judged="relative error",
        judge=error(wanted),
        criteria=partial(_criteria, "pinn", 3.5, {"JAX": 4.0, "PyTorch": 15.0}),
    )
    return [contest]
