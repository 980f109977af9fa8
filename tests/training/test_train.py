"""The training loop: what it does with the data, what it writes down, how it ends."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, CrossEntropyLoss, Dense, Dropout, EarlyStopping, Scale, SquaredLoss, accuracy, tanh, train
from chains.training.history import History
from tests.harness import OPTIMIZERS, assert_close


def make_data(samples=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, 3)), rng.normal(size=(samples, 2))


@pytest.fixture
def net(backend_name):
    return Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)


def run(net, p=None, data=None, loss=None, optimizer=None, **settings):
    """Train on small random data; the parameters and the history."""
    p = net.init(seed=0, dtype=np.float64) if p is None else p
    x, t = make_data() if data is None else data
    return p, train(net, p, x, t, loss or SquaredLoss(), optimizer or SGD(0.05), **settings)


# Batches


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


# The history


def test_nothing_to_do(net):
    p, history = run(net, epochs=0)
    assert p.tobytes() == net.init(seed=0, dtype=np.float64).tobytes()
    assert (history.epochs, history.steps, history.stopped) == (0, 0, "")


def test_validation_and_metrics(net):
    validation = make_data(8, seed=5)

    def mean_error(t, y):
        return np.mean(abs(y - t))

    seen = []
    note = lambda state: seen.append((state.epoch, net.loss(state.p, *validation, SquaredLoss())))  # noqa: E731
    p, history = run(net, epochs=3, batch_size=6, validation=validation, metrics=[mean_error], callbacks=[note])
    assert [epoch for epoch, _ in seen] == [1, 2, 3]
    assert history.validation_loss == [loss for _, loss in seen]
    assert history.metrics["mean_error"][-1] == pytest.approx(mean_error(validation[1], net(validation[0], p)))
    assert list(history.columns()) == ["loss", "validation loss", "mean_error", "seconds"]


def test_two_metrics_of_one_name(net):
    """Lists of the history have one entry an epoch."""
    settings = {"epochs": 2, "validation": make_data(8), "metrics": [lambda t, y: 1.0, lambda t, y: 2.0]}
    try:
        history = run(net, **settings)[1]
    except ValueError as error:
        assert "metric" in str(error)  # noqa: PT017 - refusing them is as good
    else:
        assert all(len(values) == 2 for values in history.columns().values())
        assert sorted(values[0] for values in history.metrics.values()) == [1.0, 2.0]


@pytest.mark.parametrize(
    "settings",
    [{}, {"batch_size": 6}, {"callbacks": [lambda state: None]}, {"validation": make_data(4)}],
    ids=["all", "batches", "callback", "validation"],
)
def test_one_entry_an_epoch(net, settings):
    history = run(net, epochs=25, **settings)[1]
    assert len(history) == history.epochs == 25
    assert all(len(values) == 25 for values in history.columns().values())
    assert history.steps == 25 * (4 if "batch_size" in settings else 1)
    assert sorted(history.seconds) == history.seconds
    assert history.stopped == ""
    text = str(history)
    assert "..." in text
    assert text.splitlines()[0].split()[:2] == ["epoch", "loss"]
    assert text.splitlines()[-1].split()[0] == "25"


def test_accuracy():
    y = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert accuracy(np.array([1, 0, 0]), y) == pytest.approx(2 / 3)
    assert accuracy(np.array([[0, 1], [1, 0], [0, 1]]), y) == 1.0
    assert accuracy(np.array([1, 1]), np.array([[0.7], [0.2]])) == 0.5
    assert accuracy(np.array([[1], [0]]), np.array([[0.7], [0.2]])) == 1.0
    with pytest.raises(ValueError, match=r"`t`.*\(4,\)"):
        accuracy(np.zeros(4), y)
    with pytest.raises(ValueError, match=r"`y` must have shape \(batch, ..., classes\), .* got \(2,\)"):
        accuracy(np.array([0, 1]), np.array([0.1, 0.9]))  # one output a sample is (2, 1)


def test_a_history_is_drawn(net, tmp_path):
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot

    history = run(net, epochs=3, validation=make_data(4), metrics=[lambda t, y: 0.5])[1]
    ax = history.plot()
    assert pyplot.get_fignums() == [ax.figure.number]  # so that notebooks show it
    assert [line.get_label() for line in ax.get_lines()] == ["training", "validation"]
    assert ax.get_lines()[0].get_ydata().tolist() == history.loss
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["training", "validation", "<lambda>"]
    assert ax.get_yscale() == "log"
    ax.figure.savefig(tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 1000
    _, (left, right) = pyplot.subplots(1, 2)
    assert History(loss=[1.0, -2.0]).plot(right) is right
    assert right.get_yscale() == "linear"
    assert not left.get_lines()
    assert len(pyplot.get_fignums()) == 2
    pyplot.close("all")


# Callbacks and endings


def test_a_callback_sees_the_live_state_and_may_stop(net):
    states, p = [], net.init(seed=0, dtype=np.float64)

    def callback(state):
        states.append(state)
        assert state.p is p
        assert state.history.epochs == state.epoch == len(states)
        assert state.net is net
        return "enough" if state.epoch == 3 else None

    history = run(net, p, epochs=10, callbacks=[callback, lambda state: None])[1]
    assert (history.stopped, history.epochs, len(states)) == ("enough", 3, 3)
    assert states[0].history is history
    assert "stopped after 3 epochs: enough" in str(history)


@pytest.mark.parametrize("returned", [np.ones(3), True, 0, ["enough"]], ids=str)
def test_a_callback_returns_a_text_or_nothing(net, returned):
    def odd(state):
        return returned

    with pytest.raises(TypeError, match=r"the callback odd returned .*, but a text, which ends training, or None is wanted"):
        run(net, callbacks=[odd])
    assert run(net, epochs=2, callbacks=[lambda state: ""])[1].stopped == ""


def test_what_callbacks_see_can_be_printed(net):
    states = []
    run(net, epochs=2, callbacks=[states.append], validation=make_data(4))
    assert repr(states[1]).startswith(f"<{net!r} after 2 epochs: loss ")
    assert "validation loss" in repr(states[1])


def test_callbacks_change_no_number(net):
    plain = run(net, epochs=5, batch_size=6)
    watched = run(net, epochs=5, batch_size=6, callbacks=[lambda state: None], validation=make_data(4))
    assert plain[0].tobytes() == watched[0].tobytes()
    assert plain[1].loss == watched[1].loss


class Scripted:
    """A metric that returns the given numbers, one after another."""

    def __init__(self, *numbers):
        self.numbers, self.seen = list(numbers), []
        self.__name__ = "scripted"

    def __call__(self, t, y):
        self.seen.append(y.copy())
        return self.numbers[len(self.seen) - 1]


@pytest.mark.parametrize(
    ("numbers", "settings", "epochs", "best"),
    [
        ([3, 2, 1, 2, 2, 9], {"patience": 2}, 5, 3),
        ([1, 2, 3, 2, 2, 9], {"patience": 2, "mode": "max"}, 5, 3),
        ([3, 2.5, 2.2, 2.1, 2], {"patience": 2, "min_delta": 0.6}, 5, 3),
        ([1, 2, 3, 4], {"patience": 1}, 2, 1),
        ([1, np.nan, np.nan, np.nan], {"patience": 2}, 3, 1),
    ],
)
def test_early_stopping_restores_the_best(net, numbers, settings, epochs, best):
    metric, validation = Scripted(*numbers), make_data(4)
    p, history = run(
        net, epochs=20, validation=validation, metrics=[metric], callbacks=[EarlyStopping(monitor="scripted", **settings)]
    )
    assert history.epochs == epochs
    assert net(validation[0], p).tobytes() == metric.seen[best - 1].tobytes()
    assert "scripted" in history.stopped
    assert f"epoch {best}" in history.stopped


def test_early_stopping_may_keep_the_last(net):
    metric, validation = Scripted(1, 2, 3, 4), make_data(4)
    stop = EarlyStopping(2, monitor="scripted", restore=False)
    p, _ = run(net, epochs=20, validation=validation, metrics=[metric], callbacks=[stop])
    assert net(validation[0], p).tobytes() == metric.seen[-1].tobytes()
    assert (stop.best, stop.best_epoch) == (1, 1)


def test_early_stopping_restores_also_when_the_epochs_run_out(net):
    """As its documentation says: at the end `p` holds the best epoch's parameters."""
    metric, validation = Scripted(3, 1, 2), make_data(4)
    p, history = run(net, epochs=3, validation=validation, metrics=[metric], callbacks=[EarlyStopping(5, monitor="scripted")])
    assert history.epochs == 3
    assert net(validation[0], p).tobytes() == metric.seen[1].tobytes()


