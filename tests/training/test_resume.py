"""Runs that are interrupted anywhere, and go on: the same bits as if nothing had happened."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

from chains import (
    SGD,
    Adam,
    BatchNorm,
    Chain,
    Conv,
    Dense,
    Dropout,
    EarlyStopping,
    Flatten,
    History,
    SquaredLoss,
    Updater,
    schedules,
    tanh,
    train,
)
from chains.data import Augment, Batches, prefetch
from chains.training.history import Position
from chains.training.interrupts import Interrupts
from tests import harness

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(23, 3)), RNG.normal(size=(23, 2))
IMAGES = RNG.normal(size=(23, 1, 4, 4)).astype(np.float32)


@pytest.fixture(params=sorted({*harness.BACKENDS, "native"}))
def backend_name(request):
    """NumPy, whose steps are many calls, and the compiled one, which does many steps in a call."""
    return request.param


class Source:
    """Batches in an order of the pass's own, which it counts; it cannot begin within a pass."""

    def __init__(self, x):
        self.x, self.epoch = x, 0

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(len(self.x))
        self.epoch += 1
        for start in range(0, len(self.x), 6):
            yield self.x[order[start : start + 6]], T[order[start : start + 6]]


def flat(name):
    return Chain(Dense(3, 4, tanh), Dropout(0.2), Dense(4, 2), backend=name)


def normal(name):
    return Chain(Dense(3, 4, tanh), BatchNorm(4), Dropout(0.2), Dense(4, 2), backend=name)


def images(name):
    return Chain(Conv(1, 2, 3, tanh), Flatten(), Dense(8, 2), input_shape=(1, 4, 4), backend=name)


MOMENTUM = SGD(schedules.cosine(0.05, 12), momentum=0.9)
VALIDATION = {"validation": (X[:4], T[:4]), "metrics": [lambda t, y: float(abs(t - y).max())]}
# The network, what gives the data anew, the optimiser, and the other arguments.
RUNS = {
    "whole": (flat, lambda: (X, T), Adam(0.01), {"epochs": 9}),
    "whole-looked-at": (normal, lambda: (X, T), Adam(0.01), {"epochs": 4, **VALIDATION}),
    "batches": (flat, lambda: (X, T), Adam(schedules.stepwise(0.01, 0.5, 5)), {"batch_size": 6}),
    "in-order": (flat, lambda: (X, T), MOMENTUM, {"batch_size": 5, "shuffle": False, "weights": np.arange(23) % 3}),
    "drop-last": (normal, lambda: (X, T), MOMENTUM, {"batch_size": 6, "drop_last": True, **VALIDATION}),
    "stream": (normal, lambda: (Batches(X, T, batch_size=6, seed=3), None), Adam(0.01), VALIDATION),
    "ahead": (flat, lambda: (prefetch(Batches(X, T, batch_size=6, drop_last=True), 3), None), Adam(0.01), {}),
    "augmented": (images, lambda: (prefetch(Batches(IMAGES, T, batch_size=6, augment=Augment(shift=1))), None), MOMENTUM, {}),
    "scaled": (images, lambda: (Batches(IMAGES, T, batch_size=9, augment=Augment(shift=2), scale=0.5), None), Adam(0.01), {}),
    "list": (flat, lambda: ([(X[k : k + 6], T[k : k + 6]) for k in range(0, 23, 6)], None), Adam(0.01), {}),
    "own": (flat, lambda: (Source(X), None), Adam(0.01), {}),
    "own-ahead": (flat, lambda: (prefetch(Source(X)), None), Adam(0.01), {}),
}  # fmt: skip


