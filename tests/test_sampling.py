"""The part of the day: every case has its day, tests of one case have theirs together, and NumPy runs all in float64."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests import sampling
from tests.harness import Case


def call(number, backend, case=None, dtype=np.float32, batch=5, marks=()):
    """A call of a parametrized test, as pytest has it."""
    given = {"backend_name": backend, "number": number}
    given |= {} if case is None else {"case": Case(case, None, ()), "dtype": dtype, "batch": batch}
    return SimpleNamespace(params=given, marks=list(marks))


def numbers(calls):
    return {each.params["number"] for each in calls}


@pytest.mark.parametrize(("cases", "count"), [(1, 1), (2, 1), (3, 2), (9, 8), (40, 32), (200, 64), (5000, 64)])
def test_few_cases_run_every_day(cases, count):
    assert sampling.parts(cases) == count


def test_every_case_has_run_within_sixty_four_days():
    calls = [call(k, "native") for k in range(300)]
    days = [numbers(sampling.chosen("f", calls, None, seed)) for seed in range(20261101, 20261101 + sampling.MOST_PARTS)]
    assert set.union(*days) == set(range(300))
    assert sum(map(len, days)) == len(calls)


def test_numpy_runs_every_case():
    calls = [call(k, name) for k in range(100) for name in ("numpy", "native")]
    today = sampling.chosen("f", calls, None, 7)
    assert sum(each.params["backend_name"] == "numpy" for each in today) == 100
    assert 100 < len(today) < 115


def test_numpy_runs_every_case_of_the_harness_in_float64_and_some_in_float32_or_of_one_sample():
    kinds = [(dtype, batch) for dtype in (np.float32, np.float64) for batch in (1, 5)]
    cases = [call(k, "numpy", f"case {k}", *kind) for k in range(600) for kind in kinds]
    today = [(each.params["dtype"], each.params["batch"]) for each in sampling.chosen("f", cases, None, 7)]
    assert today.count((np.float64, 5)) == 600
    assert 40 < today.count((np.float64, 1)) < 160
    assert 10 < sum(dtype is np.float32 for dtype, _ in today) < 40


def test_what_runs_of_one_case_runs_on_one_day():
    many, some = (numbers(sampling.chosen(test, [call(k, "native", f"case {k}") for k in range(count)], None, 3))
                  for test, count in (("many", 400), ("some", 40)))  # fmt: skip
    assert many & set(range(40)) <= some


@pytest.mark.parametrize(("few", "days"), [(4, 16), (0.25, 64)])
def test_a_mark_says_how_many_run(few, days):
    mark, calls = pytest.mark.by_day(few=few).mark, [call(k, "") for k in range(round(few * days))]
    found = [numbers(sampling.chosen("f", calls, mark, seed)) for seed in range(days)]
    assert set.union(*found) == set(range(len(calls)))
    assert sum(map(len, found)) == len(calls)


def test_a_case_may_have_a_mark_of_its_own():
    calls = [call(0, ""), call(1, "", marks=[pytest.mark.by_day(few=1 / 8).mark])]
    days = [numbers(sampling.chosen("f", calls, None, seed)) for seed in range(8)]
    assert sorted(map(sorted, days)) == [[0]] * 7 + [[0, 1]]


def test_a_test_without_parameters_may_have_a_mark_too():
    def item(few):
        mark = None if few is None else pytest.mark.by_day(few=few).mark
        return SimpleNamespace(nodeid="f", get_closest_marker=lambda name: mark if name == "by_day" else None)

    days = {few: sum(sampling.runs(item(few), seed) for seed in range(64)) for few in (None, 2, 1, 0.5, 1 / 16)}
    assert days == {None: 64, 2: 64, 1: 64, 0.5: 32, 1 / 16: 4}


def test_what_prints_as_an_address_is_told_by_the_name_of_its_test():
    given = {"case": lambda: None}
    assert sampling.number_of("f", given, 3) == sampling.number_of("f", {}, 3)


def test_one_case_after_the_other():
    items = [
        SimpleNamespace(nodeid=f"{function}[{k}]", path="file", callspec=call(k, "numpy", f"case {k}"))
        for function in ("f", "g") for k in range(3)
    ]  # fmt: skip
    order = [each.callspec.params["case"].name for each in sampling.neighbours(items)]
    assert order == ["case 0", "case 0", "case 1", "case 1", "case 2", "case 2"]
