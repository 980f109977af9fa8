"""The native backend, hard pressed: functions, odd sizes, fences around buffers, threads, forks, the cache, training."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import itertools
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chains
from chains import SGD, Adam, Chain, Dense, Dropout, SquaredLoss, expr, tanh, train
from chains.backends import Executable, UnsupportedOperationError, backend
from chains.backends.numpy.backend import NumpyBackend
from chains.network import record
from chains.network.programs import Programs
from chains.program.recorder import Recorder
from chains.program.scratch import ALIGNMENT
from chains.program.view import View, concrete
from tests import harness
from tests.harness import CASES, LAYERS, LOSS_CASES, OPTIMIZERS, PENALTY_CASES, SCHEDULES, assert_close, targets
from tests.test_random_chains import cases

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native import binding as native_module
from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm import cache as cache_files
from chains.backends.native.llvm import jit as machine
from chains.backends.native.llvm import target, vectormath

ROOT = Path(__file__).parents[2]
LINUX = sys.platform == "linux"
SIZES = (1, 2, 3, 5, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100)
CLOSE = {np.dtype(np.float32): 5e-5, np.dtype(np.float64): 2e-12}
FLOATS = ["float32", "float64"]
floats = pytest.mark.parametrize("kind", FLOATS)


def has(simd):
    try:
        target.processor(simd)
    except ValueError:
        return False
    return True


INSTRUCTIONS = [simd for simd in ("avx512", "avx2", "sse2", "neon") if has(simd)]


@cache
def native(threads=1, simd=None):
    return NativeBackend(threads=threads, simd=simd)


# Programs and what NumPy makes of them


def shape_of(buffer, batch):
    return concrete(buffer.shape, batch)


def random_arrays(program, batch, seed=0):
    """Numbers for the inputs and states of a program; what it fills is NaN."""
    rng = np.random.default_rng([seed, batch])
    arrays = {}
    for name, buffer in program.buffers.items():
        if buffer.data is not None or name == "inverse_batch":
            continue
        if name == "random":
            arrays[name] = np.array([seed, 7], np.uint64)
        elif name == "step":
            arrays[name] = np.array(3.0)
        elif name == "weights":
            arrays[name] = rng.uniform(0.5, 2.0, batch).astype(buffer.dtype)
        elif buffer.role == "output":
            arrays[name] = np.full(shape_of(buffer, batch), np.nan, buffer.dtype)
        else:
            scale = 0.5 / math.sqrt(max(1, buffer.shape[-1])) if name == "p" and len(buffer.shape) == 2 else 0.4
            arrays[name] = rng.normal(0.0, scale, shape_of(buffer, batch)).astype(buffer.dtype)
    return arrays


def run_on(runner, program, batch, arrays, runs=1):
    """What a program writes, by name; the arrays are copied."""
    own = {name: array.copy() for name, array in arrays.items()}
    binding = runner.bind(program, batch, own)
    for _ in range(runs):
        binding()
    return {name: own[name] for name, buffer in program.buffers.items() if buffer.role in ("output", "state")}


def assert_equal_results(actual, wanted, dtype, what="", factor=1.0):
    assert actual.keys() == wanted.keys()
    for name, array in wanted.items():
        assert_close(actual[name], array, factor * CLOSE[np.dtype(dtype)], f"{name} {what}")


class Maps:
    """Records one operation, or a few, on external buffers."""

    def __init__(self, dtype, name="test"):
        self.ops = Recorder(name, np.dtype(dtype))

    def input(self, name, *shape, batched=True, dtype=None):
        return self.ops.external(name, shape, role="input", batched=batched, dtype=dtype)

    def output(self, name, *shape, batched=True, role="output"):
        return self.ops.external(name, shape, role=role, batched=batched)

    def program(self):
        return self.ops.finish()


def map_program(dtype, function, outs=1, ins=1):
    m = Maps(dtype)
    inputs = [m.input(f"x{k}") for k in range(ins)]
    m.ops.map(tuple(m.output(f"y{k}") for k in range(outs)), function, *inputs)
    return m.program()


def vjp_program(sizes, dtype, activation=tanh):
    layers = [Dense(a, b, activation) for a, b in itertools.pairwise(sizes[:-1])]
    return record.vjp(Chain(*layers, Dense(*sizes[-2:])).network, np.dtype(dtype), False)


def gradient_program(net, dtype, loss=None, weighted=False, penalty=None, target_shape=None, training=True):
    target_shape = net.output_shape if target_shape is None else target_shape
    objective = record.Objective(loss or SquaredLoss(), target_shape, weighted, penalty)
    return record.gradient(net.network, objective, np.dtype(dtype), training)


# Arrays between fences


class Fenced:
    """Arrays inside larger allocations; `check` sees whether anything around them was written to."""

    def __init__(self, margin=192):
        self.margin = margin
        self._blocks = []

    def __call__(self, shape, dtype, alignment):
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        block = np.full(nbytes + 2 * self.margin + alignment, 0xA5, np.uint8)
        start = self.margin + -(block.ctypes.data + self.margin) % alignment
        if alignment == dtype.itemsize:  # the caller's arrays need not lie at the start of a vector
            start += alignment * ((start + block.ctypes.data) % 64 == 0)
        self._blocks.append((block, start, start + nbytes))
        return block[start : start + nbytes].view(dtype).reshape(shape)

    def check(self, what=""):
        for block, start, stop in self._blocks:
            assert (block[:start] == 0xA5).all(), f"written before a buffer: {what}"
            assert (block[stop:] == 0xA5).all(), f"written behind a buffer: {what}"


def run_fenced(runner, program, batch, arrays, make, runs=1):
    """As `run_on`, on arrays and scratch memory that `make` gives."""
    own = {}
    for name, array in arrays.items():
        own[name] = make(array.shape, array.dtype, array.dtype.itemsize)
        own[name][...] = array
    scratch = make((runner.scratch_bytes(program, batch),), np.uint8, ALIGNMENT)
    scratch[...] = 0xFF
    binding = runner.bind(program, batch, own, scratch)
    for _ in range(runs):
        binding()
    for name, array in arrays.items():
        if program.buffers[name].role == "input":
            assert own[name].tobytes() == array.tobytes(), f"`{name}` was written to"
    return {name: own[name].copy() for name, buffer in program.buffers.items() if buffer.role in ("output", "state")}


class Guarded:
    """Arrays that end where a page begins that must not be touched, or begin where one ends."""

    def __init__(self, behind):
        self.behind = behind
        self._maps = []
        self._protect = ctypes.CDLL(None, use_errno=True).mprotect
        self._protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __call__(self, shape, dtype, alignment):
        dtype, page = np.dtype(dtype), mmap.PAGESIZE
        nbytes = math.prod(shape) * dtype.itemsize
        inside = -(-max(nbytes, 1) // page) * page
        memory = mmap.mmap(-1, inside + 2 * page)
        self._maps.append(memory)
        whole = np.frombuffer(memory, np.uint8)
        base = whole.ctypes.data
        for address in (base, base + page + inside):
            assert self._protect(address, page, 0) == 0  # PROT_NONE
        start = page + inside - nbytes if self.behind else page
        assert (base + start) % alignment == 0
        return whole[start : start + nbytes].view(dtype).reshape(shape)


# Functions of this file run in another process


def in_process(name, *arguments, timeout=60.0, env=None, popen=False):
    """Run ``name(*arguments)`` of this module in a fresh Python; returns what it printed last, read as JSON."""
    code = f"import json, sys; from tests.native import test_native; test_native.{name}(*json.loads(sys.argv[1]))"
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code, json.dumps(arguments)]
    env = {**os.environ, **(env or {})}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)
    return process if popen else finished(process, timeout)


def finished(process, timeout=60.0):
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"no end after {timeout} s; it wrote {out[-2000:]!r} and {err[-3000:]!r}") from None
    assert process.returncode == 0, f"exit code {process.returncode}; it wrote {out[-1000:]!r} and {err[-3000:]!r}"
    return json.loads(out.strip().splitlines()[-1]) if out.strip() else None


def all_finished(processes, timeout=60.0):
    """What each of them printed last; none is left behind."""
    try:
        return [finished(process, timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# 1. Elementary functions

FUNCTIONS = sorted(vectormath.FUNCTIONS)


def call(name):
    return {"abs": abs, "neg": lambda x: -x}.get(name) or getattr(expr, name)


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
every_instruction_set = pytest.mark.parametrize("simd", INSTRUCTIONS)


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


# 2. Odd sizes, with fences

TRIPLES = [
    triple
    for k in range(6)
    for triple in ((SIZES[k], SIZES[k + 6], SIZES[k + 12]), (SIZES[k + 12], SIZES[k], SIZES[k + 6]))
]  # fmt: skip
BATCHES = (1, 2, 3, 5, 7, 11, 12, 13, 15, 16, 17, 31, 33, 47, 48, 49, 63, 65, 95, 96, 97, 100, 1025)


@cache
def sized(triple, kind):
    return vjp_program(triple, kind)


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
    return record.vjp(Chain(*OTHERS[name]).network, np.dtype(kind), True)


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
    native_module.THREADED_WORK = 1
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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mprotect") if os.name == "posix" else True, reason="needs mprotect")
@pytest.mark.parametrize(("kind", "behind"), [("float32", True), ("float64", True), ("float32", False)])
def test_guard_pages_are_not_touched(kind, behind):
    assert in_process("guard_pages", kind, behind) == "done"


def guard_page_of_my_own():
    array = Guarded(True)((3,), np.float32, 4)
    print(json.dumps("reading"), flush=True)
    ctypes.c_float.from_address(array.ctypes.data + 12).value  # noqa: B018


@pytest.mark.skipif(os.name != "posix", reason="needs mprotect")
def test_a_guard_page_that_is_touched_ends_the_process():
    with pytest.raises(AssertionError, match=rf"exit code -({int(signal.SIGSEGV)}|{int(signal.SIGBUS)})"):
        in_process("guard_page_of_my_own")


def test_a_fence_that_is_touched_is_seen():
    fences = Fenced()
    array = fences((3,), np.float32, 4)
    ctypes.c_float.from_address(array.ctypes.data + 12).value = 1.0
    with pytest.raises(AssertionError, match="behind"):
        fences.check()


# 3. Cases of the harness, on several threads

CHOSEN = [*LAYERS[::2], *LOSS_CASES[::4], *PENALTY_CASES[::5], *(case for case in CASES if case.name.startswith("own-"))]


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_cases_on_threads_equal_numpy(case, eager):
    net, batch, rng = case.net(), 101, np.random.default_rng(3)
    target_shape = net.output_shape[:-1] if case.targets == "labels" else net.output_shape
    program = gradient_program(net, "float64", case.loss, case.weighted, case.penalty, target_shape)
    arrays = random_arrays(program, batch) | {"t": targets(case.targets, rng, batch, net.output_shape).astype("f8")}
    arrays = {name: array for name, array in arrays.items() if name in program.buffers}
    wanted = run_on(NumpyBackend(), program, batch, arrays)
    for threads in (1, 3):
        fences = Fenced()
        actual = run_fenced(native(threads), program, batch, arrays, fences)
        fences.check(f"{threads} threads")
        assert_equal_results(actual, wanted, "float64", f"{threads} threads")


@settings(max_examples=12)
@given(st.data())
def test_random_chains_equal_numpy(data):
    case, batch = data.draw(cases()), data.draw(st.sampled_from([1, 2, 17, 48, 49, 100]))
    batch = max(batch, case.net().network.declaration.most_demanding.smallest_batch)
    program = gradient_program(case.net(), "float64", case.loss, case.weighted, case.penalty)
    arrays = random_arrays(program, batch)
    wanted = run_on(NumpyBackend(), program, batch, arrays, runs=2)  # a state is updated by each
    native_module.THREADED_WORK, before = 1, native_module.THREADED_WORK
    try:
        for threads in (1, 2):
            fences = Fenced()
            actual = run_fenced(native(threads), program, batch, arrays, fences, runs=2)
            fences.check()
            assert_equal_results(actual, wanted, "float64", factor=10.0)
    finally:
        native_module.THREADED_WORK = before


# 4. Operations on their own


def reductions(kind):
    """Sums and maxima over every choice of axes, several to a program."""
    programs = []
    for shape in ((1,), (5,), (17,), (3, 5), (5, 1), (2, 3, 4), (4, 1, 19), (600,), (2, 256), (2, 515)):
        m = Maps(kind)
        x = m.input("x", *shape)
        axes = range(len(shape))
        for chosen in range(2 ** len(shape)):
            kept = tuple(1 if chosen >> k & 1 else shape[k] for k in axes)
            for name in ("sum", "max"):
                reduce = getattr(m.ops, name)
                if kept != shape:
                    reduce(m.output(f"{name}{kept}", *kept), x)
                if name == "sum":
                    reduce(m.output(f"total{kept}", *kept, batched=False), x)
        m.ops.sum(m.output("all", batched=False), x)
        if len(shape) > 1:  # a slice with gaps
            part = x.slice(-1, 0, max(1, shape[-1] - 1))
            m.ops.sum(m.output("part", *shape[:-1], 1), part)
            m.ops.sum(m.output("parts", *part.sample_shape, batched=False), part)
        programs.append(m.program())
    return programs


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scalars_of_either_type(dtype):
    """A scalar may be of another type than the arrays of a formula."""
    m = Maps("float32")
    s = m.input("s", batched=False, dtype=np.dtype(dtype))
    m.ops.map(m.output("y", 3), lambda x, s: x * s, m.input("x", 3), s)
    program = m.program()
    arrays = random_arrays(program, 5) | {"s": np.array(1.75, dtype)}
    if dtype == "float64":  # left to NumPy
        with pytest.raises(UnsupportedOperationError, match="operands of one type"):
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
    with pytest.raises(UnsupportedOperationError, match="across an operand"):  # left to NumPy
        native().prepare(m.program())


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


def assert_equals_numpy(program, *batches):
    for batch in batches:
        arrays, fences = random_arrays(program, batch), Fenced()
        actual = run_fenced(native(), program, batch, arrays, fences)
        fences.check()
        assert_equal_results(actual, run_on(NumpyBackend(), program, batch, arrays), "float32", f"batch {batch}", factor=4)


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


def random_program(kind, shape):
    m = Maps(kind)
    m.ops.random(m.output("a", *shape))
    m.ops.random(m.output("b", *shape))
    return m.program()


@every_instruction_set
@floats
@pytest.mark.parametrize("shape", [(), (3,), (8,), (13,), (2, 5)], ids=str)
def test_random_numbers_are_the_bits_of_numpy(shape, kind, simd, eager):
    program = random_program(kind, shape)
    for batch in (1, 2, 7, 49, 103, 2000):
        for key in ([0, 0], [2**63 + 5, 2**40]):
            arrays = random_arrays(program, batch) | {"random": np.array(key, np.uint64)}
            wanted = run_on(NumpyBackend(), program, batch, arrays)
            for threads in (1, 3):
                fences = Fenced()
                actual = run_fenced(native(threads, simd), program, batch, arrays, fences)
                fences.check()
                harness.assert_same_bits(actual, wanted)


def test_random_numbers_in_a_slice():
    m = Maps("float32")
    y = m.output("y", 5, role="state")
    m.ops.random(y.slice(1, 1, 3))
    program = m.program()
    arrays = random_arrays(program, 50)
    try:
        actual = run_on(native(), program, 50, arrays)
    except UnsupportedOperationError:
        return
    harness.assert_same_bits(actual, run_on(NumpyBackend(), program, 50, arrays))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_what_numpy_drops(rate, eager):
    net = Chain(Dropout(rate), Dropout(0.5), input_shape=(11,))
    program = record.forward(net.network, np.dtype(np.float32), True)
    arrays = random_arrays(program, 1000)
    wanted = run_on(NumpyBackend(), program, 1000, arrays)["y"]
    for threads in (1, 2, 3):
        actual = run_on(native(threads), program, 1000, arrays)["y"]
        np.testing.assert_array_equal(actual == 0.0, wanted == 0.0)
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)


# 5. Threads


def make_net():
    return Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))


@cache
def small_program(kind="float32"):
    return gradient_program(make_net(), kind)


@floats
def test_thread_counts_agree_to_rounding(kind, eager):
    program = small_program(kind)
    for batch in (1, 5, 47, 48, 49, 95, 96, 97, 1000, 4001):
        arrays = random_arrays(program, batch)
        one = run_on(native(1), program, batch, arrays)
        for threads in (2, 3, 7):
            several = run_on(native(threads), program, batch, arrays)
            assert_equal_results(several, one, kind, f"batch {batch}, {threads} threads")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_each_time(threads):
    program, batch = small_program(), 5003
    arrays = random_arrays(program, batch)
    assert native(threads).bind(program, batch, {}).threads == threads
    first = run_on(native(threads), program, batch, arrays)
    for _ in range(20):
        harness.assert_same_bits(run_on(native(threads), program, batch, arrays), first)


def test_small_work_stays_on_one_thread():
    assert native(2).bind(small_program(), 1, {}).threads == 1
    assert native(2).bind(small_program(), 10, {}).threads == 1
    assert native(2).bind(small_program(), 10_000, {}).threads == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_from_several_python_threads(threads):
    """Different programs and one program, several batch sizes, all at once."""
    runner, nets = native(threads), [make_net(), Chain(Dense(4, 9, "gelu"), Dense(9, 3))]
    jobs = []
    for k in range(4):
        program = gradient_program(nets[k % 2], "float32") if k < 2 else jobs[k - 2][0]
        batch = [3, 700, 2500, 64][k]
        jobs.append((program, batch, random_arrays(program, batch, k)))
    wanted = [run_on(runner, *job) for job in jobs]
    barrier = threading.Barrier(4)

    def work(k):
        program, batch, arrays = jobs[k]
        executable, own = Executable(runner, program), {name: array.copy() for name, array in arrays.items()}
        barrier.wait()
        for _ in range(300):
            own["g"][...] = np.nan
            executable(batch, own)
            for name in ("g", "value"):
                assert own[name].tobytes() == wanted[k][name].tobytes()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_one_net_from_several_python_threads(eager):
    net = Chain(Dense(4, 32, tanh), Dense(32, 4), backend="native")
    x, p = np.random.default_rng(0).normal(size=(333, 4)), net.init()
    wanted = net(x, p).tobytes()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: all(net(x, p).tobytes() == wanted for _ in range(200)), range(4)))


def first_use():
    """Several threads are the first to use the worker threads, all at once."""
    program, barrier = small_program(), threading.Barrier(8)
    arrays = random_arrays(program, 2000)
    native(2).prepare(program)

    def work(_):
        barrier.wait()
        binding = native(2).bind(program, 2000, {name: array.copy() for name, array in arrays.items()})
        for _ in range(50):
            binding()
        return binding.arrays["g"].tobytes()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 1
    print(json.dumps("done"))


def test_the_first_use_from_several_python_threads():
    """Nothing that was made twice may be dropped while another thread runs it."""
    assert all_finished([in_process("first_use", popen=True) for _ in range(2)]) == ["done"] * 2


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def many_calls():
    """100,000 calls from four threads; prints how much the resident memory grew after the first 20,000."""
    net = Chain(Dense(4, 32, tanh), Dense(32, 4), backend="native")
    x, p = np.random.default_rng(0).normal(size=(8, 4)).astype("f4"), net.init()
    big = small_program()
    arrays = random_arrays(big, 2000)
    wanted = net(x, p).tobytes()
    native(2).bind(big, 2000, {})()

    def work(calls):
        binding = native(2).bind(big, 2000, {name: array.copy() for name, array in arrays.items()})
        for k in range(calls):
            y = net(x, p)
            if k % 50 == 0:
                binding()
                assert y.tobytes() == wanted

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [5_000] * 4))
        before = resident()
        list(pool.map(work, [20_000] * 4))
    print(json.dumps(resident() - before))


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_memory_is_flat_over_many_calls():
    assert in_process("many_calls") < 2 << 20


def binding_many():
    """Prints how much the resident memory grew by binding a program again and again, and by compiling programs and
    dropping them."""
    program = small_program()
    arrays = random_arrays(program, 2000)

    def bind(count):
        for _ in range(count):
            native(2).bind(program, 2000, arrays)()

    def compile_(count):
        for k in range(count):
            small = map_program("float32", lambda x, k=k: x * (k % 10 + 0.5))
            run_on(NativeBackend(), small, 3, random_arrays(small, 3))

    growth = []
    for work, warm, count in ((bind, 200, 2000), (compile_, 100, 300)):
        work(warm)
        gc.collect()
        before = resident()
        work(count)
        gc.collect()
        growth.append(resident() - before)
    print(json.dumps(growth))


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_memory_is_flat_over_many_bindings_and_programs():
    bound, compiled = in_process("binding_many")
    assert bound < 2 << 20
    assert compiled < 300 * 16 << 10  # LLVM keeps some 9 kB of each


def idle():
    """Prints the processor time of half a second in which nothing is to be done, with two workers parked."""
    program = small_program()
    run_on(native(3), program, 5000, random_arrays(program, 5000))
    before = time.process_time()
    time.sleep(0.5)
    print(json.dumps(time.process_time() - before))


def test_idle_workers_sleep():
    assert in_process("idle") < 0.05


def leave(how):
    """Leave the interpreter in various ways right after, or while, workers are busy."""
    program = small_program()
    binding = native(3).bind(program, 5000, random_arrays(program, 5000))
    binding()
    if how == "busy":  # another thread goes on calling
        threading.Thread(target=lambda: [binding() for _ in range(10**9)], daemon=True).start()
        time.sleep(0.05)
    if how == "late":
        import atexit

        atexit.register(binding)
    if how == "parked":
        time.sleep(0.05)


def test_the_interpreter_exits_promptly():
    """Several times at once, since a crash at exit may be rare."""
    start = time.perf_counter()
    all_finished([in_process("leave", how, popen=True) for how in ("return", "parked", "busy", "busy", "late")], 30.0)
    assert time.perf_counter() - start < 20.0


def forks(rounds):
    """Fork while workers are parked, while another thread computes; parent and children go on computing."""
    import multiprocessing

    program = small_program()
    arrays = random_arrays(program, 5000)
    wanted = run_on(native(3), program, 5000, arrays)

    def right():
        return all(a.tobytes() == b.tobytes() for a, b in zip(run_on(native(3), program, 5000, arrays).values(),
                                                             wanted.values(), strict=True))  # fmt: skip

    def child():
        fresh = gradient_program(Chain(Dense(3, 2)), "float32")
        run_on(native(3), fresh, 100, random_arrays(fresh, 100))
        sys.exit(0 if right() and right() else 1)

    stop = threading.Event()
    busy = threading.Thread(target=lambda: [right() for _ in iter(stop.is_set, True)])
    for k in range(rounds):
        if k == rounds // 2:
            busy.start()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            os._exit(0 if right() and right() else 1)
        assert right()
        assert os.waitpid(pid, 0)[1] == 0, f"the child of round {k} failed"
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    stop.set()
    busy.join()
    assert process.exitcode == 0
    print(json.dumps("done"))


def forks_while_compiling(seconds):
    """Fork again and again while another thread compiles; every child compiles and computes too. Prints how often."""
    stop, failed = threading.Event(), []

    def compiling(k):
        try:
            for width in itertools.count(k, 2):
                if stop.is_set():
                    return
                program = gradient_program(Chain(Dense(3, width), Dense(width, 2, tanh)), "float32")
                NativeBackend(threads=1).compile(program)
        except Exception as error:
            failed.append(repr(error))

    x = np.linspace(-1, 1, 33, dtype=np.float32)
    busy = [threading.Thread(target=compiling, args=(k,)) for k in (3, 4)]
    for thread in busy:
        thread.start()
    rounds, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.003 * (rounds % 17))  # at other moments of the others' work
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)  # rather than hang
            faulthandler.dump_traceback_later(25)
            scale = 1.0 + rounds / 64
            scaled = partial(lambda scale, x: expr.exp(scale * x), scale)
            program = map_program("float32", scaled)
            y = run_on(NativeBackend(threads=2), program, 33, {"x0": x, "y0": np.empty_like(x)})["y0"]
            os._exit(0 if np.allclose(y, np.exp(scale * x), rtol=1e-5) else 1)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, f"the child of round {rounds} ended with {status}"
        rounds += 1
    stop.set()
    for thread in busy:
        thread.join(30)
    assert not failed
    print(json.dumps(rounds))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_while_another_thread_compiles():
    rounds = all_finished([in_process("forks_while_compiling", 4, env={"CHAINS_CACHE": "off"}, popen=True) for _ in range(2)])
    assert min(rounds) >= 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_in_the_middle():
    assert in_process("forks", 12) == "done"


# 6. Instruction sets and settings


SPREAD = {
    "plain": lambda: (make_net(), SquaredLoss(), "real"),
    "odd": lambda: (Chain(Dense(7, 33, "gelu"), Dropout(0.3), Dense(33, 5, "softplus"), Dense(5, 1)),
                    chains.HuberLoss(0.5), "real"),
    "classes": lambda: (Chain(Dense(17, 19, "sin"), chains.Residual(Dense(19, 19, "elu")), Dense(19, 10)),
                        chains.CrossEntropyLoss(), "labels"),
}  # fmt: skip


@pytest.mark.parametrize("simd", [simd for simd in ("avx2", "sse2") if simd in INSTRUCTIONS])
@pytest.mark.parametrize(("name", "kind"), [("plain", "float32"), ("odd", "float64"), ("classes", "float32")])
def test_forced_instruction_sets_equal_numpy(name, kind, simd, eager):
    net, loss, target_kind = SPREAD[name]()
    shape = net.output_shape[:-1] if target_kind == "labels" else net.output_shape
    program, wide = (gradient_program(net, dtype, loss, target_shape=shape) for dtype in (kind, "float64"))
    for batch in (1, 37, 150):
        t = targets(target_kind, np.random.default_rng(batch), batch, net.output_shape)
        arrays = random_arrays(program, batch) | {"t": t.astype(kind)}
        in_double = {k: array if k == "random" else array.astype("f8") for k, array in arrays.items()}
        wanted = run_on(NumpyBackend(), wide, batch, in_double)
        for threads in (1, 2):
            fences = Fenced()
            actual = run_fenced(native(threads, simd), program, batch, arrays, fences)
            fences.check()
            assert_equal_results(actual, wanted, kind, f"batch {batch}")


def test_an_unknown_instruction_set_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=f"'mmx'.*{INSTRUCTIONS[-1]}"):
        NativeBackend(simd="mmx")
    monkeypatch.setenv("CHAINS_SIMD", "altivec")
    with pytest.raises(ValueError, match=f"'altivec'.*{INSTRUCTIONS[0]}"):
        target.processor.__wrapped__(None)
    monkeypatch.setenv("CHAINS_SIMD", INSTRUCTIONS[-1])
    assert target.processor.__wrapped__(None) == target.processor(INSTRUCTIONS[-1])
    assert target.processor.__wrapped__(INSTRUCTIONS[0]) == target.processor(INSTRUCTIONS[0])


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", "100000", " 2", "²"])
def test_nonsense_for_a_number_of_threads_is_refused(text, monkeypatch):
    monkeypatch.setenv("CHAINS_NUM_THREADS", text)
    with pytest.raises(ValueError, match="CHAINS_NUM_THREADS"):
        NativeBackend()


def test_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("CHAINS_NUM_THREADS", "3")
    assert NativeBackend().threads == 3
    assert NativeBackend(threads=2).threads == 2


@pytest.mark.parametrize("threads", [0, -2, 1.5, "two", 10**6])
def test_nonsense_for_the_argument_threads_is_refused(threads):
    with pytest.raises((ValueError, TypeError), match="threads"):
        NativeBackend(threads=threads)


def test_too_little_scratch_is_refused():
    with pytest.raises(ValueError, match="scratch"):
        native().bind(small_program(), 10, {}, np.empty(64, np.uint8))


# 7. Memory and code


@floats
def test_scratch_does_not_grow_with_the_batch(kind):
    program = small_program(kind)
    assert native(1).scratch_bytes(program, 1000) == native(1).scratch_bytes(program, 1_000_000)
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
        print(f"4-32-16-4, {program.name}: {time.perf_counter() - start:.3f} s, {compiled.code.text.count(chr(10))} lines")
        assert not compiled.code.cached


def test_a_listing_shows_every_stage():
    text = native().listing(map_program("float32", lambda x: expr.exp(x)))
    assert "program test" in text
    assert "define" in text
    assert "ret" in text


# 8. The cache on disk


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiled_again():
    """Compile one program anew and check what it computes; whether its code came from the disk."""
    program = map_program("float32", lambda x: expr.exp(x) + 0.125)
    runner = NativeBackend()
    x = np.linspace(-1, 1, 37, dtype=np.float32)
    y = run_on(runner, program, 37, {"x0": x, "y0": np.empty_like(x)})["y0"]
    np.testing.assert_allclose(y, np.exp(x) + 0.125, rtol=1e-6)
    cached = runner.compile(program).code.cached
    del runner
    gc.collect()  # code that is still in use would be shared
    return cached


def test_the_second_time_the_code_comes_from_the_disk(folder):
    assert [compiled_again() for _ in range(3)] == [False, True, True]
    assert len(list(folder.iterdir())) == 1


def test_cached_code_of_another_pipeline_is_not_used(folder, monkeypatch):
    assert not compiled_again()
    monkeypatch.setattr(machine, "PIPELINE", "another")
    assert [compiled_again() for _ in range(2)] == [False, True]


@pytest.fixture
def emitted(folder, monkeypatch):
    """The names of code as it is made: compiled or read from the disk."""
    native_module.runtime()  # made once a process
    names, load = [], cache_files.load
    monkeypatch.setattr(cache_files, "load", lambda name: names.append(name) or load(name))
    return names


def fresh_net(width):
    """A network with a backend of its own."""
    net = Chain(Dense(5, width, tanh), Dense(width, 3))
    net.runner = NativeBackend(threads=1)
    net._programs = Programs(net.runner)
    return net


def trained_once(net, rate=0.1):
    x, t, p = np.ones((8, 5), "f4"), np.zeros((8, 3), "f4"), net.init(seed=1)
    train(net, p, x, t, SquaredLoss(), SGD(rate), epochs=2, batch_size=4)
    return p


def test_programs_of_the_same_code_share_it(emitted):
    """Networks of one shape, in one process and whatever their names, are compiled once."""
    nets = [fresh_net(37) for _ in range(4)]
    results = [trained_once(net) for net in nets]
    assert len(emitted) == 1
    for p in results:
        np.testing.assert_array_equal(p, results[0])
    trained_once(fresh_net(38))
    assert len(emitted) == len(set(emitted)) == 2


def test_code_that_nobody_uses_is_let_go(emitted):
    before = len(machine._made)
    for round in range(3):
        for width in (41, 42, 43):
            trained_once(fresh_net(width))
        gc.collect()
        assert len(machine._made) <= before
        assert len(emitted) == 3 * (round + 1)


def test_threads_that_want_the_same_code_make_it_once(emitted):
    together = threading.Barrier(4)

    def work(k):
        net = fresh_net(45)
        together.wait()
        return trained_once(net)

    with ThreadPoolExecutor(4) as workers:
        results = list(workers.map(work, range(4)))
    assert len(emitted) == 1
    assert len({p.tobytes() for p in results}) == 1


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "head": lambda data: data[:20],
    "one bit": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "another file": lambda data: b"\x7fELF" * 100,
    "longer": lambda data: data + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_replaced(damage, folder):
    compiled_again()
    (path,) = folder.iterdir()
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert [compiled_again() for _ in range(2)] == [False, True]


def test_a_folder_in_the_place_of_a_file(folder):
    compiled_again()
    (path,) = folder.iterdir()
    path.unlink()
    path.mkdir()
    assert not compiled_again()


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_the_cache_can_be_switched_off(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CHAINS_CACHE", word)
    assert [compiled_again() for _ in range(2)] == [False, False]
    assert list(tmp_path.iterdir()) == []
    assert cache_files.clear() == 0


def test_the_cache_lies_in_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("CHAINS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [compiled_again() for _ in range(2)] == [False, True]
    assert len(list((tmp_path / "chains" / "native").glob("*.o"))) == 1


@pytest.mark.parametrize("place", ["a file", "a file/below"])
def test_a_folder_that_cannot_be_written_is_harmless(place, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("in the way")
    monkeypatch.setenv("CHAINS_CACHE", str(tmp_path / place))
    assert [compiled_again() for _ in range(2)] == [False, False]
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_harmless(folder):
    folder.mkdir()
    folder.chmod(0o500)
    assert [compiled_again() for _ in range(2)] == [False, False]


def test_clearing_the_cache(folder):
    compiled_again()
    (folder / "unfinished.new").write_bytes(b"x")
    assert cache_files.clear() == 2
    assert cache_files.clear() == 0
    assert not compiled_again()


def test_the_cache_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(cache_files, "LIMIT", 20_000)
    for k in range(12):
        cache_files.store(f"{k:040}", bytes(3000))
        for path in folder.iterdir():  # so that the order is plain whatever the clock's resolution
            os.utime(path, (1000.0 + int(path.stem), 1000.0 + int(path.stem)))
    sizes = [path.stat().st_size for path in folder.iterdir()]
    assert 3000 * 4 < sum(sizes) <= 20_000
    assert cache_files.load(f"{11:040}") == bytes(3000)
    assert cache_files.load(f"{0:040}") is None


def test_what_was_used_last_stays(folder, monkeypatch):
    monkeypatch.setattr(cache_files, "LIMIT", 10_000)
    for k in range(3):
        cache_files.store(f"{k:040}", bytes(3000))
        os.utime(folder / f"{k:040}.o", (1000.0 + k, 1000.0 + k))
    assert cache_files.load(f"{0:040}") is not None  # which makes it the newest
    cache_files.store(f"{3:040}", bytes(3000))
    assert sorted(int(path.stem) for path in folder.iterdir()) == [0, 2, 3]


def compile_many(place, name):
    """Wait for the other process, then compile the same programs as it does."""
    os.environ["CHAINS_CACHE"] = str(Path(place) / "cache")
    (Path(place) / name).touch()
    while len(list(Path(place).glob("process*"))) < 2:
        time.sleep(0.001)
    for k in range(12):
        program = map_program("float32", lambda x, k=k: expr.exp(x) * (k + 0.5))
        x = np.linspace(-1, 1, 37, dtype=np.float32)
        y = run_on(NativeBackend(), program, 37, {"x0": x, "y0": np.empty_like(x)})["y0"]
        np.testing.assert_allclose(y, np.exp(x) * (k + 0.5), rtol=1e-6)
    print(json.dumps("done"))


def test_two_processes_at_once(tmp_path):
    processes = [in_process("compile_many", str(tmp_path), f"process{k}", popen=True) for k in range(2)]
    assert all_finished(processes) == ["done", "done"]
    names = [path.suffix for path in (tmp_path / "cache").iterdir()]
    assert set(names) == {".o"}
    assert len(names) == 12


# 9. Training


def train_net(name):
    return Chain(Dense(5, 7, tanh), Dropout(0.25), Dense(7, 3), backend=name)


def run_training(name, dtype, optimizer, *, epochs=3, batch_size=16, x=None, t=None, net=None, loss=None, **rest):
    net, rng = net(name) if net else train_net(name), np.random.default_rng(0)
    x = rng.normal(size=(75, *net.input_shape)) if x is None else x
    t = rng.normal(size=(75, *net.output_shape)) if t is None else t
    p = net.init(seed=1, dtype=dtype)
    history = train(net, p, x, t, loss or SquaredLoss(), optimizer, epochs=epochs, batch_size=batch_size, seed=4, **rest)
    return p, history


TRAINERS = {
    **OPTIMIZERS,
    "SGD-clipped": SGD(0.05, momentum=0.9, clip_norm=0.2),
    "Adam-clipped": Adam(0.01, clip_norm=0.3),
    **{f"schedule-{name}": Adam(SCHEDULES[name][0]) for name in ("cosine", "warmup-then", "own")},
}


@pytest.mark.parametrize("name", TRAINERS)
def test_training_equals_numpy(name):
    """Shuffled, with dropout and a smaller last batch."""
    optimizer = TRAINERS[name]
    (p, history), (wanted, reference) = (run_training(on, "float64", optimizer) for on in ("native", "numpy"))
    assert history.steps == reference.steps == 15
    assert_close(history.loss, reference.loss, 1e-10, "losses")
    assert_close(p, wanted, 1e-9, "p")
    for key, array in reference.optimizer_state.items():
        assert_close(history.optimizer_state[key], array, 1e-9, key)


@pytest.mark.parametrize("settings", [{"batch_size": None}, {"batch_size": 1}, {"batch_size": 74}, {"drop_last": True},
                                      {"shuffle": False}, {"weights": np.linspace(0.5, 2, 75)},
                                      {"penalty": chains.L2Penalty(0.01)}], ids=str)  # fmt: skip
def test_training_otherwise_equals_numpy(settings):
    results = [run_training(on, "float64", Adam(0.01), **settings) for on in ("native", "numpy")]
    (p, history), (wanted, reference) = results
    assert history.steps == reference.steps
    assert_close(history.loss, reference.loss, 1e-10)
    assert_close(p, wanted, 1e-9)


@pytest.mark.parametrize("p_kind", FLOATS)
@pytest.mark.parametrize("x_kind", ["uint8", "float64", "float32", "int64", "int32", "bool", "float16", ">f4"])
def test_data_of_any_type(x_kind, p_kind):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2 if x_kind == "bool" else 200, (75, 5)).astype(x_kind)
    data = {"x": x, "t": rng.integers(0, 3, 75), "loss": chains.CrossEntropyLoss()}
    for batch_size in (16, None):
        (p, history), (wanted, reference) = (
            run_training(on, p_kind, SGD(1e-3), batch_size=batch_size, **data) for on in ("native", "numpy")
        )
        assert_close(history.loss, reference.loss, 1e-4 if p_kind == "float32" else 1e-10)
        assert_close(p, wanted, 1e-4 if p_kind == "float32" else 1e-10)


def test_data_with_gaps():
    x = np.random.default_rng(1).normal(size=(150, 10))[::2, ::2]
    (p, _), (wanted, _) = (run_training(on, "float64", Adam(0.01), x=x) for on in ("native", "numpy"))
    assert_close(p, wanted, 1e-9)


@pytest.mark.parametrize("threads", [1, 2])
def test_training_gives_the_same_bits(threads, eager, monkeypatch):
    monkeypatch.setattr("chains.backends._loaded", {"native": native(threads)})
    runs = [run_training("native", "float32", Adam(0.01), batch_size=70)[0].tobytes() for _ in range(4)]
    assert len(set(runs)) == 1


@pytest.mark.parametrize("threads", [2, 3])
def test_training_on_threads_equals_one(threads, eager, monkeypatch):
    results = []
    for count in (1, threads):
        monkeypatch.setattr("chains.backends._loaded", {"native": native(count)})
        results.append(run_training("native", "float64", Adam(0.01), x=np.ones((500, 5)), t=np.zeros((500, 3)), batch_size=150))
    assert_close(results[1][0], results[0][0], 1e-10)
    assert_close(results[1][1].loss, results[0][1].loss, 1e-10)


def test_training_does_not_depend_on_the_chunks(monkeypatch):
    """However many steps are done between two looks at the clock."""
    wanted = run_training("native", "float32", Adam(0.01), batch_size=2)[0]
    ticks = iter(np.cumsum(np.tile([1e-7, 5.0, 1e-3], 10_000)))
    monkeypatch.setattr("chains.training.steps.time.perf_counter", lambda: float(next(ticks)))
    assert run_training("native", "float32", Adam(0.01), batch_size=2)[0].tobytes() == wanted.tobytes()


def test_a_second_training_knows_how_long_steps_take(monkeypatch):
    """Short runs do not begin anew with a look at the clock after each of their first steps."""
    net, clock, looks = train_net("native"), itertools.count(), []
    monkeypatch.setattr("chains.training.steps.time.perf_counter", lambda: 1e-6 * next(clock))
    for _ in range(2):
        train(net, net.init(seed=1), np.ones((8, 5)), np.zeros((8, 3)), SquaredLoss(), SGD(0.1), epochs=2000)
        looks.append(next(clock))
    first, second = np.diff([-1, *looks])
    assert second < first / 2


@pytest.mark.parametrize("batch_size", [16, None])
def test_resuming_goes_on(batch_size):
    whole, _ = run_training("native", "float32", Adam(0.01), epochs=5, batch_size=batch_size)
    net, rng = train_net("native"), np.random.default_rng(0)
    x, t, p, history = rng.normal(size=(75, 5)), rng.normal(size=(75, 3)), net.init(seed=1), None
    for epochs in (2, 1, 2):
        rest = {"epochs": epochs, "batch_size": batch_size, "seed": 4, "resume": history}
        history = train(net, p, x, t, SquaredLoss(), Adam(0.01), **rest)
    assert p.tobytes() == whole.tobytes()


@pytest.mark.parametrize("position", [0, 15, 16, 50, 74])
def test_a_loss_that_is_not_finite_names_its_step(position):
    """One sample overflows: the step that meets it is the one named, on every backend."""
    x = np.random.default_rng(0).normal(size=(75, 5)).astype(np.float32)
    x[position] = 3e38
    t = np.zeros((75, 3), np.float32)
    net = lambda name: Chain(Dense(5, 3), backend=name)  # noqa: E731
    for on in ("native", "numpy"):
        with pytest.raises(FloatingPointError, match=f"at step {position // 16 + 1}:"):
            run_training(on, "float32", SGD(1e-6), x=x, t=t, net=net, shuffle=False)


def test_steps_end_at_a_loss_that_is_not_finite():
    """What is left of the values is not written."""
    net = Chain(Dense(5, 3), backend="native")
    runner, p = native(), np.ones(net.n_params, np.float32)
    program = net.program(SquaredLoss(), SGD(1e-3))
    x = np.ones((64, 5), np.float32)
    x[37] = np.inf
    shared = {"p": p, "value": np.zeros((), np.float32), "step": np.zeros(())}
    binding = runner.bind(program, 8, {name: array for name, array in shared.items() if name in program.buffers})
    sources = {"x": x, "t": np.zeros((64, 3), np.float32)}
    values = np.full(8, -7.0)
    feed = runner.feed(binding, sources, np.arange(64))
    assert feed(0, values) == 5
    assert np.isfinite(values[:4]).all()
    assert not np.isfinite(values[4])
    assert (values[5:] == -7.0).all()
    assert shared["step"] == 5.0


def test_a_feed_stays_within_its_arrays():
    """Gathering, with fences: the last batch, rows of one number, every type."""
    for kind in ("float32", "float64"):
        net = Chain(Dense(1, 3), backend="native")
        program = net.program(SquaredLoss(), SGD(1e-3), dtype=kind)
        for source in ("uint8", "int64", "float32", "float64"):
            for batch in (1, 3, 17):
                fences, rng = Fenced(), np.random.default_rng(batch)
                samples = 3 * batch + 1
                make = lambda shape, dtype: fences(shape, dtype, np.dtype(dtype).itemsize)  # noqa: B023, E731
                x, t = make((samples, 1), source), make((samples, 3), kind)
                x[...], t[...] = rng.integers(0, 9, x.shape), rng.normal(size=t.shape)
                own = {"p": make((net.n_params,), kind), "value": make((), kind), "step": make((), "float64"),
                       "x": make((batch, 1), kind), "t": make((batch, 3), kind)}  # fmt: skip
                own["p"][...], own["step"][...] = 0.1, 0.0
                order, values = make((3 * batch,), "int64"), make((3,), "float64")
                order[:] = rng.permutation(samples)[: 3 * batch]
                binding = native().bind(program, batch, {n: a for n, a in own.items() if n in program.buffers})
                assert native().feed(binding, {"x": x, "t": t}, order)(0, values) == 3
                fences.check(f"{source} to {kind}, batch {batch}")
                np.testing.assert_array_equal(own["x"], x[order[-batch:]])
                np.testing.assert_array_equal(own["t"], t[order[-batch:]])


def interrupted(batch_size):
    """Train for ever; say when it began; then say how it ended."""
    net, rng = Chain(Dense(5, 7, tanh), Dense(7, 3), backend="native"), np.random.default_rng(0)
    x, t, p = rng.normal(size=(300, 5)), rng.normal(size=(300, 3)), net.init()
    first = p.copy()

    def watch():
        while (p == first).all():
            time.sleep(0.01)
        time.sleep(0.3)
        print(json.dumps("ready"), flush=True)

    threading.Thread(target=watch, daemon=True).start()
    history = train(net, p, x, t, SquaredLoss(), Adam(1e-3), epochs=10**7, batch_size=batch_size)
    steps = history.steps
    again = train(net, p, x, t, SquaredLoss(), Adam(1e-3), epochs=2, batch_size=batch_size, resume=history)
    counted = int(history.optimizer_state["step"])
    print(json.dumps([history.stopped, bool(np.isfinite(p).all()), steps, counted, again.epochs]), flush=True)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("batch_size", [10, 300])
def test_an_interrupt_is_heard(batch_size):
    process = in_process("interrupted", batch_size, popen=True)
    assert json.loads(process.stdout.readline()) == "ready"
    start = time.perf_counter()
    process.send_signal(signal.SIGINT)
    ((stopped, finite, steps, counted, epochs),) = all_finished([process], 20.0)
    assert time.perf_counter() - start < 3.0  # leaving the interpreter included
    assert "interrupted" in stopped
    assert finite
    assert steps == counted > 100
    assert epochs == 2


# 10. What cannot be compiled


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
    for attempt in (native().prepare, lambda program: native().bind(program, 3, {})):
        with pytest.raises(UnsupportedOperationError, match=r"'native'.*uint8.*index"):
            attempt(gather_program(np.uint8))


def test_auto_falls_back_to_numpy():
    program, auto = gather_program(np.uint8), backend("auto")
    assert auto.choose(program).name == "numpy"
    table, index = np.arange(28, dtype=np.float32).reshape(7, 4), np.array([6, 0, 3, 3], np.uint8)
    y = np.empty((4, 4), np.float32)
    Executable(auto, program)(4, {"table": table, "index": index, "y": y})
    np.testing.assert_array_equal(y, table[index.astype(int)])


# 9. Tables: rows by number, and maxima over the batch


def table_program(kind, shape, row, index_dtype, rows=7):
    """Rows looked up, scaled, and added into a table: numbers of `shape` a sample, rows of shape `row`."""
    m = Maps(kind)
    index = m.input("index", *shape, dtype=np.dtype(index_dtype))
    y = m.output("y", *shape, *row)
    m.ops.gather(y, m.input("table", rows, *row, batched=False), index)
    g = m.output("g", rows, *row, batched=False)
    m.ops.fill(g, 0.25)
    m.ops.scatter_add(g, index, m.input("dy", *shape, *row))
    return m.program()


def table_arrays(program, batch, lowest=0, highest=7):
    numbers = np.random.default_rng(batch).integers(lowest, highest, shape_of(program.buffers["index"], batch))
    return random_arrays(program, batch) | {"index": numbers.astype(program.buffers["index"].dtype)}


TABLES = {
    "labels": ((), ()), "rows": ((), (4,)), "sequences": ((5,), (3,)), "wide": ((2,), (37,)), "arrays": ((3, 2), (2, 5))
}  # fmt: skip


@floats
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("place", TABLES)
def test_tables_equal_numpy(kind, threads, place, eager):
    """Many samples to a row; numbers outside the table; without a touch beside the buffers."""
    for index_dtype, batch in ((np.int64, 1), (np.int64, 50), (np.int32, 331)):
        program = table_program(kind, *TABLES[place], index_dtype)
        for lowest, highest in ((0, 7), (-5, 12), (3, 4)):
            arrays, fences = table_arrays(program, batch, lowest, highest), Fenced()
            wanted = run_on(NumpyBackend(), program, batch, arrays)
            numbers = np.clip(arrays["index"], 0, 6)
            np.testing.assert_array_equal(wanted["y"], arrays["table"][numbers])
            actual = run_fenced(native(threads), program, batch, arrays, fences, runs=2)
            fences.check()
            assert_equal_results(actual, wanted, kind)
            again = run_on(native(threads), program, batch, arrays)
            harness.assert_same_bits(again, actual)


def test_indices_at_the_ends_of_their_type():
    program = table_program("float32", (), (4,), np.int64)
    ends = np.iinfo(np.int64)
    arrays = random_arrays(program, 4) | {"index": np.array([ends.min, ends.max, -1, 7])}
    y = run_on(native(), program, 4, arrays)["y"]
    np.testing.assert_array_equal(y, arrays["table"][[0, 6, 0, 6]])


def test_two_additions_to_one_table(eager):
    m = Maps("float64")
    g = m.output("g", 7, 3, batched=False, role="state")
    for name in ("a", "b"):
        m.ops.scatter_add(g, m.input(f"index {name}", dtype=np.dtype(np.int64)), m.input(name, 3))
    m.ops.map(g, lambda g: 2.0 * g, g)
    program, rng = m.program(), np.random.default_rng(0)
    arrays = {name: a for name, a in random_arrays(program, 200).items() if not name.startswith("index")}
    arrays |= {f"index {name}": rng.integers(0, 7, 200) for name in ("a", "b")}
    wanted = run_on(NumpyBackend(), program, 200, arrays)
    for threads in (1, 2):
        assert_equal_results(run_on(native(threads), program, 200, arrays), wanted, "float64")


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


def test_a_sum_added_to_another_is_computed_or_refused(eager):
    program = accumulated_program()
    arrays = random_arrays(program, 100)
    actual, wanted = (run_on(runner, program, 100, arrays) for runner in (backend("auto"), NumpyBackend()))
    assert_equal_results(actual, wanted, "float32")


def test_auto_prefers_machine_code():
    auto = backend("auto")
    for layers in ((Dense(3, 3),), (Dense(600, 600),), (Dense(3, 1200, tanh), Dense(1200, 1000))):
        assert auto.choose(gradient_program(Chain(*layers), "float32")).name == "native"
    assert Chain(Dense(3, 3)).runner.name == "auto"
