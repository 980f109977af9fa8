"""README.md: short, its examples run, its figures are those of the stored results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import charts

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAX_WORDS = 700


def test_it_is_short():
    assert len(README.split()) <= MAX_WORDS


def test_it_says_what_is_wanted_in_this_order():
    wanted = ["Install", "Example", "How fast", "What is included", "Two commands", "Status", "Licence"]
    assert re.findall(r"^## (.*)$", README, re.MULTILINE) == wanted
    places = [README.index(text) for text in ("**Use it when**", "**Use something else when**", "## Install")]
    assert places == sorted(places)


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", README)
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.filterwarnings("default")
def test_the_examples_run():
    pytest.importorskip("scipy")
    codes = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert [len([line for line in code.splitlines() if line]) for code in codes] == [12, 11]
    session: dict = {}
    for code in codes:
        exec(compile(code, "README.md", "exec"), session)
    assert session["error"] < 0.001  # as its comment says
    assert session["outputs"].shape == (500, 1)
    assert session["parameters"].shape == session["gradient"].shape == (65,)
    assert session["history"].loss[-1] < session["history"].loss[0] / 10
    assert session["result"].fun < session["value"]
    assert np.isfinite(session["result"].x).all()


def test_the_front_page_of_the_site():
    page = (ROOT / "docs" / "index.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 7
    session: dict = {}
    exec(compile(code, "docs/index.md", "exec"), session)
    assert session["p"].shape == (49,)
    assert np.abs(session["y"] - np.sin(session["x"])).max() < 0.1
    pictures = re.findall(r"_static/[\w./-]+", page)
    assert len(pictures) == 10
    assert [name for name in pictures if not (ROOT / "docs" / name).exists()] == []


def test_ratios_are_those_of_the_results():
    (sentence,) = re.findall(r"JAX takes (.*?) to (.*?) times as long as chains, PyTorch (.*?) to (.*?) times", README)
    ratios: dict[str, list[float]] = {"JAX scan": [], "PyTorch compile whole step": []}
    for table in charts.stored("dense").values():
        for peer, found in ratios.items():
            own, other = table.best("chains native"), table.best(peer)
            assert own
            assert other
            found.append(other.median / own.median)
    jax, torch = ratios.values()
    assert sentence == (f"{min(jax):.1f}", f"{max(jax):.1f}", f"{min(torch):.0f}", f"{round(max(torch), -1):.0f}")
