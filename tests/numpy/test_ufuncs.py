"""What the NumPy backend calls gives the same results on strided arrays as on contiguous ones, in place too.

NumPy 2.4's `negative` does not: in place, where 4-byte elements are 16 bytes apart or 8-byte ones 64, with AVX-512.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chains.backends.numpy
from chains.backends.numpy.formulas import array_calls
from chains.expr.scalar import COMPARISONS, OPERATIONS

LENGTH = 67  # a few of the widest vectors, and a rest
STRIDES = range(1, 33)  # in elements
DTYPES = "?ilfd"  # of parameters, samples, masks, ids and the bits of numbers

Compute = Callable[[np.ndarray, "list[np.ndarray]"], Any]


def named_in_the_sources() -> set[str]:
    """The ufuncs that the backend's files name, with their methods, such as "add.reduce"."""
    found = set()
    for path in Path(chains.backends.numpy.__path__[0]).glob("*.py"):
        text = path.read_text()
        assert "from numpy" not in text  # else the names below are not all
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Attribute(ast.Attribute(ast.Name("np"), name), method) if is_ufunc(name):
                    found.add(f"{name}.{method}")
                case ast.Attribute(ast.Name("np"), name) if is_ufunc(name):
                    found.add(name)
    return found


def is_ufunc(name: str) -> bool:
    return isinstance(getattr(np, name, None), np.ufunc)


def elementwise() -> dict[str, tuple[Compute, str, str]]:
    """Functions that fill an array from others of its shape, with the types of these and of the result."""
    cases: dict[str, tuple[Compute, str, str]] = {}
    for name, row in OPERATIONS.items():
        for dtype in "fd":
            ins = dtype * row.arity
            if name in ("and", "or", "not"):
                ins = "?" * row.arity
            elif name == "where":
                ins = "?" + dtype * 2

            def compute(out: np.ndarray, sources: list[np.ndarray], name: str = name) -> None:
                for call in array_calls(name, out, sources):
                    call()

            cases[f"{name} of formulas, {dtype}"] = compute, ins, "?" if name in COMPARISONS else dtype
    for name in sorted(named_in_the_sources()):
        ufunc = getattr(np, name, None)
        if ufunc is None or ufunc.signature is not None:
            continue
        for ins, _, out_type in (types.partition("->") for types in ufunc.types):
            if set(ins + out_type) <= set(DTYPES):
                cases[f"{name}, {ins}->{out_type}"] = (lambda out, s, ufunc=ufunc: ufunc(*s, out=out)), ins, out_type
    return cases


# Those that do not go element by element: the result's shape, the operands' shapes and what is computed.
OTHERS: dict[str, tuple[tuple[int, ...], list[tuple[int, ...]], Compute]] = {
    "add.reduce": ((1, LENGTH), [(5, LENGTH)], lambda out, s: np.add.reduce(s[0], 0, None, out, True)),
    "maximum.reduce": ((1, LENGTH), [(5, LENGTH)], lambda out, s: np.maximum.reduce(s[0], 0, None, out, True)),
    "add.at": ((LENGTH,), [(LENGTH,)], lambda out, s: (out.fill(0), np.add.at(out, np.arange(LENGTH) // 2, s[0]))),
    "matmul": ((2, 5, 7), [(2, 5, 9), (2, 9, 7)], lambda out, s: np.matmul(s[0], s[1], out)),
}


def drawn(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = np.dtype(dtype).kind
    if kind == "f":
        return rng.uniform(-4.0, 4.0, shape).astype(dtype)
    return rng.integers(0, 2 if kind == "b" else 100, shape).astype(dtype)


def strided(array: np.ndarray, stride: int) -> np.ndarray:
    """A copy of `array` with `stride` elements from one entry of the last axis to the next."""
    whole = np.zeros((*array.shape[:-1], array.shape[-1] * stride), array.dtype)
    whole[..., ::stride] = array
    return whole[..., ::stride]


def check(compute: Compute, out: np.ndarray, sources: list[np.ndarray], overwritten: list[int]) -> None:
    """Compare the results for all strides, into other arrays and into these of the sources."""
    compute(out, sources)
    for stride, spread in product(STRIDES, product((False, True), repeat=len(sources) + 1)):
        arrays = [strided(a, stride if wide else 1) for a, wide in zip([out, *sources], spread, strict=True)]
        arrays[0].fill(1)
        compute(arrays[0], arrays[1:])
        close(arrays[0], out, stride)
    for stride, place in product(STRIDES, overwritten):
        arrays = [strided(a, stride) for a in sources]
        compute(arrays[place], arrays)
        close(arrays[place], out, stride)


def close(found: np.ndarray, wanted: np.ndarray, stride: int) -> None:
    if np.array_equal(found, wanted):
        return
    tolerance = 8 * np.finfo(wanted.dtype).eps if wanted.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=f"stride {stride}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", elementwise())
def test_elementwise(name):
    compute, ins, out = elementwise()[name]
    rng = np.random.default_rng(0)
    overwritten = [place for place, dtype in enumerate(ins) if dtype == out]
    if name.startswith("where"):
        overwritten = [2]  # the backend has it overwrite no other
    check(compute, np.empty(LENGTH, out), [drawn(rng, dtype, (LENGTH,)) for dtype in ins], overwritten)


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("name", OTHERS)
def test_others(name, dtype):
    shape, sources, compute = OTHERS[name]
    rng = np.random.default_rng(0)
    check(compute, np.empty(shape, dtype), [drawn(rng, dtype, source) for source in sources], [])


def test_no_ufunc_is_missing():
    tested = {name.partition(",")[0] for name in elementwise()} | set(OTHERS)
    assert not named_in_the_sources() - tested
