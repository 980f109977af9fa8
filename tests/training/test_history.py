"""What training writes down and shows: the history, the bar."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from chains import SGD, SquaredLoss, accuracy
from chains.training.history import History
from tests.training.support import make_data, run


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

    pyplot.close("all")  # what other tests have drawn
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
