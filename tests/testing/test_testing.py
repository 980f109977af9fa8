"""The gradient check for custom layers: it passes what is right, and finds each thing that may be wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

import chains
from chains import BatchNorm, Chain, Conv, Dense, Dropout, Layer, MaxPool, SquaredLoss
from chains.expr import where
from chains.testing import Checked, check_gradients, check_loss, usable_backends
from tests.harness import LOSSES, targets
from tests.own import Boost, Double, DyUser


class Cube(Layer):
    """y = x * x * x, with something wrong where asked for."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    def declare(self, d):
        d.param("scale", d.input, "ones")
        d.output(d.input)
        d.saved("square", d.input)

    def forward(self, ops, x, y, p, s):
        if self.wrong != "square is not filled":
            ops.map(s.square, lambda x: x * x, x)
        if self.wrong == "writes to x":
            ops.map(x, lambda x: 0.5 * x, x)
        if self.wrong == "writes to p":
            ops.fill(p.scale, 1.0)
        ops.map(y, lambda square, x, scale: scale * square * x, s.square, x, p.scale)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        if self.wrong == "writes to y":
            ops.fill(y, 0.0)
        terms = ops.scratch("terms", x.sample_shape)
        ops.map(terms, lambda square, x, dy: square * x * dy, s.square, x, dy)
        ops.sum(g.scale, terms)
        factor = 2.9 if self.wrong == "slope" else 3.0
        ops.map(dx, lambda dy, square, scale: factor * dy * square * scale, dy, s.square, p.scale)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (Cube(), (3,)),
        (Double(), (2, 2)),
        (Boost(2.0), (3,)),
        (Chain(Dense(2, 3, "relu"), BatchNorm(3), Dropout(0.3), DyUser(), Dense(3, 2)).with_frozen("0.*"), None),
        (Chain(Conv(1, 2, 2, "gelu"), MaxPool(2), input_shape=(1, 4, 4)), None),
    ],
    ids=str,
)
def test_what_is_right_passes(network, shape):
    checked = check_gradients(network, shape)
    assert isinstance(checked, Checked)
    assert 0 <= checked.parameters < 1e-7
    assert 0 < checked.inputs < 1e-7
    assert checked.backends == usable_backends()
    assert "numpy" in checked.backends


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("slope", "the gradient with respect to the inputs"),
        ("square is not filled", "read before it is filled"),
        ("writes to x", "Cube.forward writes to `x`"),
        ("writes to y", "Cube.pullback writes to `y`"),
        ("writes to p", "scale` belongs to the inputs and may only be read"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_is_wrong_is_found(wrong, words, first):
    network = Cube(wrong) if first else Chain(Double(), Cube(wrong), input_shape=(3,))
    if first and wrong == "writes to x":
        words = "`x` belongs to the inputs and may only be read"
    with pytest.raises((AssertionError, ValueError), match=words):
        check_gradients(network, (3,), backends=["numpy"])


def test_writing_to_a_parameter_is_refused_in_training_too():
    net = Chain(Cube("writes to p"), input_shape=(3,))
    with pytest.raises(ValueError, match=r"Cube.forward writes to `p\.scale`"):
        net.program(chains.SquaredLoss(), chains.Adam())


def test_a_backend_that_differs_is_found(monkeypatch):
    class Wrong(chains.backends.NumpyBackend):
        def bind(self, program, batch, arrays, scratch=None):
            binding = super().bind(program, batch, arrays, scratch)
            binding.calls.append(lambda: [np.multiply(a, 1.01, out=a) for n, a in binding.arrays.items() if n in ("y", "dx")])
            return binding

    monkeypatch.setitem(chains.backends.registry._BACKENDS, "wrong", Wrong)
    with pytest.raises(AssertionError, match="on the backend 'wrong'"):
        check_gradients(Double(), (3,), backends=["numpy", "wrong"])


def test_what_cannot_be_checked():
    with pytest.raises(TypeError, match=r"`network` \(=3\)"):
        check_gradients(3)
    with pytest.raises(ValueError, match=r"`input_shape` \(=\(4,\)\)"):
        check_gradients(Chain(Dense(3, 2)), (4,))
    with pytest.raises(ValueError, match="`input_shape` is needed"):
        check_gradients(Double())
    for wrong in ({"batch": 0}, {"batch": 1.5}, {"seed": "a"}, {"seed": -1}, {"backends": "numpy"}, {"backends": []}):
        with pytest.raises((TypeError, ValueError), match=re.escape("`{}` (={!r})".format(*next(iter(wrong.items()))))):
            check_gradients(Double(), (3,), **wrong)
    jump = chains.activation("jump", lambda x: np.floor(100 * x) + 0.0 * x, derivative=lambda y: 0.0)
    with pytest.raises(AssertionError, match="kink"):
        check_gradients(chains.Activation(jump), (40,))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, np.ones((2, 2))), "`loss` (=3)"),
        ((SquaredLoss(), 3.0), "at least one target, got shape ()"),
        ((SquaredLoss(), np.ones((0, 2))), "at least one target, got shape (0, 2)"),
        ((SquaredLoss(), np.full((2, 2), "a")), "`t` must be real, got <U1"),
        ((SquaredLoss(), np.ones((2, 2)), 2), "`output_shape` (=2)"),
    ],
    ids=str,
)
def test_losses_that_cannot_be_checked(arguments, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        check_loss(*arguments)
    with pytest.raises(TypeError, match=r"`backends` \(='numpy'\)"):
        check_loss(SquaredLoss(), np.ones((2, 2)), backends="numpy")


def test_names_for_annotations():
    assert chains.program.Recorder is chains.program.recorder.Recorder
    assert chains.program.View is chains.program.view.View


@pytest.mark.few(2)
@pytest.mark.parametrize(("loss", "kind"), LOSSES, ids=str)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2,)], ids=str)
def test_the_derivatives_of_all_losses_are_right(loss, kind, shape):
    t = targets(kind, np.random.default_rng(0), 4, shape)
    assert 0.0 <= check_loss(loss, t, shape) < 1e-7


