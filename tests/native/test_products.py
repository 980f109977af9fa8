"""Products whose operands are slices, shared, overlapping or far apart."""

from __future__ import annotations

import pytest

from chains import expr
from chains.backends.numpy.backend import NumpyBackend
from chains.program.view import View

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from tests.native.support import (
    Fenced,
    Maps,
    assert_equal_results,
    assert_equals_numpy,
    floats,
    native,
    random_arrays,
    run_fenced,
    run_on,
)


@pytest.mark.parametrize("width", [3, 16, 100])
@floats
def test_an_operand_of_a_product_is_overwritten_afterwards(kind, width):
    """A map may write over what the product before it reads: it must not do so before the product is done."""
    m = Maps(kind)
    ops = m.ops
    h, z = ops.scratch("h", (width,)), ops.scratch("z", (width,))
    ops.map(h, lambda x: 2.0 * x, m.input("x", width))
    ops.matmul(z, h, m.input("w", width, width, batched=False))
    ops.map(h, lambda z: z + 1.0, z)
    ops.map(m.output("y", width), lambda h: 1.5 * h, h)
    program = m.program()
    arrays = random_arrays(program, 50)
    assert_equal_results(run_on(native(), program, 50, arrays), run_on(NumpyBackend(), program, 50, arrays), kind)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
@floats
def test_products_of_slices(kind, accumulate, transposed, eager):
    """Operands and results with gaps between their rows, with and without adding to what is there."""
    m = Maps(kind)
    y, x = m.output("y", 23, role="state").slice(1, 3, 20), m.input("x", 31).slice(1, 5, 24)
    w = m.input("w", *((29, 40) if not transposed else (40, 29)), batched=False)
    w = w.slice(0, 4, 23).slice(1, 7, 24) if not transposed else w.slice(0, 7, 24).slice(1, 4, 23).T
    m.ops.matmul(y, x, w, accumulate=accumulate)
    m.ops.map(y, lambda y, b: expr.tanh(y + b), y, m.input("b", 17, batched=False))
    m.ops.matmul(m.output("g", 25, 30, batched=False).slice(0, 1, 20).slice(1, 3, 20), x.T, y)
    program = m.program()
    for batch in (1, 13, 49, 100):
        arrays = random_arrays(program, batch)
        for name in ("y", "g"):
            arrays[name][...] = 0.25
        wanted = run_on(NumpyBackend(), program, batch, arrays)
        for threads in (1, 2):
            fences = Fenced()
            actual = run_fenced(native(threads), program, batch, arrays, fences)
            fences.check()
            assert_equal_results(actual, wanted, kind, f"batch {batch}, {threads} threads")


@pytest.mark.parametrize("what", ["writes", "reads"])
@pytest.mark.parametrize("width", [40, 400])
def test_maps_of_a_product_on_overlapping_places(width, what, eager):
    """The second map changes what the first one has written, or has read, a column further on."""
    m = Maps("float32")
    z, y, e = m.ops.scratch("z", (width,)), *(m.output(name, width + 1, role="state") for name in "ye")
    m.ops.matmul(z, m.input("x", width), m.input("w", width, width, batched=False))
    changed = y if what == "writes" else e
    m.ops.map(y.slice(1, 0, width), lambda z, e: z + e, z, e.slice(1, 0, width))
    m.ops.map(changed.slice(1, 1, width + 1), lambda z: z * 3.0, z)
    assert_equals_numpy(m.program(), 5, 20)


@pytest.mark.parametrize("width", [40, 400])
def test_a_bias_that_is_a_row(width, eager):
    m = Maps("float32")
    y = m.output("y", width)
    m.ops.matmul(y, m.input("x", width), m.input("w", width, width, batched=False))
    m.ops.map(y, lambda y, b: y + b, y, m.input("b", 1, width, batched=False))
    assert_equals_numpy(m.program(), 5, 20)


@pytest.mark.parametrize("width", [40, 400])
def test_samples_whose_numbers_lie_apart(width, eager):
    """A channel of samples of three, times transposed weights."""
    m = Maps("float32")
    x = m.input("x", width, 3)
    middle = View(x.buffer, x.shape[:2], x.strides[:2], 1)
    m.ops.matmul(m.output("y", width), middle, m.input("w", width, width, batched=False).T)
    assert_equals_numpy(m.program(), 5, 13)
