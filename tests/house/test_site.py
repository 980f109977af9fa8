"""The documentation site builds from a clean copy without a warning, offline, and has every public name.

The tutorials are not run for it: `test_tutorials.py` runs them.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest

from chains import callbacks, layers, losses, program
from tests.harness import public_things

ROOT = Path(__file__).parents[2]
NEEDED = ("sphinx", "pydata_sphinx_theme", "myst_parser", "sphinx_gallery", "sphinx_design", "numpydoc", "matplotlib")
NEEDED += ("scipy", "sklearn")
pytestmark = pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason='the extra "docs" is not installed')


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built from a copy, so that nothing is left of an earlier build."""
    folder = tmp_path_factory.mktemp("clone")
    built = shutil.ignore_patterns("auto_tutorials", "__pycache__")
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for path in (*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "benchmarks" / "README.md"):
        place = folder / path.relative_to(ROOT)
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-D", "plot_gallery=False", "docs", "build/site"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return folder / "build" / "site"


def test_pages_of_the_project_are_there(site):
    for name in ("index", "installation", "coming_from", "api", "contributing", "changelog", "benchmarks", "limits"):
        assert "<h1>" in (site / f"{name}.html").read_text()
    tutorials = {path.stem for path in (ROOT / "docs" / "tutorials").rglob("*.py")}
    assert tutorials <= {path.stem for path in (site / "auto_tutorials").rglob("*.html")}


def test_every_public_name_has_its_docstring_there(site):
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        found = InventoryFile.load(file, "", lambda base, name: name)
    described = {name.rsplit(".", 1)[-1] for kind, names in found.items() if kind.startswith("py:") for name in names}
    public = {name for name, thing in public_things().items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    public |= {*layers.__all__, *losses.__all__, *callbacks.__all__, *program.__all__}
    assert len(public) > 80
    assert sorted(name for name in public if not name.startswith("_") and name not in described) == []


def test_links_lead_somewhere(site):
    """Pages, pictures and headings, in the text and around it. Listings of sources have links back, which Sphinx makes."""
    paths = [path.resolve() for path in site.rglob("*.html") if not {"_static", "_modules"} & set(path.parts)]
    pages = {path: path.read_text() for path in paths}
    names = {path: set(re.findall(r'id="([^"]+)"', text)) for path, text in pages.items()}
    links = {
        (path, link) for path, text in pages.items() for link in re.findall(r'(?:href|src)="([^":]+)"', text) if link != "#"
    }
    broken = set()
    for path, link in links:
        file, _, name = unquote(link).partition("#")
        place = (path.parent / file.partition("?")[0]).resolve() if file else path
        if not place.exists() or (name and name not in names.get(place, {name})):
            broken.add((path.name, link))
    assert broken == set()
    assert len(links) > 5000


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert re.findall(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]*"', page.read_text()) == [], page.name
