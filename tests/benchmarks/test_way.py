"""`python -m benchmarks.studies.way`: the way of a call is short."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite", reason="repeated calls end in machine code")

from benchmarks.studies import way

WAYS = way.measured()


@pytest.mark.parametrize("name", [name for name in WAYS if name.endswith("third call")])
def test_a_repeated_call_is_three_calls_in_three_files(name):
    assert WAYS[name].counts[:2] == (3, 3)


@pytest.mark.parametrize("name", [name for name in WAYS if name.endswith("first call")])
def test_the_first_call_of_an_equal_network_is_short(name):
    calls, files, changes = WAYS[name].counts
    assert calls <= 200
    assert files <= 16
    assert changes <= 50
