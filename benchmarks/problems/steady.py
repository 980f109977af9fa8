"""Steady states: the gradient of 256 deep equilibria of 8 numbers, ``y = rhs(y, x)`` with a 10-16-8 network."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import error, repeated
from chains import Chain, Dense, MSELoss, SteadyState, tanh

STATE, GIVEN, HIDDEN = 8, 2, 16
TOLERANCE = 1e-8  # of steps, relative and absolute; Newton's errors are about their squares


class Problem:
    """Parameters for which the state moves by more than half from its guess, inputs and targets, float64."""

    def __init__(self, batch: int = 256) -> None:
        rng = np.random.default_rng(0)
        self.x, self.t = rng.normal(size=(batch, GIVEN)), rng.normal(size=(batch, STATE))
        self.p = 1.2 * self.net("numpy").init(np.random.default_rng(0), np.float64)  # as in the stored results

    def net(self, backend: str = "native", method: str = "newton", tolerance: float = TOLERANCE) -> Chain:
        rhs = Chain(Dense(STATE + GIVEN, HIDDEN, tanh), Dense(HIDDEN, STATE))
        layer = SteadyState(rhs, STATE, method, fixed_point=True, rtol=tolerance, atol=tolerance)
        return Chain(layer, input_shape=(GIVEN,), backend=backend)


def contests(options: Options) -> list[Contest]:
    problem, loss = Problem(), MSELoss()
    own: list[Contestant | Absent] = []
    nets = {method: problem.net(method=method) for method in ("newton", "anderson")}

    def gradient(net: Chain) -> np.ndarray:
        value, g = net.value_and_grad(problem.p, problem.x, problem.t, loss)
        return np.append(g, value)

    for method, net in nets.items():
        own.append(repeated(f"chains native, {method}", lambda net=net: gradient(net)))
    if "jax" in options.peers:
        if all(map(find_spec, ("jax", "optimistix"))):
            from benchmarks.peers import optimistix_steady

            calls = optimistix_steady.gradients(problem, nets["newton"].views(problem.p), TOLERANCE)
            own += [repeated(f"optimistix {name}", call) for name, call in calls.items()]
        else:
            own.append(Absent("optimistix", "not installed"))
    return [
        Contest(
            key="steady",
            title="gradient of 256 steady states of 8 numbers, y = rhs(y, x), 10-16-8, tolerance 1e-8, float64",
            unit="call",
            contestants=own,
            judged="relative error of value and gradient",
            judge=error(gradient(problem.net("numpy"))),
            criteria=_criteria,
        )
    ]


def _criteria(table: Table) -> list[Criterion]:
    best, own = table.best("optimistix"), table.best("chains native")
    return table.compare("steady: optimistix's best against chains", best, own, ">= 8")