class Training:
    """A run of one of the kinds, in as many calls as one likes."""

    def __init__(self, kind, name, *, anew=True):
        network, self.source, self.optimizer, self.settings = RUNS[kind]
        self.settings = {"epochs": 3, "seed": 4, **self.settings}
        self.epochs = self.settings.pop("epochs")
        self.net = network(name)
        self.p = self.net.init(seed=1, dtype=np.float64)
        self.state = self.net.init_state(np.float64) if self.net.n_state else None
        self.data = None if anew else self.source()
        self.history = None

    def go_on(self, epochs=None):
        """Another call; the history of all of them."""
        done = 0 if self.history is None else self.history.epochs
        x, t = self.data or self.source()
        history = train(self.net, self.p, x, t, SquaredLoss(), self.optimizer, state=self.state, resume=self.history,
                        epochs=self.epochs - done if epochs is None else epochs, **self.settings)  # fmt: skip
        self.history = history if self.history is None else self.history + history
        return history

    @property
    def bits(self):
        vectors = [self.p, *([] if self.state is None else [self.state]), *self.history.optimizer_state.values()]
        return [vector.tobytes() for vector in vectors]


@pytest.fixture
def stop_at(monkeypatch):
    """Have Ctrl-C heard at one of the looks for it, and chunks as short as they can be."""
    looks = itertools.count()
    ticks = itertools.count()
    at = []
    check = Interrupts.check

    def stopping(interrupts):
        if next(looks) in at:
            raise KeyboardInterrupt
        check(interrupts)

    def begin(*numbers):
        nonlocal looks
        looks, at[:] = itertools.count(), numbers

    monkeypatch.setattr(Interrupts, "check", stopping)
    monkeypatch.setattr("chains.training.steps.time.perf_counter", lambda: float(next(ticks)))
    begin.looks = lambda: next(looks)
    return begin


@pytest.mark.few(8)
@pytest.mark.parametrize("anew", [True, False], ids=["anew", "same"])
@pytest.mark.parametrize("kind", RUNS)
def test_interrupted_anywhere(kind, anew, backend_name, stop_at):
    """At each look for Ctrl-C; with the data in new objects, as in another process, or in those of the first call."""
    if not anew and kind in ("whole", "batches"):
        pytest.skip("arrays are the same")
    whole = Training(kind, backend_name)
    stop_at()
    whole.go_on()
    assert whole.history.stopped == ""
    count = stop_at.looks()
    assert count > 3
    for number in range(0, count, 1 if backend_name == "numpy" else 4):
        run = Training(kind, backend_name, anew=anew)
        stop_at(number)
        first = run.go_on()
        assert "interrupted" in first.stopped
        assert first.steps == int(first.optimizer_state["step"])
        assert {len(values) for values in first.columns().values()} <= {first.epochs}
        if first.epochs < run.epochs:
            stop_at()
            run.go_on()
        assert run.bits == whole.bits
        assert run.history.loss == whole.history.loss
        assert run.history.validation_loss == whole.history.validation_loss
        assert run.history.metrics == whole.history.metrics
        assert run.history.steps == whole.history.steps


@pytest.mark.parametrize("kind", RUNS)
def test_interrupted_again_and_again(kind, backend_name, stop_at):
    whole, run = Training(kind, backend_name), Training(kind, backend_name)
    stop_at()
    whole.go_on()
    for _ in range(200):
        stop_at(3)
        run.go_on()
        run.history = History.from_dict(run.history.to_dict())
        if run.history.epochs == run.epochs:
            break
    assert run.bits == whole.bits
    assert run.history.loss == whole.history.loss
    assert sorted(run.history.seconds) == run.history.seconds


def test_full_batches_are_counted(backend_name, stop_at):
    """Each step is an epoch, and none of their losses is lost."""
    run = Training("whole", backend_name)
    stop_at(5)
    history = run.go_on()
    assert history.steps == history.epochs == len(history.seconds) == 6


def test_a_callback_that_ends_training(backend_name):
    whole, run = Training("batches", backend_name), Training("batches", backend_name)
    whole.go_on()
    run.settings["callbacks"] = [lambda state: "enough"]
    while run.history is None or run.history.epochs < 3:
        assert run.go_on().stopped == "enough"
    assert run.bits == whole.bits


