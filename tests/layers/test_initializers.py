"""Starting values: their statistics, that a seed fixes them, and every way to choose them."""

from __future__ import annotations

import math
import pickle
import re

import numpy as np
import pytest

import chains
from chains import Chain, Dense, initializers
from chains.initializers import INITIALIZERS, Constant, Normal, Uniform, VarianceScaling, fans, initializer

SHAPE = (300, 500)
STANDARD_DEVIATIONS = {
    "zeros": 0.0, "ones": 0.0, "normal": 1.0, "uniform": 1 / math.sqrt(3),
    "glorot_normal": math.sqrt(2 / 800), "glorot_uniform": math.sqrt(2 / 800),
    "he_normal": math.sqrt(2 / 300), "he_uniform": math.sqrt(2 / 300),
    "lecun_normal": math.sqrt(1 / 300), "lecun_uniform": math.sqrt(1 / 300),
}  # fmt: skip


def draw(choice, shape=SHAPE, seed=0):
    return np.asarray(initializer(choice)(np.random.default_rng(seed), shape))


@pytest.mark.parametrize("name", INITIALIZERS)
def test_mean_and_deviation(name):
    values, std = draw(name), STANDARD_DEVIATIONS[name]
    assert values.shape == SHAPE
    assert values.std() == pytest.approx(std, rel=0.01)
    assert values.mean() == pytest.approx(1.0 if name == "ones" else 0.0, abs=0.01 * std)


@pytest.mark.parametrize("name", [name for name in INITIALIZERS if "uniform" in name])
def test_uniform_is_bounded(name):
    values, bound = draw(name), math.sqrt(3) * STANDARD_DEVIATIONS[name]
    assert 0.99 * bound < np.abs(values).max() <= bound


@pytest.mark.parametrize("name", [name for name in INITIALIZERS if "normal" in name])
def test_normal_has_normal_tails(name):
    values = draw(name) / STANDARD_DEVIATIONS[name]
    assert np.mean(np.abs(values) < 1.0) == pytest.approx(0.6827, abs=0.005)
    assert np.abs(values).max() > 3.5


def test_fans():
    assert fans((3, 5)) == (3, 5)
    assert fans((8, 4, 3, 3)) == (36, 72)
    assert fans((7,)) == (7, 7)
    assert fans(()) == (1, 1)


def test_classes():
    assert draw(Normal(0.1, mean=5.0)).mean() == pytest.approx(5.0, abs=0.01)
    assert 2.0 <= draw(Uniform(2.0, 3.0)).min() < draw(Uniform(2.0, 3.0)).max() < 3.0
    assert np.all(draw(Constant(3.0)) == 3.0)
    assert draw(VarianceScaling(4.0, "out", "normal")).std() == pytest.approx(math.sqrt(4 / 500), rel=0.01)


def test_one_number_is_the_deviation():
    values = draw(Normal(0.01))
    assert values.mean() == pytest.approx(0.0, abs=1e-3)
    assert values.std() == pytest.approx(0.01, rel=0.01)
    with pytest.raises(TypeError, match="positional"):
        Normal(0.0, 0.01)
    with pytest.raises(TypeError, match="'high'"):
        Uniform(0.1)


