"""Random equations with interpolated states: these against DOP853 at 1e-12, gradients against differences with frozen steps.

Methods with step control; times shared or own, with lengths, a given number, the time, jumps, checkpoints; native or NumPy. The
error at the times is compared with that at the ends of the steps, and with the tolerance.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from chains import ODE, Chain, Dense, Equations, ode_steps
from chains.expr import where
from tests.campaign import running
from tests.layers.interpolating import states_at

HIDDEN = 4
MOST = 50.0  # tolerances by which errors at times may be beyond those at the ends of steps
DIFFERENCE = 1e-5  # by which parameters and samples are moved
WORST: dict[str, float] = {}  # the largest errors at times, by method, in tolerances beyond that at the ends of steps


class Drawn:
    """An equation, and trajectories of it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.method = str(rng.choice(["tsit5", "tsit5", "kvaerno3", "kvaerno5"]))
        self.n, self.count, self.rtol = int(rng.integers(1, 4)), int(rng.integers(2, 40)), float(10.0 ** -rng.uniform(2.0, 7.0))
        if self.method == "kvaerno3":
            self.rtol = max(self.rtol, 1e-4)
        self.jump = float(rng.uniform(0.5, 2.5)) if rng.random() < 0.3 else None
        own, shorter, checkpoints = rng.random(3) < 0.4
        self.how: dict[str, Any] = {"rtol": self.rtol, "atol": self.rtol, "max_steps": 1000, "interpolate": True}
        self.how |= {"given": int(rng.random() < 0.5), "time": self.jump is not None or bool(rng.random() < 0.5)}
        self.how |= {"jumps": [self.jump]} if self.jump is not None else {}
        self.how |= {"checkpoint_every": int(rng.integers(1, 20))} if checkpoints else {}
        self.rhs = self._rhs()
        first = 0.0 if self.jump is not None else rng.choice([0.0, -1.0, 7.0])
        self.times = first + np.cumsum(np.r_[0.0, rng.exponential(3.0 / self.count, self.count)])
        each = self.times[0] + rng.uniform(0.3, 1.5, (2, 1)) * (self.times - self.times[0])
        self.each, self.own = each if own else np.tile(self.times, (2, 1)), bool(own)
        self.lengths = rng.integers(1, self.count + 2, 2) if shorter else np.full(2, self.count + 1)
        self.rest = {"lengths": self.lengths} if shorter else {}
        self.backend = "numpy" if rng.random() < 0.15 and self.method == "tsit5" else "native"
        self.net = Chain(ODE(self.rhs, self.count + 1 if own else self.times, self.method, **self.how), backend=self.backend)
        self.p, self.x = rng.normal(size=self.net.n_params), rng.normal(size=(2, self.n + self.how["given"]))
        self.dy = rng.normal(size=(2, self.count + 1, self.n))
        self.ways = [rng.normal(size=self.p.shape), rng.normal(size=self.x.shape)]

    def _rhs(self) -> Any:
        seen = self.n + self.how["given"] + self.how["time"]
        network = Chain(Dense(seen, HIDDEN, "tanh"), Dense(HIDDEN, self.n))
        if self.jump is None:
            return network
        names, outputs, jump = [f"x{k}" for k in range(seen - 1)], [f"u{k}" for k in range(self.n)], self.jump
        terms = ", ".join(f"{u} + where(t < jump, 1.0, -1.0)" for u in outputs)
        known = f"lambda {', '.join([*names, 't', *outputs])}: ({terms},)"
        return Equations(
            eval(known, {"where": where, "jump": jump}), (*names, "t"), network=network, outputs=tuple(outputs)
        )  # fmt: skip

    @property
    def seen(self) -> np.ndarray:
        return np.hstack([self.x, self.each]) if self.own else self.x

    def slope(self, k: int, p: np.ndarray, x: np.ndarray) -> Any:
        """The right-hand side in NumPy."""
        given, time, jump, seen = x[k, self.n :], self.how["time"], self.jump, self.n + self.how["given"] + self.how["time"]
        w, b, v, c = np.split(p, np.cumsum([seen * HIDDEN, HIDDEN, HIDDEN * self.n]))
        w, v = w.reshape(seen, HIDDEN), v.reshape(HIDDEN, self.n)

        def rate(y: np.ndarray, t: float) -> np.ndarray:
            seen = np.concatenate([y, given, [t] if time else []])
            return np.tanh(seen @ w + b) @ v + c + (0.0 if jump is None else 1.0 if t < jump else -1.0)

        return rate

    def exact(self, k: int, times: np.ndarray) -> np.ndarray:
        """The states at ascending times, in pieces between jumps."""
        rate, y, begin, found = self.slope(k, self.p, self.x), self.x[k, : self.n], times[0], [self.x[k : k + 1, : self.n]]
        ends = [self.jump] if self.jump is not None and begin < self.jump < times[-1] else []
        for end in [*ends, times[-1]]:
            inside = np.unique(np.r_[times[(times > begin) & (times <= end)], end])
            shift = 1e-9 * (end == self.jump)  # so that no stage sees the other side
            one = solve_ivp(lambda t, y, s=shift: rate(y, t - s), (begin, end), y, "DOP853", inside, rtol=1e-12, atol=1e-13).y.T
            found.append(one[np.isin(inside, times)])
            y, begin = one[-1], end
        return np.concatenate(found)


