"""Elementary functions: their errors against long doubles, their limits, their ranges, NumPy's arithmetic."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from chains import expr
from chains.backends.numpy.backend import NumpyBackend

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.llvm import vectormath
from tests.native.support import FUNCTIONS, call, every_instruction_set, floats, map_program, native, random_arrays, run_on


def long_erf(x):
    """The error function in extended precision: a series of terms of one sign."""
    size = np.minimum(abs(x), 7)
    square = 2 * size * size
    term = total = size.copy()
    for n in range(1, 400):
        term = term * square / (2 * n + 1)
        total = total + term
    factor = np.longdouble("1.1283791670955125738961589031215451716881")
    return np.copysign(np.minimum(factor * np.exp(-size * size) * total, 1), x)


REFERENCES = {
    **{name: getattr(np, name) for name in FUNCTIONS if hasattr(np, name)},
    "erf": long_erf,
    "abs": np.abs,
    "neg": np.negative,
}


@cache
def points(kind):
    """Edges, grids, magnitudes of every order, and random bits."""
    dtype, rng = np.dtype(kind), np.random.default_rng(0)
    info = np.finfo(dtype)
    edges = [0, info.smallest_subnormal, info.tiny * 0.75, info.tiny, info.eps, 1 - info.epsneg, 1, 1 + info.eps]
    edges += [info.max, np.inf]
    breaks = [0.9, 0.34657359, 0.70710678, 8.6, 9.1, 20, 22, 88.722839, 87.33655, 103.97208, 709.782713, 708.39642, 745.13322]
    breaks += [math.pi / 4 * k for k in range(1, 9)] + [vectormath.REDUCED["float" if dtype.itemsize == 4 else "double"]]
    near = np.concatenate([b * (1 + np.arange(-60, 61) * float(info.eps)) for b in breaks])
    orders = np.logspace(math.log10(float(info.smallest_subnormal)), math.log10(float(info.max)) - 0.01, 8000)
    grids = [np.linspace(7.9, 9.2, 9001), np.linspace(0, 1.5, 9001), np.linspace(0, 12, 9001), np.linspace(0, 760, 9001)]
    positive = np.concatenate([edges, near, orders, *grids])
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize), 8001, np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
    with np.errstate(all="ignore"):
        return np.concatenate([positive.astype(dtype), -positive.astype(dtype), [np.nan], bits]).astype(dtype)


@cache
def references(kind):
    with np.errstate(all="ignore"):
        wide = points(kind).astype(np.longdouble)
        return {name: REFERENCES[name](wide) for name in FUNCTIONS}


@cache
def computed(kind, simd):
    """All functions at all points."""
    program = map_program(kind, lambda x: tuple(call(name)(x) for name in FUNCTIONS), len(FUNCTIONS))
    x = points(kind)
    arrays = {"x0": x, **{f"y{k}": np.full(x.shape, 7.0, kind) for k in range(len(FUNCTIONS))}}
    results = run_on(native(1, simd), program, len(x), arrays)
    return {name: results[f"y{k}"] for k, name in enumerate(FUNCTIONS)}


EXACT = {"abs": 0, "neg": 0, "sign": 0, "floor": 0, "sqrt": 0.5}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.mark.few(30)
@every_instruction_set
@floats
@every_function
def test_errors_are_within_the_bounds(name, kind, simd):
    if kind == "float64" and np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("no extended precision to compare with")
    x, y, exact = points(kind), computed(kind, simd)[name], references(kind)[name]
    with np.errstate(all="ignore"):
        rounded = exact.astype(kind)
        unit = np.spacing(abs(rounded)).astype(np.longdouble)
        if name in ("sin", "cos"):
            unit = np.maximum(unit, np.spacing(abs(x)))
        error = abs(y.astype(np.longdouble) - exact) / unit
    finite = np.isfinite(rounded)
    limit = EXACT[name] if name in EXACT else vectormath.ERRORS[name][kind == "float64"]
    worst = int(np.argmax(np.where(finite, error, 0)))
    # (A result that rounds to infinity may lie just below it, and the other way round.)
    largest = np.finfo(kind).max
    assert np.isfinite(y[finite & (abs(exact) < 0.999999 * largest)]).all()
    assert error[worst] <= limit or not np.isfinite(y[worst]), f"{name}({x[worst]!r}) = {y[worst]!r}: {error[worst]:.3g} ulp"


@every_instruction_set
@floats
@every_function
def test_nan_and_limits(name, kind, simd):
    x, y, exact = points(kind), computed(kind, simd)[name], references(kind)[name]
    with np.errstate(all="ignore"):
        rounded = exact.astype(kind)
    assert np.isnan(y[np.isnan(x)]).all()
    np.testing.assert_array_equal(np.isnan(y), np.isnan(exact), err_msg=str(x[np.isnan(y) != np.isnan(exact)][:5]))
    infinite = np.isinf(x)
    np.testing.assert_array_equal(y[infinite], rounded[infinite])
    poles = np.isinf(exact) & np.isfinite(x)
    np.testing.assert_array_equal(y[poles], exact[poles].astype(kind))
    zero = x == 0
    np.testing.assert_array_equal(y[zero], rounded[zero])


@every_instruction_set
@floats
def test_ranges_of_functions(kind, simd):
    """Derivatives such as 1 - y * y rely on these."""
    x, y = points(kind), computed(kind, simd)
    for name in ("tanh", "erf", "sin", "cos"):
        worst = np.nanargmax(np.where(np.isfinite(x), abs(y[name]), 0))
        assert abs(y[name][worst]) <= 1.0, f"{name}({x[worst]!r}) = {y[name][worst]!r}"
    assert np.nanmin(y["exp"]) >= 0.0
    assert np.nanmin(y["expm1"]) >= -1.0


@floats
def test_functions_do_not_depend_on_the_place(kind):
    """Alone, in the remainder, in the middle of a vector: the same bits (but where libm stands in for a vector)."""
    program = map_program(kind, lambda x: tuple(call(name)(x) for name in FUNCTIONS), len(FUNCTIONS))
    x = np.random.default_rng(1).normal(0, 3, 101).astype(kind)
    whole = run_on(native(), program, len(x), random_arrays(program, len(x)) | {"x0": x})
    for start, stop in [(0, 1), (1, 2), (3, 20), (5, 38), (50, 101), (100, 101)]:
        part = run_on(native(), program, stop - start, random_arrays(program, stop - start) | {"x0": x[start:stop]})
        for name, array in part.items():
            assert array.tobytes() == whole[name][start:stop].tobytes(), name


BINARY = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "min": expr.minimum, "max": expr.maximum, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "where": lambda a, b: expr.where(a < b, a, -b), "value": lambda a, b: expr.where(a, b, 2.0),
    "and": lambda a, b: (a < 0.5) & (b > 0.5), "or": lambda a, b: (a < 0.5) | (b > 0.5), "not": lambda a, b: ~(a <= b),
    "sums": lambda a, b: (a < b) + (a > 1.0), "pow": lambda a, b: a**b, "constant": lambda a, b: 0.0 * a + 3.5,
    "min-constant": lambda a, b: expr.minimum(a, 1.0) + expr.maximum(2.0, b),
}  # fmt: skip


@every_instruction_set
@floats
def test_arithmetic_equals_numpy(kind, simd):
    """Every pair of awkward numbers."""
    info = np.finfo(kind)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, info.tiny, info.smallest_subnormal, info.max, -info.max]
    values += [np.inf, -np.inf, np.nan]
    a, b = (grid.ravel().astype(kind) for grid in np.meshgrid(values, values))
    program = map_program(kind, lambda a, b: tuple(f(a, b) for f in BINARY.values()), len(BINARY), 2)
    arrays = random_arrays(program, len(a)) | {"x0": a, "x1": b}
    actual, wanted = (run_on(runner, program, len(a), arrays) for runner in (native(1, simd), NumpyBackend()))
    for k, name in enumerate(BINARY):
        np.testing.assert_allclose(actual[f"y{k}"], wanted[f"y{k}"], rtol=4 * info.eps, err_msg=name)
