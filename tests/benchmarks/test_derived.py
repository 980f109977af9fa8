"""`python -m benchmarks.studies.derived`: derived pullbacks beside those by hand."""

from __future__ import annotations

import pytest

from benchmarks.studies import derived


def test_the_table_is_printed(capsys):
    pytest.importorskip("llvmlite")
    derived.main(["--only", "LayerNorm", "--repetitions", "10"])
    (row,) = capsys.readouterr().out.splitlines()[2:]
    name, _, _, scratch, *_ = (cell.strip() for cell in row.split("|")[1:-1])
    assert name == "LayerNorm"
    assert float(scratch) <= 1.1