def test_early_stopping_and_then_on(backend_name):
    """Where the parameters stay, they go on."""
    whole, run = Training("drop-last", backend_name), Training("drop-last", backend_name)
    whole.go_on()
    run.settings["callbacks"] = [EarlyStopping(1, restore=False, min_delta=1e9)]
    assert "no better" in run.go_on().stopped
    run.settings["callbacks"] = []
    run.go_on()
    assert run.bits == whole.bits


def test_other_batches_leave_the_epoch_that_was_begun(backend_name, stop_at):
    """There is no going on within an epoch in another order: the next one begins."""
    run = Training("batches", backend_name)
    stop_at(1)
    history = run.go_on()
    assert 0 < history.position.step < 4
    run.settings["batch_size"] = 4
    stop_at()
    assert run.go_on(epochs=2).steps == 2 * 6
    assert run.history.optimizer_state["epoch"] == 3  # the one begun, and two


def test_a_source_that_became_shorter(backend_name, stop_at):
    run = Training("list", backend_name)
    stop_at(4)
    run.go_on()
    run.source = lambda: ([(X[:6], T[:6])], None)
    stop_at()
    run.go_on(epochs=1)  # which is another list: an epoch of its own
    assert run.history.steps > 1


# Divergence


@pytest.mark.parametrize("batch_size", [None, 5, 20])
@pytest.mark.parametrize("looked_at", [False, True])
def test_losses_are_kept_where_training_diverges(batch_size, looked_at, backend_name):
    net, x, t = Chain(Dense(3, 2), backend=backend_name), X[:20], T[:20]
    p = net.init(dtype=np.float32)
    settings = {"validation": (x, t), "metrics": [lambda t, y: 1.0]} if looked_at else {}
    with pytest.raises(FloatingPointError) as caught:
        train(net, p, x, t, SquaredLoss(), SGD(1e4), epochs=500, batch_size=batch_size, **settings)
    history = caught.value.history
    steps = 4 if batch_size == 5 else 1
    failed = int(str(caught.value).split("step ")[1].split(":")[0])
    assert history.epochs == failed // steps > 0
    assert {len(values) for values in history.columns().values()} == {history.epochs}
    finite = np.isfinite(history.loss)
    assert finite[:-1].all()
    assert finite[-1] == bool(failed % steps)  # an epoch whose last step it was is one of them
    if backend_name != "emulated":  # on a GPU a few more steps are done
        assert history.steps == failed


def test_a_rate_that_is_none_ends_between_steps(backend_name):
    net = Chain(Dense(3, 2), backend=backend_name)
    settings = {"batch_size": 5, "epochs": 3}
    p, wanted = net.init(), net.init()
    with pytest.raises(FloatingPointError, match="at step 6, counted from 0") as caught:
        train(net, p, X[:20], T[:20], SquaredLoss(), SGD(lambda step: 0.01 - 1e6 * (step > 5)), **settings)
    history = caught.value.history
    assert (history.steps, history.epochs, history.position.step) == (6, 1, 2)
    train(net, p, X[:20], T[:20], SquaredLoss(), SGD(0.01), resume=history, **{**settings, "epochs": 2})
    train(net, wanted, X[:20], T[:20], SquaredLoss(), SGD(0.01), **settings)
    assert p.tobytes() == wanted.tobytes()


# Real signals


@pytest.fixture
def heeds_ctrl_c():
    """As in a terminal; a process that a shell has put into the background ignores it."""
    gc.collect()  # Python loses an interrupt within a finaliser, such as those of machine code that earlier tests have left
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupt_after(seconds):
    timer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    return timer


posix = pytest.mark.skipif(os.name != "posix", reason="sends signals")


