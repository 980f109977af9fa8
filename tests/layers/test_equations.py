"""`Equations` with several networks: each sees its own inputs, and what does not fit is refused when the layer is made."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chains import Chain, Dense, Equations, tanh
from chains.expr import exp, where
from chains.network import record
from chains.network.network import network_of

ONE, TWO = Chain(Dense(1, 3, tanh), Dense(3, 1)), Chain(Dense(2, 3, tanh), Dense(3, 2))


def test_each_network_sees_its_inputs():
    net = Chain(
        Equations(
            lambda x, y, z, f, u, v, w, k: (f + k * u, v * w), ("x", "y", "z"),
            network=Dense(3, 1), outputs=("w",), parameters={"k": 2.0},
            networks={"f": (ONE, ("y",)), "g": (TWO, ("z", "x"), ("u", "v"))},
        )
    )  # fmt: skip
    p, x = net.init(seed=0, dtype=np.float64), np.random.default_rng(0).normal(size=(5, 3))
    parts = {name: p[entry[0].start : entry[-1].stop] for name in ("network", "f", "g")
             if (entry := [e for e in net.layout if e.name.startswith(f"0.{name}.")])}  # fmt: skip
    w, f = Chain(Dense(3, 1))(x, parts["network"])[:, 0], ONE(x[:, [1]], parts["f"])[:, 0]
    u, v = TWO(x[:, [2, 0]], parts["g"]).T
    np.testing.assert_allclose(net(x, p), np.stack([f + 2.0 * u, v * w], -1), rtol=1e-13)


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"network": Dense(2, 1), "outputs": ("u",)}, ValueError, "`network` takes samples of shape (2,), but it is given"),
        ({"network": Dense(1, 2), "outputs": ("u",)}, ValueError, "`network` gives samples of shape (2,), but its outputs"),
        ({"networks": {"u": (TWO, ("x",))}}, ValueError, "`networks['u']` takes samples of shape (2,), but it is given"),
        ({"networks": {"u": (Dense(1, 2), ("x",))}}, ValueError, "`networks['u']` gives samples of shape (2,), but its"),
        ({"networks": {"u": (ONE, ("y",))}}, ValueError, "`networks['u']` takes `y`, but the inputs are x"),
        ({"networks": {"u": ONE}}, TypeError, "`networks['u']` (=Chain(Dense(1, 3, tanh), Dense(3, 1))) must be a network"),
        ({"networks": {"u": (ONE, "x")}}, TypeError, "`networks['u'][1]` (='x') must be names"),
        ({"networks": ONE}, TypeError, "`networks` (=Chain("),
        ({"networks": {"x": (ONE, ("x",))}}, ValueError, "`x` is the name of two things"),
        (
            {"network": ONE, "outputs": ("u",), "networks": {"network": (ONE, ("x",), ("v",))}},
            ValueError,
            "`networks` (={'network': ...}) has the name of `network`",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_when_it_is_made(settings, kind, words):
    with pytest.raises(kind, match=re.escape(words)):
        Equations(lambda x, u: x + u, ("x",), **settings)


def test_a_parameter_in_conditions_alone_is_warned_of():
    """Its gradient is zero: a fit would end where it began, with success."""
    for condition in (lambda time, switch: time < switch, lambda time, switch: 2.0 * time > 1.0 + switch):
        with pytest.warns(UserWarning, match="the parameter 'switch' is in a condition alone.* no fit moves it") as said:
            Equations(
                lambda y, time, switch, k, condition=condition: where(condition(time, switch), -k * y, -2.0 * y),
                ("y", "time"), parameters={"switch": 0.5, "k": 1.0},
            )  # fmt: skip
        assert [each.filename for each in said] == [__file__]


@pytest.mark.filterwarnings("error")
def test_other_parameters_of_conditions_are_not_warned_of():
    Equations(lambda y, k: where(y < k, k * y, y), ("y",), parameters={"k": 1.0})
    Equations(lambda y, k: abs(y - k), ("y",), parameters={"k": 1.0})
    Equations(lambda y, time, s: y / (1.0 + exp(s - time)), ("y", "time"), parameters={"s": 1.0})


def test_a_network_of_all_inputs_reads_them_where_they_are():
    names = ("x", "y")
    for features, copies in ((names, 0), (names[::-1], 2)):
        net = Chain(Equations(lambda x, y, u, v: (u, v), names, networks={"g": (TWO, features, ("u", "v"))}))
        program = record.forward(network_of(net), np.float64, training=False)
        assert sum(operation.name == "copy" for operation in program.operations) == copies