def _cube(y, t):
    d = y - t
    return d * d * abs(d)


def test_a_wrong_derivative_of_a_loss_is_found():
    t = np.array([[0.5, -1.0], [2.0, 0.25]])
    right = chains.loss("cubes", _cube, derivative=lambda y, t: 3.0 * (y - t) * abs(y - t))
    assert check_loss(right, t) < 1e-7
    wrong = chains.loss("cubes", _cube, derivative=lambda y, t: 2.0 * (y - t) * abs(y - t))
    with pytest.raises(AssertionError, match="the derivative of cubes on the backend 'numpy', float64"):
        check_loss(wrong, t)
    with pytest.raises(ValueError, match="`t`"):
        check_loss(right, t, (3,))


class Squares(chains.Loss):
    """Half the squares, which multiplies by weights, or selects as well."""

    def __init__(self, selects):
        self.selects = selects

    def record(self, ops, y, t, w, value, dy):
        terms, w = ops.scratch("terms", y.sample_shape), ops.constant("one", np.ones(())) if w is None else w.expand(-1)
        zero = (lambda w, term: where(w == 0, 0, term)) if self.selects else lambda w, term: term
        ops.map(
            (terms, dy),
            lambda y, t, w, k: (zero(w, 0.5 * w * k * (y - t) ** 2), zero(w, w * k * (y - t))),
            y, t, w, ops.inverse_batch,
        )  # fmt: skip
        ops.sum(value, terms)


def test_losses_must_select_where_a_weight_is_zero():
    t = np.random.default_rng(0).normal(size=(5, 2))
    assert check_loss(Squares(selects=True), t) < 1e-7
    words = "is not finite at random outputs, with weights of samples, of which those of targets that are NaN are 0: use where"
    with pytest.raises(AssertionError, match=words):
        check_loss(Squares(selects=False), t)


@pytest.mark.parametrize("slope", [-2.0, 0.0, 1.0])
def test_targets_that_users_draw_do_not_hide_a_wrong_slope(slope):
    """The same generator, with the same seed: outputs are not equal to these targets."""
    wrong = chains.loss("mine", lambda y, t: (y - t) ** 2, derivative=lambda y, t: slope * (y - t))
    for shape in ((20, 1), (5, 3), (50, 3)):
        with pytest.raises(AssertionError):
            check_loss(wrong, np.random.default_rng(0).normal(size=shape))
