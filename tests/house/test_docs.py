"""The pages of docs/ and beside it: the files, modules and names that they speak of are there."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import chains
from tests.harness import package_modules
from tests.house.test_api_page import SIGNATURES, found, of_later

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/api").glob("*.md"),
        *(ROOT / "docs/design").glob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    }
    - {ROOT / "docs/design/gpu-ideas.md"}  # which names files that are gone
)
OTHERS = {"np", "cupy", "jax", "torch", "nn", "keras", "flax", "optax"}  # packages that are not ours


@cache
def sources() -> tuple[Path, ...]:
    return tuple(
        path for folder in ("chains", "tests", "benchmarks", "examples", "rosetta") for path in (ROOT / folder).rglob("*.py")
    )


def names(path: Path) -> set[str]:
    """What a module defines or imports."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
            continue
        for each in ast.walk(node):
            if isinstance(each, (ast.Import, ast.ImportFrom)):
                found |= {alias.asname or alias.name for alias in each.names}
            elif isinstance(each, ast.Name):
                found.add(each.id)
    return found


def unknown(text: str) -> list[str]:
    """What a page has in backticks that is not there: files of Python, `module.NAME`, dotted modules of the package."""
    quoted = re.findall(r"`+([^`\n]+)`+", re.sub(r"```.*?```", "", text, flags=re.S))
    paths = {f"/{path.relative_to(ROOT)}" for path in sources()}
    missing = []
    for word in quoted:
        if re.fullmatch(r"[\w/.]*\w\.py", word):
            known = any(path.endswith(f"/{word}") for path in paths)
        elif (match := re.fullmatch(r"([a-z]\w*)\.([A-Z]\w+)", word)) and match[1] not in OTHERS | {"chains"}:
            known = any(match[2] in names(path) for path in sources() if match[1] in (path.stem, path.parent.name))
        elif re.fullmatch(r"(chains|tests|benchmarks)(\.[a-z]\w*)+", word):
            parts = word.split(".")
            modules = {
                str(path.with_suffix("").relative_to(ROOT)).replace("/", ".").removesuffix(".__init__") for path in sources()
            }
            owner = ".".join(parts[:-1])
            homes = [ROOT / Path(*parts[:-1]) / "__init__.py", (ROOT / Path(*parts[:-1])).with_suffix(".py")]
            known = word in modules or (owner in modules and any(parts[-1] in names(home) for home in homes if home.exists()))
        else:
            continue
        missing += [] if known else [word]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_pages_name_is_there(page):
    assert unknown(page.read_text()) == []


def test_what_is_not_there_is_found():
    text = "`view.py`, `program/view.py`, `plan/view.py`, `jit.PIPELINE`, `jit.Pipeline`, `chains.expr.sin`, `chains.expr.sine`"
    assert unknown(text) == ["plan/view.py", "jit.Pipeline", "chains.expr.sine"]


# Docstrings


def documented(doc: str) -> list[str]:
    """The names under "Parameters" in a docstring, without the docstring's own indent."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-+$|\Z)", inspect.cleandoc(doc), re.M | re.S)
    lines = re.findall(r"^([*\w][\w*, ]*?)(?: :.*)?$", section[1], re.M) if section else []
    return [name.strip(" *") for line in lines for name in line.split(",")]


def described() -> list[object]:
    """The functions and classes of the package whose docstrings list their parameters."""
    found = {}
    for module in package_modules():
        for thing in vars(module).values():
            for each in (thing, *vars(thing).values()) if inspect.isclass(thing) else (thing,):
                own = str(getattr(each, "__module__", "")).startswith("chains.")
                if own and (inspect.isclass(each) or inspect.isfunction(each)) and documented(each.__doc__ or ""):
                    found[each.__module__, each.__qualname__] = each
    return list(found.values())


def parameters(thing: Any) -> list[str]:
    """The names of what a function takes, or the constructor of a class."""
    if inspect.isclass(thing) and thing.__init__ is object.__init__:
        return []
    function = thing.__init__ if inspect.isclass(thing) else thing
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_docstrings_list_the_parameters_there_are():
    things = described()
    assert {thing: documented(thing.__doc__) for thing in things} == {thing: parameters(thing) for thing in things}
    assert chains.train in things


def public(name: str) -> Any:
    """What a row of the reference describes: a class, a function, or the call of a thing."""
    thing = found(name)
    return thing if inspect.isclass(thing) or inspect.isroutine(thing) else type(thing).__call__


def test_public_names_list_their_parameters():
    things = {name: public(name) for name in SIGNATURES if not of_later(name)}
    listed = {name: documented(inspect.getdoc(thing) or "") for name, thing in things.items()}
    assert listed == {name: parameters(thing) for name, thing in things.items()}


@pytest.mark.parametrize("name", sorted(filter(of_later, SIGNATURES)))
def test_public_names_of_other_packages_list_their_parameters(name):
    thing = public(name)
    assert documented(inspect.getdoc(thing) or "") == parameters(thing)


def test_another_list_of_parameters_is_told():
    assert documented("One.\n\nParameters\n----------\na, b : int\n    Both.\n") == ["a", "b"]


def test_changes_are_listed_once():
    """Of each version; two entries that begin with the same words are one change, from before and after a merge."""
    for version in (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]:
        begins = [line[:40] for line in version.splitlines() if line.startswith("- ")]
        assert sorted(begins) == sorted(set(begins))


BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MADE = "auto_tutorials/"  # pictures that the site's tutorials draw


def anchors(path):
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def links(page):
    """The links of a page to files and to their headings."""
    text = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", page.read_text()))
    return [each for each in re.findall(r"\]\(([^)\s]*)\)", text) if not each.startswith(("http", MADE))]


def leads_nowhere(page, link):
    name, _, anchor = link.partition("#")
    path = (page.parent / name).resolve() if name else page
    return not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path))


def test_links_lead_to_files_and_headings():
    pages = [*PAGES, *ROOT.glob("examples/*.md"), *ROOT.glob("rosetta/*.md"), *ROOT.glob("tests/campaign/*.md")]
    assert len(pages) > 60
    assert {(page.name, link) for page in pages for link in links(page) if leads_nowhere(page, link)} == set()
