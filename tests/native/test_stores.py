"""Stores of some lanes: with a mask, or in parts where masked stores are slow."""

from __future__ import annotations

import ctypes
import platform
import re

import numpy as np
import pytest

from chains import SGD, Chain, Dense, SquaredLoss, sigmoid

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.llvm.emit import PTR, Function, Module, Type, integer
from chains.backends.native.llvm.jit import machine_code
from chains.backends.native.llvm.target import processor
from tests.native.support import INSTRUCTIONS, native

REAL = {"float": np.float32, "double": np.float64}


def stores(name, lanes, used, *, splits):
    """The text of a function that stores the first `used` lanes of a vector."""
    module = Module(splits_masks=splits)
    f = Function(module, "f", [(PTR, "target"), (PTR, "source")])
    target, source = f.arguments
    f.store(f.load(Type(name, lanes), source), f.address(target, integer(3), Type(name)), f.lane_mask(lanes, used))
    module.add(f)
    return module.text()


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize(("name", "lanes"), [("float", 8), ("float", 4), ("double", 4), ("double", 2)])
def test_other_lanes_keep_what_is_there(name, lanes, splits):
    source = np.arange(1, lanes + 1, dtype=REAL[name])
    for used in range(1, lanes + 1):
        code = machine_code(stores(name, lanes, used, splits=splits), ["f"], processor())
        target = np.full(3 + 2 * lanes, -1, REAL[name])
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address("f"))(target.ctypes.data, source.ctypes.data)
        np.testing.assert_array_equal(target[3 : 3 + used], source[:used])
        assert (np.delete(target, np.s_[3 : 3 + used]) == -1).all()


def test_parts_have_no_mask():
    assert "masked" in stores("float", 8, 6, splits=False)
    parts = stores("float", 8, 7, splits=True)
    assert "masked" not in parts
    assert re.findall(r"store (<\d x float>|float) ", parts) == ["<4 x float>", "<2 x float>", "float"]


@pytest.mark.skipif("avx2" not in INSTRUCTIONS or platform.machine() == "aarch64", reason="reads code for AVX2")
def test_weights_of_odd_rows_are_updated_without_masked_stores():
    program = Chain(Dense(40, 30, sigmoid), Dense(30, 7)).program(SquaredLoss(), SGD(0.1))
    code = native(1, "avx2").listing(program)
    tile = code[code.index("\ntile_0_0:") : code.index("\nonce_0_0:")]
    assert "vmaskmovps\t(" in tile  # loads
    assert "vmaskmovps\t%ymm" not in tile
