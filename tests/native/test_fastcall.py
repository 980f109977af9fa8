"""Quick calls: machine code that takes NumPy's arrays as they are, and leaves all others to the long way."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import chains
from chains import BatchNorm, Chain, CrossEntropyLoss, Dense, Dropout, L2Penalty, SquaredLoss, tanh
from chains.network.network import network_of

native = pytest.importorskip("chains.backends.native")
calls = pytest.importorskip("chains.backends.native.runtime.fastcall")
runtime = pytest.importorskip("chains.backends.native.runtime.shared")
workers = pytest.importorskip("chains.backends.native.runtime.workers")
LOSS = SquaredLoss()


def make(dtype=np.float32, batch=3, **options):
    """A network that compiles, its parameters, inputs and targets."""
    rng = np.random.default_rng(0)
    net = Chain(Dense(4, 7, tanh), Dense(7, 2), backend="native", **options)
    return (
        net,
        net.init(seed=1, dtype=dtype),
        rng.normal(size=(batch, 4)).astype(dtype),
        rng.normal(size=(batch, 2)).astype(dtype),
    )


def quick(net, kind, p, x, *things):
    """The function that calls of this kind go to from the third one on; a test that needs it fails where there is none."""
    return network_of(net).shortcuts.find(*kind, p, x, *things)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("batch", [1, 5, 33])
def test_same_bits_as_the_long_way(dtype, batch):
    net, p, x, t = make(dtype, batch)
    dy = t * 2
    for _ in range(2):
        long = (net(x, p), *net.value_and_grad(p, x, t, LOSS), *net.vjp(p, x, dy))
    assert quick(net, ("call", "eval"), p, x)(p, x, None) is not None
    assert quick(net, ("value_and_grad", "train"), p, x, LOSS, None)(p, x, t, None) is not None
    assert quick(net, ("vjp", "eval"), p, x)(p, x, dy, None, None) is not None
    short = (net(x, p), *net.value_and_grad(p, x, t, LOSS), *net.vjp(p, x, dy))
    for a, b in zip(long, short, strict=True):
        assert type(a) is type(b)
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("shape", [(5,), (5, 2)])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_weights_and_losses_are_quick(shape, kind):
    net, p, x, t = make(batch=5)
    w = np.random.default_rng(1).uniform(size=shape).astype(kind)
    for _ in range(2):
        long = (*net.value_and_grad(p, x, t, LOSS, weights=w), net.loss(p, x, t, LOSS))
    assert quick(net, (("value_and_grad", len(shape)), "train"), p, x, LOSS, None)(p, x, t, w, None) is not None
    assert quick(net, ("loss", None), p, x, LOSS, None)(p, x, t) == (long[2],)
    short = (*net.value_and_grad(p, x, t, LOSS, weights=w), net.loss(p, x, t, LOSS))
    for a, b in zip(long, short, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    with pytest.raises(ValueError, match="`weights`"):
        net.value_and_grad(p, x, t, LOSS, weights=w[:4])


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_labels_are_quick_and_looked_through(kind):
    net, p, x, _ = make(batch=5)
    loss, labels = CrossEntropyLoss(), np.array([0, 1, 1, 0, 1], kind)
    for _ in range(2):
        long = net.value_and_grad(p, x, labels, loss)
    assert quick(net, ("value_and_grad", "train"), p, x, loss, None)(p, x, labels, None) is not None
    np.testing.assert_array_equal(net.value_and_grad(p, x, labels, loss)[1], long[1], strict=True)
    for other in (labels.astype(np.uint8), labels.astype(labels.dtype.newbyteorder()), np.repeat(labels, 2)[::2]):
        np.testing.assert_array_equal(net.value_and_grad(p, x, other, loss)[1], long[1], strict=True)
    for wrong in (-1, 2, np.iinfo(kind).min):
        labels[3] = wrong
        for call in (net.value_and_grad, net.loss):
            with pytest.raises(ValueError, match=rf"labels must be whole numbers from 0 to 1, got {wrong} at index \(3,\)"):
                call(p, x, labels, loss)


def test_every_call_makes_arrays_of_its_own():
    net, p, x, t = make()
    net.value_and_grad(p, x, t, LOSS)
    one, two, again = (net.value_and_grad(p, x, t, LOSS)[1] for _ in range(3))
    two[:] = 7
    assert not np.shares_memory(one, two)
    np.testing.assert_array_equal(one, again)
    g = np.empty_like(p)
    assert net.value_and_grad(p, x, t, LOSS, out=g)[1] is g
    np.testing.assert_array_equal(one, g)


def test_a_pullback_into_given_arrays_is_quick(monkeypatch):
    net, p, x, t = make()
    for _ in range(2):
        dp, dx = net.vjp(p, x, t)
    out = np.empty_like(p), np.empty_like(x)
    monkeypatch.setattr(chains.support.arguments, "check_params", lambda *_: pytest.fail("this is the long way"))
    assert all(a is b for a, b in zip(net.vjp(p, x, t, out=out), out, strict=True))
    np.testing.assert_array_equal(out[0], dp)
    np.testing.assert_array_equal(out[1], dx)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"`out\[1\]` overlaps `x`"):
        net.vjp(p, x, t, out=(out[0], x))
    with pytest.raises(TypeError, match="must be a pair of arrays"):
        net.vjp(p, x, t, out=(out[0], None))


def test_other_losses_penalties_modes_and_shapes_are_not_confused():
    net, p, x, t = make()
    plain = net.value_and_grad(p, x, t, LOSS)
    for _ in range(2):
        value, g = net.value_and_grad(p, x, t, LOSS, penalty=L2Penalty(0.5))
        assert value > plain[0]
        assert not np.array_equal(g, plain[1])
        value, _ = net.value_and_grad(p, x[:2], t[:2], LOSS)
        assert value == pytest.approx(net.loss(p, x[:2], t[:2], LOSS), rel=1e-6)
        weighted, _ = net.value_and_grad(p, x, t, LOSS, weights=np.zeros(3))
        assert weighted == 0


class Own(np.ndarray):
    """An array that is not exactly NumPy's."""


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(np.float16), lambda x: np.round(x).astype(np.int64),
        lambda x: x.astype(x.dtype.newbyteorder()), lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2], lambda x: x.view(Own), lambda x: x.tolist(), lambda x: np.ma.array(x),
        lambda x: np.frombuffer(b"?" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    ],
    ids=["half", "integers", "swapped", "fortran", "strided", "subclass", "list", "masked", "unaligned"],
)  # fmt: skip
def test_arrays_that_are_not_quite_as_expected_go_the_long_way(change):
    net, p, x, t = make()
    for _ in range(2):
        net.value_and_grad(p, x, t, LOSS)
    expected = net.value_and_grad(p, np.array(change(x), x.dtype), t, LOSS)
    function = quick(net, ("value_and_grad", "train"), p, x, LOSS, None)
    assert function(p, change(x), t, None) is None
    value, g = net.value_and_grad(p, change(x), t, LOSS)
    assert value == expected[0]
    np.testing.assert_array_equal(g, expected[1])


