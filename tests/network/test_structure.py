"""Programs are recorded once for all networks of a structure; what is not certainly the same is recorded apart."""

from __future__ import annotations

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

from chains import (
    SGD,
    BatchNorm,
    Chain,
    Dense,
    Dropout,
    HuberLoss,
    L1Penalty,
    L2Penalty,
    Loss,
    MSELoss,
    Penalty,
    Residual,
    SquaredLoss,
    activation,
    activations,
    loss,
    tanh,
    train,
)
from chains.layers import Layer
from chains.layers.ode.shooting import Shooting
from chains.network import programs, record
from chains.network.network import network_of
from chains.network.structure import Unknown, value_of
from tests.harness import CASES
from tests.own import Boost

pytestmark = pytest.mark.few(20)

X, T = np.ones((2, 3)), np.zeros((2, 3))


@pytest.fixture
def recorded(monkeypatch):
    """The kinds of programs as they are recorded."""
    kinds = []
    for name in ("forward", "gradient", "loss", "vjp", "training_step"):
        make = getattr(record, name)
        monkeypatch.setattr(record, name, lambda *args, name=name, make=make, **rest: kinds.append(name) or make(*args, **rest))
    return kinds


def net_of(*layers: Layer, **rest: Any) -> Chain:
    return Chain(*layers, backend="numpy", **rest)


def gradient(net: Chain, criterion: Any = SquaredLoss(), penalty: Any = None) -> np.ndarray:  # noqa: B008
    return net.value_and_grad(np.linspace(-1, 1, net.n_params), X, T, criterion, penalty=penalty)[1]


# What is shared


def test_networks_of_one_structure_record_once(recorded, backend_name):
    def run():
        net = Chain(Dense(3, 4, tanh), Residual(Dense(4, 4, "gelu")), Dense(4, 3), backend=backend_name)
        p = net.init(seed=0, dtype=np.float64)
        results = [net(X, p), *net.value_and_grad(p, X, T, SquaredLoss(), penalty=L2Penalty(0.1)), *net.vjp(p, X, T)]
        train(net, p, X, T, HuberLoss(0.5), SGD(0.1), validation=(X, T), progress=False)
        return [np.asarray(result).tobytes() for result in (*results, p)]

    first = run()
    assert sorted(recorded) == ["forward", "gradient", "loss", "training_step", "vjp"]
    assert run() == run() == first
    assert len(recorded) == 5


def test_settings_are_inputs_still(recorded):
    """Other strengths and rates are no other structure."""
    results = [gradient(net_of(Dense(3, 3)), penalty=L2Penalty(strength)) for strength in (0.1, 0.2)]
    assert recorded == ["gradient"]
    assert not np.array_equal(*results)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))], ids=["copied", "pickled"])
def test_copies_record_nothing(again, recorded):
    softsign = activation("mine", lambda x: x / (1 + abs(x)), derivative=lambda x: 1 / (1 + abs(x)) ** 2)
    cubic = loss("cubic", lambda y, t: abs(y - t) ** 3, derivative=lambda y, t: 3 * (y - t) * abs(y - t))
    net = net_of(Dense(3, 4, softsign), Dropout(0.5), Chain(Dense(4, 3, activations.elu(alpha=0.5))))
    objective, p = net.objective(X, T, cubic, L1Penalty(0.1), mode="train", seed=2), np.linspace(-1, 1, net.n_params)
    value, g = objective(p)
    twin = again(objective)
    assert twin(p)[0] == value
    np.testing.assert_array_equal(twin(p)[1], g)
    assert recorded == ["gradient"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equal_structures_have_equal_programs(case):
    """Whatever two networks of the harness differ in shows in their structures, if these can be had at all."""
    net = case.net()
    try:
        structure = network_of(net).structure()
    except Unknown:
        layers = [type(each.layer) for each in network_of(net).declaration.all]
        assert any(not kind.__module__.startswith("chains.") or kind is Shooting for kind in layers)
        return
    assert network_of(pickle.loads(pickle.dumps(net))).structure() == structure
    text = "\n".join(str(net.program(mode=mode)) for mode in ("eval", "train"))
    assert _texts.setdefault(structure, text) == text


_texts: dict[Any, str] = {}


def test_starting_values_are_no_part_of_it(recorded):
    nets = [net_of(Dense(3, 3, weight_init=init)) for init in ("zeros", np.eye(3), lambda rng, shape: rng.normal(size=shape))]
    for net in nets:
        gradient(net)
    assert recorded == ["gradient"]
    np.testing.assert_array_equal(nets[1].views(nets[1].init())["0.weight"], np.eye(3))


# What is not


class Odd(Dense):
    """Another layer of the same settings."""

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda x: -x, x)


class OddChain(Chain):
    """A network that does something else than its layers."""

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda x: -x, x)


def scaled(factor):
    """An activation that was not traced: nobody knows what is in its functions."""
    return activations.Activation("scaled", lambda x: factor * x, lambda y: factor)


