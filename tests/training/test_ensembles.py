"""Ensembles: each member is trained as it would be alone, to the bit, however it goes on or ends."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

from chains import (
    GRU,
    SGD,
    Adam,
    BatchNorm,
    Chain,
    Checkpoint,
    Conv,
    CrossEntropyLoss,
    Dense,
    Dropout,
    EarlyStopping,
    Embedding,
    Flatten,
    History,
    L2Penalty,
    SquaredLoss,
    member_seeds,
    num_threads,
    schedules,
    tanh,
    train,
)
from chains.callbacks import Callback, CSVLogger
from chains.training.ensemble_history import EnsembleHistory
from chains.training.interrupts import Interrupts
from tests import harness
from tests.bad_input.support import assert_refused

MEMBERS, SAMPLES = 3, 11
RNG = np.random.default_rng(0)
OWN = {
    "x": RNG.normal(size=(MEMBERS, SAMPLES, 3)),
    "t": RNG.normal(size=(MEMBERS, SAMPLES, 2)),
    "weights": RNG.multinomial(SAMPLES, np.full(SAMPLES, 1 / SAMPLES), MEMBERS).astype(float),  # of the bootstrap
}
SHARED = {"x": OWN["x"][0], "t": OWN["t"][0]}
VALIDATION = {"validation": (OWN["x"][1], OWN["t"][1]), "metrics": [lambda t, y: float(abs(t - y).max())]}
IMAGES = RNG.integers(0, 255, (MEMBERS, SAMPLES, 1, 4, 4), np.uint8)
IDS, LENGTHS = RNG.integers(0, 9, (MEMBERS, SAMPLES, 4)), RNG.integers(1, 5, (MEMBERS, SAMPLES))


def flat(name):
    return Chain(Dense(3, 4, tanh), Dropout(0.2), Dense(4, 2), backend=name)


def normal(name):
    return Chain(Dense(3, 4, tanh), BatchNorm(4), Dense(4, 2), backend=name)


def images(name):
    return Chain(Conv(1, 2, 3, tanh), Flatten(), Dense(8, 2), input_shape=(1, 4, 4), backend=name)


def sequences(name):
    return Chain(Embedding(9, 3), GRU(3, 2), input_shape=(4,), backend=name)


RATES = [Adam(0.01 * (m + 1)) for m in range(MEMBERS)]
# The network, the data, the optimiser, and the other arguments.
RUNS = {
    "shared": (flat, SHARED, Adam(0.01), {"epochs": 9}),
    "shared-batches": (flat, SHARED, Adam(schedules.stepwise(0.01, 0.5, 5)), {"batch_size": 4}),
    "own": (flat, OWN, SGD(0.05, momentum=0.9), {"epochs": 5, "penalty": L2Penalty(0.01)}),
    "own-batches": (normal, OWN, Adam(0.01), {"batch_size": 4, "seed": [5, 4, 9], "drop_last": True, **VALIDATION}),
    "bootstrap": (flat, SHARED | {"weights": OWN["weights"]}, Adam(0.01), {"batch_size": 5, "seed": range(2, 5)}),
    "own-targets": (flat, SHARED | {"t": OWN["t"]}, RATES, {"shuffle": False, "batch_size": 4}),
    "own-rates": (normal, SHARED, RATES, {"epochs": 4, "seed": np.arange(3), "validation": (OWN["x"], OWN["t"])}),
    "bytes": (images, {"x": IMAGES, "t": OWN["t"]}, Adam(0.01), {"batch_size": 4}),
    "sequences": (sequences, {"x": IDS, "t": OWN["t"], "lengths": LENGTHS}, Adam(0.01), {"batch_size": 4}),
}  # fmt: skip
OWN_ARGUMENTS = ("seed", "validation")


class Training:
    """A run of one of the kinds, of all members in as many calls as one likes, or of one."""

    def __init__(self, kind, name, **more):
        network, self.data, self.optimizer, settings = RUNS[kind]
        self.settings = {"epochs": 3, "seed": 4, **settings, **more}
        self.epochs = self.settings.pop("epochs")
        self.net = network(name)
        self.p = self.net.init_many(MEMBERS, seed=1, dtype=np.float64)
        self.state = np.tile(self.net.init_state(np.float64), (MEMBERS, 1)) if self.net.n_state else None
        self.history = None

    def go_on(self, epochs=None):
        """Another call; the history of all of them."""
        done = 0 if self.history is None else self.history.epochs
        epochs = self.epochs - done if epochs is None else epochs
        history = train(self.net, self.p, **self.data, loss=SquaredLoss(), optimizer=self.optimizer, state=self.state,
                        resume=self.history, epochs=epochs, **self.settings)  # fmt: skip
        self.history = history if self.history is None else self.history + history
        return history

    def alone(self, m, **more):
        """A member's parameters, state and history, of a training of its own."""
        settings, p = self.settings | more, self.net.init_many(MEMBERS, seed=1, dtype=np.float64)[m]
        seeds = member_seeds(MEMBERS, settings["seed"]) if isinstance(settings["seed"], int) else settings["seed"]
        settings["seed"] = int(seeds[m])
        if settings.get("validation", [OWN["x"][0]])[0].ndim == 3:
            settings["validation"] = [array[m] for array in settings["validation"]]
        data = {name: array[m] if array.shape[:2] == (MEMBERS, SAMPLES) else array for name, array in self.data.items()}
        optimizer = self.optimizer[m] if isinstance(self.optimizer, list) else self.optimizer
        state = None if self.state is None else self.net.init_state(np.float64)
        history = train(
            self.net, p, **data, loss=SquaredLoss(), optimizer=optimizer, state=state, epochs=self.epochs, **settings
        )
        return p, state, history

    def assert_as_alone(self, members=range(MEMBERS), **more):
        for m in members:
            p, state, history = self.alone(m, **more)
            assert np.array_equal(self.p[m], p)
            assert state is None or np.array_equal(self.state[m], state)
            assert_same(self.history[m], history)