@pytest.mark.parametrize(("own", "other"), [(np.float32, np.float64), (np.float64, np.float32)])
def test_inputs_of_the_other_float_type_are_converted(own, other):
    net, p, x, t = make(own, 5)
    for _ in range(2):
        expected = net.value_and_grad(p, x.astype(other).astype(own), t.astype(other).astype(own), LOSS)
    function = quick(net, ("value_and_grad", "train"), p, x, LOSS, None)
    for a, b in ((x, t.astype(other)), (x.astype(other), t), (x.astype(other), t.astype(other))):
        value, g = function(p, a, b, None)
        if other == np.float64:
            assert value == expected[0]
            np.testing.assert_array_equal(g, expected[1])
        np.testing.assert_allclose(g, expected[1], rtol=1e-4, atol=1e-6)
        assert g.dtype == own
    assert function(p, x, t, np.empty(p.size, other)) is None
    objective = net.objective(x, t, LOSS)
    np.testing.assert_array_equal(objective(p)[1], objective(p.astype(np.float64))[1])


def test_what_the_long_way_refuses_is_refused():
    net, p, x, t = make()
    for _ in range(2):
        net.value_and_grad(p, x, t, LOSS)
    fixed = np.empty_like(p)
    fixed.flags.writeable = False
    both = np.zeros(p.size + 8, p.dtype)
    overlapping = both[:-8]
    x[:] = 1
    inside = overlapping[:12].reshape(3, 4)
    before = both.copy()
    for out, words in ((fixed, "writable"), (p, "overlaps `p`"), (p[:-1], "shape"), (np.empty(p.size), "type"), ([], "list")):
        with pytest.raises((TypeError, ValueError), match=words):
            net.value_and_grad(p, x, t, LOSS, out=out)
    with pytest.raises(ValueError, match="overlaps `x`"):
        net.value_and_grad(p, inside, t, LOSS, out=overlapping)
    np.testing.assert_array_equal(both, before)
    with pytest.raises(ValueError, match="shape"):
        net.value_and_grad(p[:-1], x, t, LOSS)
    with pytest.raises(ValueError, match="batch"):
        net.value_and_grad(p, x, t[:2], LOSS)


