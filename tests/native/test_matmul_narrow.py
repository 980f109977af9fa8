"""Products of few columns, the results of several samples in one vector, and the shuffles behind them."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
import pytest

from chains import expr
from chains.backends.numpy.backend import NumpyBackend

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.compiler import compile_program
from chains.backends.native.kernels import matmul
from chains.backends.native.llvm import shuffles
from chains.backends.native.llvm.emit import PTR, Function, Module, integer, real_type
from chains.backends.native.llvm.jit import machine_code
from chains.backends.native.llvm.target import processor
from tests.native.support import (
    CLOSE,
    INSTRUCTIONS,
    Fenced,
    Maps,
    assert_equal_results,
    floats,
    native,
    random_arrays,
    run_fenced,
    run_on,
)

pytestmark = pytest.mark.few(6)

widths = pytest.mark.parametrize("simd", INSTRUCTIONS)
BATCHES = (1, 3, 7, 16, 17, 33, 50, 100)


def layer(kind, inner, columns, *, maps=True, accumulate=False, transposed=False, gap=0):
    """``y = x @ w``, then maps on its elements: with a vector, a number, and an array of the samples."""
    m = Maps(kind)
    y, x = m.output("y", columns + gap, role="state" if accumulate else "output"), m.input("x", inner)
    y = y.slice(1, 0, columns) if gap else y
    w = m.input("w", *((columns, inner) if transposed else (inner, columns)), batched=False)
    m.ops.matmul(y, x, w.T if transposed else w, accumulate=accumulate)
    if maps:
        b, t, s = m.input("b", columns, batched=False), m.input("t", columns), m.input("s", batched=False)
        m.ops.map(y, lambda y, b: expr.maximum(y + b, 0.1 * (y + b)), y, b)
        m.ops.map(m.output("z", columns), lambda y, t, s: s * (y - t) * (y - t), y, t, s)
    return m.program()


def check(make, kind, simd, batches=BATCHES):
    """What `make` records is computed as NumPy does in float64."""
    program, double = make(kind), make("float64")
    for batch in batches:
        arrays = random_arrays(program, batch)
        for name, buffer in program.buffers.items():
            if buffer.role in ("state", "output"):
                arrays[name][...] = 0.25
        wanted = run_on(NumpyBackend(), double, batch, {name: array.astype("f8") for name, array in arrays.items()})
        fences = Fenced()
        actual = run_fenced(native(1, simd), program, batch, arrays, fences)
        fences.check(f"batch {batch}")
        assert_equal_results(actual, wanted, kind, f"batch {batch}")


@pytest.mark.few(3)
@widths
@floats
@pytest.mark.parametrize("columns", range(1, 9))
def test_narrow_products_equal_numpy_within_their_buffers(columns, kind, simd):
    for inner in (columns, 5, 16, 19, 40):
        check(partial(layer, inner=inner, columns=columns), kind, simd)


@widths
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    "options",
    [{"accumulate": True}, {"transposed": True}, {"gap": 3}, {"maps": False}],
    ids=lambda options: next(iter(options)),
)
def test_other_narrow_products(options, columns, simd):
    check(partial(layer, inner=21, columns=columns, **options), "float32", simd)


@widths
@floats
@pytest.mark.parametrize("shape", [(16, 4), (33, 2), (7, 8), (40, 1), (13, 1), (26, 2), (19, 3), (5, 16), (64, 32)], ids=str)
def test_gradients_of_narrow_layers(shape, kind, simd):
    """Few sums in flight, which are kept in several sets; transposes, which are stored interleaved."""
    inner, columns = shape

    def gradients(kind):
        m = Maps(kind)
        x, dy = m.input("x", inner), m.input("dy", columns)
        m.ops.matmul(m.output("w", inner, columns, batched=False), x.T, dy)
        m.ops.sum(m.output("b", columns, batched=False), dy)
        m.ops.matmul(m.output("dx", inner), dy, m.input("weight", inner, columns, batched=False).T)
        return m.program()

    check(gradients, kind, simd, (*BATCHES, 1025))


def test_which_products_are_narrow(monkeypatch):
    """As many as are meant: eight columns of sixteen lanes, but not nine, and none whose rows have gaps."""
    seen = []
    monkeypatch.setattr(matmul, "lower_matmul_narrow", lambda frame, kernel: seen.append(kernel.out.shape[1]) or integer(0))
    for columns, options in ((1, {}), (4, {}), (8, {}), (9, {}), (4, {"gap": 1})):
        compile_program(layer("float32", 20, columns, **options), processor(), 1)
    assert seen == [1, 4, 8] if processor().lanes(4) == 16 else [1, 4]


def shuffle(kind, simd, rows, write):
    """What `write` makes of so many vectors, whose numbers count from 0."""
    chosen = processor(simd)
    scalar = real_type(np.dtype(kind))
    type = real_type(np.dtype(kind), chosen.lanes(np.dtype(kind).itemsize))
    module = Module()
    f = Function(module, "shuffle", [(PTR, "source"), (PTR, "target")])
    source, target = f.arguments
    vectors = [f.load(type, f.address(source, integer(k * type.lanes), scalar)) for k in range(rows(type.lanes))]
    results = write(f, vectors)
    for k, vector in enumerate(results):
        f.store(vector, f.address(target, integer(k * type.lanes), scalar))
    f.line("ret void")
    module.add(f)
    numbers = np.arange(len(vectors) * type.lanes).astype(kind).reshape(len(vectors), type.lanes)
    made = np.zeros((len(results), type.lanes), kind)
    code = machine_code(module.text(), ["shuffle"], chosen)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address("shuffle"))(numbers.ctypes.data, made.ctypes.data)
    return numbers, made


@widths
@floats
@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_blocks_of_lanes_are_transposed(unit, kind, simd):
    if processor(simd).lanes(np.dtype(kind).itemsize) < unit:
        pytest.skip("a vector is shorter than a block")
    numbers, made = shuffle(kind, simd, lambda lanes: lanes // unit, lambda f, rows: shuffles.transposed(f, rows, unit))
    square = numbers.reshape(len(numbers), len(numbers), unit)
    np.testing.assert_array_equal(made.reshape(square.shape), square.swapaxes(0, 1))


@widths
@floats
def test_sums_of_lanes(kind, simd):
    numbers, made = shuffle(kind, simd, lambda lanes: lanes, lambda f, rows: [shuffles.sums_of_lanes(f, rows)])
    np.testing.assert_allclose(made[0], numbers.sum(1), rtol=CLOSE[np.dtype(kind)])


@widths
@floats
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_vectors_are_interleaved(count, kind, simd):
    numbers, made = shuffle(kind, simd, lambda lanes: count, shuffles.interleaved)
    np.testing.assert_array_equal(made.ravel(), numbers.T.ravel())


@widths
def test_lanes_are_spread_and_repeated(simd):
    def write(f, rows):
        return [shuffles.spread(f, rows[0], 1, 2), shuffles.repeated(f, rows[0], 3, rows[0].type.lanes)]

    numbers, made = shuffle("float32", simd, lambda lanes: 1, write)
    lanes = np.arange(made.shape[1])
    np.testing.assert_array_equal(made, [numbers[0][lanes // 2 * 2 + 1], numbers[0][lanes % 3]])
