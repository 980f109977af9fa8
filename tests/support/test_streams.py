"""Random numbers: no stream meets another one, nor the data that users draw with the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from chains import HMC, SGD, SGLD, Chain, Dense, Dropout, L2Penalty, SquaredLoss, member_seeds, sample, train
from chains.data import Batches
from chains.initializers import Normal, Uniform
from chains.support import streams
from tests.bad_input.support import assert_refused

COUNT, SEEDS = 1000, range(51)
FEW = range(4)
INITS = {"normal": Normal(), "uniform": Uniform(-1.0, 1.0)}
DROPPING = Chain(Dropout(0.5), input_shape=(COUNT,), backend="numpy")


def with_init(init, outputs=COUNT // 2):
    """A network of so many numbers, all of them drawn."""
    return Chain(Dense(1, outputs, weight_init=init, bias_init=init), backend="numpy")


def noise(p, **settings):
    """What a step of SGLD adds to parameters whose gradient is zero."""
    net, q, x = with_init("zeros"), p.copy(), np.ones((1, 1))
    train(net, q, x, net(x, p[0] if p.ndim == 2 else p), SquaredLoss(), SGLD(0.5, 1.0), **settings)
    return q - p


def masks(shape, **settings):
    return DROPPING(np.ones((1, COUNT)), np.empty(shape), mode="train", **settings).reshape(-1, COUNT)


def drawn_by_users():
    for seed in SEEDS:
        yield np.random.default_rng(seed).normal(size=COUNT)
        yield np.random.default_rng(seed).uniform(size=COUNT)
        yield np.random.default_rng(seed).permutation(COUNT)
    for seed, number in np.ndindex(4, 3):  # [k, 0] is k
        yield np.random.default_rng([seed, 1 + number]).normal(size=COUNT)
        yield np.random.default_rng([seed, 1 + number]).permutation(COUNT)


def drawn_here(init):
    net = with_init(init)
    yield from (net.init(seed, np.float64) for seed in (*SEEDS, *(seed << 32 for seed in (1, 2, 3))))
    yield from (P for seed in FEW for P in net.init_many(8, seed, np.float64))
    yield from (mask for seed in FEW for mask in masks(0, seed=seed))
    yield from (mask for seed in FEW for mask in masks((8, 0), seed=seed))
    p = np.zeros(COUNT)
    yield from (noise(p, epochs=1, seed=seed) for seed in range(10, 14))
    yield from (row for seed in range(10, 14) for row in noise(np.zeros((8, COUNT)), epochs=1, seed=seed))
    for seed in FEW:
        batches = Batches(np.arange(COUNT), batch_size=COUNT, seed=seed)
        yield from (next(iter(batches))[0] for _ in FEW)
        yield from (streams.generator("order", seed, epoch).permutation(COUNT) for epoch in FEW)
        yield from (streams.generator(purpose, seed).normal(size=COUNT) for purpose in ("sample", "posterior", "points"))


@pytest.mark.parametrize("init", INITS.values(), ids=INITS)
def test_no_two_streams_are_correlated(init):
    """By chance, the largest of these correlations is 4.7 / sqrt(COUNT); starting values were a user's normal numbers."""
    rows = np.array([*drawn_by_users(), *drawn_here(init)], np.float64)
    rows = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
    correlations = np.triu(rows @ rows.T / COUNT, 1)
    assert len(rows) > 350
    assert np.abs(correlations).max() < 6 / np.sqrt(COUNT)


def test_no_block_belongs_to_two_streams():
    """Words of 64 bits of all purposes, seeds and numbers: none of them is found twice."""
    words = [
        streams.generator(purpose, seed, number).bit_generator.random_raw(200)
        for purpose in streams.PURPOSES for seed in (*FEW, 1 << 32, (1 << 64) - 1) for number in FEW
    ]  # fmt: skip
    assert np.unique(words).size == np.size(words)


def test_members_have_seeds():
    seeds = member_seeds(1000, 3)
    assert seeds[:10] == member_seeds(10, 3)
    assert len({*seeds, *member_seeds(1000), *member_seeds(1000, 1 << 32)}) == 3000
    assert all(type(seed) is int and 1 << 63 <= seed < 1 << 64 for seed in seeds)


def test_members_of_a_sampler_draw_apart():
    """On a convex posterior, whose deviation is known. One draw for all had none."""
    net, x, t = Chain(Dense(1, 1), backend="native"), np.ones((1, 1)), np.zeros((1, 1))
    P = np.zeros((500, 2))
    train(net, P, x, t, SquaredLoss(), SGLD(0.05, 0.01), epochs=400, penalty=L2Penalty(0.5))
    assert P.std(0) == pytest.approx(np.sqrt(0.01 * 2 / 3), rel=0.12)  # of the precision [[2, 1], [1, 2]] / 0.01
    alike = np.zeros((3, 2))
    train(net, alike, x, t, SquaredLoss(), SGLD(0.05, 0.01), epochs=4, penalty=L2Penalty(0.5), seed=[0] * 3)
    assert (alike == alike[0]).all()


def test_members_take_the_samples_in_different_orders():
    net = Chain(Dense(1, 1), backend="native")
    x, t = np.arange(8.0)[:, None], np.arange(8.0)[:, None] ** 2
    P = np.zeros((6, 2))
    history = train(net, P, x, t, SquaredLoss(), SGD(0.01), batch_size=2)
    assert len(np.unique(P, axis=0)) == 6
    for member, seed in enumerate(member_seeds(6)):
        p = np.zeros(2)
        alone = train(net, p, x, t, SquaredLoss(), SGD(0.01), batch_size=2, seed=seed)
        assert np.array_equal(P[member], p)
        assert history[member].position.data == alone.position.data


def test_chains_of_hmc_draw_apart():
    net, x, t = Chain(Dense(1, 1)), np.ones((1, 1)), np.zeros((1, 1))
    draws = sample(net, np.zeros((40, 2)), x, t, SquaredLoss(), HMC(0.01), draws=1, warmup=50, penalty=L2Penalty(0.5))
    assert draws.p[:, 0].std(0) == pytest.approx(np.sqrt(0.01 * 2 / 3), rel=0.4)


def test_bad_input():
    for call, words in (
        (lambda: member_seeds(0), ["n", "0"]),
        (lambda: member_seeds(3, 1 << 64), ["seed", "2**64"]),
        (lambda: member_seeds(3, None), ["seed", "None"]),
        (lambda: Batches(np.zeros(3), batch_size=1, seed=1 << 64), ["seed", "2**64"]),
    ):
        assert_refused(call, *words)