@pytest.mark.parametrize("other", [np.float32, np.float64])
def test_neighbours_in_memory_do_not_overlap(other):
    net, p, x, t = make()
    for _ in range(2):
        expected = net.value_and_grad(p, x, t, LOSS)[1]
    block = np.zeros(2 * p.nbytes + x.size * np.dtype(other).itemsize, np.uint8)
    own, g, data = (block[a:b] for a, b in ((0, p.nbytes), (p.nbytes, 2 * p.nbytes), (2 * p.nbytes, None)))
    own, g, data = own.view(np.float32), g.view(np.float32), data.view(other).reshape(x.shape)
    own[:], data[:] = p, x
    function = quick(net, ("value_and_grad", "train"), p, x, LOSS, None)
    assert function(own, data, t, g)[1] is g
    np.testing.assert_array_equal(g, expected)
    assert (
        function(own, block[-x.nbytes - 4 : -4].view(np.float32).reshape(x.shape), t, block[-p.nbytes :].view(np.float32))
        is None
    )


def test_machine_code_takes_no_wrong_number_of_arguments():
    net, p, x, _ = make()
    for _ in range(2):
        net(x, p)
    function = quick(net, ("call", "eval"), p, x)
    for wrong in ((), (p,), (p, x), (p, x, None, None), (x, p, None), (None, None, None), (p, x, x)):
        assert function(*wrong) is None


def test_programs_that_need_more_have_no_function():
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 2, 6)
    for net in (Chain(Dense(4, 2), Dropout(0.5)), Chain(Dense(4, 2), BatchNorm(2))):
        p, state = net.init(seed=0), net.init_state()
        for seed in (0, 1, 0):
            assert np.isfinite(net(x, p, state=state if len(state) else None, mode="train", seed=seed)).all()
        assert quick(net, ("call", "train"), p, x) is None or quick(net, ("call", "train"), p, x)(p, x, None) is None
    net = Chain(Dense(4, 2))
    p = net.init(seed=0)
    net.value_and_grad(p, x, t, CrossEntropyLoss())
    with pytest.raises(ValueError, match="labels"):
        net.value_and_grad(p, x, t + 2, CrossEntropyLoss())


def test_references_and_memory_do_not_grow():
    net, p, x, t = make()
    objective = net.objective(x, t, LOSS)
    calls = [
        lambda: net(x, p), lambda: net.value_and_grad(p, x, t, LOSS), lambda: net.vjp(p, x, t), lambda: objective(p),
        lambda: net.value_and_grad(p, x, t, LOSS, out=g), lambda: quick(net, ("call", "eval"), p, x)(p, t, None),
    ]  # fmt: skip
    g = np.empty_like(p)
    for call in (*calls[:-1], *calls):
        call()
    things = (p, x, t, g, p.dtype, np.ndarray)
    gc.collect()
    counts = [sys.getrefcount(thing) for thing in things]
    tracemalloc.start()
    try:
        for call in calls:
            call()
        before = tracemalloc.get_traced_memory()[0]
        for call in calls:
            for _ in range(2000):
                call()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 4096
    assert [sys.getrefcount(thing) for thing in things] == counts


def test_results_are_ordinary():
    net, p, x, t = make()
    for _ in range(2):
        net.value_and_grad(p, x, t, LOSS)
    value, g = net.value_and_grad(p, x, t, LOSS)
    assert type(value) is float
    assert g.flags.owndata
    assert g.flags.writeable
    assert g.shape == p.shape
    assert net(x, p).shape == net(x, p).shape == (3, 2)


@pytest.mark.parametrize("taken", [False, True])
def test_threads_give_the_same_bits_whether_or_not_workers_are_to_be_had(taken):
    """Another caller's task may be under way: then a caller does all parts of its own."""
    rng = np.random.default_rng(0)
    net = Chain(Dense(20, 64, tanh), Dense(64, 2), backend="native")
    p, x, t = net.init(seed=0), rng.normal(size=(100, 20)).astype(np.float32), rng.normal(size=(100, 2)).astype(np.float32)
    backend = native.NativeBackend(threads=2)
    program = net.program(LOSS)
    binding = backend.bind(program, 100, {"p": p, "x": x, "t": t})
    assert binding.threads == 2
    binding()
    function = backend.function(backend.bind(program, 100, {}), dict.fromkeys("pxt", program.dtype), ("g",))
    words = runtime.worker_pool()._words
    try:
        words[workers.WORKER_POOL.positions["busy"]] = taken
        value, g = function(p, x, t, None)
        assert words[workers.WORKER_POOL.positions["busy"]] == taken
    finally:
        words[workers.WORKER_POOL.positions["busy"]] = 0
    assert value == binding.arrays["value"]
    np.testing.assert_array_equal(g, binding.arrays["g"])


