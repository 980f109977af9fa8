"""A thousand networks 2-8-8-1 trained at once: full batches of 64 samples, Adam, the same data for all or own data."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options, libraries
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table, in_modes
from chains import Adam, Chain, Dense, MSELoss, set_num_threads, tanh, train
from chains.support.threads import processors

MEMBERS, SAMPLES, STEPS = 1_000, 64, 50
RATE = 1e-3
GOALS = {"JAX": 3.0, "PyTorch": 3.0, "alone": 0.9}


class Problem:
    """Starting values and data; those of each member, or the same for all."""

    def __init__(self, own: bool) -> None:
        rng = np.random.default_rng(0)
        shape = (MEMBERS, SAMPLES, 2) if own else (SAMPLES, 2)
        self.own = own
        self.x = rng.normal(size=shape).astype(np.float32)
        self.t = np.sin(2 * self.x[..., :1]) * self.x[..., 1:]
        self.net = Chain(Dense(2, 8, tanh), Dense(8, 8, tanh), Dense(8, 1), backend="native")
        self.p = self.net.init_many(MEMBERS)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name, of all members."""
        return {each.name: self.p[:, each.start : each.stop].reshape(MEMBERS, *each.shape) for each in self.net.layout}


class Training:
    """Chains' steps: of all members, or of one of them by itself, a thousand for one of the others'."""

    def __init__(self, problem: Problem, alone: bool) -> None:
        self._problem, self._alone = problem, alone
        x, t = problem.x, problem.t
        self._data = (x[0], t[0]) if alone and problem.own else (x, t)

    def start(self) -> None:
        self.p = (self._problem.p[0] if self._alone else self._problem.p).copy()
        self.history: Any = None

    def run(self, steps: int) -> None:
        epochs = steps * MEMBERS if self._alone else steps
        self.history = train(
            self._problem.net, self.p, *self._data, MSELoss(), Adam(RATE), epochs=epochs, resume=self.history,
            progress=False, check_finite=False,
        )  # fmt: skip

    def result(self) -> float:
        return self.history.latest("loss")


def contests(options: Options) -> list[Contest]:
    return [_contest(Problem(own), options) for own in (False, True)]


def _contest(problem: Problem, options: Options) -> Contest:
    own: list[Contestant | Absent] = []
    modes = [("1 thread", partial(set_num_threads, 1))]
    if processors() > 1:
        modes.append((f"{processors()} threads", partial(set_num_threads, processors())))
    for name, alone in (("chains native", False), ("one network by itself", True)):
        training = Training(problem, alone)
        own += in_modes(Contestant(name, training.start, training.run, training.result, STEPS), modes[: 1 if alone else None])
    absent, modules = libraries("ensemble", options)
    own += [*absent, *(row for module in modules.values() for row in module.contestants(problem))]
    data = "own data" if problem.own else "shared data"
    return Contest(
        key=f"ensemble_{'own' if problem.own else 'shared'}",
        title=f"a step of 1,000 networks 2-8-8-1, 64 samples, Adam, float32, {data}",
        unit="step",
        contestants=own,
        judged=f"mean loss after {2 * STEPS} steps",
        judge=float,
        check=2 * STEPS,
        longest=20 * STEPS,
        criteria=partial(_criteria, data),
    )


def _criteria(data: str, table: Table) -> list[Criterion]:
    best, found = table.best("chains native"), []
    for name in ("JAX", "PyTorch"):
        text = f"{data}: {name}'s best mode against chains"
        found += table.compare(text, table.best(name), best, f">= {GOALS[name]}")
    alone, one = table.best("one network by itself"), table.best("chains native, 1 thread")
    return found + table.compare(f"{data}: the rate of 1,000 times one network, one thread", alone, one, f">= {GOALS['alone']}")