def test_early_stopping_needs_its_quantity(net):
    with pytest.raises(ValueError, match=r"`monitor` \(='validation loss'\).*loss"):
        run(net, epochs=2, callbacks=[EarlyStopping()])
    run(net, epochs=2, callbacks=[EarlyStopping(monitor="loss")])


@pytest.mark.parametrize("batch_size", [5, None])
def test_a_loss_that_is_not_finite_stops_with_step_and_loss(net, batch_size, dtype):
    p = net.init(dtype=dtype)
    with pytest.raises(FloatingPointError, match=r"loss is (nan|inf) at step \d+.*learning rate"):
        run(net, p, optimizer=SGD(1e6), epochs=500, batch_size=batch_size)


def test_the_step_is_the_one_where_it_happened(net):
    x, t = make_data()
    x[13] = np.nan  # in the third batch of five
    with pytest.raises(FloatingPointError, match="loss is nan at step 3:"):
        run(net, data=(x, t), batch_size=5, shuffle=False, check_finite=False, epochs=2)


def test_ctrl_c_from_a_callback(net):
    def interrupt(state):
        if state.epoch == 2:
            raise KeyboardInterrupt

    p, history = run(net, epochs=10, batch_size=6, callbacks=[interrupt])
    assert np.isfinite(p).all()
    assert "interrupted" in history.stopped
    assert history.epochs == 2
    assert history.steps == 8
    assert p.tobytes() == run(net, epochs=2, batch_size=6)[0].tobytes()
    assert "interrupted" in str(history)


