"""Levenberg-Marquardt: a network 2-8-8-1 on 64 samples, and 500 of them at once, in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options, libraries
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table, in_modes
from chains import Chain, Dense, SquaredLoss, minimize, set_num_threads, tanh
from chains.support.threads import processors

MEMBERS, SAMPLES = 500, 64
STEPS = {1: 120, MEMBERS: 30}  # of a run, by the number of networks
GOALS = {"alone": 45e-6, "together": 25e-6, "JAX": 10.0}  # seconds of an iteration of a network; times


class Problem:
    """Data with noise, so that few fits end within the iterations, and starting values."""

    def __init__(self, members: int) -> None:
        rng = np.random.default_rng(0)
        self.members, self.steps = members, STEPS[members]
        self.x = rng.uniform(-2.0, 2.0, (SAMPLES, 2))
        self.t = np.sin(2.0 * self.x[:, :1]) * self.x[:, 1:] + 0.05 * rng.normal(size=(SAMPLES, 1))
        self.net = Chain(Dense(2, 8, tanh), Dense(8, 8, tanh), Dense(8, 1), backend="native")
        self.p = self.net.init_many(members, seed=1, dtype=np.float64)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name, of all members."""
        return {each.name: self.p[:, each.start : each.stop].reshape(self.members, *each.shape) for each in self.net.layout}


class Fits:
    """Iterations of chains from the starting values, of which a run does a whole number of fits."""

    def __init__(self, problem: Problem) -> None:
        self._objective = problem.net.objective(problem.x, problem.t, SquaredLoss())
        self._steps = problem.steps
        self._p = problem.p if problem.members > 1 else problem.p[0]
        self.found: Any = None

    def start(self) -> None:
        self.found = None

    def run(self, steps: int) -> None:
        for _ in range(steps // self._steps):
            self.found = minimize(self._objective, self._p, "LM", maxiter=self._steps, gtol=0.0, progress=False)

    def result(self) -> float:
        return float(np.median(self.found.fun))


def contests(options: Options) -> list[Contest]:
    return [_contest(Problem(members), options) for members in (1, MEMBERS)]


def _contest(problem: Problem, options: Options) -> Contest:
    fits = Fits(problem)
    modes = [("1 thread", partial(set_num_threads, 1))]
    if processors() > 1:
        modes.append((f"{processors()} threads", partial(set_num_threads, processors())))
    own: list[Contestant | Absent] = []
    own += in_modes(Contestant("chains native", fits.start, fits.run, fits.result, problem.steps), modes)
    absent, modules = libraries("fits", replace(options, peers=[name for name in options.peers if name == "jax"]))
    own += [*absent, *(row for module in modules.values() for row in module.contestants(problem))]
    count = "a network" if problem.members == 1 else f"{problem.members} networks"
    return Contest(
        key="fits_alone" if problem.members == 1 else "fits_together",
        title=f"an iteration of Levenberg-Marquardt: {count} 2-8-8-1, 64 samples, float64",
        unit="iteration",
        contestants=own,
        judged=f"median value after {problem.steps} iterations",
        judge=float,
        check=problem.steps,
        longest=100 * problem.steps,
        criteria=partial(_criteria, problem.members),
    )


def _criteria(members: int, table: Table) -> list[Criterion]:
    best, found = table.best("chains native"), []
    if best is not None:
        goal = GOALS["alone" if members == 1 else "together"]
        found.append(
            Criterion("microseconds of an iteration of a network", 1e6 * best.median / members, f"<= {1e6 * goal:.0f}")
        )
    if members > 1:
        found += table.compare("JAX's best mode against chains", table.best("JAX"), best, f">= {GOALS['JAX']}")
    return found
