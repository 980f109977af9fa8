"""The part of the day: every case has its day, tests of one case have theirs together, and NumPy runs all in float64."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests import sampling
from tests.harness import Case


def item(function, number, backend, case=None, mark=None, dtype=np.float32):
    given = {"backend_name": backend, "number": number}
    given |= {} if case is None else {"case": Case(case, None, ()), "dtype": dtype}
    name = f"{function}[{number}-{backend}]"
    call = SimpleNamespace(params=given)
    return SimpleNamespace(function=function, nodeid=name, path="file", callspec=call, get_closest_marker=lambda name: mark)


@pytest.mark.parametrize(("cases", "count"), [(1, 1), (2, 1), (3, 2), (9, 8), (40, 32), (200, 64), (5000, 64)])
def test_few_cases_run_every_day(cases, count):
    assert sampling.parts(cases) == count


def test_every_case_has_run_within_sixty_four_days():
    items = [item("f", k, "native") for k in range(300)]
    days = [
        {each.nodeid for each in sampling.chosen(items, seed)[0]} for seed in range(20261101, 20261101 + sampling.MOST_PARTS)
    ]
    assert set.union(*days) == {each.nodeid for each in items}
    assert sum(map(len, days)) == len(items)


def test_numpy_runs_every_case():
    items = [item("f", k, name) for k in range(100) for name in ("numpy", "native")]
    today, others = sampling.chosen(items, 7)
    assert len(today) + len(others) == 200
    assert sum(each.callspec.params["backend_name"] == "numpy" for each in today) == 100
    assert 100 < len(today) < 115


def test_numpy_runs_every_case_of_the_harness_in_float64_and_some_in_float32():
    cases = [item("f", k, "numpy", f"case {k}", dtype=dtype) for k in range(600) for dtype in (np.float32, np.float64)]
    today = [each.callspec.params["dtype"] for each in sampling.chosen(cases, 7)[0]]
    assert today.count(np.float64) == 600
    assert 10 < today.count(np.float32) < 40


def test_what_runs_of_one_case_runs_on_one_day():
    many = [item("many", k, "native", f"case {k}") for k in range(400)]
    some = [item("some", k, "native", f"case {k}") for k in range(40)]
    today = sampling.chosen([*many, *some], 3)[0]
    names = {name: {each.callspec.params["case"].name for each in today if each.function == name} for name in ("many", "some")}
    assert {f"case {k}" for k in range(40)} & names["many"] <= names["some"]


def test_a_mark_says_how_many_run():
    mark = pytest.mark.by_day(few=4).mark
    items = [item("f", k, "", mark=mark) for k in range(64)]
    days = [{each.nodeid for each in sampling.chosen(items, seed)[0]} for seed in range(16)]
    assert set.union(*days) == {each.nodeid for each in items}
    assert sum(map(len, days)) == 64


def test_what_prints_as_an_address_is_told_by_the_name_of_its_test():
    found = item("f", 1, "native")
    found.callspec.params["case"] = lambda: None
    assert sampling.number_of(found, 3) == sampling.number_of(item("f", 2, "native"), 3)


def test_one_case_after_the_other():
    items = [item(function, k, "numpy", f"case {k}") for function in ("f", "g") for k in range(3)]
    order = [each.callspec.params["case"].name for each in sampling.neighbours(items)]
    assert order == ["case 0", "case 0", "case 1", "case 1", "case 2", "case 2"]
