"""The training loop: what it does with the data."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, CrossEntropyLoss, Dense, Dropout, Scale, SquaredLoss, accuracy, tanh, train
from tests.harness import assert_close
from tests.training.support import make_data, run


def test_training_is_the_loop_one_would_write(net, dtype):
    """Whole data, in order, no shuffling."""
    x, t = make_data()
    p, wanted = net.init(dtype=dtype), net.init(dtype=dtype).astype(np.float64)
    losses = []
    for _ in range(3):
        terms = []
        for start in range(0, 20, 6):
            piece = slice(start, start + 6)
            value, g = net.value_and_grad(wanted, x[piece], t[piece], SquaredLoss())
            wanted -= 0.05 * g
            terms.append(value * len(x[piece]))
        losses.append(sum(terms) / 20)
    history = run(net, p, epochs=3, batch_size=6, shuffle=False)[1]
    assert_close(p, wanted, 1e-5 if dtype == np.float32 else 1e-13)
    assert_close(history.loss, losses, 1e-5 if dtype == np.float32 else 1e-13)
    assert history.steps == 3 * 4


class Recorded:
    """Which samples a network sees: one weight a sample, whose gradient is zero unless the sample is in the batch."""

    def __init__(self, samples, name, **settings):
        net = Chain(Scale(scale_init="zeros"), input_shape=(samples,), backend=name)
        p, x = np.zeros(samples), np.eye(samples)
        self.seen = []
        # With targets -I, a sample's own weight moves by rate / batch each time it is seen.
        self.history = train(net, p, x, -x, SquaredLoss(), SGD(1e-6), callbacks=[self.note], **settings)

    def note(self, state):
        self.seen.append(state.p.copy())


@pytest.mark.parametrize("batch_size", [1, 3, 7, 10, 20, None])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_is_seen_once_an_epoch(batch_size, shuffle, backend_name):
    samples = 10
    recorded = Recorded(samples, backend_name, epochs=3, batch_size=batch_size, shuffle=shuffle)
    size = min(batch_size or samples, samples)
    last = samples % size or size
    for epoch in range(3):
        moved = (recorded.seen[epoch] - (recorded.seen[epoch - 1] if epoch else 0)) / -1e-6
        times = np.sort(np.round(moved * 1e3) / 1e3)
        wanted = np.sort([1 / size] * (samples - last) + [1 / last] * last)
        np.testing.assert_allclose(times, wanted, rtol=1e-2)


@pytest.mark.parametrize(("batch_size", "seen"), [(3, 9), (10, 10), (7, 7)])
def test_the_last_batch_may_be_dropped(batch_size, seen, backend_name):
    recorded = Recorded(10, backend_name, epochs=1, batch_size=batch_size, drop_last=True, shuffle=False)
    assert np.count_nonzero(recorded.seen[0]) == seen
    assert recorded.history.steps == seen // batch_size


def test_shuffling_changes_from_epoch_to_epoch(backend_name):
    """With the last batch dropped, other samples are left out."""
    recorded = Recorded(10, backend_name, epochs=4, batch_size=9, drop_last=True, seed=1)
    left_out = [tuple(np.flatnonzero(a == b)) for a, b in zip(recorded.seen, [np.zeros(10), *recorded.seen], strict=False)]
    assert len(set(left_out)) > 1


def test_the_data_are_not_shuffled_themselves(net):
    x, t = make_data()
    before = x.tobytes(), t.tobytes()
    x.flags.writeable = t.flags.writeable = False
    run(net, data=(x, t), epochs=3, batch_size=4)
    assert (x.tobytes(), t.tobytes()) == before


@pytest.mark.parametrize("batch_size", [1, 6, 20, None])
def test_the_same_seed_gives_the_same_bits(net, batch_size, dtype):
    runs = [run(net, net.init(dtype=dtype), epochs=4, batch_size=batch_size, seed=seed) for seed in (3, 3, 4)]
    (a, first), (b, second), (c, _) = runs
    assert a.tobytes() == b.tobytes()
    assert first.loss == second.loss
    assert (c.tobytes() == a.tobytes()) == (batch_size in (20, None))


def test_a_fresh_chain_gives_the_same_bits(backend_name):
    nets = [Chain(Dense(3, 4, tanh), Dropout(0.3), Dense(4, 2), backend=backend_name) for _ in range(2)]
    assert len({run(net, epochs=4, batch_size=6, seed=3)[0].tobytes() for net in nets}) == 1


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("batch_size", [4, None])
def test_data_of_other_types(net, kind, batch_size):
    """Bytes are converted a batch at a time, to the same result."""
    x, t = np.arange(60).reshape(20, 3) % 7, np.arange(40).reshape(20, 2) % 3
    wanted = run(net, data=(x.astype(np.float64), t.astype(np.float64)), epochs=3, batch_size=batch_size)[0]
    assert run(net, data=(x.astype(kind), t.astype(kind)), epochs=3, batch_size=batch_size)[0].tobytes() == wanted.tobytes()


def test_strided_data(net):
    x, t = make_data()
    wanted = run(net, data=(x, t), epochs=2, batch_size=6)[0]
    wide = np.repeat(x, 2, axis=1)[:, ::2], np.asfortranarray(t)
    assert run(net, data=wide, epochs=2, batch_size=6)[0].tobytes() == wanted.tobytes()
    assert run(net, data=(x.tolist(), t.tolist()), epochs=2, batch_size=6)[0].tobytes() == wanted.tobytes()


def test_weights_go_with_their_samples(net):
    """A weight of zero takes a sample out, wherever shuffling puts it."""
    x, t = make_data()
    spoilt = x.copy()
    spoilt[::2] = 50.0
    weights = np.arange(20) % 2
    for batch_size in (1, 6, None):
        a = run(net, data=(x, t), weights=weights, epochs=3, batch_size=batch_size)[0]
        b = run(net, data=(spoilt, t), weights=weights, epochs=3, batch_size=batch_size)[0]
        assert_close(a, b, 1e-13)


def test_penalties_count(net):
    small = run(net, penalty=chains.L2Penalty(1.0), epochs=50)[0]
    assert np.linalg.norm(small) < 0.5 * np.linalg.norm(run(net, epochs=50)[0])


def test_labels(backend_name):
    net, rng = Chain(Dense(3, 5, tanh), Dense(5, 3), backend=backend_name), np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    labels = x.argmax(axis=1)
    p, history = run(net, data=(x, labels), loss=CrossEntropyLoss(), optimizer=Adam(0.05), epochs=40, batch_size=10)
    assert accuracy(labels, net(x, p)) > 0.95
    assert history.loss[-1] < 0.3 * history.loss[0]


# Validation in pieces


class Counted:
    """The batches that a network is called with."""

    def __init__(self, net, monkeypatch):
        self.sizes, call = [], type(net).__call__
        monkeypatch.setattr(type(net), "__call__", lambda net, x, *a, **k: self.sizes.append(len(x)) or call(net, x, *a, **k))


def test_validation_in_pieces_gives_the_same_numbers(backend_name, monkeypatch):
    x, t = make_data(100)
    labels = np.argmax(t, axis=1)
    net = Chain(Dense(3, 8, tanh), chains.BatchNorm(8), Dense(8, 2), backend=backend_name)
    settings = {
        "epochs": 2,
        "batch_size": 8,
        "validation": (x, labels),
        "metrics": [accuracy],
        "penalty": chains.L2Penalty(0.1),
    }

    def numbers():
        return train(net, net.init(), x, labels, CrossEntropyLoss(), Adam(), state=net.init_state(), **settings)

    whole = numbers()
    calls = Counted(net, monkeypatch)
    per_sample = net.program(mode="eval").scratch.bytes_per_sample
    monkeypatch.setattr(sys.modules["chains.training.evaluator"], "PIECE_BYTES", 40 * per_sample)
    pieces = numbers()
    assert calls.sizes == [40, 40, 20] * 2
    np.testing.assert_allclose(pieces.validation_loss, whole.validation_loss, rtol=1e-6)
    assert pieces.metrics == whole.metrics
    assert pieces.loss == whole.loss


def test_validation_of_many_images_takes_bounded_memory(monkeypatch):
    """On NumPy, whose scratch grows with the batch."""
    net = Chain(chains.Conv(1, 8, 3, tanh), chains.Flatten(), Dense(8 * 14 * 14, 2), input_shape=(1, 16, 16), backend="numpy")
    x, t = np.zeros((3000, 1, 16, 16), np.float32), np.zeros((3000, 2))
    monkeypatch.setattr(sys.modules["chains.training.evaluator"], "PIECE_BYTES", 0)
    settings = {"validation": (x, t), "metrics": [lambda t, y: 0.0]}
    tracemalloc.start()
    try:
        history = train(net, net.init(), x[:10], t[:10], SquaredLoss(), SGD(0.1), **settings)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(history.validation_loss) == 1
    assert most < 12 << 20  # the convolution's output alone, 3000 * 8 * 14 * 14 float32, is 19 MB