def assert_same(a, b):
    for name in ("loss", "validation_loss", "metrics", "optimizer", "stopped", "layout", "steps"):
        assert np.array_equal(getattr(a, name), getattr(b, name)) or str(getattr(a, name)) == str(getattr(b, name)), name
    assert a.optimizer_state == b.optimizer_state
    assert a.position.step == b.position.step
    assert a.position.data == b.position.data
    assert np.array_equal(a.position.losses, b.position.losses)


@pytest.mark.parametrize(
    ("kind", "backend_name"), [*itertools.product(RUNS, harness.BACKENDS), ("shared", "emulated"), ("own-batches", "emulated")]
)
def test_members_are_trained_as_alone(kind, backend_name):
    training = Training(kind, backend_name)
    history = training.go_on()
    assert isinstance(history, EnsembleHistory)
    assert not history.ended
    training.assert_as_alone()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads):
    """Products that a single network's threads share, and more threads than members: the bits are those of the same number."""
    net = Chain(Dense(3, 40, tanh), Dense(40, 2), backend="native")
    x, t = RNG.normal(size=(600, 3)), RNG.normal(size=(600, 2))
    with num_threads(threads):
        for batch_size in (None, 100, 1):
            P = net.init_many(2)
            train(net, P, x, t, SquaredLoss(), Adam(0.01), batch_size=batch_size)
            for m, p in enumerate(net.init_many(2)):
                train(net, p, x, t, SquaredLoss(), Adam(0.01), batch_size=batch_size, seed=member_seeds(2)[m])
                assert np.array_equal(P[m], p)


def test_the_number_of_threads_changes():
    class Change(Callback):
        def on_epoch_end(self, state):
            blocks.append(num_threads(1 + state.epoch % 2))
            blocks[-1].__enter__()

    blocks = []
    training = Training("own-batches", "native")
    try:
        training.settings["callbacks"] = [Change()]
        training.go_on()
    finally:
        for block in reversed(blocks):
            block.__exit__(None, None, None)
    training.assert_as_alone(callbacks=[])


# Runs that go on


