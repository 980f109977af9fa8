"""Operations on their own: sums and maxima, maps, copies, statistics of the batch."""

from __future__ import annotations

import numpy as np
import pytest

from chains import expr
from chains.backends import UnsupportedOperationError, backend
from chains.backends.numpy.backend import NumpyBackend
from chains.program.operations import Window
from chains.program.recorder import Recorder
from tests.harness import assert_close

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from tests.native.support import (
    Fenced,
    Maps,
    assert_equal_results,
    floats,
    map_program,
    native,
    random_arrays,
    reductions,
    run_fenced,
    run_on,
)


@pytest.mark.few(8)
@floats
@pytest.mark.parametrize("number", range(10))
def test_reductions_equal_numpy(number, kind, eager):
    program = reductions(kind)[number]
    for batch in (1, 2, 16, 47, 49, 130):
        arrays = random_arrays(program, batch)
        wanted = run_on(NumpyBackend(), program, batch, arrays)
        for threads in (1, 3):
            fences = Fenced()
            actual = run_fenced(native(threads), program, batch, arrays, fences)
            fences.check()
            assert_equal_results(actual, wanted, kind, f"batch {batch}, {threads} threads")


def test_a_maximum_keeps_nan_and_infinities(eager):
    m = Maps("float32")
    x = m.input("x", 19)
    m.ops.max(m.output("rows", 1), x)
    program = m.program()
    arrays = random_arrays(program, 5)
    arrays["x"][1, 3], arrays["x"][2, 18], arrays["x"][4] = np.nan, np.inf, -np.inf
    actual, wanted = (run_on(runner, program, 5, arrays)["rows"] for runner in (native(), NumpyBackend()))
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("threads", [1, 2, 3])
@floats
def test_statistics_of_the_batch(kind, threads, eager):
    """What one phase sums, all threads read in the next one."""
    m = Maps(kind)
    x, y, ops = m.input("x", 5), m.output("y", 5), m.ops
    mean, variance = (ops.scratch(name, (5,), batched=False) for name in ("mean", "variance"))
    centred, square = ops.scratch("centred", (5,)), ops.scratch("square", (5,))
    ops.sum(mean, x)
    ops.map(mean, lambda total, inverse: total * inverse, mean, ops.inverse_batch)
    ops.map((centred, square), lambda x, mean: (x - mean, (x - mean) * (x - mean)), x, mean)
    ops.sum(variance, square)
    ops.map(variance, lambda total, inverse: total * inverse, variance, ops.inverse_batch)
    ops.map(y, lambda c, v: c / expr.sqrt(v + 1e-5), centred, variance)
    ops.copy(m.output("mean", 5, batched=False), mean)
    program = m.program()
    for batch in (1, 48, 97, 5000):
        arrays = random_arrays(program, batch)
        wanted = run_on(NumpyBackend(), program, batch, arrays)
        fences = Fenced()
        actual = run_fenced(native(threads), program, batch, arrays, fences)
        fences.check()
        assert_equal_results(actual, wanted, kind, f"batch {batch}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scalars_of_either_type(dtype):
    """A scalar may be of another type than the arrays of a formula."""
    m = Maps("float32")
    s = m.input("s", batched=False, dtype=np.dtype(dtype))
    m.ops.map(m.output("y", 3), lambda x, s: x * s, m.input("x", 3), s)
    program = m.program()
    arrays = random_arrays(program, 5) | {"s": np.array(1.75, dtype)}
    if dtype == "float64":  # left to NumPy
        with pytest.raises(UnsupportedOperationError, match="operands must be of one type"):
            run_on(native(), program, 5, arrays)
        return
    try:
        actual = run_on(native(), program, 5, arrays)
    except UnsupportedOperationError:
        assert dtype != "float32"
        actual = run_on(backend("auto"), program, 5, arrays)
    assert_equal_results(actual, {"y": arrays["x"] * np.float32(1.75)}, "float32")


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8"])
def test_a_copy_of_another_type_is_converted_or_refused(dtype):
    m = Maps("float32")
    m.ops.copy(m.output("y", 3), m.input("x", 3, dtype=np.dtype(dtype)))
    program = m.program()
    arrays = {"x": np.arange(15, dtype=dtype).reshape(5, 3), "y": np.full((5, 3), np.nan, np.float32)}
    try:
        actual = run_on(native(), program, 5, arrays)
    except UnsupportedOperationError:
        return
    np.testing.assert_array_equal(actual["y"], arrays["x"])


def test_a_constant_too_large_for_the_type_is_infinite():
    with np.errstate(all="ignore"):
        program = map_program("float32", lambda x: expr.minimum(x, 1e300))
        arrays = random_arrays(program, 5)
        np.testing.assert_array_equal(run_on(native(), program, 5, arrays)["y0"], arrays["x0"])


def test_samples_as_columns_are_computed_or_refused():
    m = Maps("float32")
    x, y = m.input("x", 3), m.output("y", 4)
    m.ops.matmul(y.T, m.input("w", 4, 3, batched=False), x.T)
    program = m.program()
    arrays = random_arrays(program, 5)
    try:
        actual = run_on(native(), program, 5, arrays)
    except UnsupportedOperationError:
        return
    assert_close(actual["y"], arrays["x"] @ arrays["w"].T, 1e-5)


def test_results_shifted_on_operands_are_refused():
    m = Maps("float32")
    y = m.output("y", 40, role="state")
    m.ops.map(y.slice(1, 1, 40), lambda a: a + 1.0, y.slice(1, 0, 39))
    with pytest.raises(UnsupportedOperationError, match="written across an operand"):  # left to NumPy
        native().compile(m.program())


@floats
@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (5, 19), (3, 1, 5)], ids=str)
def test_broadcasting_maps_copies_and_fills(shape, kind, eager):
    m = Maps(kind)
    ops, x, y = m.ops, m.input("x", *shape), m.output("y", *shape)
    row = m.input("row", shape[-1], batched=False)
    column = m.input("column", *shape[:-1], 1)
    all_of_it = m.input("all", *shape, batched=False)
    ops.map(y, lambda x, r, c, a, i: x * r + c - a * i, x, row, column, all_of_it, ops.inverse_batch)
    ops.copy(m.output("copied", *shape), column)
    ops.copy(m.output("rows", *shape), row)
    ops.copy(m.output("gaps", *shape).slice(-1, 0, 1), x.slice(-1, shape[-1] - 1, shape[-1]))
    filled = m.output("filled", *shape)
    ops.fill(filled, 2.5)
    ops.fill(filled.slice(-1, shape[-1] - 1, shape[-1]), -1.0)
    ops.map(m.output("state", *shape, role="state"), lambda s, r: s - r, m.output("state", role="state"), row)
    program = m.program()
    for batch in (1, 2, 49, 101):
        arrays = random_arrays(program, batch)
        wanted = run_on(NumpyBackend(), program, batch, arrays)
        for threads in (1, 3):
            fences = Fenced()
            actual = run_fenced(native(threads), program, batch, arrays, fences)
            fences.check()
            for name, array in wanted.items():
                np.testing.assert_allclose(actual[name], array, rtol=0, atol=1e-5 if kind == "float32" else 1e-12, err_msg=name)


