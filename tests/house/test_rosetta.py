"""The Rosetta stone: rows are alike and short, this project's and PyTorch's run, and what fails says why."""

from __future__ import annotations

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from rosetta import __main__ as command
from rosetta import environments, problem, report
from rosetta.environments import ROWS, Row
from rosetta.run import measured

FOLDER = Path(__file__).parents[2] / "rosetta"
MODULES = sorted(FOLDER.glob("[cr]nn/*_row.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_rows_are_short_and_alike(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    wanted = ["build", "train", "predict"]
    assert [name for name in names if name in wanted] == wanted
    assert re.search(r"problem\.(RNN_)?PARAMETERS", text)  # each row counts them


def test_each_module_has_a_row():
    assert {path.stem for path in MODULES} == {row.module for row in ROWS.values()}
    assert environments.rows("cnn") == list(ROWS)
    assert {"chains", "torch"} < set(environments.rows("rnn")) < set(ROWS)
    assert all(row.published in ("", *report.PUBLISHED["cnn"]) for row in ROWS.values())


@pytest.fixture
def data(tmp_path):
    """Photographs of three colours, which a few steps tell apart."""
    rng = np.random.default_rng(0)
    path = tmp_path / "data.npz"
    arrays = {}
    for kind, samples in (("", 5 * problem.BATCH_SIZE), ("_test", 70)):
        t = rng.integers(0, 3, samples)
        x = 0.2 * rng.random((samples, 3, 32, 32)) + 0.8 * (np.arange(3) == t[:, None])[:, :, None, None]
        arrays[f"x{kind}"], arrays[f"t{kind}"] = x.astype(np.float32), t
    np.savez(path, **arrays)
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["chains", "torch"])
def test_a_row_learns(name, data):
    if not find_spec(ROWS[name].module.removesuffix("_row")):
        pytest.skip(f"{name} is not installed")
    result = command.run("cnn", name, data, 2, sys.executable)
    assert isinstance(result, dict), result
    assert result["steps"] == 10
    assert result["accuracy"] > 0.6  # a third would be guessed
    assert result["milliseconds a step"] > 0


def test_a_recurrent_row_learns(tmp_path, monkeypatch):
    """Reviews of ten words, of which the last one says it all."""
    monkeypatch.setattr(problem, "STEPS", 10)
    monkeypatch.setattr(problem, "WORDS", 20)
    monkeypatch.setattr(problem, "RNN_PARAMETERS", 20 * 125 + 225 * 300 + 600 + 202)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 20, (1280, 10))
    t = (x[:, -1] > 9).astype(np.int64)
    np.savez(tmp_path / "data.npz", x=x, t=t, x_test=x[:100], t_test=t[:100])
    result = measured("rnn", "chains", str(tmp_path / "data.npz"), 3)
    assert result["steps"] == 60
    assert result["accuracy"] > 0.9


def test_the_batches_are_a_new_order_of_all_samples():
    x, t = np.arange(200.0), np.arange(200)
    problem.BEGINNINGS.clear()
    orders = [np.concatenate([labels for _, labels in problem.batches(x, t, epoch)]) for epoch in (0, 1)]
    assert len(problem.BEGINNINGS) == 6
    assert all(len(set(order)) == 192 for order in orders)
    assert not np.array_equal(*orders)
    assert [len(piece) for piece in problem.pieces(np.ones((65, 1)))] == [64, 64]


def test_what_cannot_be_had_says_why(monkeypatch, data):
    with pytest.raises(RuntimeError, match=r"^ERROR: no such distribution$"):
        environments._run([sys.executable, "-c", "print('...'); print('ERROR: no such distribution'); raise SystemExit(1)"])

    def interpreter(row: Row) -> str:
        raise RuntimeError("ERROR: no such distribution")

    monkeypatch.setattr(command, "interpreter", interpreter)
    assert command.run("cnn", "torch", data, 1) == "not installed: ERROR: no such distribution"
    monkeypatch.setitem(ROWS, "gone", Row("Gone", "gone_row", "gone", ()))  # which the other process does not know
    assert command.run("cnn", "gone", data, 1, sys.executable) == "did not run: KeyError: 'gone'"


def test_the_table_is_written_into_the_page(tmp_path):
    result = {"version": "1", "lines": 40, "steps": 5, "milliseconds a step": 52.3, "seconds an epoch": 1.23, "accuracy": 0.5}
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.begin('cnn')}old\n{report.END}after\n")
    for results in (
        {"torch": {**result, "steps": 9}, "mlx": "did not run"},
        {"torch": result, "mxnet": "not installed: no wheel"},
    ):
        report.write("cnn", report.table("cnn", results, page), page)
    text = page.read_text()
    assert text.count("| PyTorch |") == 1
    assert "| PyTorch | 1 | 40 | 5 | 52 | 1.2 | 0.500 | 51 |" in text
    assert "- MLX: did not run\n" in text  # as it was
    assert "- MXNet (Gluon): not installed: no wheel\n" in text
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert all(report.begin(kind) in report.PAGE.read_text() for kind in ("cnn", "rnn"))
