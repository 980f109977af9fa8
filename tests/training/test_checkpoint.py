"""Checkpoints: written whole or not at all, resumed to the bit, refused where they are damaged or of something else."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from chains import (
    SGD,
    Adam,
    Chain,
    Checkpoint,
    CrossEntropyLoss,
    Dense,
    EarlyStopping,
    HuberLoss,
    L2Penalty,
    ResidualProblem,
    SquaredLoss,
    Term,
    loss,
    relu,
    tanh,
    train,
)
from chains.data import Batches, prefetch
from chains.residuals.loss import ResidualLoss
from chains.support import storage
from chains.training.checkpoint import files, parse_every
from tests.files import earlier
from tests.training.support import Scripted
from tests.training.test_resume import RUNS, T, Training, X, backend_name, stop_at  # noqa: F401 - fixtures

NET = Chain(Dense(3, 4, tanh), Dense(4, 2), backend="numpy")


class Saved(Training):
    """A run that writes checkpoints and goes on from them, each time with fresh vectors, as in another process."""

    def __init__(self, kind, name, folder, **settings):
        super().__init__(kind, name)
        self.folder = folder
        self.settings |= settings

    def go_on(self, epochs=None):
        self.p = self.net.init(seed=9, dtype=np.float64) if files(self.folder) else self.p
        if self.state is not None and files(self.folder):
            self.state = self.net.init_state(np.float64) + 7
        x, t = self.source()
        self.history = train(self.net, self.p, x, t, SquaredLoss(), self.optimizer, state=self.state, resume=self.folder,
                             epochs=epochs or self.epochs, **{"checkpoint": self.folder, **self.settings})  # fmt: skip
        return self.history


def run(p=None, net=NET, loss=None, optimizer=None, data=(X, T), dtype=np.float32, **settings):
    p = net.init(dtype=dtype) if p is None else p
    settings = {"epochs": 3, "batch_size": 6, **settings}
    return p, train(net, p, *data, loss or SquaredLoss(), optimizer or Adam(0.01), **settings)


def same(a, b):
    """Whether two runs ended with the same bits, and in the same history but for its times."""
    assert a.bits == b.bits
    assert a.history.columns().keys() == b.history.columns().keys()
    for name, values in a.history.columns().items():
        assert name == "seconds" or values == b.history.columns()[name]
    return a.history.steps == b.history.steps


# Resumed to the bit


@pytest.mark.parametrize("kind", RUNS)
def test_runs_in_many_pieces(kind, backend_name, stop_at, tmp_path):  # noqa: F811
    """Interrupted every few looks for Ctrl-C, gone on from the folder each time."""
    whole = Training(kind, backend_name)
    stop_at()
    whole.go_on()
    run = Saved(kind, backend_name, tmp_path)
    for count in range(100):
        stop_at(2 + count % 5)
        if run.go_on().epochs == run.epochs:
            break
    assert count > 1
    assert same(run, whole)


@pytest.mark.parametrize("kind", RUNS)
def test_every_checkpoint_of_a_run(kind, backend_name, tmp_path):  # noqa: F811
    """Each of them, as if the run had been killed just after it, or while the next one was written."""
    whole = Saved(kind, backend_name, tmp_path, checkpoint=Checkpoint(tmp_path, every="1 step", keep=1000))
    whole.go_on()
    found = files(tmp_path)
    assert len(found) == whole.history.steps + 1
    for _, path in found[:: 1 if backend_name == "numpy" else 4]:
        run = Saved(kind, backend_name, path, checkpoint=None)
        run.go_on()
        assert same(run, whole)


def test_a_run_that_is_over(tmp_path):
    """The same call again does nothing; with more epochs it goes on."""
    p, history = run(checkpoint=tmp_path)
    again, second = run(np.zeros(NET.n_params, np.float32), checkpoint=tmp_path, resume=tmp_path)
    assert again.tobytes() == p.tobytes()
    assert (second.loss, second.steps, second.epochs) == (history.loss, history.steps, 3)
    again, third = run(checkpoint=tmp_path, resume=tmp_path, epochs=5)
    assert again.tobytes() == run(epochs=5)[0].tobytes()
    assert third.epochs == 5


def test_one_call_for_both(tmp_path):
    """A folder that is written to and empty begins a run; one that is only read must hold something."""
    p = run(checkpoint=tmp_path / "new", resume=tmp_path / "new")[0]
    assert p.tobytes() == run()[0].tobytes()
    with pytest.raises(ValueError, match=r"`resume` must be a folder of checkpoints, .*nothing"):
        run(resume=tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"`resume` must be a folder of checkpoints, .*in which none is whole: none"):
        run(resume=tmp_path)
    with pytest.raises(ValueError, match=r"`resume` must be a folder of checkpoints"):
        run(resume=tmp_path / "nothing", checkpoint=tmp_path / "other")


def test_a_folder_belongs_to_one_run(tmp_path):
    run(checkpoint=tmp_path)
    for resume in (None, run()[1]):
        with pytest.raises(ValueError, match=r"`checkpoint` .* holds checkpoints of an earlier run: pass resume="):
            run(checkpoint=tmp_path, resume=resume)
    run(checkpoint=tmp_path / "next", resume=tmp_path, epochs=4)  # from one to another
    assert Checkpoint(tmp_path / "next").load().history.epochs == 4


@pytest.mark.parametrize("as_path", [str, lambda path: path, Checkpoint])
def test_folders_of_all_kinds(as_path, tmp_path):
    run(checkpoint=as_path(tmp_path), epochs=2)
    assert run(resume=as_path(tmp_path))[0].tobytes() == run()[0].tobytes()


def test_prefetching_may_change(tmp_path):
    """It changes no batch."""
    make = lambda: Batches(X, T, batch_size=6)  # noqa: E731
    rest = {"batch_size": None}
    run(data=(prefetch(make(), 5), None), checkpoint=Checkpoint(tmp_path, every=4), epochs=2, **rest)
    p = run(data=(make(), None), resume=tmp_path, **rest)[0]
    assert p.tobytes() == run(data=(make(), None), **rest)[0].tobytes()


def test_early_stopping_goes_on(tmp_path):
    """What it has seen is saved: the same end as without a break."""
    numbers = [5, 3, 4, 4.5, 2, 3, 3, 3, 9]

    def settings(*numbers):
        return {"validation": (X, T), "metrics": [Scripted(*numbers)], "epochs": 20,
                "callbacks": [EarlyStopping(3, monitor="scripted")]}  # fmt: skip

    wanted, whole = run(**settings(*numbers))
    assert whole.stopped == "no better scripted than 2 (epoch 5) for 3 epochs"
    for epochs in range(1, 7):
        folder = tmp_path / str(epochs)
        run(**{**settings(*numbers), "epochs": epochs}, checkpoint=folder)
        p, history = run(**settings(*numbers[epochs:]), resume=folder, checkpoint=folder)
        assert p.tobytes() == wanted.tobytes()
        assert (history.stopped, history.metrics) == (whole.stopped, whole.metrics)
    p, history = run(**settings(), resume=folder, checkpoint=folder)  # no metric is computed any more
    assert p.tobytes() == wanted.tobytes()
    assert (history.stopped, history.steps, history.metrics) == (whole.stopped, whole.steps, whole.metrics)
    patient = {**settings(*numbers[8:]), "epochs": 9, "callbacks": [EarlyStopping(4, monitor="scripted")]}
    assert run(**patient, resume=folder)[1].epochs == 9


def test_a_run_that_another_callback_has_ended(tmp_path):
    """It goes on: it may have been short of time."""
    stop = [lambda state: "out of time"]
    for epochs in (1, 2, 3):
        history = run(callbacks=stop, checkpoint=tmp_path, resume=tmp_path)[1]
        assert (history.epochs, history.stopped) == (epochs, "out of time")
    assert Checkpoint(tmp_path).load().p.tobytes() == run()[0].tobytes()


class Counting:
    """A callback with a state of all kinds."""

    def __init__(self):
        self.seen = {
            "count": 0,
            "name": "a",
            "none": None,
            "flag": True,
            "worst": -np.inf,
            "array": np.arange(3, dtype=np.int32),
        }

    def __call__(self, state):
        self.seen["count"] += 1

    def state_dict(self):
        return self.seen

    def load_state_dict(self, saved):
        self.seen = saved


def test_what_callbacks_save(tmp_path):
    run(callbacks=[Counting()], checkpoint=tmp_path, epochs=2)
    callback, other = Counting(), EarlyStopping(monitor="loss")
    run(callbacks=[callback], resume=tmp_path, epochs=3)
    assert callback.seen.pop("array").tolist() == [0, 1, 2]
    assert callback.seen == {"count": 3, "name": "a", "none": None, "flag": True, "worst": -np.inf}
    assert type(callback.seen["count"]) is int
    run(callbacks=[other], resume=tmp_path, epochs=3)  # of another kind: it begins anew
    assert other.best_epoch == 3
    callback.seen = {"wrong": [1]}
    with pytest.raises(TypeError, match=r"`state_dict` of the callback Counting must hold numbers, .*got \[1\]"):
        run(callbacks=[callback], checkpoint=tmp_path / "new")


# How often, and how many


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (1, [0, 4, 8, 12, 16, 20]),
        (2, [0, 8, 16, 20]),
        ("2 epochs", [0, 8, 16, 20]),
        ("1 epoch", [0, 4, 8, 12, 16, 20]),
        ("7 steps", [0, 7, 14, 20]),
        (1e9, [0, 20]),
        ("10 min", [0, 20]),
        ("60s", [0, 20]),
    ],
    ids=str,
)
def test_how_often(every, steps, backend_name, tmp_path):  # noqa: F811
    run(net=Chain(*NET.layers, backend=backend_name), checkpoint=Checkpoint(tmp_path, every=every, keep=100), epochs=5)
    assert [number for number, _ in files(tmp_path)][::-1] == steps


@pytest.mark.parametrize("every", ["3 epochs", "3 steps"])
def test_full_batches_stop_there(every, backend_name, tmp_path):  # noqa: F811
    settings = {"batch_size": None, "epochs": 10}
    run(net=Chain(*NET.layers, backend=backend_name), checkpoint=Checkpoint(tmp_path, every=every, keep=100), **settings)
    assert [number for number, _ in files(tmp_path)][::-1] == [0, 3, 6, 9, 10]


def test_after_so_many_seconds(tmp_path, monkeypatch):
    """Within an epoch too."""
    now = [0.0]
    monkeypatch.setattr("chains.training.checkpoint_writer.time.monotonic", lambda: now[0])
    monkeypatch.setattr("chains.training.source_steps.RUN_SECONDS", 0.0)  # it looks at the clock after each batch

    class Slow(list):
        def __iter__(self):
            for batch in super().__iter__():
                now[0] += 0.05
                yield batch

    checkpoint = Checkpoint(tmp_path, every=0.125, keep=100)
    run(data=(Slow([(X, T)] * 10), None), batch_size=None, epochs=1, checkpoint=checkpoint)
    assert [number for number, _ in files(tmp_path)][::-1] == [0, 4, 7, 10]


def test_not_more_often_than_pays(tmp_path, monkeypatch):
    """By default: writing takes a twentieth of the time at most."""
    now = [0.0]
    monkeypatch.setattr("chains.training.checkpoint_writer.time.monotonic", lambda: now[0])
    write = storage.write

    def slow(*arguments):
        now[0] += 1.0
        write(*arguments)

    def a_second(state):
        now[0] += 1.0

    monkeypatch.setattr(storage, "write", slow)
    run(checkpoint=Checkpoint(tmp_path, keep=100), epochs=100, batch_size=None, callbacks=[a_second])
    assert [number for number, _ in files(tmp_path)][::-1] == [0, 20, 40, 60, 80, 100]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_how_many(keep, tmp_path):
    run(checkpoint=Checkpoint(tmp_path, every=1, keep=keep), epochs=5)
    assert [number for number, _ in files(tmp_path)] == [20, 16, 12][:keep]
    assert len(list(tmp_path.iterdir())) == keep


@pytest.mark.parametrize(
    ("every", "unit", "amount"),
    [(3, "epochs", 3), (np.int64(3), "epochs", 3), (2.5, "seconds", 2.5), ("1.5 h", "seconds", 5400),
     ("90 seconds", "seconds", 90), ("2min", "seconds", 120), ("3 minutes", "seconds", 180), ("1 hour", "seconds", 3600),
     ("1 step", "steps", 1)],
    ids=str,
)  # fmt: skip
def test_intervals(every, unit, amount):
    assert parse_every(every) == (unit, amount)


@pytest.mark.parametrize(
    "every", [0, -1, 0.0, -1.0, np.nan, np.inf, True, "often", "", "5", "s", "0 steps", "1.5 steps", [3], "0s"]
)
def test_intervals_that_are_none(every, tmp_path):
    with pytest.raises((TypeError, ValueError), match="`every`"):
        Checkpoint(tmp_path, every=every)
    assert not list(tmp_path.iterdir())


# The best


def test_the_best_is_kept(tmp_path):
    losses = []
    history = run(checkpoint=Checkpoint(tmp_path, every=100), epochs=8, optimizer=SGD(0.9, momentum=0.5), validation=(X, T),
                  callbacks=[lambda state: losses.append((state.history.validation_loss[-1], state.p.copy()))])[1]  # fmt: skip
    best, p = min(losses, key=lambda pair: pair[0])
    saved = Checkpoint(tmp_path).load("best")
    assert saved.p.tobytes() == p.tobytes()
    assert saved.history.validation_loss[-1] == best == saved.best["value"]
    assert saved.history.epochs == saved.best["epoch"] == history.validation_loss.index(best) + 1
    assert saved.history.loss == history.loss[: saved.history.epochs]


@pytest.mark.parametrize(("mode", "wanted"), [("min", 2), ("max", 4)])
def test_the_best_of_a_metric(mode, wanted, tmp_path):
    checkpoint = Checkpoint(tmp_path, best="scripted", mode=mode)
    run(checkpoint=checkpoint, epochs=5, validation=(X, T), metrics=[Scripted(3.0, 1.0, np.nan, 9.0, 2.0)])
    assert checkpoint.load("best").history.epochs == wanted


def test_the_best_over_a_break(tmp_path):
    """One that came before the break is still the best one."""
    settings = {"validation": (X, T), "checkpoint": Checkpoint(tmp_path, best="scripted")}
    run(**settings, epochs=2, metrics=[Scripted(1.0, 5.0)])
    before = (tmp_path / "best.safetensors").read_bytes()
    run(**settings, epochs=4, metrics=[Scripted(3.0, 2.0)], resume=tmp_path)
    assert (tmp_path / "best.safetensors").read_bytes() == before


def test_training_goes_on_from_the_best(tmp_path):
    """With another learning rate, say: from its vectors and its history, or from its file."""
    checkpoint = Checkpoint(tmp_path, best="loss")
    run(checkpoint=checkpoint)
    saved = checkpoint.load("best")
    p = saved.p.copy()
    run(p, resume=saved.history, optimizer=Adam(0.001), epochs=2)
    q = run(resume=tmp_path / "best.safetensors", optimizer=Adam(0.001), epochs=saved.history.epochs + 2)[0]
    assert p.tobytes() == q.tobytes()


def test_no_best_without_validation(tmp_path):
    run(checkpoint=tmp_path)
    assert not (tmp_path / "best.safetensors").exists()
    with pytest.raises(ValueError, match=r"`best` \(='accuracy'\) of the checkpoint must be one of loss, seconds"):
        run(checkpoint=Checkpoint(tmp_path / "new", best="accuracy"))


# Ends


def test_ctrl_c_leaves_a_checkpoint(tmp_path):
    def interrupt(state):
        if state.epoch == 2:
            raise KeyboardInterrupt

    run(checkpoint=Checkpoint(tmp_path, every=100), epochs=9, callbacks=[interrupt])
    assert Checkpoint(tmp_path).load().history.epochs == 2
    assert run(resume=tmp_path, epochs=9)[0].tobytes() == run(epochs=9)[0].tobytes()


def test_an_error_in_a_source_leaves_a_checkpoint(tmp_path):
    """Training goes on where the source can be read again."""

    class Source:
        broken = True

        def __iter__(self):
            yield from [(X, T)] * 3
            if self.broken:
                raise OSError("the disk is gone")
            yield from [(X, T)] * 2

    source, settings = Source(), {"batch_size": None, "checkpoint": Checkpoint(tmp_path, every=100)}
    with pytest.raises(OSError, match="the disk is gone"):
        run(data=(source, None), **settings)
    source.broken = False
    p, history = run(data=(source, None), resume=tmp_path, **settings)
    assert history.steps == 15
    assert p.tobytes() == run(data=([(X, T)] * 5, None), batch_size=None)[0].tobytes()


@pytest.mark.parametrize("batch_size", [None, 6])
def test_divergence_leaves_none_behind_it(batch_size, tmp_path):
    """The last checkpoint is one of finite numbers, from which one goes on with a lower rate."""
    with pytest.raises(FloatingPointError):
        run(checkpoint=Checkpoint(tmp_path, every="1 step"), optimizer=SGD(1e4), epochs=500, batch_size=batch_size)
    saved = Checkpoint(tmp_path).load()
    assert np.isfinite(saved.p).all()
    assert np.isfinite(saved.history.loss).all()
    assert files(tmp_path)[0][0] > 3


def test_a_full_disk_ends_nothing(tmp_path, monkeypatch):
    """It is said, and the checkpoints that there are stay."""
    write, count = storage.write, []

    def failing(path, *rest):
        count.append(path)
        if len(count) > 2:
            raise OSError(28, "No space left on device")
        write(path, *rest)

    monkeypatch.setattr(storage, "write", failing)
    with pytest.warns(UserWarning, match="no checkpoint could be written: .*No space left"):
        p = run(checkpoint=Checkpoint(tmp_path, every=1), epochs=5)[0]
    assert p.tobytes() == run(epochs=5)[0].tobytes()
    assert Checkpoint(tmp_path).load().history.epochs == 1


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`checkpoint` must be a folder, got the file"):
        run(checkpoint=tmp_path / "file")
    p = NET.init()
    with pytest.raises(OSError, match="file"):
        run(p, checkpoint=tmp_path / "file" / "within")
    assert p.tobytes() == NET.init().tobytes()


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_ctrl_c_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """It is heard afterwards, at the end of a run of steps: of the whole epoch, however slow the computer is."""
    monkeypatch.setattr("chains.training.steps.RUN_SECONDS", 3600.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (signal.raise_signal(signal.SIGINT), replace(*paths)))
    try:
        history = run(checkpoint=Checkpoint(tmp_path, every=1))[1]
    finally:
        signal.signal(signal.SIGINT, before)
    assert history.stopped == "interrupted by the user in epoch 2"  # by that of the beginning, after the first epoch
    assert Checkpoint(tmp_path).load().history.epochs == 1


# What is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"net": Chain(Dense(3, 5, tanh), Dense(5, 2))}, r"of another network, with 0.weight \(3, 4\) in the place of"),
        ({"net": Chain(Dense(3, 4, relu), Dense(4, 2))}, r"another `net`: Chain.Dense\(3, 4, tanh\), .* not .*relu"),
        ({"dtype": np.float64}, "another `p`: float32, not float64"),
        ({"loss": HuberLoss()}, r"another `loss`: SquaredLoss\(\), not HuberLoss"),
        ({"optimizer": SGD(0.1)}, "another `optimizer`: Adam, not SGD"),
        ({"data": (X[:20], T[:20])}, "another `samples`: 23, not 20"),
        ({"batch_size": 5}, "another `batch_size`: 6, not 5"),
        ({"seed": 1}, "another `seed`: 0, not 1"),
        ({"shuffle": False}, "another `shuffle`: True, not False"),
        ({"drop_last": True}, "another `drop_last`: False, not True"),
        ({"data": (Batches(X, T, batch_size=6), None), "batch_size": None}, "another `samples`: 23, not none"),
        ({"validation": (X, T)}, "a run that records loss, validation loss, seconds, got one that records loss, seconds"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_checkpoints_of_something_else(settings, words, tmp_path):
    """By name, and before anything is written."""
    run(checkpoint=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    net = settings.get("net", NET)
    p = net.init(seed=3, dtype=settings.pop("dtype", np.float32))
    bits = p.tobytes()
    with pytest.raises(ValueError, match=words):
        run(p, resume=tmp_path, checkpoint=tmp_path, **settings)
    assert p.tobytes() == bits
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "losses",
    [
        [loss("own", lambda y, t: (y - t) ** 2), loss("own", lambda y, t: (y - t) ** 4)],
        [ResidualProblem(("a", "b", "c"), ("u", "v"), [Term(f, X)]).loss for f in (lambda u: u.a, lambda u: u.aa)],
        [ResidualProblem(("a", "b", "c"), ("u", "v"), [Term(lambda u: u.a, X)], transform=f).loss
         for f in (None, lambda u, v, a: (u, a * v))],
    ],
    ids=["formula", "equation", "transform"],
)  # fmt: skip
def test_a_loss_of_another_formula_is_refused(losses, tmp_path):
    data = (X, np.ones((len(X), 1 if isinstance(losses[0], ResidualLoss) else 2)))
    run(checkpoint=tmp_path, resume=tmp_path, data=data, loss=losses[0], epochs=1)
    run(checkpoint=tmp_path, resume=tmp_path, data=data, loss=losses[0], epochs=2)
    with pytest.raises(ValueError, match="another `loss`"):
        run(checkpoint=tmp_path, resume=tmp_path, data=data, loss=losses[1], epochs=3)


def test_frozen_parameters_may_change(tmp_path):
    p, _ = run(checkpoint=tmp_path, epochs=1)
    q, history = run(resume=tmp_path, net=NET.with_frozen("0.*"), epochs=2)
    assert history.epochs == 2
    assert [bool(np.array_equal(NET.views(p)[name], a)) for name, a in NET.views(q).items()] == [True, True, False, False]


def test_a_best_checkpoint_that_is_missing_is_named(tmp_path):
    run(checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"`which` .='best'.: .* has no best.safetensors, which a run writes where it records"):
        Checkpoint(tmp_path).load("best")
    with pytest.raises(ValueError, match="`folder` must be a folder of checkpoints"):
        Checkpoint(tmp_path / "nothing").load()


def test_other_numbers_are_taken(tmp_path):
    """A learning rate or a penalty may change."""
    run(checkpoint=tmp_path, epochs=2)
    p, _ = run(epochs=2)
    history = run(epochs=2)[1]
    run(p, epochs=1, resume=history, optimizer=Adam(0.1), penalty=L2Penalty(0.1))
    assert run(resume=tmp_path, optimizer=Adam(0.1), penalty=L2Penalty(0.1))[0].tobytes() == p.tobytes()


DAMAGES = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"\0",
    "foreign": lambda data: b"PK\x03\x04" + data,
    "zeros": lambda data: bytes(len(data)),
    "first": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "middle": lambda data: data[:500] + bytes([data[500] ^ 128]) + data[501:],
    "last": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_ones_are_left_out(damage, tmp_path):
    """The next older one is used, which is said; the damaged one is put aside where the run goes on there."""
    wanted = run(epochs=5)[0]
    run(checkpoint=Checkpoint(tmp_path, every=1, keep=3))
    number, last = files(tmp_path)[0]
    last.write_bytes(damage(last.read_bytes()))
    with pytest.warns(UserWarning, match=rf"the checkpoint {last.name} .* cannot be used; training continues from step-0+8"):
        assert run(resume=tmp_path, epochs=5)[0].tobytes() == wanted.tobytes()
    assert last.exists()
    with pytest.warns(UserWarning, match="cannot be used"):
        p = run(resume=tmp_path, checkpoint=Checkpoint(tmp_path, every=1), epochs=5)[0]
    assert p.tobytes() == wanted.tobytes()
    assert [number for number, _ in files(tmp_path)] == [20, 16]
    assert (tmp_path / f"{last.name}.damaged").exists() == (number > 8)


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path):
    path, x, t = tmp_path / "step-000000000002.safetensors", np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)
    path.write_bytes(earlier.CHECKPOINT)
    net = Chain(Dense(1, 1), backend="numpy")
    settings = {"net": net, "data": (x, t), "optimizer": SGD(0.25), "batch_size": None, "epochs": 4}
    p, history = run(checkpoint=tmp_path, resume=tmp_path, **settings)
    np.testing.assert_allclose(history.loss[:2], [0.0079040434, 0.0019760109], rtol=1e-6)
    start = net.init(np.random.default_rng(0))  # where that version began
    assert (history.epochs, p.tobytes()) == (4, run(start, **settings)[0].tobytes())
    for damaged in (earlier.CHECKPOINT[:-1], earlier.CHECKPOINT + b"\0", earlier.CHECKPOINT[:-40] + bytes(40)):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cut short|its digest is another one|its arrays end at"):
            run(resume=path, **settings)


def test_none_is_whole(tmp_path):
    run(checkpoint=tmp_path)
    for _, path in files(tmp_path):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"in which none is whole: step-0+12.safetensors .it is cut short: its header ends"):
        run(resume=tmp_path, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="`resume` must be a folder of checkpoints, or one of them"):
        run(resume=path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipes_and_folders_do_not_block(tmp_path):
    run(checkpoint=tmp_path, epochs=2)
    os.mkfifo(tmp_path / "step-000000000090.safetensors")
    (tmp_path / "step-000000000091.safetensors").mkdir()
    with pytest.warns(UserWarning, match="cannot be used") as caught:
        p = run(resume=tmp_path)[0]
    assert len(caught) == 2
    assert p.tobytes() == run()[0].tobytes()


def test_what_train_is_told():
    for settings, error, words in [
        ({"every": 3}, TypeError, "unexpected keyword argument 'every'"),
        ({"checkpoint": 3}, TypeError, "`checkpoint` must be a folder or a Checkpoint, got 3"),
        ({"checkpoint": ""}, ValueError, "`checkpoint` must be a path such as 'runs/a', got ''"),
        ({"resume": ""}, ValueError, "`resume` must be a path such as 'runs/a', got ''"),
        ({"resume": 3}, TypeError, r"`resume` \(=3\) must be the history of an earlier training, or a folder of checkpoints"),
    ]:
        with pytest.raises(error, match=words):
            run(**settings)
    for settings, words in [({"keep": 0}, "`keep`"), ({"best": 3}, "`best`"), ({"mode": "most"}, "`mode`")]:
        with pytest.raises((TypeError, ValueError), match=words):
            Checkpoint("folder", **settings)
    with pytest.raises(TypeError, match="`folder` must be a path, got 3"):
        Checkpoint(3)
    with pytest.raises(ValueError, match="`folder` must be a path, got ''"):
        Checkpoint("")
    assert repr(Checkpoint("a", every=3)) == "Checkpoint('a', every=3, keep=2, best='validation loss', mode='min')"


def test_labels(tmp_path):
    """Losses with labels, and a network with a custom loss, are resumed alike."""
    net, t = Chain(Dense(3, 4)), np.arange(23) % 4
    run(net=net, data=(X, t), loss=CrossEntropyLoss(), checkpoint=tmp_path, epochs=1)
    p = run(net=net, data=(X, t), loss=CrossEntropyLoss(), resume=tmp_path)[0]
    assert p.tobytes() == run(net=net, data=(X, t), loss=CrossEntropyLoss())[0].tobytes()