def test_first_calls_from_several_threads(monkeypatch):
    """Python keeps the address of a method alone: each function must hold on to its own."""
    make_code = calls.enter_code

    def slowly():
        time.sleep(0.05)
        return make_code()

    monkeypatch.setattr(calls, "enter_code", slowly)
    calls._method.cache_clear()
    nets = [make()[0] for _ in range(6)]
    _, p, x, _ = make()
    expected = make()[0](x, p)
    with ThreadPoolExecutor(6) as threads:
        for _ in range(2):
            assert all(np.array_equal(y, expected) for y in threads.map(lambda net: net(x, p), nets))
    for net in nets:
        assert isinstance(quick(net, ("call", "eval"), p, x).__self__.method, calls._Method)


def test_numbers_out_of_range_are_infinite_at_every_call():
    net, p, x, _ = make()
    for _ in range(3):
        with np.errstate(all="raise"):
            assert not np.isfinite(net(np.full(x.shape, 1e300), p)).any()


def test_functions_outlive_their_network():
    net, p, x, _ = make()
    for _ in range(2):
        y = net(x, p)
    function = quick(net, ("call", "eval"), p, x)
    del net
    gc.collect()
    np.testing.assert_array_equal(function(p, x, None), y)


def test_from_several_threads():
    net, p, _, _ = make()
    xs = np.random.default_rng(1).normal(size=(8, 3, 4)).astype(np.float32)
    expected = [net(x, p) for x in xs]

    def work(k):
        return all(np.array_equal(net(xs[k], p), expected[k]) for _ in range(500))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def test_losses_and_penalties_made_in_the_call_are_as_quick():
    net, p, x, t = make()
    made = [0]
    find = network_of(net).shortcuts.add

    def add(*arguments):
        made[0] += 1
        find(*arguments)

    network_of(net).shortcuts.add = add
    wanted = net.value_and_grad(p, x, t, chains.HuberLoss(0.5), penalty=chains.L2Penalty(0.1))
    for _ in range(200):  # more than are kept
        value, g = net.value_and_grad(p, x, t, chains.HuberLoss(0.5), penalty=chains.L2Penalty(0.1))
        assert (value, g.tobytes()) == (wanted[0], wanted[1].tobytes())
    assert made[0] == 2
    other = net.value_and_grad(p, x, t, chains.HuberLoss(0.25), penalty=chains.L2Penalty(0.1))
    assert other[0] != wanted[0]
    assert made[0] == 3


def test_what_is_no_loss_is_refused_whether_or_not_it_can_be_compared():
    net, p, x, t = make()
    for wrong in (None, [1], x, SquaredLoss):
        with pytest.raises(TypeError, match=r"`loss`.*must be a loss such as"):
            net.value_and_grad(p, x, t, wrong)


@pytest.mark.parametrize(("loss", "good", "bad", "text"), [
    (chains.BCEWithLogitsLoss(), 1.0, 1.5, "targets must be from 0 to 1, got 1.5"),
    (chains.BCEWithLogitsLoss(), 0.0, -0.5, "targets must be from 0 to 1, got -0.5"),
    (chains.CrossEntropyLoss(), 0.25, -0.5, "probabilities must not be negative, got -0.5"),
])  # fmt: skip
def test_targets_that_make_no_sense_are_refused_in_quick_calls_too(loss, good, bad, text):
    net, p, x, t = make()
    fine, wrong = np.full_like(t, good), np.full_like(t, good)
    wrong[-1, -1] = bad
    calls = [
        lambda t: net.value_and_grad(p, x, t, loss),
        lambda t: net.loss(p, x, t, loss),
        lambda t: net.gauss_newton(p, x, t, loss, p),
        lambda t: net.hvp(p, x, t, loss, p),
    ]
    for call in calls * 3:
        call(fine)
        with pytest.raises(ValueError, match=f"`t`: {text}"):
            call(wrong)
        with pytest.raises(ValueError, match="`t`"):
            call(fine[:, :1])
    before = p.copy()
    with pytest.raises(ValueError, match=text):
        chains.train(net, p, x, wrong, loss, chains.SGD(0.1), progress=False)
    assert p.tobytes() == before.tobytes()
