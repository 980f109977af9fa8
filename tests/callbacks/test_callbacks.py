"""The callbacks beside early stopping, the search for a learning rate, and what notebooks show."""

from __future__ import annotations

import csv
from html import unescape

import numpy as np
import pytest

import chains
from chains import Adam, BatchNorm, Chain, Dense, SquaredLoss, tanh, train
from chains.callbacks import Callback, CSVLogger, TensorBoard, find_learning_rate

NET = Chain(Dense(2, 8, tanh), Dense(8, 1))
X = np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32)
T = X[:, :1] * X[:, 1:]


def run(*callbacks, epochs=3, **rest):
    p = NET.init()
    return train(NET, p, X, T, SquaredLoss(), Adam(0.01), epochs=epochs, batch_size=10, callbacks=list(callbacks), **rest), p


class Noting(Callback):
    """Notes what it is told."""

    def __init__(self):
        self.seen = []

    def on_train_begin(self, names):
        self.seen.append(("begin", list(names)))

    def on_epoch_end(self, state):
        self.seen.append(("epoch", state.epoch))
        return "enough" if state.epoch == 2 else None

    def on_train_end(self, state):
        self.seen.append(("end", state.epoch))


class Stepping(Noting):
    def on_batch_end(self, state, loss):
        self.seen.append(("batch", loss, state.p.copy()))


def test_a_callback_is_told_of_everything():
    noting = Noting()
    history, _ = run(noting)
    assert noting.seen == [("begin", ["loss", "seconds"]), ("epoch", 1), ("epoch", 2), ("end", 2)]
    assert history.stopped == "enough"
    assert run(Callback())[0].epochs == 3


def test_steps_one_by_one_are_the_same_steps():
    stepping = Stepping()
    history, p = run(stepping)
    plain, q = run(epochs=2)
    np.testing.assert_array_equal(p, q)
    assert history.loss == plain.loss
    batches = [entry for entry in stepping.seen if entry[0] == "batch"]
    assert len(batches) == 6
    assert [entry[0] for entry in stepping.seen] == ["begin", *["batch"] * 3, "epoch", *["batch"] * 3, "epoch", "end"]
    losses = [loss for _, loss, _ in batches[:3]]
    assert history.loss[0] == pytest.approx((10 * losses[0] + 10 * losses[1] + 4 * losses[2]) / 24)
    assert not np.array_equal(batches[0][2], batches[1][2])


def test_the_numbers_of_a_run_as_a_table(tmp_path):
    path = tmp_path / "run.csv"
    history, _ = run(CSVLogger(path), validation=(X, T))
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert [float(row["loss"]) for row in rows] == history.loss
    assert [float(row["validation loss"]) for row in rows] == history.validation_loss
    run(CSVLogger(path, append=True), validation=(X, T))
    assert len(list(csv.DictReader(path.read_text().splitlines()))) == 6
    with pytest.raises(ValueError, match="has the columns"):
        run(CSVLogger(path, append=True))
    run(CSVLogger(path))
    assert len(list(csv.DictReader(path.read_text().splitlines()))) == 3
    with pytest.raises(TypeError, match="`path` must be a path, got 3"):
        CSVLogger(3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    run(TensorBoard(tmp_path / "logs", histograms=True), validation=(X, T))
    (file,) = (tmp_path / "logs").iterdir()
    data = file.read_bytes()
    assert data.count(b"validation/loss") == 3
    assert b"0.weight" in data


def test_a_learning_rate_is_found():
    p = NET.init()
    before = p.copy()
    found = find_learning_rate(NET, p, X, T, SquaredLoss(), Adam(), batch_size=8, steps=120)
    np.testing.assert_array_equal(p, before)
    assert len(found.rates) == len(found.losses) > 30
    np.testing.assert_allclose(found.rates[:2], [1e-6, 1e-6 * 1e7 ** (1 / 119)])
    assert 1e-4 < found.suggestion < 1.0
    history = train(NET, p, X, T, SquaredLoss(), Adam(found.suggestion), epochs=20, batch_size=8)
    assert history.loss[-1] < 0.8 * history.loss[0]
    pytest.importorskip("matplotlib").use("agg")
    assert found.plot().get_xlabel() == "learning rate"


def test_the_search_with_a_state_and_without_an_end():
    net = Chain(Dense(2, 4), BatchNorm(4), Dense(4, 1))
    state = net.init_state()
    found = find_learning_rate(net, net.init(), X, T, SquaredLoss(), chains.SGD(0.1), high=1e9, steps=60, state=state)
    np.testing.assert_array_equal(state, net.init_state())
    assert len(found.rates) <= 60
    assert np.isfinite(found.losses).all()
    with pytest.raises(ValueError, match=r"`low` .=1. must be below `high`"):
        find_learning_rate(NET, NET.init(), X, T, SquaredLoss(), Adam(), low=1, high=1)
    with pytest.raises(TypeError, match="`optimizer`"):
        find_learning_rate(NET, NET.init(), X, T, SquaredLoss(), 3)


def test_what_notebooks_show():
    history, _ = run()
    for thing, text in (
        (NET, NET.summary()), (NET.layout, str(NET.layout)), (NET.program(), str(NET.program())), (history, str(history)),
    ):  # fmt: skip
        html = thing._repr_html_()
        assert html.startswith("<pre")
        assert unescape(html.partition(">")[2]).removesuffix("</pre>") == text
    assert "Flatten()" in Chain(chains.Flatten())._repr_html_()
