"""The choice of cases: all on NumPy, each value of each parameter; and no module asks for the date."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest, selection
from tests.harness import ACTIVATION_CASES, BACKENDS, LAYERS, LOSS_CASES, OPTIMIZERS, OWN_LAYERS, PENALTY_CASES, Case

ROOT = Path(__file__).parents[2]


def calls(**parameters):
    """The calls of a test parametrized by all combinations, as pytest has them."""
    made = [{}]
    for name, values in parameters.items():
        made = [{**one, name: place} for one in made for place in range(len(values))]
    return [
        SimpleNamespace(params={name: parameters[name][place] for name, place in one.items()}, indices=one, id=str(one))
        for one in made
    ]


def few(*args, **kwargs):
    return pytest.mark.few(*args, **kwargs).mark


def test_numpy_runs_every_case_and_native_two():
    found = [
        call.params["backend_name"] for call in selection.chosen(calls(k=range(50), backend_name=["numpy", "native"]), None)
    ]
    assert (found.count("numpy"), found.count("native")) == (50, 2)


def test_a_mark_says_how_many_run():
    assert len(selection.chosen(calls(k=range(50), backend_name=["numpy", "native"]), few(7))) == 7
    assert len(selection.chosen(calls(k=range(5)), few(7))) == 5
    assert selection.chosen(calls(k=range(5)), few(0)) == []


def test_each_value_of_each_parameter_runs_where_there_is_room():
    found = selection.chosen(calls(backend_name=["numpy", "native"], dtype=["float32", "float64"], k=range(9)), few(9))
    values = {name: {call.params[name] for call in found} for name in ("backend_name", "dtype", "k")}
    assert values == {"backend_name": {"numpy", "native"}, "dtype": {"float32", "float64"}, "k": set(range(9))}


def test_others_run_always():
    found = selection.chosen(calls(k=range(50), batch=[1, 5]), few(4, always=lambda k, batch: batch == 5))
    assert [call.params["k"] for call in found if call.params["batch"] == 5] == list(range(50))
    assert len(found) == 54


def test_a_further_case_replaces_one_at_most():
    before, after = ({call.id for call in selection.chosen(calls(k=range(n)), few(6))} for n in (50, 51))
    assert len(before - after) <= 1


def test_one_case_after_the_other():
    items = [
        SimpleNamespace(
            nodeid=f"{function}[{k}]", path="file", callspec=SimpleNamespace(params={"case": Case(f"case {k}", None, ())})
        )
        for function in ("f", "g") for k in range(3)
    ]  # fmt: skip
    order = [each.callspec.params["case"].name for each in selection.neighbours(items)]
    assert order == ["case 0", "case 0", "case 1", "case 1", "case 2", "case 2"]


def test_a_test_that_takes_long_runs_fewer():
    many = calls(k=range(50), backend_name=["numpy", "native"])
    found = selection.chosen(many, None, 3)
    assert len(found) == 3
    assert {call.id for call in found} <= {call.id for call in selection.chosen(many, None)}
    assert {call.params["backend_name"] for call in found} == {"numpy", "native"}
    assert selection.chosen(many, few(7), 0) == []
    assert len(selection.chosen(many, few(7), 9)) == 7
    assert [call.id for call in selection.chosen(many, few(7), many[30].id)] == [many[30].id]


def test_a_quick_case_that_takes_long_is_named():
    given = {"when": "call", "user_properties": [(selection.SECONDS, 44.04)]}
    reports = [SimpleNamespace(nodeid=f"tests/one.py::{name}", **given) for name in ("one[a]", "two")]
    reports[1].user_properties = [(selection.SECONDS, 0.1)]
    (line,) = selection.too_long(reports)
    assert line.startswith("tests/one.py::one[a] takes 44.0 s of processor time: propose a line for thorough.txt")


@pytest.mark.parametrize(
    ("options", "named", "ignored"),
    [({}, "tests", True), ({"--rest": True}, "tests", None), ({"--all-cases": True}, "tests", None), ({}, "", None)],
)
def test_files_without_quick_cases_are_not_imported(options, named, ignored):
    (file, *_) = (name for name in selection.remaining() if "::" not in name)
    config = SimpleNamespace(rootpath=ROOT, args=[str(ROOT / (named or file))], getoption=lambda name: options.get(name, False))
    assert conftest.pytest_ignore_collect(ROOT / file, config) is ignored
    assert conftest.pytest_ignore_collect(Path(__file__), config) is None


def test_the_rest_has_files_without_quick_cases():
    (file, *_) = (name for name in selection.remaining() if "::" not in name)
    assert selection.kept(f"{file}::test_one") == 0
    assert not conftest.is_quick(SimpleNamespace(nodeid=f"{file}::test_one[a]"), {})


def test_tests_that_take_long_are_there():
    lines = [line for line in selection.LIST.read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(lines), "sort the lines of tests/thorough.txt"
    assert len(lines) == len(selection.remaining()), "a test has one line in tests/thorough.txt"
    known = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    known |= {test.partition("::")[0] for test in known}
    gone = sorted(selection.remaining().keys() - known)
    assert gone == [], "tests/thorough.txt names tests that are gone: take out their lines"


def test_the_quick_cases_have_everything_on_each_backend():
    """Gradients of each layer, activation, loss and penalty, and a training with each optimizer."""
    files = ["tests/layers/test_gradients.py", "tests/optimizers/test_optimizers.py"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", "-o", "addopts=-q", *files]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    gradients = re.findall(r"::test_gradient_is_a_central_difference\[(.*)\]", text)
    for backend in BACKENDS:
        here = [name for name in gradients if f"-{backend}-" in name]
        for cases in (LAYERS, OWN_LAYERS, ACTIVATION_CASES, LOSS_CASES, PENALTY_CASES):
            subjects: dict[object, list[str]] = {}
            for case in cases:
                subjects.setdefault(str(case.subject), []).append(case.name)
            missing = [key for key, names in subjects.items() if not any(f"-{n}-" in id for n in names for id in here)]
            assert missing == [], f"no quick case on {backend}"
    assert [name for name in OPTIMIZERS if f"-{name}]" not in text and f"[{name}" not in text] == []


# The date

CLOCK = {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime"}  # of the module `time`


def dated(text):
    """What of a source asks for the date."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {"datetime"} & {getattr(node, "module", None), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time":
            found |= {node.attr} & CLOCK
    return found


def test_no_module_asks_for_the_date():
    sources = [path for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name]
    assert {path.name: dated(path.read_text()) for path in sources if dated(path.read_text())} == {}


def test_a_date_is_found():
    assert dated("from datetime import date\nx = time.time(), time.monotonic()") == {"datetime", "time"}
