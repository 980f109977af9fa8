"""CONTRIBUTING.md: its lists of what a new layer and a new operation touch are those of the layers and operations there are."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import chains
from chains.program import operations

ROOT = Path(__file__).parents[2]


@cache
def words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", path.read_text()))


def files() -> list[Path]:
    """The project's own sources and pages."""
    found = [path for folder in ("chains", "tests", "docs") for path in (ROOT / folder).rglob("*.*")]
    return [path for path in [*found, *ROOT.glob("*.md")] if path.suffix in (".py", ".md")]


def kinds(module: ModuleType, root: type) -> list[type]:
    """The public classes of this kind; what is a kind of another is done with that one."""
    classes = [
        c for name, c in vars(module).items() if isinstance(c, type) and issubclass(c, root) and not name.startswith("_")
    ]
    return [c for c in classes if c is not root and not any(base in classes for base in c.__mro__[1:-1] if base is not root)]


LAYERS = [kind for kind in kinds(chains, chains.Layer) if kind is not chains.Doses]  # a part of `ODE`, whose tests have it
# Sums over processes are neither exported nor derived.
OPERATIONS = [kind for kind in kinds(operations, operations.Operation) if kind is not operations.AllReduce]


def places(thing: type) -> set[str]:
    """The files that name a class, and their folders."""
    named = [path.relative_to(ROOT) for path in files() if thing.__name__ in words(path)]
    return {str(path) for path in named} | {f"{folder}/" for path in named for folder in path.parents if folder.parts}


def touched(things: list[type]) -> set[str]:
    """The files that name all of the things, and the folders, as deep as there are, in which each is named by another file."""
    common = set.intersection(*map(places, things))
    common.discard("chains/program/recorder.py")  # a method there is optional: `Recorder.record` takes any operation
    return {place for place in common if not any(other != place and other.startswith(place) for other in common)}


def listed(heading: str) -> set[str]:
    """The first column of the table under a heading."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.M))


@pytest.mark.parametrize(("heading", "things"), [("A new layer", LAYERS), ("A new operation", OPERATIONS)])
def test_the_lists_are_what_all_of_a_kind_touch(heading, things):
    assert len(things) > 10
    for thing in things:
        lacking = listed(heading) - places(thing)
        assert not lacking, f"{thing.__name__} is not named in {', '.join(sorted(lacking))}: see CONTRIBUTING.md, {heading}"
    unlisted = touched(things) - listed(heading)
    assert not unlisted, f"all are named in {', '.join(sorted(unlisted))}: CONTRIBUTING.md, {heading}, needs a row"


def test_what_is_not_listed_is_found():
    assert touched([chains.Conv, chains.MaxPool]) - listed("A new layer")  # what two of them share is no list of all
    assert "docs/api/layers.md" not in touched([*LAYERS, operations.MatMul])
