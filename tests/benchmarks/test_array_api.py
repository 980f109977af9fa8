"""The command that checks an array library: passes on NumPy, and reports cases that fail."""

from __future__ import annotations

import json

import pytest

import chains
from benchmarks.gpu import array_api
from chains.backends import registry


@pytest.fixture(autouse=True)
def door(monkeypatch):
    """The registry is as before afterwards."""
    for name in ("_BACKENDS", "_loaded", "_registered"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


def test_cases_that_pass_are_counted_and_written(tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    assert array_api.main(["numpy:cpu", "--only", "Dense*", "--out", str(out)]) == 0
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(result["passed"] and result["error"] <= 1e-12 for result in results)
    assert f"numpy:cpu, float64: {len(results)} of {len(results)} cases equal NumPy" in capsys.readouterr().out


def test_a_case_that_fails_is_printed(capsys, monkeypatch):
    def failing(case, dtype):
        if case.name == "Dense-linear":
            raise RuntimeError("no kernel image")
        return 1.0 if case.name == "Dense-wide" else 0.0

    monkeypatch.setattr(array_api, "error", failing)
    assert array_api.main(["numpy:cpu", "--only", "Dense-*"]) == 1
    text = capsys.readouterr().out
    assert "Dense-linear: RuntimeError: no kernel image\n" in text
    assert "Dense-wide: error 1\n" in text


def test_cases_after_the_time_are_counted(capsys):
    assert array_api.main(["numpy:cpu", "--only", "Dense*", "--seconds", "-1"]) == 1
    assert "cases equal NumPy, " in (text := capsys.readouterr().out)
    assert "not run" in text


def test_the_table_of_conformance(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(array_api, "check_backend", lambda backend: "the table")
    assert array_api.main(["numpy:cpu", "--conformance", "--out", str(tmp_path / "table.txt")]) == 0
    assert (tmp_path / "table.txt").read_text() == "the table"


def test_the_table_of_times(capsys, monkeypatch):
    monkeypatch.setattr(array_api, "ROUNDS", 1)
    monkeypatch.setattr(array_api, "NETWORKS", {"dense": ((chains.Dense(2, 3),), (2,), 4)})
    monkeypatch.setattr(chains, "set_num_threads", lambda number: None)
    assert array_api.main(["numpy:cpu", "--times"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["network", "numpy:cpu", "numpy"]
    assert len(row.split()) == len(head.split())
