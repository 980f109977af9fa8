"""`python -m benchmarks.studies.by_hand`: the programs in C compute what chains does."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

import chains
from benchmarks.harness import charts
from benchmarks.harness.timing import Row, Table
from benchmarks.studies.by_hand import peers
from benchmarks.studies.by_hand.__main__ import kinds, page_line, store
from benchmarks.studies.by_hand.builds import HERE, Builder, compilers
from benchmarks.studies.by_hand.rows import ROWS
from chains.backends.native.llvm.target import processor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What is compiled, once for all rows."""
    return tmp_path_factory.mktemp("by_hand")


def builder(folder, libraries=()):
    if not shutil.which("gcc") or processor().kind not in ("avx2", "avx512"):
        pytest.skip("the programs need gcc and AVX2")
    return Builder(folder, 8, tuple(compilers()[:1]), tuple(libraries))


def test_every_source_has_a_row():
    text = (HERE / "rows.py").read_text()
    assert all(f'"{path.stem}"' in text for path in HERE.glob("*.c") if path.stem not in ("loops", "plain"))


@pytest.mark.parametrize("name", [name for name in ROWS if not name.startswith("matrix_exp_10000")])
def test_the_answers_agree(name, folder):
    with chains.num_threads(1):
        row = ROWS[name](builder(folder))
        wanted = row.contestants[0].answer()
        answers = {each.name: each.answer() for each in row.contestants}
    for contestant, answer in answers.items():
        assert answer == pytest.approx(wanted, rel=row.tolerance), contestant


@pytest.mark.parametrize(("library", "name"), [("jax", "normal"), ("onnxruntime", "forward")])
def test_other_libraries_compute_the_same(library, name, folder, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", peers.ONE_THREAD)  # which is the process's
    if library not in peers.installed():
        pytest.skip(f"{library} is not installed")
    with chains.num_threads(1):
        row = ROWS[name](builder(folder, [library]))
        wanted = row.contestants[0].answer()
        found = [each for each in row.contestants if each.name.startswith(peers.LIBRARIES[library])]
        assert len(found) == 1
        assert found[0].answer() == pytest.approx(wanted, rel=row.of_libraries)


BEST = {"chains, `train`": 2.34e-6, "by hand, gcc": 1.2e-6, "by hand, clang": 1.1702e-6, "JAX scan": 1.25e-3}


def test_lines_of_the_page():
    assert kinds(BEST) == {"chains": 2.34e-6, "by hand": 1.17e-6, "JAX": 1.25e-3}
    assert page_line("a row", BEST) == "| a row | 2.34 | 1.17 | .50 |  |  |  | 1,250 |  |"


def test_rows_are_added_to_a_file_of_results(tmp_path):
    path = tmp_path / "by_hand.json"
    tables = [Table(key, key, "call", "", [Row("chains", [seconds])]) for key, seconds in (("normal", 1.0), ("forward", 2.0))]
    store(path, {"cpu": "A"}, tables[:1])
    store(path, {"cpu": "A"}, tables[1:])
    store(path, {"cpu": "A"}, [Table("normal", "normal", "call", "", [Row("chains", [3.0])])])
    assert [(key, table.rows[0].median) for key, table in charts.read(path).items()] == [("forward", 2.0), ("normal", 3.0)]
