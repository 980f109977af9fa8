"""Networks whose inputs are ids: every call, training from arrays and batches, resumption, bits on every backend."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Adam, Chain, Dense, Embedding, Flatten, SquaredLoss, train
from chains.data import Batches, prefetch
from tests.harness import BACKENDS, assert_close, assert_same_bits

RNG = np.random.default_rng(0)
IDS, T = RNG.integers(0, 40, (30, 5)), RNG.normal(size=(30, 2))
every_backend = pytest.mark.parametrize("name", BACKENDS)


def net(name: str = "numpy") -> Chain:
    return Chain(Embedding(40, 3), Dense(3, 4, "tanh"), Flatten(), Dense(20, 2), input_shape=(5,), backend=name)


def trained(name: str, x, t, **rest) -> np.ndarray:
    p = net().init(dtype=np.float64)
    train(net(name), p, x, t, SquaredLoss(), Adam(0.01), epochs=3, **rest)
    return p


@every_backend
@pytest.mark.parametrize("batch_size", [None, 8])
def test_training_on_ids_of_either_type_and_in_batches(name, batch_size):
    wanted = trained("numpy", IDS, T, batch_size=batch_size, shuffle=False)
    found = trained(name, IDS, T, batch_size=batch_size, shuffle=False)
    assert_close(found, wanted, 1e-10)
    for dtype in (np.int32, np.int64):
        for x in (IDS.astype(dtype), np.asfortranarray(IDS.astype(dtype))):
            assert trained(name, x, T, batch_size=batch_size, shuffle=False).tobytes() == found.tobytes()
    size = batch_size or len(IDS)
    batches = [(IDS[k : k + size], T[k : k + size]) for k in range(0, len(IDS), size)]
    assert trained(name, batches, None).tobytes() == found.tobytes()


@every_backend
def test_batches_that_are_prefetched(name):
    made = [trained(name, prefetch(Batches(IDS.astype(np.int32), T, batch_size=7, seed=1)), None) for _ in range(2)]
    assert made[0].tobytes() == made[1].tobytes()


@every_backend
def test_a_run_is_resumed_to_the_bit(name, tmp_path):
    each = {"batch_size": 7, "seed": 3}
    whole = net().init(dtype=np.float64)
    train(net(name), whole, IDS, T, SquaredLoss(), Adam(0.01), epochs=4, **each)
    p = net().init(dtype=np.float64)
    for epochs in (2, 4):
        train(net(name), p, IDS, T, SquaredLoss(), Adam(0.01), epochs=epochs, checkpoint=tmp_path, resume=tmp_path, **each)
    assert p.tobytes() == whole.tobytes()


@every_backend
def test_all_calls_agree(name):
    here, p = net(name), net().init(dtype=np.float64)
    value, g = here.value_and_grad(p, IDS, T, SquaredLoss())
    assert_close(value, here.loss(p, IDS.astype(np.int32), T, SquaredLoss()), 1e-12)
    objective = here.objective(IDS.astype(np.int32), T, SquaredLoss())
    for _ in range(3):
        found = objective(p)
        assert_close(found[0], value, 1e-12)
        assert_close(found[1], g, 1e-12)
    y = here(IDS, p)
    dp, dx = here.vjp(p, IDS, (y - T) / len(T))
    assert_close(dp, g, 1e-12)
    assert not dx.any()
    assert here.jacobian(p, IDS[:2]).shape == (2, 2, here.n_params)
    v = RNG.normal(size=len(p))
    up, down = (here.value_and_grad(p + h * v, IDS, T, SquaredLoss())[1] for h in (1e-5, -1e-5))
    slope = (up - down) / 2e-5
    assert_close(here.hvp(p, IDS, T, SquaredLoss(), v), slope, 1e-7)
    assert_close(objective.hessp(p, v), slope, 1e-7)


def test_gradients_on_a_large_table_on_threads():
    pytest.importorskip("llvmlite")
    ids = RNG.integers(0, 3000, (200, 9))
    layers, t = (Embedding(3000, 20), Flatten(), Dense(180, 2)), RNG.normal(size=(200, 2))
    p = Chain(*layers, input_shape=(9,)).init(dtype=np.float64)
    wanted = Chain(*layers, input_shape=(9,), backend="numpy").value_and_grad(p, ids, t, SquaredLoss())[1]
    with chains.num_threads(2):
        found = Chain(*layers, input_shape=(9,), backend="native").value_and_grad(p, ids, t, SquaredLoss())[1]
    assert_close(found, wanted, 1e-12)


def test_ids_do_not_become_floats_on_their_way():
    """In float32, whole numbers above 2**24 would not all be there."""
    count = (1 << 24) + 3
    here = Chain(Embedding(count, 1, weight_init="zeros"), input_shape=(1,), backend="numpy")
    p = np.zeros(count, np.float32)
    p[-3:] = 1, 2, 3
    x = np.array([[count - 3], [count - 2], [count - 1]])
    np.testing.assert_array_equal(here(x, p).ravel(), [1, 2, 3])


@every_backend
def test_one_id_at_a_time(name):
    here = Chain(Embedding(40, 3), chains.GRU(3, 4), Dense(4, 2), input_shape=(5,), backend=name)
    p, carried = here.init(dtype=np.float64), None
    for step in range(5):
        y, carried = here.step(IDS[:, step].astype(np.int32), p, carried)
    assert_close(y, here(IDS, p), 1e-12)
    with pytest.raises(ValueError, match="from 0 to 39"):
        here.step(IDS[:, 0] + 40, p, carried)


def test_same_bits_again():
    p = net().init()
    first, second = (net("numpy").value_and_grad(p, IDS, T, SquaredLoss())[1] for _ in range(2))
    assert_same_bits({"g": first}, {"g": second})
