"""`python -m benchmarks.studies.updates`: a pass over the matrix beside a copy of it."""

from __future__ import annotations

import re

import pytest

from benchmarks.studies import updates


def test_the_table_is_printed(capsys):
    pytest.importorskip("llvmlite")
    updates.main(["--sizes", "64", "100", "--threads", "1", "2", "--seconds", "0.001"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[1:3] for row in rows] == [[f" {n} ", f" {k} "] for n in (64, 100) for k in (1, 2)]
    for row in rows:
        assert re.search(r"\| \d+%, \d+% \|$", row)