def test_ctrl_c_from_a_metric_leaves_whole_lists(net):
    """Each list has one entry for every finished epoch."""

    def metric(t, y):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(1)
        return 1.0

    calls = []
    _, history = run(net, epochs=5, validation=make_data(4), metrics=[metric])
    assert {len(values) for values in history.columns().values()} == {history.epochs}


@pytest.fixture
def heeds_ctrl_c():
    """As in a terminal; a process that a shell has put into the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
@pytest.mark.parametrize("batch_size", [2, None])
def test_ctrl_c_at_any_moment(net, batch_size, heeds_ctrl_c):
    """A real interrupt, somewhere in a step: parameters are valid, and training can go on."""
    p, timer = net.init(seed=0, dtype=np.float64), threading.Timer(0.1, _thread.interrupt_main, [signal.SIGINT])

    def begin(state):  # once training is under way
        if state.epoch == 1:
            timer.start()

    _, history = run(net, p, optimizer=Adam(1e-3), epochs=10_000_000, batch_size=batch_size, callbacks=[begin])
    timer.join()
    assert "interrupted" in history.stopped
    assert np.isfinite(p).all()
    assert len(history.loss) == history.epochs
    run(net, p, optimizer=Adam(1e-3), epochs=2, resume=history)
    assert np.isfinite(p).all()


# Going on


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("batch_size", [6, None])
def test_resuming_equals_one_long_run(net, name, batch_size):
    settings = {"optimizer": OPTIMIZERS[name], "batch_size": batch_size, "shuffle": False}
    p, history = run(net, epochs=3, **settings)
    kept = {key: array.copy() for key, array in history.optimizer_state.items()}
    p, second = run(net, p, epochs=2, resume=history, **settings)
    wanted, whole = run(net, epochs=5, **settings)
    assert p.tobytes() == wanted.tobytes()
    assert history.loss + second.loss == whole.loss
    assert all(np.array_equal(history.optimizer_state[key], kept[key]) for key in kept)


def test_resuming_goes_on_with_the_schedule(net):
    optimizer = SGD(chains.schedules.exponential(0.1, 0.5))
    p, history = run(net, epochs=3, optimizer=optimizer)
    p, _ = run(net, p, epochs=3, optimizer=optimizer, resume=history)
    assert p.tobytes() == run(net, epochs=6, optimizer=optimizer)[0].tobytes()


def test_resuming_goes_on_with_dropout(backend_name):
    """The number of the step is carried on, and with it what is dropped."""
    net = Chain(Dense(3, 8, tanh), Dropout(0.5), Dense(8, 2), backend=backend_name)
    p, history = run(net, epochs=3)
    p, _ = run(net, p, epochs=3, resume=history)
    assert p.tobytes() == run(net, epochs=6)[0].tobytes()


def test_resuming_goes_on_with_shuffling(net):
    """The second part does not repeat the first one's order."""
    p, history = run(net, epochs=3, batch_size=6)
    p, _ = run(net, p, epochs=3, batch_size=6, resume=history)
    assert p.tobytes() == run(net, epochs=6, batch_size=6)[0].tobytes()