@pytest.fixture
def stop_at(monkeypatch):
    """Have Ctrl-C heard at one of the looks for it, and chunks as short as they can be."""
    looks, ticks, at = itertools.count(), itertools.count(), []
    check = Interrupts.check

    def stopping(interrupts):
        if next(looks) in at:
            raise KeyboardInterrupt
        check(interrupts)

    def begin(number):
        at[:] = [number]

    monkeypatch.setattr(Interrupts, "check", stopping)
    monkeypatch.setattr("chains.training.steps.time.perf_counter", lambda: float(next(ticks)))
    return begin


@pytest.mark.parametrize("kind", ["shared", "own-batches", "own-rates"])
def test_ctrl_c_and_on(kind, backend_name, stop_at):
    training = Training(kind, backend_name)
    stop_at(2)
    assert "interrupted" in training.go_on().stopped
    assert len(set(training.history.optimizer_state["step"].tolist())) == 1
    training.history = pickle.loads(pickle.dumps(training.history))
    training.go_on()
    training.assert_as_alone()


@pytest.mark.parametrize("kind", ["shared", "own-batches"])
def test_checkpoints(kind, backend_name, tmp_path, stop_at):
    training = Training(kind, backend_name)
    folder = {"checkpoint": Checkpoint(tmp_path, every="1 step"), "resume": tmp_path}
    stop_at(3)
    for call in range(2):
        if call:  # whatever was in memory is gone
            training = Training(kind, backend_name)
        training.history = train(training.net, training.p, **training.data, loss=SquaredLoss(), optimizer=training.optimizer,
                                 state=training.state, epochs=training.epochs, **training.settings, **folder)  # fmt: skip
        assert bool(training.history.stopped) is (call == 0)
    training.assert_as_alone()
    saved = Checkpoint(tmp_path).load()
    assert np.array_equal(saved.p, training.p)
    assert_same(saved.history[1], training.history[1])


def test_the_best_of_all(tmp_path):
    training = Training("own-batches", "numpy", checkpoint=tmp_path)
    history = training.go_on()
    means = [row.mean() for row in history.validation_loss]
    saved = Checkpoint(tmp_path).load("best")
    assert saved.best == {"value": min(means), "epoch": 1.0 + int(np.argmin(means))}
    assert np.array_equal(saved.history.loss, history.loss[: 1 + int(np.argmin(means))])


# Members that end


@pytest.mark.parametrize("batch_size", [None, 4])
def test_nan_in_one_member(batch_size, backend_name):
    net, x, t = flat(backend_name), OWN["x"], OWN["t"].copy()
    t[1, 8] = 1e200
    settings = {"batch_size": batch_size, "epochs": 6}
    P = net.init_many(MEMBERS, dtype=np.float64)
    history = train(net, P, x, t, SquaredLoss(), SGD(0.05), **settings)
    assert list(history.ended) == [1]
    assert history.epochs == 6
    assert not history.stopped
    assert history.running.tolist() == [0, 2]
    for m, p in enumerate(net.init_many(MEMBERS, dtype=np.float64)):
        settings["seed"] = member_seeds(MEMBERS)[m]
        if m == 1:
            with pytest.raises(FloatingPointError) as caught:
                train(net, p, x[m], t[m], SquaredLoss(), SGD(0.05), **settings)
            assert history[m].stopped == str(caught.value)
            alone = caught.value.history
            assert np.array_equal(history[m].loss, alone.loss, equal_nan=True)
            if backend_name != "emulated":  # on a GPU a few more steps are done
                assert np.array_equal(P[m], p, equal_nan=True)
        else:
            alone = train(net, p, x[m], t[m], SquaredLoss(), SGD(0.05), **settings)
            assert np.array_equal(P[m], p)
            assert history[m].loss == alone.loss
    P[1] = np.nan  # as after larger steps
    before = P.copy()
    more = train(net, P, x, t, SquaredLoss(), SGD(0.05), resume=history, **settings)
    assert np.array_equal(P[1], before[1], equal_nan=True)
    assert (history + more).ended == history.ended
    assert (history + more)[1].epochs == history[1].epochs
    assert more[1].epochs == 0


