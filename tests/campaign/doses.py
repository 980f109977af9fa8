"""Random regimens of doses of an `ODE`: linear compartments against closed forms, with their gradients.

Each attempt has ten subjects: one or two compartments, with absorption or without, doses at once and infusions by rate or
duration, into one number of the state or several, with lags and bioavailability. Equal steps and step control must give the
states to 1e-9, and the gradients by all features to 1e-7.
"""

from __future__ import annotations

import sys

import numpy as np

from chains import ODE, Chain
from tests.campaign import running
from tests.regimens import MODELS, Regimens

SUBJECTS = 10
STEP = 1e-5  # by which features are moved
HOW = {"equal steps": {"steps": 120}, "control": {"rtol": 1e-11, "max_steps": 1500}}


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    model, infusion = str(rng.choice(list(MODELS))), rng.choice([None, "rate", "duration"])
    drawn = Regimens(rng, SUBJECTS, model, infusion, bool(rng.random() < 0.5))
    exact, dy = drawn.solution(), rng.normal(size=(SUBJECTS, drawn.observed, drawn.n))
    x, slopes = drawn.x, np.zeros_like(drawn.x)
    for i in range(x.shape[1]):
        ends = []
        for sign in (1.0, -1.0):
            drawn.x = x.copy()
            drawn.x[:, i] += sign * STEP
            with np.errstate(invalid="ignore"):
                ends.append((drawn.solution() * dy).sum((1, 2)))
        slopes[:, i] = (ends[0] - ends[1]) / (2.0 * STEP)
    drawn.x = x
    free = drawn.free & np.isfinite(x) & (x != 0.0)
    worst = []
    for name, how in HOW.items():
        net = Chain(ODE(drawn.rhs, drawn.observed, given=drawn.given, doses=drawn.doses, **how), input_shape=x.shape[1:])
        p = np.zeros(0)
        found, dx = net(x, p), net.vjp(p, x, dy)[1]
        worst += [abs(found - exact).max(), abs(dx - slopes)[free].max()]
        if worst[-2] > 1e-9 or worst[-1] > 1e-7:
            raise AssertionError(f"{model}, {drawn.doses}, {name}: states off by {worst[-2]:.1e}, slopes by {worst[-1]:.1e}")
    return f"{model}, {infusion or 'at once'}"


if __name__ == "__main__":
    sys.exit(running.main(attempt))
