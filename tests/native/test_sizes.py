"""Networks of odd sizes at odd batches equal NumPy's, and touch nothing beside their buffers."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from functools import cache

import numpy as np
import pytest

import chains
from chains import SGD, Chain, Dense, Dropout, SquaredLoss, tanh
from chains.backends.numpy.backend import NumpyBackend
from chains.expr import tanh as scalar_tanh
from chains.network import record
from chains.network.network import network_of
from chains.program import Recorder

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend, memory_plan
from tests.native.support import (
    FUNCTIONS,
    Fenced,
    Guarded,
    assert_equal_results,
    call,
    in_process,
    map_program,
    native,
    random_arrays,
    random_program,
    reductions,
    run_fenced,
    run_on,
    vjp_program,
)

SIZES = (1, 2, 3, 5, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100)


TRIPLES = [
    triple
    for k in range(6)
    for triple in ((SIZES[k], SIZES[k + 6], SIZES[k + 12]), (SIZES[k + 12], SIZES[k], SIZES[k + 6]))
]  # fmt: skip
BATCHES = (1, 2, 3, 5, 7, 11, 12, 13, 15, 16, 17, 31, 33, 47, 48, 49, 63, 65, 95, 96, 97, 100, 1025)


@cache
def sized(triple, kind):
    return vjp_program(triple, kind)


@pytest.mark.few(2)
@pytest.mark.parametrize(("sizes", "kind"), [(t, "float32") for t in TRIPLES] + [(t, "float64") for t in TRIPLES[::2]], ids=str)
def test_odd_sizes_equal_numpy_within_their_buffers(sizes, kind, eager):
    program, wide = sized(sizes, kind), vjp_program(sizes, "float64")
    for batch in BATCHES:
        arrays = random_arrays(program, batch)
        wanted = run_on(NumpyBackend(), wide, batch, {name: array.astype("f8") for name, array in arrays.items()})
        for threads in (1, 2, 3) if batch > 48 else (1,):
            fences = Fenced()
            actual = run_fenced(native(threads), program, batch, arrays, fences)
            fences.check(f"batch {batch}, {threads} threads")
            assert_equal_results(actual, wanted, kind, f"batch {batch}, {threads} threads")


OTHERS = {
    "wide": (Dense(3, 130, tanh), Dense(130, 67, chains.σ), Dense(67, 2)),
    "long": (Dense(700, 3), Dense(3, 700)),
    "column": (Dense(5, 1, chains.gelu), Dense(1, 9), Dense(9, 1)),
    "sine": (Dense(3, 17, "sin"), Dense(17, 5, "mish")),
    "branches": (chains.Residual(Dense(9, 9, tanh)), chains.Parallel(Dense(9, 5), chains.Scale(), Dense(9, 3, "silu"))),
    "softmax": (Dense(7, 19), chains.Softmax(), chains.Shift(), Dense(19, 3), chains.LogSoftmax()),
    "dropout": (Dense(7, 13, tanh), Dropout(0.4), Dense(13, 5), Dropout(0.2)),
}


@cache
def other(name, kind):
    return record.vjp(network_of(Chain(*OTHERS[name])), np.dtype(kind), True)


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "kind"), [(name, "float32") for name in OTHERS] + [("dropout", "float64")])
def test_other_networks_equal_numpy_within_their_buffers(name, kind, eager):
    program, wide = other(name, kind), other(name, "float64")
    for batch in (1, 3, 17, 50, 97, 211):
        arrays = random_arrays(program, batch)
        in_double = {k: array if k == "random" else array.astype("f8") for k, array in arrays.items()}
        wanted = run_on(NumpyBackend(), wide, batch, in_double)
        for threads in (1, 2, 3):
            fences = Fenced()
            actual = run_fenced(native(threads), program, batch, arrays, fences, runs=2)
            fences.check(f"batch {batch}, {threads} threads")
            assert_equal_results(actual, wanted, kind, f"batch {batch}, {threads} threads")


def guard_pages(kind, behind):
    """Run many programs between pages that must not be touched; the last line printed says what ran."""
    memory_plan.MIN_THREAD_OPERATIONS = 1
    programs = {str(sizes): sized(sizes, kind) for sizes in TRIPLES[:: 1 if kind == "float32" else 2]}
    programs |= {name: other(name, kind) for name in (OTHERS if kind == "float32" else ["dropout"])}
    programs["functions"] = map_program(kind, lambda x: tuple(call(name)(x) for name in FUNCTIONS), len(FUNCTIONS))
    programs["random"] = random_program(kind, (3,))
    programs["step"] = Chain(Dense(150, 121, tanh), Dense(121, 5)).program(SquaredLoss(), SGD(0.01), dtype=kind)
    programs |= {f"reductions {k}": program for k, program in enumerate(reductions(kind))}
    for name, program in programs.items():
        for batch in (1, 5, 33, 101):
            print(json.dumps([name, batch]), flush=True)
            arrays = random_arrays(program, batch)
            for threads in (1, 2):
                run_fenced(native(threads), program, batch, arrays, Guarded(behind))
    print(json.dumps("done"), flush=True)


@pytest.mark.few(1)
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mprotect") if os.name == "posix" else True, reason="needs mprotect")
@pytest.mark.parametrize(("kind", "behind"), [("float32", True), ("float64", True), ("float32", False)])
def test_guard_pages_are_not_touched(kind, behind):
    assert in_process(guard_pages, kind, behind) == "done"


def guard_page_of_my_own():
    array = Guarded(True)((3,), np.float32, 4)
    print(json.dumps("reading"), flush=True)
    ctypes.c_float.from_address(array.ctypes.data + 12).value  # noqa: B018


@pytest.mark.skipif(os.name != "posix", reason="needs mprotect")
def test_a_guard_page_that_is_touched_ends_the_process():
    with pytest.raises(AssertionError, match=rf"exit code -({int(signal.SIGSEGV)}|{int(signal.SIGBUS)})"):
        in_process(guard_page_of_my_own)


def test_a_fence_that_is_touched_is_seen():
    fences = Fenced()
    array = fences((3,), np.float32, 4)
    ctypes.c_float.from_address(array.ctypes.data + 12).value = 1.0
    with pytest.raises(AssertionError, match="behind"):
        fences.check()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", range(2, 9))
def test_maps_of_rows_shorter_than_a_vector(width, dtype):
    """Numbers of each column, of all and of each sample, and rows with gaps, at batch sizes around whole blocks."""
    ops = Recorder("short rows", dtype)
    x, row = ops.external("x", (width,), role="input", batched=True), ops.external("row", (width,), role="input")
    own, one = ops.external("own", (1,), role="input", batched=True), ops.external("one", (), role="input")
    y, z = (ops.external(name, (width,), role="output", batched=True) for name in ("y", "z"))
    apart, steps = (ops.external(name, (3, k), role="state", batched=True) for name, k in (("apart", width), ("steps", 1)))
    ops.map(y, lambda x, row, one: scalar_tanh(x * row) + one, x, row, one)
    ops.map(z, lambda y, row, own: y * row - own, y, row, own)
    ops.map(apart.index(1, 1), lambda a, x, step: a * step - x, apart.index(1, 2), x, steps.index(1, 1))
    program, rng = ops.finish(), np.random.default_rng(width)
    for batch in (1, 7, 8, 9, 16, 31, 200):
        given = {"x": (batch, width), "row": (width,), "own": (batch, 1), "one": ()}
        given |= {"apart": (batch, 3, width), "steps": (batch, 3, 1)}
        arrays = {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in given.items()}
        between = arrays["apart"].copy()
        between[:, 1] = between[:, 2] * arrays["steps"][:, 1] - arrays["x"]
        binding = NativeBackend(threads=1).bind(program, batch, arrays)
        binding()
        wanted = np.tanh(arrays["x"] * arrays["row"]) + arrays["one"]
        tolerance = 1e-5 if dtype == np.float32 else 1e-13
        np.testing.assert_allclose(binding.arrays["y"], wanted, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(binding.arrays["z"], wanted * arrays["row"] - arrays["own"], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(binding.arrays["apart"], between, rtol=tolerance, atol=tolerance)


def test_a_small_network_needs_little_memory():
    program = sized((1, 2, 3), "float32")
    assert native(1).scratch_bytes(program, 1) < 2**16