@posix
@pytest.mark.parametrize("kind", ["whole", "batches", "augmented", "own-ahead"])
def test_ctrl_c_again_and_again(kind, backend_name, heeds_ctrl_c):
    """At moments that nobody chose: within steps, sources, bookkeeping."""
    whole, run, rng = Training(kind, backend_name), Training(kind, backend_name), np.random.default_rng(0)
    whole.epochs = run.epochs = 400 if kind == "whole" else 60
    start = time.perf_counter()
    whole.go_on()
    taken, stops = time.perf_counter() - start, 0
    while run.history is None or run.history.epochs < run.epochs:
        before, timer = 0 if run.history is None else int(run.history.optimizer_state["step"]), None
        try:
            if stops < 8:
                timer = interrupt_after(0.002 + rng.uniform(0, taken / 3))
            history = run.go_on()
            if timer is not None:
                timer.join()
                time.sleep(0.001)  # for a signal that came with the thread's end
        except KeyboardInterrupt:  # before the first line of training, or behind its end
            continue
        finally:
            stops += 1
        assert history.steps == int(history.optimizer_state["step"]) - before
    assert run.bits == whole.bits
    assert run.history.loss == whole.history.loss


class Hanging:
    """Batches that wait for ever for their second one, and are interrupted meanwhile."""

    def __iter__(self):
        yield X, T
        self.timer = interrupt_after(0.1)
        time.sleep(600)


@posix
def test_a_source_that_hangs_can_be_interrupted(backend_name, heeds_ctrl_c):
    net, batches, start = flat(backend_name), Hanging(), time.perf_counter()
    history = train(net, net.init(), batches, None, SquaredLoss(), Adam())
    batches.timer.join()
    assert time.perf_counter() - start < 300
    assert (history.steps, history.epochs) == (1, 0)
    assert history.stopped == "interrupted by the user in epoch 1"


@posix
@pytest.mark.parametrize("moment", ["callback.begin", "metric", "callback.finish"])
def test_the_same_answer_at_every_moment(moment, backend_name, heeds_ctrl_c):
    """Before the first step, between, and after the last: a history, with which training goes on."""

    class Callback:
        def __call__(self, state):
            pass

        def begin(self, names):
            if moment == "callback.begin":
                signal.raise_signal(signal.SIGINT)

        def finish(self, state):
            if moment == "callback.finish":
                signal.raise_signal(signal.SIGINT)

    def metric(t, y):
        if moment == "metric":
            signal.raise_signal(signal.SIGINT)
        return 0.0

    net = flat(backend_name)
    p, wanted, settings = net.init(), net.init(), {"epochs": 2, "batch_size": 6, "validation": (X, T)}
    history = train(net, p, X, T, SquaredLoss(), Adam(), metrics=[metric], callbacks=[Callback()], **settings)
    assert history.stopped == f"interrupted by the user in epoch {3 if moment == 'callback.finish' else 1}"
    assert (history.epochs, history.steps) == {"callback.begin": (0, 0), "metric": (0, 4), "callback.finish": (2, 8)}[moment]
    if history.epochs < 2:
        train(net, p, X, T, SquaredLoss(), Adam(), resume=history, **settings)
    train(net, wanted, X, T, SquaredLoss(), Adam(), **settings)
    assert p.tobytes() == wanted.tobytes()


@posix
def test_an_own_handler_is_called_between_steps():
    """And training goes on where it returns."""
    seen, net = [], flat("numpy")
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        note = lambda state: signal.raise_signal(signal.SIGINT) if state.epoch == 2 else None  # noqa: E731
        history = train(net, net.init(), X, T, SquaredLoss(), Adam(), epochs=4, callbacks=[note])
        assert (history.epochs, history.stopped, seen) == (4, "", [1])
        assert signal.getsignal(signal.SIGINT)(0, None) is None
    finally:
        signal.signal(signal.SIGINT, before)


@posix
def test_training_within_training(heeds_ctrl_c):
    """Ctrl-C ends the inner one, and the outer one goes on or not as it is told."""
    net, inner = flat("numpy"), []

    def callback(state):
        p = net.init()

        def stop(state):
            signal.raise_signal(signal.SIGINT)

        inner.append(train(net, p, X, T, SquaredLoss(), Adam(), epochs=5, callbacks=[stop]))
        return inner[-1].stopped

    history = train(net, net.init(), X, T, SquaredLoss(), Adam(), epochs=4, callbacks=[callback])
    assert [len(inner), inner[0].epochs, history.epochs] == [1, 1, 1]
    assert history.stopped == "interrupted by the user in epoch 2"


