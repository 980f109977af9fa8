"""`python -m benchmarks.studies.by_hand`: the programs in C compute what chains does."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

import chains
from benchmarks.studies.by_hand.builds import HERE, Builder, compilers
from benchmarks.studies.by_hand.rows import ROWS
from chains.backends.native.llvm.target import processor


def builder(folder):
    if not shutil.which("gcc") or processor().kind not in ("avx2", "avx512"):
        pytest.skip("the programs need gcc and AVX2")
    return Builder(folder, 8, tuple(compilers()[:1]))


def test_every_source_has_a_row():
    text = (HERE / "rows.py").read_text()
    assert all(f'"{path.stem}"' in text for path in HERE.glob("*.c") if path.stem not in ("loops", "plain"))


@pytest.mark.parametrize("name", [name for name in ROWS if not name.startswith("matrix_exp_10000")])
def test_the_answers_agree(name, tmp_path):
    with chains.num_threads(1):
        row = ROWS[name](builder(tmp_path))
        wanted = row.contestants[0].answer()
        answers = {each.name: each.answer() for each in row.contestants}
    for contestant, answer in answers.items():
        assert answer == pytest.approx(wanted, rel=row.tolerance), contestant
