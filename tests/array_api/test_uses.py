"""What users do with networks, on an array library: training, minimising, ensembles, checkpoints, with tensors as arrays."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

import chains
from chains import Adam, BatchNorm, Chain, Dense, Dropout, Embedding, SquaredLoss, tanh, train
from chains.backends import ArrayBackend, UnsupportedOperationError
from chains.testing import assert_close

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(4)
X, T = RNG.normal(size=(23, 3)), RNG.normal(size=(23, 2))
LOSS = SquaredLoss()


def net_on(backend, *more):
    return Chain(Dense(3, 4, tanh), *more, Dense(4, 2), backend=backend)


def trained(backend, layers=(), p=None, **rest):
    net = net_on(backend, *layers)
    p = net.init(seed=1, dtype=np.float64) if p is None else p
    state = {"state": net.init_state(dtype=np.float64)} if net.n_state else {}
    history = train(net, p, X, T, LOSS, Adam(1e-2), epochs=3, batch_size=5, seed=2, **state, **rest)
    return p, history


@pytest.mark.parametrize("layers", [(), (Dropout(0.3),), (BatchNorm(4), Dropout(0.2))], ids=["plain", "dropout", "state"])
def test_training_equals_numpy(layers):
    (p, history), (wanted, expected) = trained("torch:cpu", layers), trained("numpy", layers)
    assert_close(p, wanted, 1e-12)
    assert_close(history.loss, expected.loss, 1e-12)


def test_tensors_are_trained_in_place():
    p = torch.from_numpy(net_on("numpy").init(seed=1, dtype=np.float64))
    before = p.clone()
    trained("torch:cpu", p=p)
    assert not torch.equal(p, before)
    assert_close(p.numpy(), trained("numpy")[0], 1e-12)


def test_an_embedding_is_trained_by_its_rows():
    ids, results = RNG.integers(0, 6, (20, 4)), []
    for backend in ("torch:cpu", "numpy"):
        net = Chain(Embedding(6, 3), chains.Flatten(), Dense(12, 1), input_shape=(4,), backend=backend)
        p = net.init(seed=0, dtype=np.float64)
        train(net, p, ids, np.ones((20, 1)), LOSS, Adam(1e-2), epochs=2, batch_size=6)
        results.append(p)
    assert_close(*results, 1e-12)


@pytest.mark.parametrize("method", ["BFGS", "L-BFGS", "LM"])
def test_minimize_equals_numpy(method):
    results = []
    for backend in ("torch:cpu", "numpy"):
        net = net_on(backend)
        objective = net.objective(torch.from_numpy(X), torch.from_numpy(T), LOSS)
        results.append(chains.minimize(objective, torch.from_numpy(net.init(seed=0, dtype=np.float64)), method, maxiter=5))
    assert_close(results[0].x, results[1].x, 1e-9)
    assert abs(results[0].fun - results[1].fun) < 1e-12


def test_scipy_minimises_an_objective():
    optimize = pytest.importorskip("scipy.optimize")
    net = net_on("torch:cpu")
    objective = net.objective(X, T, LOSS)
    p = net.init(seed=0, dtype=np.float64)
    result = optimize.minimize(objective, p, jac=True, method="BFGS", options={"maxiter": 20})
    assert result.fun < 0.7 * objective(p)[0]


def test_ensembles_have_the_bits_of_their_members():
    net = net_on("torch:cpu")
    rows = net.init_many(3, seed=5, dtype=np.float64)
    alone = rows[1].copy()
    for p, seed in ((rows, [2] * 3), (alone, 2)):
        train(net, p, X, T, LOSS, Adam(1e-2), epochs=2, batch_size=5, seed=seed)
    assert_close(rows[1], alone, 1e-12)


def test_members_with_separate_data_are_trained_on_them():
    x, t, results = RNG.normal(size=(2, 23, 3)), RNG.normal(size=(2, 23, 2)), []
    for backend in ("torch:cpu", "numpy"):
        net = net_on(backend)
        rows = net.init_many(2, seed=5, dtype=np.float64)
        train(net, rows, x, t, LOSS, Adam(1e-2), epochs=2, batch_size=5)
        results.append(rows)
    assert_close(*results, 1e-12)


def test_training_resumes_with_identical_bits(tmp_path):
    whole, _ = trained("torch:cpu")
    net = net_on("torch:cpu")
    p = net.init(seed=1, dtype=np.float64)
    train(net, p, X, T, LOSS, Adam(1e-2), epochs=1, batch_size=5, seed=2, checkpoint=tmp_path)
    p = net.init(seed=1, dtype=np.float64)
    train(net, p, X, T, LOSS, Adam(1e-2), epochs=3, batch_size=5, seed=2, resume=tmp_path)
    np.testing.assert_array_equal(p, whole)


def test_large_arrays_are_used_without_copies_of_the_program():
    net = Chain(Dense(400, 500, tanh), Dense(500, 1), backend="torch:cpu")
    x, p = RNG.normal(size=(300, 400)), net.init(dtype=np.float64)
    for scale in (1.0, 2.0):
        assert_close(net(scale * x, p), Chain(*net.layers, backend="numpy")(scale * x, p), 1e-12)


def test_two_threads_call_one_network():
    net, results = net_on("torch:cpu"), {}
    p = net.init(dtype=np.float64)
    wanted = [net(X + k, p) for k in range(4)]
    threads = [threading.Thread(target=lambda k=k: results.update({k: net(X + k, p)})) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        np.testing.assert_array_equal(results[k], wanted[k])


def test_a_pickled_network_has_its_library_and_device():
    again = pickle.loads(pickle.dumps(Chain(Dense(2, 2), backend=ArrayBackend(torch, "cpu"))))
    assert repr(again.backend) == "<torch:cpu backend>"
    assert again(np.ones((1, 2)), again.init()).shape == (1, 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch:cuda:99", "array library 'torch' cannot be used on the device 'cuda:99': there is 'torch:cpu'"),
        ("torch:foo", "on the device 'foo': there is 'torch:cpu'[a-z0-9:', and]*$"),
        ("numpy:cuda", "on the device 'cuda': there is 'numpy:cpu'$"),
        ("array_api_strict:foo", "on the device 'foo': there is .*CPU_DEVICE"),
        ("missing_library:cpu", "array library 'missing_library' cannot be used"),
        ("math:cpu", "array library 'math' cannot be used"),
    ],
)
def test_what_cannot_be_used_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        Chain(Dense(2, 2), backend=name)


def test_arguments_that_are_no_library_are_refused():
    with pytest.raises(TypeError, match="`namespace`"):
        ArrayBackend(3)
    with pytest.raises(TypeError, match="`device`"):
        ArrayBackend("torch", 3)


def test_a_device_without_float64_says_so():
    pytest.importorskip("jax")
    net = Chain(Dense(2, 2), backend=ArrayBackend("jax.numpy"))
    assert net(np.ones((1, 2), np.float32), net.init()).dtype == np.float32
    with pytest.raises(UnsupportedOperationError, match="cannot compute in float64"):
        net(np.ones((1, 2)), net.init(dtype=np.float64))


@pytest.mark.parametrize("seed", [0, 2**32 + 1, 2**63 + 1, 2**64 - 1])
def test_the_same_numbers_are_drawn_for_any_seed(seed):
    """Seeds of members of ensembles are at least 2**63."""
    x, none = np.ones((4, 64)), np.zeros(0)
    found, wanted = (
        Chain(Dropout(0.5), input_shape=(64,), backend=name)(x, none, mode="train", seed=seed)
        for name in ("torch:cpu", "numpy")
    )
    np.testing.assert_array_equal(found, wanted)