def formula(factor):
    return activation("scaled", lambda x: factor * x, derivative=lambda y: factor + 0 * y)


DIFFERENT = {
    "sizes": lambda: (net_of(Dense(3, 4), Dense(4, 3)), net_of(Dense(3, 5), Dense(5, 3))),
    "activations": lambda: (net_of(Dense(3, 3, "tanh")), net_of(Dense(3, 3, "sin"))),
    "slopes": lambda: [net_of(Dense(3, 3, activations.leaky_relu(slope=slope))) for slope in (0.01, 0.0100001)],
    "functions": lambda: [net_of(Dense(3, 3, scaled(factor))) for factor in (2.0, 3.0)],
    "formulas": lambda: [net_of(Dense(3, 3, formula(factor))) for factor in (2.0, 3.0)],
    "bias": lambda: (net_of(Dense(3, 3)), net_of(Dense(3, 3, bias=False))),
    "subclasses": lambda: (net_of(Dense(3, 3)), net_of(Odd(3, 3))),
    "inner subclasses": lambda: (net_of(Residual(Dense(3, 3))), net_of(Residual(Odd(3, 3)))),
    "networks": lambda: (net_of(Dense(3, 3)), OddChain(Dense(3, 3), backend="numpy")),
    "parts": lambda: (net_of(Dense(3, 3), Dense(3, 3, "tanh"))[:1], net_of(Dense(3, 3), Dense(3, 3, "tanh"))[1:]),
    "frozen": lambda: (net_of(Dense(3, 3)), net_of(Dense(3, 3)).with_frozen("*.bias")),
    "frozen inside": lambda: (net_of(Chain(Dense(3, 3))), net_of(Chain(Dense(3, 3)).with_frozen("*.bias"))),
    "own settings": lambda: [net_of(Dense(3, 3), Boost(factor)) for factor in (2.0, 3.0)],
    "own equal settings": lambda: [net_of(Dense(3, 3), By(factor)) for factor in (2.0, 3.0)],
    "own lists": lambda: [net_of(Dense(3, 3), ByAll([factor])) for factor in (2.0, 3.0)],
    "own arrays": lambda: [net_of(Dense(3, 3), Boost(np.full(3, factor))) for factor in (2.0, 3.0)],
    "own types": lambda: [net_of(Dense(3, 3), Named(factor)) for factor in (1, True)],
}


@dataclass(frozen=True)
class By(Boost):
    """A custom layer that says when it equals another."""

    factor: float


@dataclass(frozen=True)
class ByAll(Boost):
    """One that says so too, but holds what may change."""

    factors: list[float] = field()

    @property
    def factor(self):
        return sum(self.factors)


@dataclass(frozen=True)
class Named(Boost):
    """One whose numbers are equal and mean different things."""

    of: Any

    @property
    def factor(self):
        return 3.0 if type(self.of) is bool else 2.0


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_networks_are_not_confused(name):
    wanted = []
    for net in DIFFERENT[name]():
        programs.forget()
        wanted.append(gradient(net).tobytes())
    assert len(set(wanted)) == 2
    for order in (1, -1):
        programs.forget()
        assert [gradient(net).tobytes() for net in DIFFERENT[name]()[::order]] == wanted[::order]


def test_layers_of_ones_own_that_are_equal_share(recorded):
    for _ in range(2):
        gradient(net_of(Dense(3, 3), By(2.0)))
    assert recorded == ["gradient"]
    for _ in range(2):
        gradient(net_of(Dense(3, 3), Boost(2.0)))
    assert len(recorded) == 3


def test_what_a_layer_of_ones_own_reads_elsewhere_is_read_for_every_network():
    results = []
    for Global.factor in (2.0, 3.0):
        results.append(gradient(net_of(Dense(3, 3), Global())))
    np.testing.assert_allclose(results[1] * 4.0, results[0] * 9.0)
    assert not np.array_equal(*results)


class Global(Boost):
    factor = 0.0

    def __init__(self):
        pass


def test_losses_modes_types_and_targets_are_told_apart(recorded):
    net = [net_of(Dense(3, 3), Dropout(0.5)) for _ in range(9)]
    p = net[0].init(seed=0)
    net[0].value_and_grad(p, X, T, SquaredLoss())
    net[1].value_and_grad(p, X, T, MSELoss())
    net[2].value_and_grad(p, X, T, SquaredLoss(), mode="eval")
    net[3].value_and_grad(p.astype(np.float64), X, T, SquaredLoss())
    net[4].value_and_grad(p, X, T, SquaredLoss(), weights=np.ones(2))
    net[5].value_and_grad(p, X, T, SquaredLoss(), penalty=L2Penalty(1.0))
    net[6].value_and_grad(p, X, T, SquaredLoss(), penalty=L2Penalty(1.0, "*.bias"))
    assert len(recorded) == 7
    net[7].value_and_grad(p, X, T, SquaredLoss(), penalty=L2Penalty(2.0))
    assert len(recorded) == 7


