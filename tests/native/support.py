"""What the tests of the native backend share: programs, arrays between fences, functions run in another process."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import mmap
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from chains import Chain, Dense, SquaredLoss, expr, tanh
from chains.backends.numpy.backend import NumpyBackend
from chains.network import record
from chains.network.network import network_of
from chains.program.recorder import Recorder
from chains.program.scratch import ALIGNMENT
from chains.program.view import concrete
from tests.harness import assert_close

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native.llvm import target, vectormath

ROOT = Path(__file__).parents[2]
LINUX = sys.platform == "linux"
EMULATED = LINUX and target.ARM and "vendor_id" in Path("/proc/cpuinfo").read_text()  # qemu shows x86's
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
            arrays[name] = rng.uniform(0.5, 2.0, shape_of(buffer, batch)).astype(buffer.dtype)
        elif buffer.dtype.kind == "i":
            arrays[name] = rng.integers(0, 3, shape_of(buffer, batch))
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
    return record.vjp(network_of(Chain(*layers, Dense(*sizes[-2:]))), np.dtype(dtype), False)


def gradient_program(net, dtype, loss=None, penalty=None, target_shape=None, training=True, *, criterion=None):
    target_shape = net.output_shape if target_shape is None else target_shape
    objective = criterion or record.Criterion(loss or SquaredLoss(), target_shape, None, penalty)
    return record.gradient(network_of(net), objective, np.dtype(dtype), training)


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


# Functions of a test file, run in another process


def in_process(function, *arguments, timeout=300.0, env=None, popen=False):
    """Run ``function(*arguments)``, a test file's own, in a fresh Python; returns what it printed last, read as JSON."""
    module, name = function.__module__, function.__name__
    code = f"import json, sys; from {module} import {name}; {name}(*json.loads(sys.argv[1]))"
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code, json.dumps(arguments)]
    env = {**os.environ, **(env or {})}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)
    return process if popen else finished(process, timeout)


def finished(process, timeout=300.0):
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"no end after {timeout} s; it wrote {out[-2000:]!r} and {err[-3000:]!r}") from None
    assert process.returncode == 0, f"exit code {process.returncode}; it wrote {out[-1000:]!r} and {err[-3000:]!r}"
    return json.loads(out.strip().splitlines()[-1]) if out.strip() else None


def all_finished(processes, timeout=300.0):
    """What each of them printed last; none is left behind."""
    try:
        return [finished(process, timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


FUNCTIONS = sorted(vectormath.FUNCTIONS)


def call(name):
    return {"abs": abs, "neg": lambda x: -x}.get(name) or getattr(expr, name)


every_instruction_set = pytest.mark.parametrize("simd", INSTRUCTIONS)


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


def assert_equals_numpy(program, *batches):
    for batch in batches:
        arrays, fences = random_arrays(program, batch), Fenced()
        actual = run_fenced(native(), program, batch, arrays, fences)
        fences.check()
        assert_equal_results(actual, run_on(NumpyBackend(), program, batch, arrays), "float32", f"batch {batch}", factor=4)


def random_program(kind, shape):
    m = Maps(kind)
    m.ops.random(m.output("a", *shape))
    m.ops.random(m.output("b", *shape))
    return m.program()


def make_net():
    return Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))


@cache
def small_program(kind="float32"):
    return gradient_program(make_net(), kind)