@floats
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_maxima_over_the_batch_equal_numpy(kind, threads, eager):
    m = Maps(kind)
    a = m.input("a", 5, 19)
    m.ops.max(m.output("every", 5, 19, batched=False), a)
    m.ops.max(m.output("last", 19, batched=False), a)
    m.ops.max(m.output("first", 5, 1, batched=False), a)
    m.ops.max(m.output("one", batched=False), a)
    m.ops.sum(m.output("total", 19, batched=False), a)
    y = m.output("y", 5, 19)
    whole = m.ops.scratch("whole", (19,), batched=False)
    m.ops.max(whole, a)
    m.ops.map(y, lambda a, top: a - top, a, whole)  # needs the maximum of the whole batch
    program = m.program()
    for batch in (1, 2, 49, 500):
        for sign in (1.0, -1.0):  # all below zero: nothing but the numbers themselves may win
            arrays = random_arrays(program, batch)
            arrays["a"] = sign * (np.abs(arrays["a"]) + np.asarray(1.0, kind))
            wanted = run_on(NumpyBackend(), program, batch, arrays)
            for _ in range(3):
                actual = run_on(native(threads), program, batch, arrays)
                for name in ("every", "last", "first", "one", "y"):
                    np.testing.assert_array_equal(actual[name], wanted[name])
                assert_equal_results(actual, wanted, kind)
        arrays["a"][batch // 2, 3, 4] = np.nan
        actual = run_on(native(threads), program, batch, arrays)
        assert np.isnan(actual["one"])
        assert np.isnan(actual["last"]).sum() == 1


def run_both(program, batch, arrays, threads, eager):
    wanted = run_on(NumpyBackend(), program, batch, arrays)
    fences = Fenced()
    actual = run_fenced(native(threads), program, batch, arrays, fences)
    fences.check()
    assert_equal_results(actual, wanted, "float64", f"{threads} threads")


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("first", ["sum", "samples"])
def test_a_part_of_a_buffer_that_is_summed_up_is_read_by_samples(first, threads, eager):
    """Each thread has sums of its own, in a copy of the buffer, and nothing else of it."""
    ops = Recorder("test", np.float64)
    a, b = (ops.external(name, (3,), role="input", batched=True) for name in "ab")
    known = ops.external("known", (3,), role="input")
    y = ops.external("y", (3,), role="output", batched=True)
    total = ops.external("total", (2, 3), role="output")
    both = ops.scratch("both", (2, 3), batched=False)
    ops.copy(both.index(0, 0), known)
    records = {
        "sum": lambda: ops.sum(both.index(0, 1), a),
        "samples": lambda: ops.map(y, lambda b, k: b + k, b, both.index(0, 0)),
    }
    for name in sorted(records, key=lambda name: name != first):
        records[name]()
    ops.copy(total, both)
    program = ops.finish()
    for batch in (1, 16, 49):
        run_both(program, batch, random_arrays(program, batch), threads, eager)


def test_what_a_caller_has_in_a_state_stays_where_images_are_in_lanes(eager):
    ops = Recorder("test", np.float64)
    x = ops.external("x", (2, 4, 4), role="input", batched=True)
    weight = ops.external("weight", (2, 2, 2, 2), role="input")
    y = ops.external("y", (2, 3, 3), role="output", batched=True)
    state = ops.external("state", (3, 4, 4), role="state", batched=True)
    ops.convolve(y, x, weight, Window((2, 2)))
    ops.map(state.slice(1, 0, 2), lambda x: 2.0 * x, x)
    program = ops.finish()
    for batch in (1, 16, 49):
        run_both(program, batch, random_arrays(program, batch), 2, eager)
