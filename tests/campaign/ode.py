"""Random differential equations: native against NumPy without checkpoints, and both against differences of the loss.

Methods of equal steps, step control, implicit ones and the continuous adjoint; times shared or own, with lengths whose padding
is NaN, with given features, time and forcing, checkpoints, layers before and behind; from nothing of it to all at once. A
second call on other data and a third on the first tell what a call leaves behind.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np

from chains import ODE, Chain, Dense, Equations, Flatten, LayerNorm, MSELoss, Reshape, Residual, backends
from chains.backends.native import NativeBackend
from chains.layers.base import Layer
from tests.campaign import running
from tests.native.support import INSTRUCTIONS

BATCHES = (1, 2, 3, 5, 8, 9, 17, 33)
EXPLICIT, IMPLICIT = ("euler", "midpoint", "rk4", "tsit5", "leapfrog"), ("kvaerno3", "kvaerno5")
ACTIVATIONS = ("tanh", "sigmoid", "gelu", "softplus")
DIFFERENCE = 1e-5  # by which parameters are moved


class Drawn:
    """A network, and data for it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.share = rng, float(rng.choice([0.0, 0.2, 0.5, 0.8, 1.0]))
        self.implicit = bool(rng.random() < 0.3)
        self.method = str(rng.choice(IMPLICIT if self.implicit else EXPLICIT))
        self.n = int(rng.integers(1, 4)) * (2 if self.method == "leapfrog" else 1)
        self.control = (self.implicit or self.method == "tsit5") and bool(rng.random() < 0.5)
        self.how: dict[str, Any] = {"given": int(rng.integers(1, 3)) if self._has() else 0, "time": self._has()}
        forces = int(rng.integers(1, 3)) if self._has() else 0
        if forces:
            self.how["forcing"] = (np.sort(rng.uniform(-0.2, 1.4, 4)).tolist(), rng.normal(size=(4, forces)).tolist())
        if self.control:
            self.how |= {"rtol": float(rng.choice([1e-2, 1e-4])), "max_steps": int(rng.choice([40, 57, 90]))}
        else:
            self.how["steps"] = int(rng.integers(1, 6))
        if self._has() and not self.implicit and self.method != "leapfrog":
            self.how["adjoint"] = True
        self.every = int(rng.choice([1, 2, 3, 7, 100])) if self._has() else None
        self.count = int(rng.integers(2, 6))
        self.own, self.shorter = self._has(), self._has()
        self.times = self.count if self.own else np.cumsum(rng.uniform(0.05, 0.4, self.count)).tolist()
        self.rhs = self._rhs(self.n + self.how["given"] + self.how["time"] + forces)
        samples = self.n + self.how["given"] + self.count * self.own
        self.before = [Residual(Dense(samples, samples, "tanh"))] if self._has() and not self.own else []
        self.behind: list[Layer] = [Dense(self.n, 2, "tanh")] if self._has() else []
        self.input = (samples,)

    def _has(self) -> bool:
        return bool(self.rng.random() < self.share)

    def _rhs(self, seen: int) -> Layer:
        rng, n, width = self.rng, self.n, int(self.rng.integers(1, 6))
        f = str(rng.choice(ACTIVATIONS))
        kind = str(rng.choice(["dense", "deep", "rows", "norm", "equations"])) if self._has() else "dense"
        if kind == "deep":
            return Chain(Dense(seen, width, f), Residual(Dense(width, width, f)), Dense(width, n))
        if kind == "rows":
            return Chain(Reshape(seen, 1), Dense(1, width, f), Flatten(), Dense(seen * width, n), input_shape=(seen,))
        if kind == "norm":
            return Chain(Dense(seen, 3, f), LayerNorm(eps=0.3), Dense(3, n))
        if kind == "equations":
            names, outputs = tuple(f"x{k}" for k in range(seen)), tuple(f"u{k}" for k in range(n))
            text = ", ".join(f"u{k} - a * x{k} + x{(k + 1) % seen}" for k in range(n))
            known = eval(f"lambda {', '.join((*names, *outputs, 'a'))}: ({text},)")
            return Equations(known, names, network=Dense(seen, n, f), outputs=outputs, parameters={"a": 0.5})
        return Dense(seen, n, f, bias=self._has())

    def net(self, backend: str, every: int | None) -> Chain:
        solution = ODE(self.rhs, self.times, self.method, checkpoint_every=every, **self.how)
        return Chain(*self.before, solution, *self.behind, input_shape=self.input, backend=backend)

    def data(self, net: Chain, batch: int) -> dict[str, Any]:
        rng = self.rng
        x, t = rng.normal(size=(batch, *self.input)), rng.normal(size=(batch, *net.output_shape))
        if self.own:
            x[:, -self.count :] = np.cumsum(rng.uniform(0.0, 0.4, (batch, self.count)), axis=1)
        if not self.shorter:
            return {"x": x, "t": t}
        lengths = rng.integers(1, self.count + 1, batch)
        behind = np.arange(self.count) >= lengths[:, None]
        t[behind] = np.nan
        if self.own:
            x[:, -self.count :][behind] = rng.choice([np.nan, -3.0, 0.0, 7.0])
        return {"x": x, "t": t, "lengths": lengths}

    def __str__(self) -> str:
        return f"{self.net('numpy', self.every)}{' with lengths' * self.shorter}"