def test_all_members_end():
    net = flat("numpy")
    P = net.init_many(MEMBERS, dtype=np.float64)
    history = train(net, P, OWN["x"], OWN["t"] * 1e200, SquaredLoss(), SGD(0.05), epochs=9)
    assert history.stopped == "all members have ended"
    assert len(history.ended) == MEMBERS
    more = train(net, P, OWN["x"], OWN["t"], SquaredLoss(), SGD(0.05), epochs=9, resume=history)
    assert more.epochs == 0


def test_the_last_step_of_a_member():
    net, x = Chain(Dense(3, 2), backend="numpy"), OWN["x"].copy()
    x[1] *= 1e150
    P = net.init_many(MEMBERS, dtype=np.float64) * 0.0
    history = train(net, P, x, OWN["t"], SquaredLoss(), SGD(1e200), epochs=1)
    assert "`p` holds" in history[1].stopped
    assert 0 not in history.ended


@pytest.mark.parametrize("kind", ["own-batches", "own-rates"])
def test_early_stopping(kind, tmp_path, backend_name):
    def stopping():
        return EarlyStopping(2, min_delta=0.01)

    training = Training(kind, backend_name, callbacks=[stopping()])
    training.epochs = 30
    training.go_on()
    assert len({epochs for epochs, _ in training.history.ended.values()}) > 1 or training.history.running.size
    training.assert_as_alone(callbacks=[stopping()])
    # The same with a break and what checkpoints keep.
    again = Training(kind, backend_name)
    for epochs in (4, 30):
        again.history = train(again.net, again.p, **again.data, loss=SquaredLoss(), optimizer=again.optimizer,
                              state=again.state, epochs=epochs, callbacks=[stopping()], checkpoint=tmp_path, resume=tmp_path,
                              **again.settings)  # fmt: skip
        if epochs == 4:  # the best parameters were put back at the end of the call
            again.p[...], again.state[...] = 0.0, 0.0
    assert again.history.ended == training.history.ended
    assert np.array_equal(again.p, training.p)


def test_callbacks_end_members(tmp_path):
    seen = []

    class Watch(Callback):
        def on_batch_end(self, state, loss):
            assert loss.shape == (MEMBERS,)

        def on_epoch_end(self, state):
            seen.append(repr(state))
            return {1: "enough"} if state.epoch == 2 else None

    training = Training("own", "native", callbacks=[Watch(), CSVLogger(tmp_path / "log.csv")])
    history = training.go_on()
    assert history.ended == {1: (2, "enough")}
    assert len(seen) == history.epochs == 5
    training.epochs = 2
    training.assert_as_alone([1][:0], callbacks=[])
    p, _, _ = training.alone(1, callbacks=[])
    assert np.array_equal(p, training.p[1])
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert rows[-1].split(",")[1] == str(np.mean(history.loss[-1][[0, 2]]))
    for wrong in ({7: "no such member"}, {0: 3}, ["text"]):
        with pytest.raises(TypeError, match="returned"):
            Training("own", "numpy", callbacks=[lambda state, wrong=wrong: wrong]).go_on()


# What is left


def test_the_history(capsys):
    training = Training("own-batches", "numpy", callbacks=[lambda state: {2: "enough"} if state.epoch == 2 else None])
    history = training.go_on()
    text = str(history)
    assert f"{history.loss[0].mean():.6g}" in text
    assert f"{history.loss[0].max():.5g}" in text
    assert "1 of 3 members ended before the others; member 2 after 2 epochs: enough" in text
    assert repr(history) == "<history of 3 members after 3 epochs, 1 ended>"
    assert history.latest("loss") == history.loss[-1][:2].mean()
    assert [each.epochs for each in history] == [3, 3, 2]
    assert History.from_dict(history.to_dict()["members"][2]).loss == history[-1].loss
    with pytest.raises(IndexError, match="no member 3"):
        history[3]
    with pytest.raises(ValueError, match="2 members"):
        history + EnsembleHistory(members=2)


