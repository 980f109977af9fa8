"""README.md: short, its example runs, its figures are those of docs/performance.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAX_WORDS = 700


def rows(text: str) -> dict[str, list[str]]:
    """The tables' rows by their first cells, of equal ones the first, without the marks of bold type."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            first, *cells = line.replace("**", "").strip("| ").split(" | ")
            found.setdefault(first, cells)
    return found


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
def test_the_example_runs():
    pytest.importorskip("scipy")
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15
    session: dict = {}
    exec(compile(code, "README.md", "exec"), session)
    assert session["outputs"].shape == (500, 1)
    assert session["parameters"].shape == session["gradient"].shape == (65,)
    assert session["history"].loss[-1] < session["history"].loss[0] / 10
    assert session["result"].fun < session["value"]
    assert np.isfinite(session["result"].x).all()


def test_figures_are_those_of_the_performance_page():
    with_avx2, _ = (ROOT / "docs" / "performance.md").read_text().split("## Measured with AVX-512")
    measured = rows(with_avx2)
    names = {
        "chains": "chains, native",
        "PyTorch, eager": "PyTorch, eager",
        "JAX, `lax.scan` over steps": "JAX, `lax.scan` over steps",
        "scikit-learn": "scikit-learn",
    }
    shown = rows(README)
    assert names.keys() <= shown.keys()
    for name, there in names.items():
        assert shown[name] == [re.sub(r" \(.*\)", "", cell) for cell in measured[there]], name