def attempt(seed: int, number: int) -> str:
    drawn = Drawn(running.draws(seed, number))
    y, (dp, dx) = drawn.net(drawn.seen, drawn.p, **drawn.rest), drawn.net.vjp(drawn.p, drawn.seen, drawn.dy, **drawn.rest)
    steps, about = ode_steps(drawn.net, drawn.p, drawn.seen, **drawn.rest), f"{drawn.net}, {drawn.backend}"
    kept = [slice(0, int(count)) for count in drawn.lengths]
    for k, way in enumerate(steps):
        if kept[k].stop > 1:
            ends = np.max(np.abs(way.states - drawn.exact(k, way.times)))
            error = np.max(np.abs(y[k, kept[k]] - drawn.exact(k, drawn.each[k, kept[k]])))
            beyond = (error - ends) / (drawn.rtol * (1.0 + np.max(np.abs(y[k, kept[k]]))))
            WORST[drawn.method] = max(WORST.get(drawn.method, 0.0), beyond)
            if beyond > MOST:
                raise AssertionError(f"{about}: trajectory {k} is off by {error:.1e}, at the ends of steps by {ends:.1e}")
    found = np.array([dp @ drawn.ways[0], np.sum(dx[:, : drawn.x.shape[1]] * drawn.ways[1])])

    def value(moved: int, by: float) -> float:
        p, x = (each + by * (moved == i) * drawn.ways[i] for i, each in enumerate((drawn.p, drawn.x)))
        total = 0.0
        for k, own in enumerate(kept):
            y = states_at(drawn.method, drawn.slope(k, p, x), x[k, : drawn.n], steps[k].times, drawn.each[k, own])
            total += float(np.sum(drawn.dy[k, own] * y))
        return total

    wanted = np.array([(value(i, DIFFERENCE) - value(i, -DIFFERENCE)) / (2.0 * DIFFERENCE) for i in range(2)])
    if np.max(np.abs(found - wanted)) > 1e-6 * max(1.0, np.max(np.abs(wanted))):
        raise AssertionError(f"{about}: slopes are {found}, but differences give {wanted}")
    return ", ".join([drawn.method, drawn.backend, *["own"] * drawn.own, *["jump"] * (drawn.jump is not None), *drawn.rest])


def notes() -> Iterable[str]:
    return [f"{name}: error at times beyond that at ends of steps, in tolerances: {each:.2f}" for name, each in WORST.items()]


if __name__ == "__main__":
    sys.exit(running.main(attempt, notes))
