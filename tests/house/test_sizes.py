"""Functions stay short, and private ones take few parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_house import FILES, PACKAGE

LINES, MOST_LONG = 40, 15  # of code: the line of `def` counts, its docstring and blank lines do not
PARAMETERS, MOST_WIDE = 7, 10  # without `self`; constructors and pullbacks take what they must


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef, bool]]:
    """Each function of a file: its place, the function, and whether it is private, or within one that is."""

    def visit(node: ast.AST, private: bool) -> Iterator[tuple[str, ast.FunctionDef, bool]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            hidden = private or isinstance(node, ast.FunctionDef) or (named and child.name.startswith("_"))
            if isinstance(child, ast.FunctionDef):
                yield f"{path.name}:{child.lineno} {child.name}", child, hidden
            yield from visit(child, hidden)

    yield from visit(ast.parse(path.read_text()), False)


def lines_of_code(function: ast.FunctionDef, lines: list[str]) -> int:
    """The lines of a function, without its docstring and blank lines."""
    first = function.body[0] if ast.get_docstring(function) is not None else None
    left_out = range(first.lineno, (first.end_lineno or 0) + 1) if first is not None else ()
    numbers = range(function.lineno, (function.end_lineno or 0) + 1)
    return sum(bool(lines[n - 1].strip()) for n in numbers if n not in left_out)


def parameters(function: ast.FunctionDef) -> int:
    """The parameters of a function, without `self` and `cls`."""
    of = function.args
    names = [each.arg for each in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg) if each is not None]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def long_functions(paths: list[Path]) -> list[str]:
    """The places of functions with too many lines."""
    texts = {path: path.read_text().splitlines() for path in paths}
    found = [(place, lines_of_code(each, texts[path])) for path in paths for place, each, _ in functions(path)]
    return [f"{place}, {count} lines" for place, count in found if count > LINES]


def wide_functions(paths: list[Path]) -> list[str]:
    """The places of private functions with too many parameters."""
    found = [(place, each) for path in paths for place, each, private in functions(path) if private]
    free = ("__init__", "pullback")
    return [place for place, each in found if each.name not in free and parameters(each) > PARAMETERS]


def test_few_functions_are_long():
    long = long_functions(FILES)
    assert len(long) <= MOST_LONG, f"divide one of these functions of {PACKAGE}: {long}"


def test_few_private_functions_take_many_parameters():
    wide = wide_functions(FILES)
    assert len(wide) <= MOST_WIDE, f"group the parameters of one of these functions of {PACKAGE}: {wide}"


def test_long_and_wide_functions_are_found(tmp_path):
    path = tmp_path / "sizes.py"
    body = "".join(f"    x{k} = {k}\n\n" for k in range(LINES))
    names = ", ".join(f"p{k}" for k in range(PARAMETERS + 1))
    path.write_text(
        f'def long():\n    """Text.\n\n    More.\n    """\n{body}\n\ndef _wide({names}):\n    def short():\n        pass\n'
    )
    assert long_functions([path]) == ["sizes.py:1 long, 41 lines"]
    assert [place.split()[1] for place in wide_functions([path])] == ["_wide"]
    path.write_text(path.read_text().replace("    x0 = 0\n", "").replace("_wide", "wide"))
    assert long_functions([path]) == []
    assert wide_functions([path]) == []
