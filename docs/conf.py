"""The documentation site: `python -m sphinx -W docs build/site`, offline, with warnings as errors."""

from __future__ import annotations

import re
from importlib.util import find_spec
from os.path import relpath
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx

import chains

project = "chains"
copyright = "the authors of chains"
version = release = chains.__version__

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_design"]
extensions += ["sphinx_gallery.gen_gallery"]
exclude_patterns = ["tutorials"]  # the gallery writes its pages into auto_tutorials/
default_role = "code"

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # `identity`, not its long text
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"  # types stand in the docstrings, as numpydoc has it
numpydoc_show_class_members = False

# What a tutorial needs beyond the extra "docs"; without it, the page shows the code and no results.
NEEDS = {
    "torch_and_jax": ("torch", "jax"),
    "out_as_onnx": ("onnx", "onnxruntime"),
    "pipeline_and_optuna": ("optuna",),
    "learned_controller": ("casadi",),
}
shown_only = [name for name, packages in NEEDS.items() if not all(map(find_spec, packages))]
sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "auto_tutorials",
    "subsection_order": ["tutorials/first_steps", "tutorials/models", "tutorials/equations", "tutorials/custom", "*"],
    "filename_pattern": rf"/(?!(?:{'|'.join(shown_only)})\.py)\w+\.py$" if shown_only else r"\.py$",
    "abort_on_example_error": True,
    "capture_repr": (),  # nothing that a last line of drawing returns
    "default_thumb_file": str(Path(__file__).parent / "_static" / "cards" / "code.png"),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,
}

html_theme = "pydata_sphinx_theme"
html_title = "chains"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = html_show_sourcelink = html_show_sphinx = False
html_sidebars = {"index": []}
html_theme_options: dict[str, Any] = {
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
}

# Files of the project that are pages of the site too.
ROOT = Path(__file__).parents[1]
PAGES = {
    "contributing": ROOT / "CONTRIBUTING.md",
    "changelog": ROOT / "CHANGELOG.md",
    "benchmarks": ROOT / "benchmarks" / "README.md",
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)[^)#\s]+")
FILE_NAME = re.compile(r"(?<=\[)[\w-]+\.md(?=\]\()")  # a link's text on the site is the title of its page
PICTURE = re.compile(r"!\[[^]]*\]\(auto_tutorials/[^)]*\)")  # made by the gallery, which `-D plot_gallery=False` leaves out


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Files link to each other by their places, as they are read without the site; here the links lead to pages."""
    file = PAGES.get(page, ROOT / "docs" / f"{page}.md")
    if page in PAGES:
        source[0] = file.read_text() + source[0]
        app.env.note_dependency(str(file))

    def place(link: re.Match[str]) -> str:
        target = (file.parent / link[0]).resolve()
        if target.suffix == ".py" and ROOT / "docs" / "tutorials" in target.parents:
            target = ROOT / "docs" / "auto_tutorials" / target.relative_to(ROOT / "docs" / "tutorials").with_suffix(".rst")
        pages = [ROOT / "docs" / f"{name}.md" for name, path in PAGES.items() if path == target]
        pages += [ROOT / "docs" / "index.md"] if target == ROOT / "README.md" else []
        return relpath(pages[0] if pages else target, (ROOT / "docs" / page).parent)

    if str(app.config.plot_gallery) == "False":
        source[0] = PICTURE.sub("", source[0])
    if file.exists():
        source[0] = FILE_NAME.sub("", LINK.sub(place, source[0]))


def escape_formulas(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Stars, bars and underscores outside code are signs of a formula, as in (batch, *shape) and |x|, and no markup."""
    pieces = re.split(r"(``.*?``|`[^`]*`)", "\n".join(lines), flags=re.DOTALL)
    pieces[::2] = [re.sub(r"([*|]|_\b)", r"\\\1", piece) for piece in pieces[::2]]
    lines[:] = "".join(pieces).split("\n")


def visit_math(writer: Any, node: nodes.math | nodes.math_block) -> None:
    """Formulas become MathML, which browsers draw themselves: no script, nothing to load."""
    block = isinstance(node, nodes.math_block)
    markup = latex2mathml.tex2mathml(node.astext(), as_block=block)
    writer.body.append(f'<div class="math">{markup}</div>' if block else markup)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", escape_formulas, priority=400)  # before numpydoc
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))


html_math_renderer = "mathml"
