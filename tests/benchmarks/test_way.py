"""`python -m benchmarks.studies.way`: the way of a call is short."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite", reason="repeated calls end in machine code")

from benchmarks.studies import way


@pytest.fixture(scope="module")
def ways():
    return way.measured()


@pytest.mark.parametrize("name", way.METHODS)
def test_a_repeated_call_is_three_calls_in_three_files(ways, name):
    assert ways[f"{name}, third call"].counts[:2] == (3, 3)


@pytest.mark.parametrize("name", way.METHODS)
def test_the_first_call_of_an_equal_network_is_short(ways, name):
    calls, files, changes = ways[f"{name}, first call"].counts
    assert calls <= 200
    assert files <= 16
    assert changes <= 50