def results(net: Chain, p: np.ndarray, data: dict[str, Any]) -> list[np.ndarray]:
    """Value and gradient of a mean square, and the gradients of the sum of outputs by parameters and samples."""
    rest = {name: data[name] for name in data if name == "lengths"}
    value, g = net.value_and_grad(p, data["x"], data["t"], MSELoss(), **rest)
    dp, dx = net.vjp(p, data["x"], np.ones_like(data["t"]), **rest)
    return [np.array(value), g, dp, dx]


def compare(found: list[np.ndarray], right: list[np.ndarray], tolerance: float, what: str) -> None:
    for name, a, b in zip(("value", "gradient", "dp", "dx"), found, right, strict=True):
        error = np.max(np.abs(a - b), initial=0.0) / max(1.0, np.max(np.abs(b), initial=0.0))
        if not error <= tolerance:
            raise AssertionError(f"{what}: {name} is off by {error:.2e}, more than {tolerance:.0e}")


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    drawn = Drawn(rng)
    plain = drawn.net("numpy", None if not drawn.control else drawn.how["max_steps"])
    p = 0.5 * rng.normal(size=plain.n_params)
    batch = int(rng.choice(BATCHES))
    first, second = (drawn.data(plain, batch) for _ in range(2))
    kind = f"{drawn.method}{' with control' * drawn.control}"
    try:
        right, other = (results(plain, p, data) for data in (first, second))
    except FloatingPointError:
        return f"{kind}: not solved"
    if not all(np.isfinite(array).all() for array in (*right, *other)):
        return f"{kind}: not finite"
    outcomes = [kind, *[name for name in ("own", "shorter") if getattr(drawn, name)]]
    tolerance = drawn.how.get("rtol", 1e-7 if drawn.implicit else 1e-9)  # an attempt may be judged otherwise by rounding
    repeated = drawn.net("numpy", drawn.every)
    compare(results(repeated, p, first), right, tolerance, f"{drawn}: NumPy, checkpoints")
    threads, simd = int(rng.integers(1, 3)), rng.choice(INSTRUCTIONS).item()
    backends.registry._BACKENDS["drawn"] = partial(NativeBackend, threads=threads, simd=simd)
    net, what = drawn.net("drawn", drawn.every), f"{drawn}: native, {simd}, {threads} threads, batch {batch}"
    found = results(net, p, first)
    compare(found, right, tolerance, what)
    compare(results(net, p, second), other, tolerance, f"{what}, other data")
    for a, b in zip(results(net, p, first), found, strict=True):
        if a.tobytes() != b.tobytes():
            raise AssertionError(f"{what}: a third call has other bits than the first")
    if not drawn.control and not drawn.how.get("adjoint"):
        way = rng.normal(size=p.size) / np.sqrt(p.size or 1)
        rest = {name: first[name] for name in first if name == "lengths"}
        up, down = (plain.loss(p + step * way, first["x"], first["t"], MSELoss(), **rest) for step in (DIFFERENCE, -DIFFERENCE))
        slope, wanted = float(right[1] @ way), (up - down) / (2 * DIFFERENCE)
        if abs(slope - wanted) > 1e-6 * max(1.0, abs(wanted), float(right[0])):
            raise AssertionError(f"{drawn}: the slope is {slope}, but differences give {wanted}")
        outcomes.append("differences")
    return ", ".join(outcomes)


if __name__ == "__main__":
    sys.exit(running.main(attempt))