@pytest.mark.parametrize("choice", [2.5, np.full((3, 2), 2.5), Constant(2.5), lambda rng, shape: np.full(shape, 2.5)])
def test_ways_to_choose(choice):
    p = Chain(Dense(3, 2, weight_init=choice, bias_init=1.0)).init()
    np.testing.assert_array_equal(p, [2.5] * 6 + [1.0] * 2)


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"'glorot'.*glorot_normal"):
        Chain(Dense(3, 2, weight_init="glorot"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VarianceScaling(1.0, "inn", "normal"), "`fan` (='inn') must be 'in', 'out' or 'average'"),
        (lambda: VarianceScaling(1.0, "in", "norm"), "`distribution` (='norm') must be 'normal' or 'uniform'"),
        (lambda: VarianceScaling(-1.0, "in", "normal"), "`scale` (=-1.0) must be in (0, inf)"),
        (lambda: VarianceScaling(np.nan, "in", "normal"), "`scale` (=nan)"),
        (lambda: VarianceScaling("in", "in", "normal"), "`scale` (='in') must be a number"),
        (lambda: Normal(mean=np.inf), "`mean` (=inf) must be finite"),
        (lambda: Normal(-1.0), "`std` (=-1.0)"),
        (lambda: Uniform(1.0, 0.0), "`low` (=1.0) must not be above `high` (=0.0)"),
        (lambda: Uniform("a", 1.0), "`low` (='a')"),
        (lambda: Constant("a"), "`value` (='a')"),
        (lambda: Dense(3, 2, weight_init=np.nan), "`weight_init` (=nan) must be finite"),
        (lambda: Dense(3, 2, weight_init=None), "`weight_init` (=None) must be a number, an array"),
        (
            lambda: Dense(3, 2, weight_init=[[1.0], [1.0, 2.0]]),
            "`weight_init` (=[[1.0], [1.0, 2.0]]) must be a number, an array",
        ),
        (
            lambda: Dense(3, 2, weight_init=np.ones((4, 4))),
            "`weight_init` must have shape (3, 2), or one that broadcasts to it, got (4, 4)",
        ),
        (
            lambda: Dense(3, 2, weight_init=np.ones((1, 3, 2))),
            "`weight_init` must have shape (3, 2), or one that broadcasts to it, got (1, 3, 2)",
        ),
        (
            lambda: Dense(3, 2, weight_init=Constant(np.ones(3))),
            "`weight_init` must have shape (3, 2), or one that broadcasts to it, got (3,)",
        ),
        (lambda: Dense(3, 2, weight_init=lambda shape: np.ones(shape)), "must take two arguments"),
        (lambda: Dense(3, 2, bias_init=[1.0, np.inf]), "`bias_init` (=[1.0, inf]) must be finite"),
        (lambda: Dense(3, 2, bias_init=np.ones(3)), "`bias_init` must have shape (2,), or one that broadcasts to it, got (3,)"),
        (lambda: Dense(3, 2, bias_init=1j), "`bias_init` (=1j)"),
        (
            lambda: chains.Conv(1, 2, 3, weight_init=np.ones((2, 1, 3, 4))),
            "shape (2, 1, 3, 3), or one that broadcasts to it, got (2, 1, 3, 4)",
        ),
        (
            lambda: chains.ConvTranspose(1, 2, 3, bias_init=np.ones(3)),
            "`bias_init` must have shape (2,), or one that broadcasts to it, got (3,)",
        ),
        (lambda: chains.Scale(scale_init=True), "`scale_init` (=True)"),
        (lambda: Chain(chains.Scale(scale_init=np.ones(4)), input_shape=(3,)), "of the parameter `scale`"),
    ],
)
def test_what_is_no_start_is_refused_by_the_constructor(make, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda rng, shape: np.ones(shape[0]), "`0.weight` must return shape (3, 2), got (3,)"),
        (lambda rng, shape: None, "`0.weight` must return real numbers, got an array of object"),
        (lambda rng, shape: np.full(shape, 1j), "`0.weight` must return real numbers, got an array of complex128"),
        (lambda rng, shape: np.full(shape, np.nan), "`0.weight` returned non-finite values for float32"),
        (1e300, "`0.weight` returned non-finite values for float32"),
    ],
    ids=["shape", "none", "complex", "nan", "large"],
)
def test_what_a_function_gives_is_checked(give, words):
    net = Chain(Dense(3, 2, weight_init=give))
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        net.init()


def test_a_function_that_fails_is_named():
    net = Chain(Dense(3, 2, weight_init=lambda rng, shape: rng.no_such_thing(shape)))
    with pytest.raises(AttributeError) as caught:
        net.init()
    assert caught.value.__notes__ == ["in the initializer of `0.weight`"]


@pytest.mark.parametrize(
    "text",
    [
        "Dense(3, 2, weight_init='he_normal')",
        "Dense(3, 2, bias_init=0.5)",
        "Dense(3, 2, bias=False, weight_init=VarianceScaling(scale=2.0, fan='out', distribution='normal'))",
        "Conv(1, 2, 3, weight_init=Normal(std=0.1, mean=0.0), bias_init='ones')",
        "Scale(scale_init=2.0)",
        "Shift()",
    ],
)
def test_layers_show_how_they_start(text):
    layer = eval(text, vars(chains) | vars(initializers))
    assert repr(layer) == repr(pickle.loads(pickle.dumps(layer))) == text


def test_summaries_leave_starts_out():
    net = Chain(Dense(3, 2, weight_init="he_normal"), Dense(2, 2, bias_init=1.0))
    assert "Dense(3, 2)" in net.summary()
    assert "init" not in net.summary()


def test_long_starts_are_shown_briefly():
    layer = Dense(3, 2, weight_init=np.ones((3, 2)), bias_init=0)
    assert repr(layer) == "Dense(3, 2, weight_init=<an array of float64, shape (3, 2)>)"


def test_seeds():
    net = Chain(Dense(30, 20, chains.σ), Dense(20, 10))
    assert net.init(seed=1).tobytes() == net.init(seed=1).tobytes()
    assert net.init(seed=1).tobytes() != net.init(seed=2).tobytes()
    assert not np.shares_memory(net.init(seed=1), net.init(seed=1))
    np.testing.assert_array_equal(net.init(np.array(1)), net.init(seed=1))
    own = [net.init(np.random.default_rng(1)) for _ in range(2)]
    np.testing.assert_array_equal(*own)
    assert not np.isin(own[0][:600], net.init(seed=1)).any()  # a seed is a stream apart from that of users' data
    np.testing.assert_array_equal(net.init(seed=1, dtype=np.float64).astype(np.float32), net.init(seed=1))


@pytest.mark.parametrize("seed", [True, None, [1], (1, 2), np.array([1]), 1.0, "a", -1, 1 << 64])
def test_seeds_that_are_none(seed):
    """As in every other call."""
    with pytest.raises((TypeError, ValueError), match=r"`seed` \(=.*\) must be "):
        Chain(Dense(3, 2)).init(seed)


def test_types():
    net = Chain(Dense(3, 2))
    assert net.init().dtype == np.float32
    assert net.init(dtype="float64").dtype == np.float64
    assert net.init().shape == (8,)


def test_biases_start_at_zero():
    assert np.all(Chain(Dense(3, 2)).init()[6:] == 0.0)
    assert np.all(Chain(chains.Scale(), chains.Shift(), input_shape=(2,)).init() == [1, 1, 0, 0])