# What is no history to go on from


@pytest.fixture
def left():
    net = flat("numpy")
    return net, train(net, net.init(), X, T, SquaredLoss(), Adam(), batch_size=6)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"moments": 1, "step": 2, "epoch": 3}, r"`resume\['moments'\]` must be an array, float32 \(52,\), got 1"),
        (None, "`resume` must be a history that train returned"),
        ("saved", "`resume` must be an optimiser's state, .*got 'saved'"),
        ([1, 2], r"`resume` must be an optimiser's state, .*got \[1, 2\]"),
        ({"moments": np.zeros(52)}, "`resume` must hold 'moments', 'step', 'epoch', got 'moments'"),
    ],
    ids=str,
)
def test_a_state_that_is_none(state, words, left):
    net, history = left
    history.optimizer_state = state
    p = net.init()
    with pytest.raises((TypeError, ValueError), match=words):
        train(net, p, X, T, SquaredLoss(), Adam(), resume=history)
    assert p.tobytes() == net.init().tobytes()


@pytest.mark.parametrize("name", ["step", "epoch"])
@pytest.mark.parametrize("count", [-3.0, 1.5, np.nan, np.inf])
def test_a_count_that_is_none(name, count, left):
    net, history = left
    history.optimizer_state = {**history.optimizer_state, name: np.array(count)}
    with pytest.raises(ValueError, match=f"`resume.'{name}'.` must be a whole number, zero or positive, got {count:g}"):
        train(net, net.init(), X, T, SquaredLoss(), Adam(), resume=history)


def test_a_position_that_is_none(left):
    net, history = left
    data = history.position.data
    for position, error, words in [
        (3, TypeError, "`resume.position` must be a position of train's, got 3"),
        (Position("2"), TypeError, r"`resume.position.step` .='2'. must be a whole number"),
        (Position(-2), ValueError, r"`resume.position.step` .=-2. must be a whole number"),
        (Position(2, [1.0, 2.0]), ValueError, r"`resume.position.losses` must be an array .*, got \[1.0, 2.0\]"),
        (Position(9, np.zeros(9), None, data), ValueError, "`resume.position.step` must be at most 4, an epoch's steps, got 9"),
        (Position(2, np.zeros(3), None, data), ValueError, "`resume` must hold 2 numbers in `position.losses`, got 3"),
    ]:
        history.position = position
        with pytest.raises(error, match=words):
            train(net, net.init(), X, T, SquaredLoss(), Adam(), batch_size=6, resume=history)


def test_another_network_of_the_same_length(left):
    _, history = left
    other = Chain(Dense(3, 2, tanh), Dense(2, 6))
    assert other.n_params == history.optimizer_state["moments"].size // 2
    with pytest.raises(ValueError, match=r"of another network, with 0.weight \(3, 4\) in the place of 0.weight \(3, 2\)"):
        train(other, other.init(), X, np.zeros((23, 6)), SquaredLoss(), Adam(), resume=history)


def test_the_state_of_an_updater_goes_on_in_training():
    """And the other way round: there is one kind of state."""
    net = Chain(Dense(3, 2), backend="numpy")
    p, wanted = net.init(dtype=np.float64), net.init(dtype=np.float64)
    train(net, wanted, X, T, SquaredLoss(), Adam(0.1), epochs=6)
    update = Updater(Adam(0.1), p)
    for _ in range(2):
        update(net.value_and_grad(p, X, T, SquaredLoss())[1])
    history = train(net, p, X, T, SquaredLoss(), Adam(0.1), epochs=2, resume=History(optimizer_state=update.state))
    update = Updater(Adam(0.1), p, history.optimizer_state)
    for _ in range(2):
        update(net.value_and_grad(p, X, T, SquaredLoss())[1])
    np.testing.assert_allclose(p, wanted, rtol=1e-12)
