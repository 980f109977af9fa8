"""A program that falls to NumPy fails the tests of rooms in which every network runs in machine code."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite", reason="without llvmlite nothing falls to NumPy")

import chains
from chains import SquaredLoss
from tests import selection
from tests.native.test_fallback import T, X, make


def test_a_gradient_on_numpy_is_an_error_here():
    net = make()
    with pytest.raises(chains.FallbackWarning, match=r"NumPy runs the program 'gradient'.*1\.Shifted"):
        net.value_and_grad(net.init(), X, T, SquaredLoss())


def test_elsewhere_it_is_not():
    assert selection.must_be_native("tests/layers/test_gradients.py::test_gradient_is_a_central_difference[case]")
    assert not selection.must_be_native("tests/native/test_fallback.py::test_a_warning_for_each_program_once")
