"""Starting values: their statistics, that a seed fixes them, and every way to choose them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import chains
from chains import Chain, Dense
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
    assert draw(Normal(5.0, 0.1)).mean() == pytest.approx(5.0, abs=0.01)
    assert 2.0 <= draw(Uniform(2.0, 3.0)).min() < draw(Uniform(2.0, 3.0)).max() < 3.0
    assert np.all(draw(Constant(3.0)) == 3.0)
    assert draw(VarianceScaling(4.0, "out", "normal")).std() == pytest.approx(math.sqrt(4 / 500), rel=0.01)


@pytest.mark.parametrize("choice", [2.5, np.full((3, 2), 2.5), Constant(2.5), lambda rng, shape: np.full(shape, 2.5)])
def test_ways_to_choose(choice):
    p = Chain(Dense(3, 2, weight_init=choice, bias_init=1.0)).init()
    np.testing.assert_array_equal(p, [2.5] * 6 + [1.0] * 2)


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"'glorot'.*glorot_normal"):
        Chain(Dense(3, 2, weight_init="glorot"))


@pytest.mark.parametrize("choice", [lambda rng, shape: np.ones(shape[0]), lambda rng, shape: np.ones((9, 9)), np.ones((4, 4))])
def test_wrong_shape_is_refused_with_the_name(choice):
    net = Chain(Dense(3, 2, weight_init=choice))
    with pytest.raises(ValueError, match=r"0\.weight|\(3, ?2\)"):
        net.init()


def test_seeds():
    net = Chain(Dense(30, 20, chains.σ), Dense(20, 10))
    assert net.init(seed=1).tobytes() == net.init(seed=1).tobytes()
    assert net.init(seed=1).tobytes() != net.init(seed=2).tobytes()
    assert not np.shares_memory(net.init(seed=1), net.init(seed=1))
    np.testing.assert_array_equal(net.init(np.random.default_rng(1)), net.init(seed=1))
    np.testing.assert_array_equal(net.init(seed=1, dtype=np.float64).astype(np.float32), net.init(seed=1))


def test_types():
    net = Chain(Dense(3, 2))
    assert net.init().dtype == np.float32
    assert net.init(dtype="float64").dtype == np.float64
    assert net.init().shape == (8,)


def test_biases_start_at_zero():
    assert np.all(Chain(Dense(3, 2)).init()[6:] == 0.0)
    assert np.all(Chain(chains.Scale(), chains.Shift(), input_shape=(2,)).init() == [1, 1, 0, 0])
