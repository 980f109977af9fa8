"""Padding, buckets, windows, and the loader of IMDB."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Chain, Dense, Flatten, SquaredLoss, train
from chains.data import Batches, buckets, load_imdb, pad, windows
from tests.bad_input.support import assert_refused

RAGGED = [np.arange(1, 4), np.arange(5), np.arange(0), np.array([7])]


def test_pad_fills_up_at_the_end():
    rows, lengths = pad(RAGGED)
    np.testing.assert_array_equal(rows, [[1, 2, 3, 0, 0], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0], [7, 0, 0, 0, 0]])
    np.testing.assert_array_equal(lengths, [3, 5, 0, 1])
    assert rows.dtype == lengths.dtype == np.int64


def test_pad_keeps_signals():
    rows, lengths = pad([[0.5, 0.25], [], [1.5]], 3)
    assert rows.tolist() == [[0.5, 0.25, 0.0], [0.0, 0.0, 0.0], [1.5, 0.0, 0.0]]
    assert lengths.tolist() == [2, 0, 1]
    assert pad([np.ones(2, np.float32)])[0].dtype == np.float32
    assert pad([np.ones(2, np.uint8), []])[0].dtype == np.int64
    assert pad([[1, 2], [3]], padding=0.5)[0].tolist() == [[1.0, 2.0], [3.0, 0.5]]


def test_pad_keeps_the_last_steps():
    rows, lengths = pad(RAGGED, 2, padding=-1, dtype=np.float32)
    np.testing.assert_array_equal(rows, [[2, 3], [3, 4], [-1, -1], [7, -1]])
    np.testing.assert_array_equal(lengths, [2, 2, 0, 1])
    assert rows.dtype == np.float32


def test_pad_of_steps_with_features():
    rows, _ = pad([np.ones((2, 3)), np.full((1, 3), 2.0)], dtype=float)
    np.testing.assert_array_equal(rows[:, :, 0], [[1, 1], [2, 0]])


def test_buckets():
    found = buckets([3, 9, 1, 4, 20], [3, 10])
    assert [list(each) for each in found] == [[0, 2], [1, 3, 4]]


@pytest.mark.parametrize("step", [1, 3])
def test_windows_are_views(step):
    signal = np.random.default_rng(0).normal(size=(50, 2))
    view = windows(signal, 7, step=step)
    assert np.shares_memory(view, signal)
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, [signal[k : k + 7] for k in range(0, 44, step)])
    np.testing.assert_array_equal(windows(signal[:, 0], 7), [signal[k : k + 7, 0] for k in range(44)])


def test_training_on_windows():
    signal = np.sin(np.arange(60.0))
    x, t = windows(signal[:-1], 5), signal[5:, None]
    net = Chain(Flatten(), Dense(5, 1), input_shape=(5,), backend="numpy")
    p = net.init()
    history = train(net, p, Batches(x, t, batch_size=11, seed=0), None, SquaredLoss(), SGD(0.2), epochs=40)
    assert history.loss[-1] < 0.01 * history.loss[0]


def write_imdb(folder, count=6):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name in ("train", "test"):
        reviews = [np.concatenate([[1], rng.integers(3, 50, rng.integers(0, 9))]).astype(np.int32) for _ in range(count)]
        labels = rng.integers(0, 2, count).astype(np.uint8)
        offsets = np.concatenate([[0], np.cumsum([len(review) for review in reviews])])
        np.savez_compressed(folder / f"imdb_{name}.npz", tokens=np.concatenate(reviews), offsets=offsets, labels=labels)
        made.append((reviews, labels))
    return made


def test_load_imdb(tmp_path, monkeypatch):
    made = write_imdb(tmp_path / "imdb")
    monkeypatch.setenv("CHAINS_DATA", str(tmp_path))
    for (x, t), (reviews, labels) in zip(load_imdb(count=20, length=4), made, strict=True):
        assert x.dtype == t.dtype == np.int64
        np.testing.assert_array_equal(t, labels)
        for row, review in zip(x, reviews, strict=True):
            known = [word if word < 20 else 2 for word in review[-4:]]
            np.testing.assert_array_equal(row, [*known, *[0] * (4 - len(known))])
    assert load_imdb(tmp_path / "imdb", length=9)[0][0].shape == (6, 9)


def test_files_of_imdb_that_are_missing_or_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINS_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="imdb_train"):
        load_imdb()
    with pytest.raises(FileNotFoundError, match="imdb_train"):
        load_imdb(tmp_path)
    write_imdb(tmp_path / "imdb")
    np.savez(tmp_path / "imdb" / "imdb_test.npz", tokens=np.arange(3), offsets=np.array([0, 2]), labels=np.array([1]))
    assert_refused(load_imdb, "imdb_test.npz", "offsets")
    np.savez(tmp_path / "imdb" / "imdb_test.npz", tokens=np.arange(3))
    assert_refused(load_imdb, "imdb_test.npz", "labels")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pad([]), ("`sequences`",)),
        (lambda: pad([[1], 2]), ("`sequences`", "number 1 is 2")),
        (lambda: pad([np.ones(2), np.ones((2, 3))]), ("`sequences`", "(3,)")),
        (lambda: pad(RAGGED, 0), ("`length` (=0)",)),
        (lambda: buckets([1, 2], [3, 3]), ("`bounds`", "grow")),
        (lambda: buckets([1, 2], 3), ("`bounds`",)),
        (lambda: buckets([1.5, 2], [3]), ("`lengths`", "float64")),
        (lambda: windows(np.ones(4), 5), ("`length` (=5)", "(4,)")),
        (lambda: windows(np.ones(4), 2, step=0), ("`step` (=0)",)),
        (lambda: load_imdb(count=2), ("`count` (=2)",)),
        (lambda: load_imdb(length=0), ("`length` (=0)",)),
    ],
)
def test_wrong_arguments(call, words):
    assert_refused(call, *words)
