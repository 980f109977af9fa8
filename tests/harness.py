"""One registry of cases, and data for them; the tools that users have too are those of `chains.testing`.

Adding a layer, activation, loss, penalty, optimiser, schedule or initializer to `chains` without adding a case
here fails `test_registry.py`. The backends under test are NumPy and, where llvmlite is installed, native, or those of
`CHAINS_TEST_BACKENDS` (comma-separated). What is drawn at random is drawn by `SEED`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import chains
from chains import expr, losses, schedules
from chains import initializers as initial
from chains.activations import ACTIVATIONS
from chains.layers import Compartments
from chains.layers.base import Layer
from chains.layers.node import Node, Vectors
from chains.layers.ode.course import Within
from chains.layers.ode.shooting import Shooting
from chains.models import Bottleneck, DenseBlock, Transition
from chains.network import record
from chains.network.network import network_of
from chains.program.recorder import Recorder
from chains.sampling.trajectories import Leapfrog
from chains.testing import Kink, assert_close, away_from_kinks, central_difference, filled, run_program  # noqa: F401
from chains.testing.gradients import ROUNDING  # noqa: F401
from tests.own import Boost, Decay, Double, DyUser, Experts, Leaky, Monotone, Outer, Repeat, Scan, Stacked

HERE = "numpy,native" if importlib.util.find_spec("llvmlite") else "numpy"
BACKENDS = tuple(os.environ.get("CHAINS_TEST_BACKENDS", HERE).split(","))
SEED = 1  # or that of `--random-seed` (tests/conftest.py)
DTYPES = (np.float32, np.float64)
BATCHES = (1, 5)
SQUARED = chains.SquaredLoss()


@dataclass(frozen=True)
class Case:
    """A network that shows one `subject`: its layers, the shape of a sample, and what is minimised."""

    name: str
    subject: Any
    layers: tuple[Layer, ...]
    input_shape: tuple[int, ...] = (3,)
    loss: losses.Loss = SQUARED
    targets: str = "real"  # or another kind of `targets`
    weighted: str = ""  # or "samples", "targets"; some of these have the weight 0 and are NaN
    penalty: chains.Penalty | None = None
    frozen: tuple[str, ...] = ()

    def net(self, name: str = "numpy") -> chains.Chain:
        net = chains.Chain(*self.layers, input_shape=self.input_shape, backend=name)
        return net.with_frozen(*self.frozen)

    def problem(self, batch: int, seed: int = 0) -> Problem:
        """Random data whose numbers are exact in float32, so that both types see the same ones.

        A batch that is too small to train on is made as large as it must be.
        """
        net, rng = self.net(), np.random.default_rng([seed, batch])
        batch = max(batch, network_of(net).declaration.most_demanding.smallest_batch)
        p = _exact(rng.normal(0.0, 0.8, net.n_params))
        start = net.views(net.init(dtype=np.float64))
        for name in net.frozen:  # such as times, which must increase
            net.views(p)[name][...] = _exact(start[name])
        x, dy = (_exact(rng.normal(0.0, 1.0, (batch, *shape))) for shape in (net.input_shape, net.output_shape))
        if network_of(net).id_count is not None:
            x = rng.integers(0, network_of(net).id_count, x.shape)
        t = targets(self.targets, rng, batch, net.output_shape)
        w = None
        if self.weighted:
            w = _exact(rng.uniform(0.5, 2.0, t.shape if self.weighted == "targets" else batch))
        if self.weighted == "targets":
            w[rng.uniform(size=t.shape) < 0.3] = 0.0
            t = np.where(w == 0.0, np.nan, t)
        return Problem(self, p, x, t, w, dy, _exact(rng.uniform(0.5, 2.0, net.n_state)))

    def criterion(self, target: tuple[int, ...] | None = None) -> record.Criterion:
        """What is minimised, for targets of this sample shape; by default those of `problem`."""
        target = self.problem(1).t.shape[1:] if target is None else target
        weights = {"": None, "samples": (), "targets": target}[self.weighted]
        return record.Criterion(self.loss, target, weights, self.penalty)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Problem:
    """A case with data, in float64."""

    case: Case
    p: np.ndarray
    x: np.ndarray
    t: np.ndarray
    w: np.ndarray | None
    dy: np.ndarray
    state: np.ndarray  # of length 0 for most

    def value_and_grad(self, name: str = "numpy", dtype: Any = np.float64, mode: str = "train", **changed: Any) -> Any:
        at = replace(self, **changed) if changed else self
        case = self.case
        return _net(case, name).value_and_grad(
            at.p.astype(dtype), at.x, at.t, case.loss, weights=at.w, penalty=case.penalty, state=at.state.astype(dtype),
            mode=mode, seed=3,
        )  # fmt: skip

    def vjp(self, name: str = "numpy", dtype: Any = np.float64, mode: str = "eval") -> Any:
        p, state = self.p.astype(dtype), self.state.astype(dtype)
        return _net(self.case, name).vjp(p, self.x, self.dy, state=state, mode=mode, seed=3)

    def call(self, name: str = "numpy", dtype: Any = np.float64, mode: str = "eval", **changed: Any) -> np.ndarray:
        at = replace(self, **changed) if changed else self
        return _net(self.case, name)(at.x, at.p.astype(dtype), state=at.state.astype(dtype), mode=mode, seed=3)


_nets: dict[tuple[str, Any], chains.Chain] = {}


def _net(case: Case, name: Any) -> chains.Chain:
    """One network a case and backend, so that programs are recorded once."""
    if (case.name, name) not in _nets:
        _nets[case.name, name] = case.net(name)
    return _nets[case.name, name]


def _exact(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32).astype(np.float64)


def targets(kind: str, rng: np.random.Generator, batch: int, shape: tuple[int, ...]) -> np.ndarray:
    """Targets of this kind for outputs of this sample shape."""
    if kind == "columns":  # two weights and a number of a point
        return _exact(rng.uniform(0.2, 1.0, (batch, 3)))
    if kind == "real":
        return _exact(rng.normal(0.0, 1.0, (batch, *shape)))
    if kind == "counts":
        return rng.poisson(2.0, (batch, *shape)).astype(np.float64)
    if kind == "halves":  # a number for each two outputs
        return _exact(rng.normal(0.0, 1.0, (batch, *shape[:-1], shape[-1] // 2)))
    if kind == "fractions":
        return _exact(rng.uniform(0.0, 1.0, (batch, *shape)))
    if kind == "probabilities":
        return _exact(rng.dirichlet(np.ones(shape[-1]), (batch, *shape[:-1])))
    labels = rng.integers(0, shape[-1], (batch, *shape[:-1]))
    return labels if kind == "labels" else np.eye(shape[-1])[labels]


# The cases


def _layer(name: str, layer: Layer, shape: tuple[int, ...] = (3,), **rest: Any) -> Case:
    return Case(name, type(layer), (chains.Scale(), layer), shape, **rest)


def _dense(inputs: int = 3, outputs: int = 3, f: Any = chains.tanh, **rest: Any) -> chains.Dense:
    return chains.Dense(inputs, outputs, f, **rest)


LAYERS = [
    _layer("Dense", _dense(3, 4)),
    _layer("Dense-linear", _dense(3, 4, chains.identity)),
    _layer("Dense-no-bias", _dense(3, 4, bias=False)),
    _layer("Dense-wide", _dense(3, 40, chains.σ)),
    _layer("Dense-needs-input", _dense(3, 4, chains.gelu)),
    _layer("Dense-needs-input-no-bias", _dense(3, 4, chains.silu, bias=False)),
    _layer("Dense-sequence", _dense(3, 4), (2, 3)),
    _layer("Dense-sequence-needs-input", _dense(3, 4, chains.mish), (2, 3)),
    _layer("Activation", chains.Activation(chains.tanh), (2, 3)),
    _layer("Activation-scalar", chains.Activation("silu"), ()),
    _layer("Scale", chains.Scale()),
    _layer("Append", chains.Append(a=0.5)),
    _layer("Append-bounds", chains.Append(bounds={"a": (0, None), "b": (-2.0, 3.0)}, a=0.5, b=1.0)),
    _layer("Select", chains.Select([2, 0])),
    _layer("Select-twice", chains.Select([-1, 0, 1, -1]), (2, 3)),
    _layer("Dense-bounds", _dense(3, 4, chains.σ, weight_init=0.25, weight_bounds=(-1.0, 2.0))),
    _layer("Monotone", chains.layers.Monotone(3, (4, 2), increasing=0, decreasing=2)),
    _layer("Monotone-one-way", chains.layers.Monotone(3, (2, 3, 1), decreasing=range(3), activation="softplus"), (2, 3)),
    _layer("Monotone-linear", chains.layers.Monotone(3, 2, increasing=[0, 1])),
    _layer("Convex", chains.layers.Convex(3, (4, 2, 1))),
    _layer("Convex-increasing", chains.layers.Convex(3, (3, 2), increasing=1, activation="elu"), (2, 3)),
    _layer("Fourier", chains.layers.Fourier(3, 4, 0.2)),
    _layer("Fourier-trained", chains.layers.Fourier(3, 2, 0.1, trained=True), (2, 3)),
    _layer("Periodic", chains.layers.Periodic((None, 2.0, None))),
    _layer("Periodic-harmonics", chains.layers.Periodic((3.0, None, 5.0), 3), (2, 3)),
    _layer("Periodic-one", chains.layers.Periodic(4.0, 2), (1,)),
    _layer("Chebyshev", chains.layers.Chebyshev(1, 2, 4, (-2.0, 3.0)), (1,)),
    _layer("Chebyshev-three", chains.layers.Chebyshev(3, 2, 3, ((-1.0, 1.0), (-2.0, 2.0), (-3.0, 1.0)))),
    _layer("Chebyshev-sequence", chains.layers.Chebyshev(3, 1, 2, (-2.0, 2.0)), (2, 3)),
    _layer("Chebyshev-linear", chains.layers.Chebyshev(3, 4, 1)),
    _layer("FourierSeries", chains.layers.FourierSeries(1, 2, 3, 8.0), (1,)),
    _layer("FourierSeries-three", chains.layers.FourierSeries(3, 2, 2, (8.0, 10.0, 12.0))),
    _layer("FourierSeries-sequence", chains.layers.FourierSeries(3, 1, 1, 9.0), (2, 3)),
    _layer("Append-sequence", chains.Append(a=0.5, b=-1.0), (2, 3)),
    _layer("Scale-image", chains.Scale(), (2, 2, 3)),
    _layer("Scale-scalar", chains.Scale(), ()),
    _layer("Shift", chains.Shift()),
    _layer("Shift-image", chains.Shift(), (2, 2, 3)),
    _layer("Shift-scalar", chains.Shift(), ()),
    _layer("Softmax", chains.Softmax()),
    _layer("Softmax-sequence", chains.Softmax(), (2, 3)),
    _layer("LogSoftmax", chains.LogSoftmax()),
    _layer("LogSoftmax-sequence", chains.LogSoftmax(), (2, 3)),
    _layer("Flatten", chains.Flatten(), (2, 3)),
    _layer("Flatten-scalar", chains.Flatten(), ()),
    _layer("Reshape", chains.Reshape(3, -1), (2, 3)),
    _layer("Reshape-scalar", chains.Reshape(), (1,)),
    _layer("Dropout", chains.Dropout(0.4), (9,)),
    _layer("Dropout-image", chains.Dropout(0.25), (2, 3, 3)),
    _layer("Dropout-none", chains.Dropout(0.0)),
    _layer("SpatialDropout", chains.SpatialDropout(0.4), (6, 2, 3)),
    _layer("SpatialDropout-vector", chains.SpatialDropout(0.4), (9,)),
    _layer("LayerNorm", chains.LayerNorm(), (5,)),
    _layer("LayerNorm-sequence", chains.LayerNorm(3, eps=0.1), (2, 3)),
    _layer("LayerNorm-image", chains.LayerNorm((2, 3)), (2, 2, 3)),
    _layer("LayerNorm-plain", chains.LayerNorm(affine=False), (2, 5)),
    _layer("LayerNorm-one", chains.LayerNorm(), (3, 1)),
    _layer("RMSNorm", chains.RMSNorm(), (5,)),
    _layer("RMSNorm-image", chains.RMSNorm((2, 3), eps=0.1), (2, 2, 3)),
    _layer("RMSNorm-plain", chains.RMSNorm(affine=False), (2, 5)),
    _layer("GroupNorm", chains.GroupNorm(2, 6), (6,)),
    _layer("GroupNorm-image", chains.GroupNorm(2, 4, eps=0.1), (4, 2, 3)),
    _layer("GroupNorm-one-group", chains.GroupNorm(1, 4), (4, 3)),
    _layer("GroupNorm-instance", chains.GroupNorm(3, 3), (3, 2, 2)),
    _layer("GroupNorm-plain", chains.GroupNorm(2, 4, affine=False), (4, 3)),
    _layer("BatchNorm", chains.BatchNorm(3)),
    _layer("BatchNorm-plain", chains.BatchNorm(3, affine=False)),
    _layer("BatchNorm-sequence", chains.BatchNorm(2, eps=0.1, momentum=0.3), (2, 3)),
    _layer("BatchNorm-image", chains.BatchNorm(2), (2, 2, 3)),
    _layer("BatchNorm-image-plain", chains.BatchNorm(2, affine=False), (2, 2, 3)),
    _layer("Residual-BatchNorm", chains.Residual(chains.BatchNorm(3), _dense())),
    _layer("Parallel-BatchNorm", chains.Parallel(chains.BatchNorm(3), chains.Series(_dense(), chains.BatchNorm(3)))),
    _layer("Residual", chains.Residual(_dense())),
    _layer("Residual-deep", chains.Residual(_dense(3, 5), chains.Dropout(0.3), _dense(5, 3))),
    _layer("Residual-nested", chains.Residual(chains.Residual(_dense()), chains.Scale())),
    _layer("Residual-copy", chains.Residual(chains.Flatten())),
    _layer("Residual-softmax", chains.Residual(chains.Softmax())),
    _layer("Residual-nothing", chains.Residual()),
    _layer("Residual-shortcut", chains.Residual(_dense(3, 5), _dense(5, 4), shortcut=_dense(3, 4, chains.identity))),
    _layer("Residual-shortcut-reads-dy", chains.Residual(DyUser(), shortcut=DyUser())),
    _layer("Residual-shortcut-copy", chains.Residual(_dense(6, 6), shortcut=chains.Reshape(2, 6)), (2, 6)),
    _layer("Residual-activation", chains.Residual(_dense(), activation=chains.tanh)),
    _layer("Residual-activation-needs-input", chains.Residual(_dense(3, 2), shortcut=_dense(3, 2), activation="gelu")),
    _layer("Parallel", chains.Parallel(_dense(3, 2), _dense(3, 4, chains.gelu), chains.Scale())),
    _layer("Parallel-axis", chains.Parallel(_dense(3, 2), chains.Shift(), axis=-1), (2, 3)),
    _layer("Parallel-first-axis", chains.Parallel(_dense(), chains.Softmax()), (2, 3)),
    _layer("Parallel-sum", chains.Parallel(_dense(), chains.Dropout(0.5), chains.Flatten(), join="sum")),
    _layer("Parallel-one", chains.Parallel(_dense(), join="sum")),
    _layer("Parallel-copies", chains.Parallel(chains.Flatten(), chains.Flatten(), chains.Reshape(3))),
    _layer("Series", chains.Series(_dense(3, 4), chains.Dropout(0.5), _dense(4, 2))),
    _layer("Series-nothing", chains.Series()),
    _layer("Chain", chains.Chain(_dense(3, 4), chains.Chain(_dense(4, 2, chains.softplus)))),
    _layer("Chain-part", chains.Chain(_dense(3, 4), _dense(4, 2), _dense(2, 5))[1:], (4,)),
    Case("Dense-alone", chains.Dense, (_dense(3, 4, chains.σ),)),
    Case("Dense-three", chains.Dense, (_dense(3, 4, chains.σ), _dense(4, 5, chains.mish), _dense(5, 2))),
    Case("Dense-frozen", chains.Dense, (_dense(3, 4), _dense(4, 4), _dense(4, 2)), frozen=("1.*", "2.bias")),
    Case("Dense-all-frozen", chains.Dense, (_dense(3, 4), _dense(4, 2)), frozen=("*",)),
    Case(
        "BatchNorm-twice",
        chains.BatchNorm,
        (_dense(), chains.BatchNorm(3, eps=0.1), chains.Chain(_dense(), chains.BatchNorm(3, eps=0.1))),
    ),
    Case("BatchNorm-frozen", chains.BatchNorm, (_dense(), chains.BatchNorm(3), _dense()), frozen=("1.*", "2.bias")),
    Case("Flatten-then-Dense", chains.Flatten, (chains.Flatten(), _dense(6, 2)), (2, 3)),
]


def _drug(*settings: int, **more: bool) -> Case:
    """Concentrations in a body, whose rates and times are positive; infusions of a steady state do not overlap."""
    layer = Compartments(*settings, **more)
    name = "-".join(["Compartments", *map(str, settings), *more])
    given = [chains.Scale(), chains.Activation("softplus")]
    if layer.steady:
        given.append(chains.Shift(shift_init=tuple(9.0 * each.startswith("interval") for each in layer.features)))
    return Case(name, Compartments, (*given, layer), (len(layer.features),), frozen=("2.shift",) if layer.steady else ())


LAYERS += [
    _drug(1, 2),
    _drug(1, 1, 2, absorption=True, bioavailability=True, lag=True),
    _drug(2, 1, infusion=True),
    _drug(1, 1, infusion=True, steady=True),
]


STEPS = (4, 3)
LAYERS += [
    _layer("RNN", chains.RNN(3, 4), STEPS),
    _layer("RNN-one-step", chains.RNN(3, 2), (1, 3)),
    _layer("RNN-sequences-needs-input", chains.RNN(3, 2, "gelu", return_sequences=True), STEPS),
    _layer("RNN-bidirectional", chains.RNN(3, 2, chains.σ, bidirectional=True, initial_state="parameter"), STEPS),
    _layer("LSTM", chains.LSTM(3, 2), STEPS),
    _layer("LSTM-two-steps", chains.LSTM(3, 2, return_sequences=True, initial_state="parameter"), (2, 3)),
    _layer("LSTM-bidirectional", chains.LSTM(3, 2, return_sequences=True, bidirectional=True), STEPS),
    _layer("GRU", chains.GRU(3, 2), STEPS),
    _layer("GRU-seven-steps", chains.GRU(2, 3), (7, 2)),
    _layer("GRU-checkpoints", chains.GRU(2, 3, checkpoint_every=3), (7, 2)),
    _layer("LSTM-checkpoints", chains.LSTM(3, 2, return_sequences=True, bidirectional=True, checkpoint_every=2), STEPS),
    _layer("RNN-checkpoints", chains.RNN(2, 3, "softplus", initial_state="parameter", checkpoint_every=2), (5, 2)),
    _layer("GRU-paper", chains.GRU(3, 2, reset_after=False, return_sequences=True), STEPS),
    _layer("GRU-bidirectional", chains.GRU(3, 2, bidirectional=True), STEPS),
    _layer("GRU-parameter", chains.GRU(3, 2, initial_state="parameter"), STEPS),
    _layer("Recurrent", chains.Recurrent(Decay(), return_sequences=True), STEPS),
    _layer("Recurrent-layers", chains.Recurrent(Stacked()), STEPS),
    _layer("Recurrent-checkpoints", chains.Recurrent(Stacked(), return_sequences=True, checkpoint_every=1), STEPS),
    _layer("Recurrent-both-ways", chains.Recurrent(Decay(), bidirectional=True, initial_state="parameter"), (2, 2, 3)),
    Case("GRU-stacked", chains.GRU, (chains.GRU(3, 4, return_sequences=True), chains.LSTM(4, 2), _dense(2, 2)), STEPS),
    Case("GRU-frozen", chains.GRU, (chains.GRU(3, 2), _dense(2, 2)), STEPS, frozen=("0.weight", "0.recurrent_bias")),
    Case("Cell", chains.layers.Cell, (chains.Recurrent(chains.layers.GRUCell(3, 2)), _dense(2, 2)), STEPS),
]


def _pendulum() -> chains.Equations:
    """Two of the three changes known, the third one learned, with a parameter and a forcing."""
    learned = chains.Series(_dense(5, 3), _dense(3, 1, chains.gelu))
    names = ("q", "v", "length", "t", "wind")
    return chains.Equations(
        lambda q, v, length, t, wind, drag, push: (v, push - expr.sin(q) / (2.0 + length * length) - drag * v + wind * t),
        inputs=names, network=learned, outputs=("push",), parameters={"drag": 0.25},
    )  # fmt: skip


def _hunt() -> chains.Equations:
    """Two networks, of which each takes some of the inputs, and parameters with bounds."""
    return chains.Equations(
        lambda hare, fox, lynx, food, u, v, birth, death: (birth * hare - u, food * fox, v - death * lynx),
        inputs=("hare", "fox", "lynx"), parameters={"birth": 0.5, "death": 0.25},
        networks={"food": (_dense(1, 1), ("hare",)), "hunt": (_dense(2, 2), ("lynx", "hare"), ("u", "v"))},
        bounds={"birth": (0.0, 2.0), "death": (0.0, None)},
    )  # fmt: skip


def _closed() -> chains.Equations:
    """Rates of two numbers, damped so that there is one steady state, with a network and a parameter with bounds."""
    return chains.Equations(
        lambda a, b, x, y, z, u, k: (x + expr.tanh(u) - k * a, y * z + 0.5 * expr.tanh(a) - b - b * b * b),
        inputs=("a", "b", "x", "y", "z"), network=_dense(5, 1), outputs=("u",),
        parameters={"k": 4.0}, bounds={"k": (3.0, None)},
    )  # fmt: skip


def _small(inputs: int, outputs: int) -> chains.Series:
    """A contraction, whatever its parameters: its derivatives are below 1."""
    return chains.Series(
        _dense(inputs, outputs), chains.Equations(lambda a, b: (0.4 * expr.tanh(a + b), 0.4 * expr.sin(a - b)), ("a", "b"))
    )


_DOSES = {"t0": 0.25, "t1": 0.75, "a0": 0.5, "a1": 1.0}  # times and amounts of two doses
_TIMES = {"s0": -4.0, "s1": 0.5, "s2": 1.0}
_LOOSE = {"rtol": 1e6, "atol": 1e6, "max_steps": 9}  # lengths of steps that do not depend on the states
_FORCED = {"given": 1, "time": True, "forcing": ([0.0, 0.5, 1.0], [0.0, 1.0, -0.5])}
LAYERS += [
    _layer("Equations",
           chains.Equations(lambda a, c, b, k: (k * a * b, expr.tanh(c), 3.0), ("a", "b", "c"), parameters={"k": 0.5})),
    _layer("Equations-network", _pendulum(), (5,)),
    _layer("Equations-bounds", _hunt()),
    _layer("ODE-bounds", chains.ODE(_hunt(), (0.0, 0.25, 1.0), "midpoint", 2)),
    _layer("ODE-bounds-implicit", chains.ODE(_hunt(), (0.0, 0.125), "kvaerno3")),
    _layer("ODE", chains.ODE(chains.Series(_dense(3, 2), _dense(2, 3)), (0.0, 0.5, 1.0), "midpoint", 2)),
    _layer("ODE-needs-input", chains.ODE(_dense(3, 3, chains.gelu), (0.0, 0.5), "euler")),
    _layer("ODE-forced", chains.ODE(_pendulum(), (0.0, 0.25, 1.0), "midpoint", 2, **_FORCED)),
    _layer("ODE-leapfrog",
           chains.ODE(chains.Equations(lambda q, v: (v, -q * q), ("q", "v")), (0.0, 0.5), "leapfrog", 3, checkpoint_every=2),
           (2,)),
    _layer("ODE-own-times",
           chains.Series(chains.Append(a=0.0, b=0.5, c=0.75),
                         chains.ODE(_dense(3, 3), 3, "midpoint", 2, checkpoint_every=2)),
           (3,), frozen=("1.0.a", "1.0.b", "1.0.c")),
    Case("Doses", chains.Doses,
         (chains.Scale(), chains.Append(**_DOSES | {"r0": 2.0, "r1": 4.0} | _TIMES),
          chains.Doses(2, 1, infusion="rate", lag=True, bioavailability=True)),
         (2,), frozen=tuple(f"1.{name}" for name in (*_DOSES, "r0", "r1", *_TIMES))),
    Case("Within", Within, (chains.Scale(), Within(_dense(4, 2), 2, 1, True, (1,))), (7,)),
    _layer("ODE-doses",
           chains.Series(chains.Append(**_DOSES | _TIMES),
                         chains.ODE(_dense(3, 2), 3, "midpoint", 2, time=True, checkpoint_every=3,
                                    doses=chains.Doses(2, 1, lag=True, bioavailability=True))),
           (4,), frozen=tuple(f"1.0.{name}" for name in (*_DOSES, *_TIMES))),
    _layer("ODE-doses-control",
           chains.Series(chains.Append(**_DOSES | {"d0": 0.5, "d1": 0.125}),
                         chains.ODE(_dense(2, 2), (-4.0, 0.5, 1.0), rtol=1e6, atol=1e6, max_steps=13,
                                    doses=chains.Doses(2, 1, infusion="duration", bioavailability=True))),
           (3,), frozen=tuple(f"1.0.{name}" for name in (*_DOSES, "d0", "d1"))),
    _layer("SDE", chains.SDE(_dense(3, 3), _dense(3, 3), (0.0, 0.5, 1.0), steps=2)),
    _layer("SDE-milstein", chains.SDE(_dense(4, 2), _dense(4, 2), (0.0, 0.5), "milstein", 3, given=1, time=True,
                                      checkpoint_every=2)),
    _layer("SDE-heun", chains.SDE(_dense(3, 2), _dense(3, 2), (0.0, 0.5), "heun", 2, time=True), (2,)),
    Case("Shooting", Shooting,
         (chains.Append(a=1.0, b=0.0, c=0.0, d=1.0), chains.Select((1, 2, 3, 4)), chains.Reshape(2, 2),
          Shooting(chains.ODE(_dense(2, 2), (0.0, 1.0), "midpoint", 2), np.array([[0.0, 0.5], [0.5, 1.0]]), 2)),
         (1,), frozen=("0.a", "0.b", "0.c", "0.d")),
    _layer("ODE-control", chains.ODE(_dense(2, 2), (0.0, 0.25, 0.5), rtol=1e6, atol=1e6, max_steps=9), (2,)),
    _layer("ODE-interpolated", chains.ODE(_dense(2, 2), (0.0, 0.25, 0.3, 0.5), interpolate=True, **_LOOSE), (2,)),
    _layer("ODE-interpolated-implicit",
           chains.ODE(_dense(2, 2), (0.0, 0.3, 0.5), "kvaerno3", interpolate=True, **_LOOSE), (2,)),
    _layer("ODE-event", chains.ODE(_dense(2, 2), (0.0, 0.5, 1.0), "midpoint", 2, event=_dense(2, 1)), (2,)),
    _layer("ODE-event-control",
           chains.ODE(_dense(2, 2), (0.0, 0.25, 0.5), rtol=1e6, atol=1e6, max_steps=9, event=_dense(2, 1)), (2,)),
    _layer("ODE-implicit", chains.ODE(_pendulum(), (0.0, 0.25), "kvaerno3", **_FORCED), (3,)),
    _layer("SteadyState", chains.SteadyState(_closed(), 2, guess=0.5)),
    _layer("SteadyState-fixed-point", chains.SteadyState(_small(4, 2), 2, fixed_point=True, guess="input"), (4,)),
    _layer("SteadyState-anderson", chains.SteadyState(_small(3, 2), 2, "anderson", fixed_point=True), (1,)),
    Case("ODE-frozen", chains.ODE, (chains.ODE(_pendulum(), (0.0, 0.25), "euler", **_FORCED),), (3,),
         frozen=("0.drag", "0.network.0.weight")),
    Case("ODE-trained-start", chains.ODE, (chains.Embedding(4, 3), chains.ODE(_dense(), (0.0, 0.5), "euler", 2)), ()),
]  # fmt: skip


def _conv(inputs: int = 2, outputs: int = 2, kernel: Any = 2, f: Any = chains.tanh, **rest: Any) -> chains.Conv:
    return chains.Conv(inputs, outputs, kernel, f, **rest)


def _transpose(inputs: int = 2, outputs: int = 2, kernel: Any = 2, f: Any = chains.tanh, **rest: Any) -> chains.ConvTranspose:
    return chains.ConvTranspose(inputs, outputs, kernel, f, **rest)


IMAGE, SIGNAL = (2, 4, 3), (2, 6)
IMAGE_LAYERS = [
    _layer("Conv", _conv(), IMAGE),
    _layer("Conv-linear-no-bias", _conv(2, 3, 3, chains.identity, bias=False), IMAGE),
    _layer("Conv-needs-input", _conv(2, 3, 2, chains.gelu), IMAGE),
    _layer("Conv-needs-input-no-bias", _conv(2, 1, 2, chains.silu, bias=False), IMAGE),
    _layer("Conv-one-channel", _conv(1, 3, 3, chains.σ), (1, 4, 5)),
    _layer("Conv-rectangle", _conv(2, 2, (3, 1), padding=(1, 0), stride=(1, 2)), IMAGE),
    _layer("Conv-same", _conv(2, 2, (2, 3), padding="same"), IMAGE),
    _layer("Conv-uneven", _conv(2, 2, 3, padding=((2, 0), (0, 1)), stride=2), IMAGE),
    _layer("Conv-dilated", _conv(2, 2, 2, dilation=(3, 2), padding=1), IMAGE),
    _layer("Conv-groups", _conv(4, 2, 2, groups=2, padding=1), (4, 2, 3)),
    _layer("Conv-depthwise", _conv(3, 6, 2, groups=3), (3, 3, 2)),
    _layer("Conv-pointwise", _conv(2, 3, 1), IMAGE),
    _layer("Conv-pointwise-groups", _conv(4, 2, 1, groups=2), (4, 2, 2)),
    _layer("Conv-pointwise-stride", _conv(2, 2, 1, stride=2), IMAGE),
    _layer("Conv-wide", _conv(2, 20, 2), IMAGE),
    _layer("Conv-signal", _conv(2, 3, (3,), stride=2, padding=1), SIGNAL),
    _layer("Conv-signal-same", _conv(2, 2, (2,), chains.gelu, padding="same", dilation=3), SIGNAL),
    Case("Conv-alone", chains.Conv, (_conv(2, 3, 3, chains.σ, padding=1),), IMAGE),
    Case("Conv-two", chains.Conv, (_conv(1, 2, 3, padding=1), _conv(2, 3, 2, chains.mish)), (1, 3, 4)),
    Case("Conv-frozen", chains.Conv, (_conv(1, 2, 2), _conv(2, 2, 2)), (1, 3, 4), frozen=("0.weight", "1.bias")),
    _layer("ConvTranspose", _transpose(), IMAGE),
    _layer("ConvTranspose-needs-input", _transpose(2, 3, 2, chains.gelu, bias=False), (2, 2, 3)),
    _layer("ConvTranspose-stride", _transpose(2, 1, 3, stride=2, padding=1, output_padding=(1, 0)), (2, 2, 3)),
    _layer("ConvTranspose-groups", _transpose(4, 2, (2, 1), groups=2, dilation=(2, 1)), (4, 2, 2)),
    _layer("ConvTranspose-signal", _transpose(2, 3, (2,), stride=2, padding=((0, 1),)), SIGNAL),
    _layer("MaxPool", chains.MaxPool(2), IMAGE),
    _layer("MaxPool-overlapping", chains.MaxPool(3, stride=1), IMAGE),
    _layer("MaxPool-padded", chains.MaxPool((2, 3), stride=(1, 2), padding=1), IMAGE),
    _layer("MaxPool-gaps", chains.MaxPool(1, stride=2), IMAGE),
    _layer("MaxPool-signal", chains.MaxPool((3,), stride=2, padding=((1, 0),)), SIGNAL),
    _layer("AvgPool", chains.AvgPool(2), IMAGE),
    _layer("AvgPool-overlapping", chains.AvgPool((3, 2), stride=1), IMAGE),
    _layer("AvgPool-padded", chains.AvgPool(3, stride=2, padding=1), IMAGE),
    _layer("AvgPool-padding-not-counted", chains.AvgPool((2, 3), stride=1, padding=1, count_padding=False), IMAGE),
    _layer("AvgPool-signal", chains.AvgPool((2,)), SIGNAL),
    _layer("Residual-projection",
           chains.Residual(_conv(stride=2, padding=1), _conv(2, 3, (1, 2)), shortcut=_conv(2, 3, 1, stride=2),
                           activation="silu"), (2, 3, 4)),
    _layer("Bottleneck", Bottleneck(4, 1), (4, 2, 2)),
    _layer("Bottleneck-projection", Bottleneck(2, 1, stride=2), (2, 3, 2)),
    _layer("DenseBlock", DenseBlock(2, 2, growth=1), (2, 2, 2)),
    _layer("Transition", Transition(2), (2, 2, 3)),
    _layer("GlobalAvgPool", chains.GlobalAvgPool(), IMAGE),
    _layer("GlobalAvgPool-signal", chains.GlobalAvgPool(), SIGNAL),
    _layer("Upsample", chains.Upsample(), (2, 2, 3)),
    _layer("Upsample-rectangle", chains.Upsample((1, 3)), (2, 2, 2)),
    _layer("Upsample-signal", chains.Upsample(3), SIGNAL),
    _layer("Pad", chains.Pad(1), (2, 2, 3)),
    _layer("Pad-sides", chains.Pad(((0, 2), (1, 0))), (2, 2, 3)),
    _layer("Pad-signal", chains.Pad(2), SIGNAL),
    Case("Conv-relu-MaxPool", chains.MaxPool, (_conv(1, 2, 2, chains.relu), chains.MaxPool(2), _conv(2, 1, 1)), (1, 5, 5)),
    Case("Conv-relu-MaxPool-overlapping", chains.MaxPool,
         (_conv(1, 2, 2, chains.relu), chains.MaxPool(2, stride=1), chains.Flatten()), (1, 4, 4)),
    Case("Conv-classifier", chains.Conv,
         (_conv(1, 2, 3, "relu", padding=1), chains.MaxPool(2), chains.Dropout(0.3), chains.Flatten(), chains.Dense(8, 3)),
         (1, 4, 4), loss=chains.CrossEntropyLoss(), targets="labels"),
]  # fmt: skip
LAYERS += IMAGE_LAYERS

SEQUENCES = [
    Case("Embedding", chains.Embedding, (chains.Embedding(5, 3),), (7,)),
    Case("Embedding-one", chains.Embedding, (chains.Embedding(4, 3),), ()),
    Case("Embedding-Dense", chains.Embedding, (chains.Embedding(4, 2), _dense(2, 3)), (2, 2)),
    Case("Embedding-parts", chains.Embedding,
         (chains.Parallel(chains.Embedding(4, 2), chains.Series(chains.Embedding(5, 3), _dense(3, 2)), axis=-1),), (2,)),
    _layer("Attention", chains.Attention(4, 2), (3, 4)),
    _layer("Attention-causal", chains.Attention(6, 3, causal=True, bias=False), (7, 6)),
    _layer("Attention-one-step", chains.Attention(3), (1, 3)),
    _layer("TransformerBlock", chains.TransformerBlock(4, 2, 5, activation="tanh", causal=True, dropout=0.3), (2, 4)),
    _layer("PositionalEncoding", chains.PositionalEncoding(), (7, 3)),
    _layer("PositionalEncoding-learned", chains.PositionalEncoding("learned"), (2, 3)),
    _layer("CausalConv", chains.CausalConv(2, 3, 3, chains.tanh), (7, 2)),
    _layer("CausalConv-dilated", chains.CausalConv(2, 2, 3, chains.gelu, dilation=2, bias=False), (4, 2)),
    _layer("CausalConv-one-step", chains.CausalConv(2, 2, 2), (1, 2)),
    Case("Embedding-Attention", chains.Attention,
         (chains.Embedding(4, 4), chains.PositionalEncoding(), chains.Attention(4, 2), _dense(4, 2)), (7,)),
    Case("Embedding-frozen", chains.Embedding, (chains.Embedding(4, 2), _dense(2, 3)), (1,), frozen=("0.weight",)),
]  # fmt: skip
LAYERS += SEQUENCES

# Layers of users' own, which do what built-in ones happen not to.
OWN_LAYERS = [
    _layer("own-Double", Double()),
    _layer("own-Boost", Boost(2.0)),
    _layer("own-DyUser", DyUser()),
    _layer("own-Outer", Outer()),
    _layer("own-Repeat", Repeat(4), (1,)),
    Case("own-Monotone", Monotone, (_dense(), Monotone(2), Monotone(3))),
    Case("own-Monotone-frozen", Monotone, (Monotone(2), Monotone(3)), frozen=("0.weight", "1.gain")),
    Case("own-two-Boosts", Boost, (chains.Scale(), Boost(2.0), Boost(-3.0))),
    _layer("own-Experts", Experts()),
    Case("own-Experts-in-Residual", Experts, (_dense(), chains.Residual(chains.Series(Experts(), chains.Dense(2, 3))))),
    _layer("own-Scan", Scan(), (3, 2)),
    _layer("own-Leaky", chains.Recurrent(Leaky()), (3, 3)),
    _layer("own-Leaky-checkpoints", chains.Recurrent(Leaky(), checkpoint_every=2), (3, 3)),
    Case("own-in-Residual", DyUser, (_dense(), chains.Residual(DyUser()), chains.Parallel(DyUser(), Double()))),
]


def _sigmoid(x: Any) -> Any:
    return np.where(x >= 0, 1.0, np.exp(-abs(x))) / (1.0 + np.exp(-abs(x)))


def _phi(x: Any) -> Any:
    return 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


# What each built-in activation computes, written apart from the package.
ACTIVATION_FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.where(x > 0, x, 0.0),
    "sin": np.sin,
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "softsign": lambda x: x / (1.0 + abs(x)),
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0.0)),
    "gelu": lambda x: x * _phi(x),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0.0))),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
}
VARIANTS = {
    "leaky_relu(slope=0.2)": chains.leaky_relu(slope=0.2),
    "elu(alpha=0.5)": chains.elu(alpha=0.5),
    "own-cubic": chains.activation("cubic", lambda x: x * x * x, derivative=lambda x: 3.0 * x * x),
    "own-by-both": chains.activation("both", lambda x: x * expr.exp(x), derivative=lambda x, y: expr.exp(x) + y),
    "own-constant": chains.activation("constant", lambda x: 0.0 * x + 2.0, derivative=lambda y: 0.0),
    "own-NumPy": chains.activation("numpy", lambda x: np.sin(x) ** 2, derivative=lambda x: 2.0 * np.sin(x) * np.cos(x)),
}
ACTIVATION_CASES = [
    Case(f"{form}-{name}", f, (chains.Scale(), chains.Activation(f)) if form == "activation" else (_dense(3, 2, f),))
    for name, f in {**{name: ACTIVATIONS[name] for name in ACTIVATION_FORMULAS}, **VARIANTS}.items()
    for form in ("activation", "dense")
]

_OWN_LOSS = chains.loss(
    "quartic", lambda y, t: (y - t) ** 2 * (y - t) ** 2, derivative=lambda y, t: 4.0 * (y - t) * (y - t) ** 2, average=True
)
LOSSES: list[tuple[losses.Loss, str]] = [
    (chains.SquaredLoss(), "real"),
    (chains.MSELoss(), "real"),
    (chains.L1Loss(), "real"),
    (chains.HuberLoss(), "real"),
    (chains.HuberLoss(0.3), "real"),
    (chains.CrossEntropyLoss(), "labels"),
    (chains.CrossEntropyLoss(), "one-hot"),
    (chains.CrossEntropyLoss(), "probabilities"),
    (chains.BCEWithLogitsLoss(), "fractions"),
    (_OWN_LOSS, "real"),
    (losses.PoissonNLLLoss(), "counts"),
    (losses.GaussianNLLLoss(log_variance=True), "halves"),
    (losses.QuantileLoss(0.8), "real"),
    (losses.QuantileLoss([0.1, 0.7]), "halves"),
]
POSITIVE_LOSSES: list[tuple[losses.Loss, str]] = [  # of outputs that are not negative
    (losses.PoissonNLLLoss(log_input=False, full=True, eps=1e-3), "counts"),
    (losses.GaussianNLLLoss(full=True), "halves"),
]
LOSS_CASES = [
    Case("-".join([f"{loss}-{kind}", *["sequence"] * len(shape[1:]), *[f"weighted-{weighted}"] * bool(weighted)]), type(loss),
         (_dense(3, 4, f),), shape, loss=loss, targets=kind, weighted=weighted)
    for losses_of, f in ((LOSSES, chains.identity), (POSITIVE_LOSSES, chains.softplus))
    for loss, kind in losses_of
    for shape in ((3,), (2, 3))
    for weighted in ("", "samples", "targets")
]  # fmt: skip
RESIDUALS = chains.ResidualProblem(
    ("t", "x"),
    ("u", "v"),
    [
        chains.Term(lambda u, v: (u.t + u * u.x - 0.1 * u.xx, v.tx + v.xxx), np.zeros((1, 2))),
        chains.Term(lambda u, v, x, f: u.xx - f * v + x, np.zeros((1, 2)), {"f": 0.0}),
    ],
    transform=lambda u, v, x: (x * u, v),
)
RESIDUAL_CASES = [
    Case(f"residuals{'-weighted' * bool(weighted)}", type(RESIDUALS.loss), (_dense(2, 4), _dense(4, 2, chains.identity)), (2,),
         loss=RESIDUALS.loss, targets="columns", weighted=weighted)
    for weighted in ("", "samples")
]  # fmt: skip

PENALTIES = {
    "L2": chains.L2Penalty(0.1),
    "L1": chains.L1Penalty(0.2),
    "L2-weights": chains.L2Penalty(0.1, "*.weight"),
    "L1-one-and-another": chains.L1Penalty(0.2, ("0.bias", "1.*")),
    "sum": chains.L1Penalty(0.2) + chains.L2Penalty(0.1),
    "FrontLast": chains.FrontLastPenalty(chains.L2Penalty(0.1), chains.L1Penalty(0.2)),
    "FrontLast-front": chains.FrontLastPenalty(chains.L2Penalty(0.1, "*.weight"), None),
    "FrontLast-last": chains.FrontLastPenalty(None, chains.L2Penalty(0.1) + chains.L1Penalty(0.3)),
}
PENALTY_CASES = [
    Case(f"penalty-{name}{'-frozen' * bool(frozen)}", penalty, (_dense(3, 4), _dense(4, 2)), penalty=penalty, frozen=frozen)
    for name, penalty in PENALTIES.items()
    for frozen in ((), ("0.weight", "1.bias"))
]

CASES = LAYERS + OWN_LAYERS + ACTIVATION_CASES + LOSS_CASES + RESIDUAL_CASES + PENALTY_CASES

OPTIMIZERS = {
    "SGD": chains.SGD(0.05),
    "momentum": chains.SGD(0.05, momentum=0.9),
    "Nesterov": chains.SGD(0.05, momentum=0.9, nesterov=True),
    "Adam": chains.Adam(0.01),
    "Adam-other": chains.Adam(0.02, beta1=0.7, beta2=0.95, eps=1e-5),
    "AdamW": chains.AdamW(0.01),
    "AdamW-strong": chains.AdamW(0.05, weight_decay=0.3),
    "RMSProp": chains.RMSProp(0.01),
    "RMSProp-other": chains.RMSProp(0.01, decay=0.8, eps=1e-4),
    "Adagrad": chains.Adagrad(0.1),
    "SWAG": chains.SWAG(0.05, momentum=0.9, start=3, every=2),
}
# What an `Updater` does not: random numbers, and steps from other states than zeros (tests/sampling/test_sample.py).
DRAWING = {"SGLD": chains.SGLD(0.01, 0.1), "Leapfrog": Leapfrog(0.1)}
CLIPPED = {f"{name}-clipped": replace(optimizer, clip_norm=0.4) for name, optimizer in OPTIMIZERS.items()}

# A schedule, and what it should be at a number of updates made before.
SCHEDULES: dict[str, tuple[Callable[[Any], Any], Callable[[int], float]]] = {
    "exponential": (schedules.exponential(0.1, 0.5, 3), lambda n: 0.1 * 0.5 ** (n / 3)),
    "stepwise": (schedules.stepwise(0.1, 0.5, 3), lambda n: 0.1 * 0.5 ** (n // 3)),
    "cosine": (schedules.cosine(0.1, 5, final=0.01), lambda n: 0.01 + 0.045 * (1 + math.cos(math.pi * min(n / 5, 1)))),
    "warmup": (schedules.warmup(0.1, 4), lambda n: 0.1 * min((n + 1) / 4, 1.0)),
    "warmup-then": (
        schedules.warmup(schedules.exponential(0.1, 0.5), 4),
        lambda n: 0.1 * (n + 1) / 4 if n < 4 else 0.1 * 0.5 ** (n - 4),
    ),
    "own": (lambda step: 0.1 / (1.0 + step), lambda n: 0.1 / (1 + n)),
}

INITIALIZERS = {
    "Normal": initial.Normal(2.0, mean=0.5),
    "Uniform": initial.Uniform(-0.5, 2.0),
    "Constant": initial.Constant(3.0),
    "VarianceScaling": initial.VarianceScaling(2.0, "average", "normal"),
}


# The walk over the package: what has no case


def uncovered() -> dict[str, str]:
    """What the package offers and no case shows: its name, and the table of this file where a case is to be added."""
    everything = _classes()
    layer_types = {type(layer) for case in CASES for layer in case.layers}
    layer_types |= {type(layer.cell) for case in CASES for layer in case.layers if isinstance(layer, chains.Recurrent)}
    penalty_types = {type(penalty) for penalty in PENALTIES.values()}
    shown: Mapping[type, tuple[str, set[type]]] = {
        Layer: ("LAYERS", layer_types),
        losses.Loss: ("LOSSES", {type(case.loss) for case in CASES}),
        chains.Penalty: ("PENALTIES", penalty_types),
        chains.Optimizer: ("OPTIMIZERS", {type(optimizer) for optimizer in (OPTIMIZERS | DRAWING).values()}),
    }
    missing = {
        c.__name__: table for base, (table, have) in shown.items() for c in everything if issubclass(c, base) and c not in have
    }
    functions = {layer.f for case in CASES for layer in case.layers if isinstance(layer, chains.Activation)}
    unknown = [name for name, f in ACTIVATIONS.items() if f not in functions or name not in ACTIVATION_FORMULAS]
    missing |= dict.fromkeys(unknown, "ACTIVATION_FORMULAS")
    makers = [name for name, f in vars(schedules).items() if callable(f) and getattr(f, "__module__", "") == schedules.__name__]
    missing |= {name: "SCHEDULES" for name in makers if name not in SCHEDULES and not name.startswith("_")}
    kinds = {type(choice) for choice in INITIALIZERS.values()}
    found = [c for c in everything if c.__module__ == initial.__name__]
    return missing | {c.__name__: "INITIALIZERS" for c in found if c not in kinds}


def _classes() -> set[type]:
    """The public, concrete classes defined in the package or exported from it."""
    abstract = {chains.Loss}  # a subclass has `forward` or `record`
    found = set()
    for module in (chains, *package_modules()):
        for value in list(vars(module).values()):
            if isinstance(value, type) and not inspect.isabstract(value) and not value.__name__.startswith("_"):
                inside = value.__module__ == module.__name__ or module is chains
                found |= {value} if inside else set()
    return found - abstract


def public_things() -> dict[str, Any]:
    """The attributes of the package that editors offer, with those that are imported when first used."""
    return {name: getattr(chains, name) for name in dir(chains)}


def package_modules() -> list[Any]:
    """Every module of the package that can be imported here."""
    modules = []
    for found in pkgutil.walk_packages(chains.__path__, "chains."):
        try:
            modules.append(importlib.import_module(found.name))
        except ImportError:  # one that needs what is not installed
            continue
    return modules


# Programs on a named backend


def record_all(net: chains.Chain, dtype: Any, *, pullback: bool = True) -> Recorder:
    """Recorded in one program: the output `y` at `x` and, with `pullback`, the gradients `g` and `dx` for `dy`."""
    ops = Recorder("all", dtype)
    p = ops.external("p", (net.n_params,), role="input")
    g = ops.external("g", (net.n_params,), role="output")
    ids = None if network_of(net).id_count is None else record.IDS
    x = ops.external("x", net.input_shape, role="input", batched=True, dtype=ids)
    dx = ops.external("dx", net.input_shape, role="output", batched=True)
    cotangent = ops.external("dy", net.output_shape, role="input", batched=True)
    y = ops.external("y", net.output_shape, role="output", batched=True)
    dy = ops.scratch("dy", net.output_shape)
    state = ops.external("state", (net.n_state,), role="input")
    new_state = ops.scratch("new state", (net.n_state,), batched=False)
    node = Node(network_of(net).declaration, ops, Vectors(p, g, state, new_state, net.frozen))
    node.forward(ops, x, y)
    if pullback:
        ops.copy(dy, cotangent)
        node.pullback(ops, x, y, dy, dx)
    return ops


def assert_same_bits(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].tobytes() == b[name].tobytes(), f"`{name}` differs"
