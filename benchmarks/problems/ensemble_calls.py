"""A call, or value and gradient, of a thousand networks on the same few samples: tanh, float32."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options, libraries
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table, in_modes
from benchmarks.problems.derivatives import error, repeated
from chains import Chain, Dense, MSELoss, identity, set_num_threads, tanh
from chains.support.threads import processors

MEMBERS = 1_000
WIDTHS = ((2, 8, 8, 1), (4, 50, 50, 2))
SAMPLES = (1, 8, 64)
LOOP = "chains, a Python loop"


class Problem:
    """Starting values and data. The targets are also columns of a table."""

    def __init__(self, widths: tuple[int, ...], samples: int) -> None:
        rng = np.random.default_rng(0)
        self.widths, self.samples = widths, samples
        self.x = rng.normal(size=(samples, widths[0])).astype(np.float32)
        self.table = rng.normal(size=(samples, widths[-1] + 3)).astype(np.float32)
        self.columns = self.table[:, 1 : 1 + widths[-1]]
        self.t = self.columns.copy()
        self.net, self.loss = network(widths, "native"), MSELoss()
        self.p = self.net.init_many(MEMBERS)

    @property
    def arrays(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The weights and biases of each layer, of all members."""
        parts = [self.p[:, each.start : each.stop].reshape(MEMBERS, *each.shape) for each in self.net.layout]
        return list(zip(parts[::2], parts[1::2], strict=True))


def network(widths: tuple[int, ...], backend: str) -> Chain:
    last = len(widths) - 2
    pairs = enumerate(itertools.pairwise(widths))
    return Chain(*(Dense(a, b, identity if k == last else tanh) for k, (a, b) in pairs), backend=backend)


def contests(options: Options) -> list[Contest]:
    return [
        contest
        for widths, samples in itertools.product(WIDTHS, SAMPLES)
        for contest in _both(Problem(widths, samples), options)
    ]


def _both(problem: Problem, options: Options) -> list[Contest]:
    """The calls, then the gradients."""
    net, p, x, t, loss = problem.net, problem.p, problem.x, problem.t, problem.loss
    y, g = np.empty((MEMBERS, problem.samples, problem.widths[-1]), np.float32), np.empty_like(p)

    def looped() -> np.ndarray:
        for row, out in zip(p, y, strict=True):
            net(x, row, out=out)
        return y

    def looped_gradients() -> np.ndarray:
        for row, out in zip(p, g, strict=True):
            net.value_and_grad(row, x, t, loss, out=out)
        return g

    reference = network(problem.widths, "numpy")
    p64, x64, t64 = (each.astype(np.float64) for each in (p, x, t))
    calls = {"chains native": lambda: net(x, p), LOOP: looped}
    gradients = {
        "chains native": lambda: net.value_and_grad(p, x, t, loss)[1],
        "chains native on columns of a table": lambda: net.value_and_grad(p, x, problem.columns, loss)[1],
        LOOP: looped_gradients,
    }
    return [
        _contest(problem, options, "call", calls, reference(x64, p64)),
        _contest(problem, options, "gradient", gradients, reference.value_and_grad(p64, x64, t64, loss)[1]),
    ]


def _contest(problem: Problem, options: Options, kind: str, own: dict[str, Callable[[], Any]], wanted: np.ndarray) -> Contest:
    modes = [("1 thread", partial(set_num_threads, 1))]
    if processors() > 1:
        modes.append((f"{processors()} threads", partial(set_num_threads, processors())))
    rows: list[Contestant | Absent] = []
    for name, call in own.items():
        rows += in_modes(repeated(name, call), modes)
    absent, modules = libraries("ensemble_calls", options)
    rows += absent
    for name, module in modules.items():
        for text, call in getattr(module, f"{kind}s")(problem).items():
            rows.append(repeated(f"{name} {text}", call))
    widths = "-".join(map(str, problem.widths))
    what = "a call" if kind == "call" else "value and gradient"
    samples = f"{problem.samples} sample" + "s" * (problem.samples > 1)
    return Contest(
        key=f"ensemble_{kind}_{widths}_{problem.samples}",
        title=f"{what} of {MEMBERS:,} networks {widths}, {samples}, float32",
        unit="call",
        contestants=rows,
        judged="relative error",
        judge=error(wanted),
        criteria=partial(_criteria, problem, f"{what}, {widths}, {samples}"),
    )


def _criteria(problem: Problem, text: str, table: Table) -> list[Criterion]:
    best, wanted = table.best("chains native,"), ">= 3" if problem.samples == SAMPLES[-1] else ">= 2"
    least = ">= 2" if problem.samples == 1 else ">= 1"
    found = table.compare(f"{text}: a Python loop against one call", table.best(LOOP), best, least)
    found += table.compare(f"{text}: JAX against chains", table.best("JAX"), best, wanted)
    columns = table.best("chains native on columns")
    return found + table.compare(f"{text}: columns of a table against contiguous targets", columns, best, "<= 1.05")
