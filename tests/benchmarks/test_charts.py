"""Stored results say where they come from, their figures are those of the pages, and the pictures are drawn from them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.harness import charts, report
from benchmarks.harness.timing import Row, Table

ROOT = Path(__file__).parents[2]
FILES = sorted(charts.RESULTS.glob("*.json"))
PAGES = {
    "attention": "sequences", "burgers": "pinns", "by_hand": "performance", "control": "control",
    "dense": "performance", "dense-avx2": "performance",
    "ensemble": "ensembles", "events": "ode", "fits": "fits", "gpu": "gpu", "images": "performance", "latency": "performance",
    "recurrent": "sequences", "sde": "noise", "steady": "steady", "ude": "universal",
}  # fmt: skip


def texts(picture: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture)


def test_pictures_are_those_of_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    for path in charts.draw(tmp_path):
        drawn, kept = path.read_text(), (ROOT / "docs" / "_static" / path.name).read_text()
        assert texts(drawn) == texts(kept), f"{path.name}: python -m benchmarks --plot"
        assert len(texts(drawn)) > 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_are_those_of_the_pages(path):
    content = json.loads(path.read_text())
    assert content["machine"]["cpu"]
    assert content["command"].startswith("python -m benchmarks")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", content["date"])
    page = (ROOT / "docs" / f"{PAGES[path.stem]}.md").read_text()
    written = {float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.?\d*|\.\d+", page)}
    for table in charts.stored(path.stem).values():
        for row in table.rows:
            shown = {round(row.median * unit, 4) for unit in (1e6, 1e3, 1.0)}
            assert shown & written, f"{table.key}, {row.name}"


def test_what_a_run_writes_can_be_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "RESULTS", tmp_path)
    table = Table("a_step", "a step", "step", "loss", [Row("chains native, 1 thread", [2.0, 1.0, 3.0], 0.5)])
    report.save_json(str(tmp_path / "run.json"), {"cpu": "A, 2 cores usable of 2"}, [table])
    assert charts.stored("run") == {"a_step": table}
    assert charts.machine("run").startswith("A, 2 cores; 2")
