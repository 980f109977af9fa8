"""The guides in docs/: every snippet runs, those of a page in one session, in an empty folder."""

from __future__ import annotations

import ast
import doctest
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.house.test_examples import write_cifar10

matplotlib = pytest.importorskip("matplotlib", reason="the guides draw")

FOLDER = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = ("coming_from", "derivatives", "files", "fits", "interop", "pinns", "population", "queue", "recipes", "scikit-learn")
DIALOGUES = (  # pages that show answers
    "constraints", "ensembles", "ode", "sequences", "solvers", "stiff", "tables", "uncertainty", "universal",
)  # fmt: skip
# A snippet that needs one of these is left out where it is missing, with those after it under the same heading, and with
# later ones that use what it would have named.
OPTIONAL = {
    "casadi", "dask", "distributed", "jax", "joblib", "keras", "mlflow", "onnx", "onnxruntime", "optuna", "pyomo",
    "safetensors", "sklearn", "tensorboardX", "torch", "wandb",
}  # fmt: skip


def sections(page: str) -> list[list[tuple[int, str]]]:
    """The snippets under each heading, with the numbers of their first lines."""
    text = (FOLDER / f"{page}.md").read_text()
    starts = [0, *(heading.start() for heading in re.finditer(r"^## ", text, re.MULTILINE)), len(text)]
    return [
        [(text.count("\n", 0, block.start(1)), block[1]) for block in BLOCK.finditer(text, start, end)]
        for start, end in pairwise(starts)
    ]


def names(code: str) -> set[str]:
    """What a snippet assigns, imports and defines."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return found


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("default")  # of the packages that snippets use
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    session: dict[str, object] = {"__name__": "__main__"}
    unnamed: set[str] = set()
    for snippets in sections(page):
        for number, (line, code) in enumerate(snippets):
            try:
                exec(compile("\n" * line + code, f"docs/{page}.md", "exec"), session)
            except (ImportError, NameError) as error:
                optional = OPTIONAL if isinstance(error, ImportError) else unnamed
                if (error.name or "").split(".")[0] not in optional:
                    raise
                unnamed.update(*(names(code) for _, code in snippets[number:]))
                break
    assert sum(map(len, sections(page))) >= 2


@pytest.mark.parametrize("page", DIALOGUES)
def test_dialogues_give_what_they_show(page, tmp_path, monkeypatch):
    dialogues = [(line, code) for snippets in sections(page) for line, code in snippets if code.startswith(">>> ")]
    monkeypatch.chdir(tmp_path)
    runner, session = doctest.DocTestRunner(), {}
    for line, code in dialogues:
        dialogue = doctest.DocTestParser().get_doctest(code, session, page, f"docs/{page}.md", line)
        runner.run(dialogue, clear_globs=False)
        session = dialogue.globs
    assert runner.tries > 5
    assert runner.failures == 0


@pytest.mark.filterwarnings("default")
def test_the_plate_in_other_units_is_right():
    _, ((_, code),), *_ = sections("pinns")
    session: dict[str, Any] = {}
    exec(compile(code, "docs/pinns.md", "exec"), session)
    t, x = session["places"].T
    decay = np.exp(-session["DIFFUSIVITY"] * (np.pi / session["LENGTH"]) ** 2 * t)
    true = 300.0 + 100.0 * decay * np.sin(np.pi * x / session["LENGTH"])
    assert session["solution"].success
    assert abs(session["temperature"] - true).max() < 0.01


def test_units_and_photographs_of_what_is_included(tmp_path, monkeypatch, capsys):
    """The snippets of docs/included.md, with patterns instead of CIFAR-10 and an epoch instead of five."""
    monkeypatch.setenv("CHAINS_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    write_cifar10(tmp_path / "cifar10", monkeypatch)
    units, photographs = [code for snippets in sections("included") for _, code in snippets]
    exec(compile(units, "docs/included.md", "exec"), {})
    assert capsys.readouterr().out.startswith("[[305.")
    session: dict[str, object] = {"__name__": "__main__"}
    exec(compile(photographs.replace("epochs=5", "epochs=1"), "docs/included.md", "exec"), session)
    assert np.isfinite(session["p"]).all()
