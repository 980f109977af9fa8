"""How training ends: by callbacks, early stopping, losses that are not finite, Ctrl-C; and how it goes on."""

from __future__ import annotations

import _thread
import signal
import threading

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, Dense, Dropout, EarlyStopping, tanh
from tests.harness import OPTIMIZERS
from tests.training.support import Scripted, make_data, run


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

    with pytest.raises(TypeError, match=r"the callback odd returned .*: return a string to stop, or None"):
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