def test_a_new_start_does_not_resume(net):
    first = run(net, optimizer=Adam(0.1), epochs=3)[0]
    assert run(net, optimizer=Adam(0.1), epochs=3)[0].tobytes() == first.tobytes()


# The bar


def test_the_bar_counts_steps_and_shows_numbers(net, capsys):
    run(net, epochs=3, batch_size=6, progress=True, validation=make_data(4))
    text = capsys.readouterr().err
    assert "12/12" in text
    assert "epoch=3/3" in text
    assert "validation loss=" in text


@pytest.mark.parametrize("progress", [None, False])
def test_no_bar_away_from_terminals(net, capsys, progress):
    run(net, epochs=3, progress=progress)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_terminals(net, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    run(net, epochs=3)
    assert "3/3" in capsys.readouterr().err
    run(net, epochs=3, progress=False)
    assert capsys.readouterr().err == ""


def test_the_bar_changes_no_number(net, capsys):
    assert run(net, epochs=5, progress=True)[0].tobytes() == run(net, epochs=5)[0].tobytes()
    assert run(net, epochs=5, batch_size=6, progress=True)[0].tobytes() == run(net, epochs=5, batch_size=6)[0].tobytes()
    capsys.readouterr()


def test_the_bar_is_closed_when_training_fails(net, capsys):
    with pytest.raises(FloatingPointError):
        run(net, optimizer=SGD(1e6), epochs=500, progress=True)
    assert capsys.readouterr().err.endswith("\n")


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
    monkeypatch.setattr(sys.modules["chains.training.train"], "PIECE_BYTES", 40 * per_sample)
    pieces = numbers()
    assert calls.sizes == [40, 40, 20] * 2
    np.testing.assert_allclose(pieces.validation_loss, whole.validation_loss, rtol=1e-6)
    assert pieces.metrics == whole.metrics
    assert pieces.loss == whole.loss


def test_validation_of_many_images_takes_bounded_memory(monkeypatch):
    """On NumPy, whose scratch grows with the batch."""
    net = Chain(chains.Conv(1, 8, 3, tanh), chains.Flatten(), Dense(8 * 14 * 14, 2), input_shape=(1, 16, 16), backend="numpy")
    x, t = np.zeros((3000, 1, 16, 16), np.float32), np.zeros((3000, 2))
    monkeypatch.setattr(sys.modules["chains.training.train"], "PIECE_BYTES", 0)
    settings = {"validation": (x, t), "metrics": [lambda t, y: 0.0]}
    tracemalloc.start()
    try:
        history = train(net, net.init(), x[:10], t[:10], SquaredLoss(), SGD(0.1), **settings)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(history.validation_loss) == 1
    assert most < 12 << 20  # the convolution's output alone, 3000 * 8 * 14 * 14 float32, is 19 MB
