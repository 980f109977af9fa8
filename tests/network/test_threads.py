"""Threads may call one `Chain` at once."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import chains
from chains import Adam, Chain, Dense, Dropout, SquaredLoss, gelu, tanh, train
from chains.network.network import network_of
from chains.network.programs import MAX_KEPT, get_or_make

ROUNDS = 25


def call_all(net, x, t, dy, p):
    """The bits of everything a user may ask for."""
    value, g = net.value_and_grad(p, x, t, SquaredLoss(), seed=len(x), penalty=chains.L2Penalty(0.1))
    results = [net(x, p), net(x, p, mode="train", seed=len(x)), np.float64(value), g, *net.vjp(p, x, dy)]
    return [result.tobytes() for result in results]


def task(net, k, dtype):
    """A batch size, data and parameters of its own."""
    rng = np.random.default_rng(k)
    batch = [3, 17, 64, 3][k]  # two of the same size, too
    return rng.normal(size=(batch, 5)), rng.normal(size=(batch, 2)), rng.normal(size=(batch, 2)), net.init(seed=k, dtype=dtype)


def make_net(name):
    return Chain(Dense(5, 9, tanh), Dropout(0.3), Dense(9, 7, gelu), Dense(7, 2), backend=name)


def in_threads(jobs):
    """Run the jobs at once, all starting together."""
    barrier = threading.Barrier(len(jobs))

    def run(job):
        barrier.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


@pytest.mark.parametrize("threads", [2, 4])
def test_calls_at_once_equal_calls_in_turn(threads, dtype, backend_name):
    serial = make_net(backend_name)
    tasks = [task(serial, k, dtype) for k in range(threads)]
    wanted = [call_all(serial, *arguments) for arguments in tasks]
    net = make_net(backend_name)  # whose programs are recorded by the threads themselves
    jobs = [lambda a=a: [call_all(net, *a) for _ in range(ROUNDS)] for a in tasks]
    for results, right in zip(in_threads(jobs), wanted, strict=True):
        assert all(result == right for result in results)


def test_large_batches_at_once(backend_name):
    """Data too large to be copied: every call binds the program to them."""
    net = make_net(backend_name)
    rng = np.random.default_rng(0)
    p, xs = net.init(dtype=np.float64), [rng.normal(size=(batch, 5)) for batch in (30_000, 40_000)]
    wanted = [net(x, p).tobytes() for x in xs]
    jobs = [lambda x=x: [net(x, p).tobytes() for _ in range(4)] for x in xs]
    for results, right in zip(in_threads(jobs), wanted, strict=True):
        assert all(result == right for result in results)


def test_one_objective_from_several_threads(backend_name):
    net, rng = make_net(backend_name), np.random.default_rng(0)
    objective = net.objective(rng.normal(size=(30, 5)), rng.normal(size=(30, 2)), SquaredLoss())
    points = [net.init(seed=k, dtype=np.float64) for k in range(4)]
    wanted = [objective(p) for p in points]
    jobs = [lambda p=p: [objective(p) for _ in range(100)] for p in points]
    for results, (value, gradient) in zip(in_threads(jobs), wanted, strict=True):
        assert all(v == value and g.tobytes() == gradient.tobytes() for v, g in results)


def test_training_at_once(backend_name):
    net, rng = make_net(backend_name), np.random.default_rng(0)
    x, t = rng.normal(size=(50, 5)), rng.normal(size=(50, 2))

    def run(seed):
        p = net.init(seed=seed)
        train(net, p, x, t, SquaredLoss(), Adam(0.01), epochs=4, batch_size=8, seed=seed)
        return p.tobytes()

    wanted = [run(seed) for seed in range(3)]
    assert in_threads([lambda seed=seed: run(seed) for seed in range(3)]) == wanted


def test_a_failing_call_spoils_nothing(backend_name):
    net = make_net(backend_name)
    x, t, dy, p = task(net, 0, np.float64)
    wanted = call_all(net, x, t, dy, p)
    with pytest.raises(ValueError, match="shape"):
        net.value_and_grad(p, x[:, :2], t, SquaredLoss())
    assert call_all(net, x, t, dy, p) == wanted


def test_more_batch_sizes_than_are_kept_from_several_threads(backend_name):
    """What is kept of old sizes is forgotten, whoever else looks at it."""
    net = Chain(Dense(3, 2), backend=backend_name)
    p, x = net.init(seed=0), np.ones((90, 3), np.float32)
    expected = net(x, p)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        jobs = [
            lambda k=k: all(np.array_equal(net(x[: 1 + (7 * k + i) % 90], p)[0], expected[0]) for i in range(200))
            for k in range(4)
        ]
        assert all(in_threads(jobs))
    finally:
        sys.setswitchinterval(interval)
    kept = network_of(net).shortcuts._functions
    assert len(kept) <= MAX_KEPT + len(jobs)


def test_what_is_kept_is_bounded_from_several_threads():
    known = {}

    def fill(k):
        for i in range(20_000):
            get_or_make(known, (k, i), object)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads([lambda k=k: fill(k) for k in range(4)])
    finally:
        sys.setswitchinterval(interval)
    assert len(known) <= MAX_KEPT + 4
