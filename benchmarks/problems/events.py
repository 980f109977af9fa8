"""Events: the gradient of the speeds and times at which 256 balls with drag meet the ground, 100 equal steps of Tsit5."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import error, repeated
from chains import ODE, Chain, Equations

SAMPLES, STEPS, END = 256, 100, 2.0
PARAMETERS = (9.81, 0.3)  # gravity and drag


def network(backend: str) -> Chain:
    fall = Equations(lambda h, v, g, k: (v, -g - k * v), ("h", "v"), parameters=dict(zip("gk", PARAMETERS, strict=True)))
    ground = Equations(lambda h, v: h, ("h", "v"))
    return Chain(ODE(fall, (0.0, END), "tsit5", STEPS, event=ground), backend=backend)


def contests(options: Options) -> list[Contest]:
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(1.0, 4.0, SAMPLES), rng.uniform(-1.0, 1.0, SAMPLES)], axis=1)
    p, dy = np.array(PARAMETERS), np.zeros((SAMPLES, 3, 3))
    dy[:, -1, 1:] = [1.0, 2.0]  # of the sum of speeds and twice the times

    def gradient(net: Chain) -> np.ndarray:
        dp, dx = net.vjp(p, x, dy)
        return np.concatenate([dp, dx.ravel()])

    net = network("native")
    own: list[Contestant | Absent] = [repeated("chains native", lambda: gradient(net))]
    if "jax" in options.peers:
        if all(map(find_spec, ("jax", "diffrax"))):
            from benchmarks.peers import diffrax_events

            own += [repeated(name, call) for name, call in diffrax_events.gradients(p, x, STEPS, END).items()]
        else:
            own.append(Absent("diffrax", "not installed"))
    return [
        Contest(
            key="events",
            title=f"gradient through the times of {SAMPLES} events, {STEPS} steps of Tsit5, float64",
            unit="call",
            contestants=own,
            judged="relative error of the gradient",
            judge=error(gradient(network("numpy"))),
            criteria=_criteria,
        )
    ]


def _criteria(table: Table) -> list[Criterion]:
    return table.compare("events: diffrax's best against chains", table.best("diffrax"), table.best("chains native"), ">= 8")
