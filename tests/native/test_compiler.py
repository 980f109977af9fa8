"""The compiler: scratch memory, the length of code, listings, what it refuses by name."""

from __future__ import annotations

import time
from weakref import WeakValueDictionary

import numpy as np
import pytest

from chains import Adam, Chain, Dense, SquaredLoss, expr, tanh
from chains.backends import Executable, UnsupportedOperationError, backend
from chains.backends.numpy.backend import NumpyBackend
from chains.network.network import network_of

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm import jit as machine
from chains.backends.native.llvm import target
from tests.native.support import (
    Maps,
    assert_equal_results,
    floats,
    gradient_program,
    make_net,
    map_program,
    native,
    random_arrays,
    run_on,
    small_program,
)


@floats
def test_scratch_does_not_grow_with_the_batch(kind):
    program = small_program(kind)
    assert native(1).scratch_bytes(program, 100_000) == native(1).scratch_bytes(program, 1_000_000)
    assert native(2).scratch_bytes(program, 100_000) == native(2).scratch_bytes(program, 1_000_000)


def test_code_grows_linearly_with_the_layers():
    lines, seconds = {}, {}
    for layers in (16, 32, 64):
        program = Chain(*(Dense(16, 16, tanh) for _ in range(layers))).program(SquaredLoss(), Adam())
        start = time.perf_counter()
        lines[layers] = compile_program(program, target.processor()).text.count("\n")
        seconds[layers] = round(time.perf_counter() - start, 2)
    print(f"lines by layers: {lines}; seconds to write them: {seconds}")
    assert lines[64] - lines[32] == pytest.approx(2 * (lines[32] - lines[16]), rel=0.03)
    assert lines[64] < 1.05 * 4 * lines[16]


def test_compile_time(monkeypatch):
    """Printed, not judged: machines differ."""
    monkeypatch.setenv("CHAINS_CACHE", "off")
    monkeypatch.setattr(machine, "_made", WeakValueDictionary())  # other tests may hold the same code
    for program in (make_net().program(SquaredLoss()), make_net().program(SquaredLoss(), Adam())):
        start = time.perf_counter()
        compiled = NativeBackend().compile(program)
        print(f"4-32-16-4, {program.name}: {time.perf_counter() - start:.3f} s")
        assert not compiled.code.cached


def test_a_listing_shows_every_stage():
    text = native().listing(map_program("float32", lambda x: expr.exp(x)))
    assert "program test" in text
    assert "define" in text
    assert "ret" in text


def gather_program(dtype=np.int64):
    m = Maps("float32")
    table, index = m.input("table", 7, 4, batched=False), m.input("index", dtype=np.dtype(dtype))
    with m.ops.label("lookup"):
        m.ops.gather(m.output("y", 4), table, index)
    return m.program()


def accumulated_program():
    """Two sums over samples added to one matrix."""
    m = Maps("float32")
    g = m.output("g", 3, 4, batched=False)
    with m.ops.label("shared weights"):
        m.ops.matmul(g, m.input("a", 3).T, m.input("b", 4))
        m.ops.matmul(g, m.input("c", 3).T, m.input("d", 4), accumulate=True)
    return m.program()


def test_an_operation_that_cannot_be_compiled_is_named():
    for attempt in (native().compile, lambda program: native().bind(program, 3, {})):
        with pytest.raises(
            UnsupportedOperationError, match=r"'native'.*`gather` of lookup.*`index` must hold int32 or int64, not uint8"
        ):
            attempt(gather_program(np.uint8))


def test_auto_falls_back_to_numpy():
    program, auto = gather_program(np.uint8), backend("auto")
    assert auto.choose(program).name == "numpy"
    table, index = np.arange(28, dtype=np.float32).reshape(7, 4), np.array([6, 0, 3, 3], np.uint8)
    y = np.empty((4, 4), np.float32)
    Executable(auto, program)(4, {"table": table, "index": index, "y": y})
    np.testing.assert_array_equal(y, table[index.astype(int)])


def test_a_sum_added_to_another_is_computed_or_refused(eager):
    program = accumulated_program()
    arrays = random_arrays(program, 100)
    actual, wanted = (run_on(runner, program, 100, arrays) for runner in (backend("auto"), NumpyBackend()))
    assert_equal_results(actual, wanted, "float32")


def test_auto_prefers_machine_code():
    auto = backend("auto")
    for layers in ((Dense(3, 3),), (Dense(600, 600),), (Dense(3, 1200, tanh), Dense(1200, 1000))):
        assert auto.choose(gradient_program(Chain(*layers), "float32")).name == "native"
    assert network_of(Chain(Dense(3, 3))).backend.name == "auto"