class Weighed(Loss):
    """A loss with a setting that its class lets be changed."""

    def __init__(self, factor):
        self.factor = factor

    def record(self, ops, y, t, w, value, dy):
        terms = ops.scratch("terms", y.sample_shape)
        ops.map((terms, dy), lambda y, t: (self.factor * (y - t), self.factor + 0 * y), y, t)
        ops.sum(value, terms)


class Pull(Penalty):
    """A penalty of that kind."""

    def __init__(self, factor):
        self.factor = factor

    def record(self, ops, at, p, g, value):
        ops.map(g, lambda g: g + self.factor, g)


@pytest.mark.parametrize("part", [Weighed, Pull, lambda factor: L2Penalty(0.1) + Pull(factor)], ids=["loss", "penalty", "sum"])
def test_what_was_recorded_cannot_be_changed(part):
    """No program would follow, and the numbers would be those of the old settings."""

    def compute(thing):
        arguments = (thing,) if isinstance(thing, Loss) else (SquaredLoss(), thing)
        return gradient(net, *arguments)

    def changeable(thing):
        return thing.parts[1] if hasattr(thing, "parts") else thing

    net, thing = net_of(Dense(3, 3)), part(1.0)
    changeable(thing).factor = 2.0
    first = compute(thing)
    with pytest.raises(AttributeError, match=r"`factor` \(=2.0\) .* cannot become 3.0"):
        changeable(thing).factor = 3.0
    np.testing.assert_array_equal(compute(thing), first)
    twin = copy.deepcopy(thing)
    changeable(twin).factor = 3.0
    assert not np.array_equal(compute(twin), first)
    np.testing.assert_array_equal(compute(twin), compute(part(3.0)))


def test_states_stay_apart():
    """Two networks of one structure, each with a state of its own."""
    nets = [net_of(Dense(3, 3), BatchNorm(3)) for _ in range(2)]
    states = [net.init_state(np.float64) for net in nets]
    x = np.random.default_rng(0).normal(size=(5, 3))
    for net, state, scale in zip(nets, states, (1.0, 2.0), strict=True):
        net(scale * x, net.init(seed=0, dtype=np.float64), state=state, mode="train")
    assert not np.array_equal(*states)


@pytest.mark.parametrize(
    "things",
    [(1, True), (1, 1.0), (0.0, -0.0), (np.float32(1), np.float64(1)), ((1, 2), (1, (2,))), ("1", b"1"), (None, 0), ((), None),
     (np.dtype("f4"), np.dtype(">f4")), (float, int), ([1], (1,)), ([1], [1.0]), ({"a": 1, "b": 2}, {"b": 2, "a": 1})],
    ids=str,
)  # fmt: skip
def test_values_tell_types_and_bits_apart(things):
    values = []
    for thing in things:
        try:
            values.append(value_of(thing))
        except Unknown:
            assert isinstance(thing, type)
            return
    assert values[0] != values[1]
    assert values == [value_of(thing) for thing in things]


@pytest.mark.parametrize(
    "thing",
    [{1}, np.zeros(2), [np.zeros(2)], {"a": object()}, lambda: 0, object(), Boost(1.0), Exception("x"), print],
    ids=lambda t: type(t).__name__,
)
def test_of_other_things_nobody_can_tell(thing):
    for hidden in (thing, (1, thing)):
        with pytest.raises(Unknown):
            value_of(hidden)


# How much is kept, and by whom


def test_many_networks_are_forgotten():
    for width in range(1, 400):
        net = net_of(Dense(3, width), Dense(width, 3))
        net(X, np.zeros(net.n_params))
    assert len(programs.RECORDED) == 256


def test_what_was_asked_for_lately_is_kept(recorded):
    for width in (5, *range(10, 300)):
        for each in (5, width):
            net = net_of(Dense(3, each))
            net(X, np.zeros(net.n_params))
    assert len(recorded) == 291


def test_threads_that_begin_at_once_compute_the_same(backend_name):
    def run(_):
        net = Chain(Dense(3, 4, tanh), Dense(4, 3), backend=backend_name)
        return [net.value_and_grad(net.init(seed=0), X, T, SquaredLoss())[1].tobytes() for _ in range(5)]

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(run, range(40)))
    assert len({bits for each in results for bits in each}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:os.fork")  # JAX warns once it has run in this process
def test_pools_of_processes(backend_name):
    """Each task brings the objective along; where the structure is known, it is recorded no more."""
    net = Chain(Dense(3, 4, tanh), Dense(4, 3), backend=backend_name)
    objective, ps = net.objective(X, T, SquaredLoss()), np.random.default_rng(0).normal(size=(20, net.n_params))
    wanted = [objective(p) for p in ps]
    with get_context("fork").Pool(2) as pool:
        for (value, g), (own_value, own_g) in zip(pool.map(objective, ps, chunksize=1), wanted, strict=True):
            assert value == own_value
            np.testing.assert_array_equal(g, own_g)
