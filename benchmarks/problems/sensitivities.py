"""Normal equations through a differential equation: a damped oscillator whose friction is a 1-10-1 network, one trajectory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import error, repeated
from chains import ODE, Chain, Dense, Equations, SquaredLoss, tanh

TIMES, STEPS = np.linspace(0.0, 15.0, 61), 4  # equal steps of RK4 between times
GOALS = {"solutions": 35.0, "seconds": 3.0, "JAX": 2.0}

COMPILE = """
import json, time
import numpy as np
from benchmarks.problems.sensitivities import Problem
from chains import minimize
from chains.backends.native.runtime.levenberg_marquardt import fit_code
problem = Problem()
fit_code()
start = time.perf_counter()
minimize(problem.objective, problem.p, "LM", maxiter=0, progress=False)
print(json.dumps(time.perf_counter() - start))
"""


class Problem:
    """The network with starting values, an initial state, and the states of an oscillator with cubic friction, float64."""

    def __init__(self, **control: float) -> None:
        friction = Chain(Dense(1, 10, tanh), Dense(10, 1))
        rhs = Equations(lambda h, v, f: (v, -h - f), inputs=("h", "v"), networks={"f": (friction, ("v",))})
        self.x, self.t = np.array([[1.0, 0.0]]), np.empty((1, len(TIMES), 2))
        true = Equations(lambda h, v: (v, -h - 0.3 * v - 0.2 * v * v * v), inputs=("h", "v"))
        exact = Chain(ODE(true, TIMES, rtol=1e-9, max_steps=1000), input_shape=(2,), backend="native")
        self.t[...] = exact(self.x, exact.init(0, np.float64))
        how = {"method": "tsit5", **control} if control else {"method": "rk4", "steps": STEPS}
        self.net = Chain(ODE(rhs, TIMES, **how), input_shape=(2,), backend="native")
        self.p = self.net.init(0, np.float64)
        self.objective = self.net.objective(self.x, self.t, SquaredLoss())

    def normal_equations(self) -> np.ndarray:
        """The value, J'r and J'J, one after another."""
        value, g, matrix = self.objective.normal_equations(self.p)
        return np.concatenate([[value], g, matrix.ravel()])


def contests(options: Options) -> list[Contest]:
    problem = Problem()
    controlled = Problem(rtol=1e-6)
    own: list[Contestant | Absent] = [repeated("chains native", problem.normal_equations)]
    alone = [
        repeated("of 31 parameters with step control", controlled.normal_equations),
        repeated("one solution", lambda: problem.net(problem.x, problem.p)),
        repeated("one gradient", lambda: problem.objective.gradient(problem.p)),
    ]
    if "jax" in options.peers:
        if all(map(find_spec, ("jax", "diffrax"))):
            from benchmarks.peers import diffrax_sensitivities

            calls = diffrax_sensitivities.normal_equations(problem, problem.net.views(problem.p), TIMES, STEPS)
            own += [repeated(f"JAX, {name}", call) for name, call in calls.items()]
        else:
            own.append(Absent("JAX", "diffrax is not installed"))
    wanted = problem.normal_equations()
    judge = error(wanted)
    return [
        Contest(
            key="sensitivities",
            title="normal equations of 122 residuals and 31 parameters through 240 steps of RK4, float64",
            unit="call",
            contestants=[*own, *alone],
            judged="relative error",
            judge=lambda found: judge(found) if found.size == wanted.size else 0.0,  # other work is not compared
            criteria=_criteria,
        )
    ]


def _criteria(table: Table) -> list[Criterion]:
    rows = {row.name: row for row in table.rows}
    own, one = rows["chains native"], rows["one solution"]
    text = "sensitivities: normal equations, in solutions"
    return [
        *table.compare(text, own, one, f"<= {GOALS['solutions']:g}"),
        *table.compare("sensitivities: JAX's best against chains", table.best("JAX"), own, f">= {GOALS['JAX']:g}"),
    ]


def runs(options: Options) -> Iterator[tuple[str, list[Criterion]]]:
    """The seconds to compile what Levenberg-Marquardt runs, in a process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"CHAINS_CACHE": folder}
        made = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=True)
    seconds = json.loads(made.stdout)
    found = Criterion("sensitivities: seconds to compile a fit", seconds, f"<= {GOALS['seconds']:g}")
    yield f"sensitivities: a fit by Levenberg-Marquardt compiles in {seconds:.2f} s", [found]