@pytest.mark.parametrize("members", [3, 30])
def test_the_plot(members):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    net = flat("numpy")
    history = train(net, net.init_many(members), **SHARED, loss=SquaredLoss(), optimizer=Adam(), epochs=3,
                    validation=VALIDATION["validation"])  # fmt: skip
    ax = history.plot()
    assert len(ax.lines) == (2 * members if members == 3 else 2)
    assert next(text.get_text() for text in ax.get_legend().get_texts()) == ("training" if members == 3 else "training, median")
    pyplot.close(ax.figure)


def test_progress(capsys):
    training = Training("shared", "numpy", progress=True)
    training.go_on()
    assert "9/9 steps" in capsys.readouterr().err


def test_bad_input(tmp_path):
    net = flat("numpy")
    P = net.init_many(MEMBERS, dtype=np.float64)
    before = P.copy()
    one = train(net, net.init(dtype=np.float64), **SHARED, loss=SquaredLoss(), optimizer=Adam())
    many = train(net, P.copy(), **SHARED, loss=SquaredLoss(), optimizer=Adam(), checkpoint=tmp_path)
    two = P[:2].copy()

    def run(p=P, optimizer=Adam(), **changed):  # noqa: B008
        return lambda: train(net, p, **{**SHARED, "loss": SquaredLoss(), **changed}, optimizer=optimizer)

    refused = [
        (run(P[:, :3].copy()), ["p", "(members, 26)"]),
        (run(P.T.copy()), ["p", "(26, 3)", "members are rows"]),
        (run(P[:, ::-1]), ["p", "contiguous"]),
        (run(np.frombuffer(P.tobytes()).reshape(P.shape)), ["p", "read-only"]),
        (run(seed=[1, 2]), ["seed", "3 members"]),
        (run(seed=[1, 2, -3]), ["seed", "-3"]),
        (run(seed=[1, 2, 2.5]), ["seed", "2.5"]),
        (run(seed="3"), ["seed", "'3'"]),
        (run(optimizer=[Adam(), Adam()]), ["optimizer", "3 members"]),
        (run(optimizer=[Adam(), Adam(), SGD(0.1)]), ["optimizer[2]", "SGD"]),
        (run(optimizer=[Adam(), Adam(0.0), Adam()]), ["optimizer[1]", "zero"]),
        (run(optimizer=[Adam(), 3, Adam()]), ["optimizer[1]", "3"]),
        (run(optimizer="Adam"), ["optimizer", "'Adam'"]),
        (run(x=OWN["x"]), ["t", "(3, 11, ...)"]),
        (run(x=OWN["x"][:2], t=OWN["t"][:2]), ["x", "(3, 11, ...)", "(2, 11, 3)"]),
        (run(x=np.where(OWN["x"] > 2, np.nan, OWN["x"]), t=OWN["t"]), ["x", "nan"]),
        (run(weights=OWN["weights"][:2]), ["weights", "(3, 11, ...)"]),
        (run(x=[(SHARED["x"], SHARED["t"])], t=None), ["t", "ensemble"]),
        (run(state=np.zeros((3, 1))), ["state", "(3, 0)"]),
        (run(validation=(OWN["x"][:2], OWN["t"][:2])), ["validation[0]", "2", "3"]),
        (run(resume=one), ["resume", "one network", "ensemble of 3"]),
        (run(two, resume=many), ["resume", "ensemble of 3", "ensemble of 2"]),
        (run(two, resume=tmp_path), ["resume", "p"]),
        (run(net.init(dtype=np.float64), resume=many), ["resume", "ensemble of 3", "one network"]),
        (run(net.init(dtype=np.float64), seed=[1, 2, 3]), ["seed"]),
        (run(net.init(dtype=np.float64), optimizer=[Adam()] * 3), ["optimizer"]),
    ]
    for call, words in refused:
        assert_refused(call, *words)
    assert np.array_equal(P, before)
    normalised = normal("numpy")
    assert_refused(lambda: train(normalised, normalised.init_many(2), **SHARED, loss=SquaredLoss(), optimizer=Adam()), "state")
    labels = RNG.integers(0, 3, (MEMBERS, SAMPLES))
    assert_refused(lambda: train(net, P, SHARED["x"], labels, CrossEntropyLoss(), Adam()), "t", "2")
