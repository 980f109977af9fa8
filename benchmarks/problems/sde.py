"""A scalar path of 1,000 Euler steps, noise included: ``dy = -y dt + 0.2 dW``, all states kept (diffrax's issue 517)."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import repeated
from chains import SDE, Chain, Equations

STEPS, NOISE = 1000, 0.2
BATCHES = (1, 1024)
GOAL = 24.0  # microseconds of one path: what issue 517 reports for noise made before, and a scan


def contests(options: Options) -> list[Contest]:
    return [_contest(batch, options) for batch in BATCHES]


def _contest(batch: int, options: Options) -> Contest:
    drift, diffusion = (
        Equations(formula, ("y",), parameters={"k": start})
        for formula, start in ((lambda y, k: -k * y, 1.0), (lambda k: k, NOISE))
    )
    net = Chain(SDE(drift, diffusion, np.linspace(0.0, 1.0, STEPS + 1)), backend="native")
    p, x = net.init(dtype=np.float32), np.ones((batch, 1), np.float32)
    own: list[Contestant | Absent] = [repeated("chains native", lambda: net(x, p))]
    if "jax" in options.peers:
        if all(map(find_spec, ("jax", "diffrax"))):
            from benchmarks.peers import diffrax_sde

            own += [repeated(name, call) for name, call in diffrax_sde.paths(batch, STEPS, NOISE).items()]
        else:
            own.append(Absent("diffrax", "not installed"))

    def criteria(table: Table) -> list[Criterion]:
        best = table.best("chains native")
        found = table.compare(f"sde, {batch}: diffrax's best against chains native", table.best("diffrax"), best, ">= 20")
        found += table.compare(f"sde, {batch}: JAX's scan over noise made before", table.best("JAX scan"), best, ">= 1")
        if best is not None and batch == 1:
            found.append(Criterion("sde: microseconds of one path", best.median * 1e6, f"<= {GOAL:g}"))
        return found

    return Contest(
        key=f"sde_{batch}",
        title=f"{batch} scalar path{'s' * (batch > 1)} of 1,000 Euler steps, noise included, all states, float32",
        unit="call",
        contestants=own,
        judged="quadratic variation over its mean, minus 1",
        judge=lambda found: float(np.mean(np.diff(found.reshape(batch, -1)) ** 2) * STEPS / NOISE**2 - 1.0),
        criteria=criteria,
    )
