"""Small linear systems in machine code: every size of vectors, samples that do not fill one, rows that must be exchanged."""

from __future__ import annotations

import numpy as np
import pytest

from chains.layers.ode.implicit import record_solution
from chains.program.recorder import Recorder
from tests.harness import assert_close, run_program

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.backend import NativeBackend
from chains.backends.native.llvm.target import processor
from chains.backends.native.operations import Solve
from chains.backends.native.plan.passes import plan_of
from tests.native.support import run_on

SIZES = [(1, 1), (3, 1), (5, 5), (9, 2)]  # of a matrix and the right side


def systems(n, m, dtype, turned):
    ops = Recorder("systems", dtype)
    a, b = (ops.external(name, shape, role="input", batched=True) for name, shape in (("a", (n, n)), ("b", (n, m))))
    out = ops.external("out", (n, m), role="output", batched=True)
    record_solution(ops, out, a.swap(1, 2) if turned else a, b)
    return ops.finish()


@pytest.mark.few(2)
@pytest.mark.parametrize("simd", ["sse2", "avx2", None])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_solutions_are_those_of_lapack(simd, dtype):
    """A singular matrix, and one with a NaN, give no finite solution of their own sample, and change no other."""
    rng, runner = np.random.default_rng(0), NativeBackend(threads=1, simd=simd)
    for number, (n, m) in enumerate(SIZES):
        turned, batch = bool(number % 2), 11
        program = systems(n, m, np.dtype(dtype), turned)
        (step,) = plan_of(program, processor(simd)).steps
        assert isinstance(step.operation, Solve)
        a, b = rng.normal(size=(batch, n, n)), rng.normal(size=(batch, n, m))
        a[2] = np.eye(n)[::-1]
        a[3], a[4, -1, 0] = 0.0, np.nan
        arrays = {"a": a.swapaxes(1, 2) if turned else a, "b": b, "out": np.zeros_like(b)}
        arrays = {name: np.ascontiguousarray(each, dtype) for name, each in arrays.items()}
        found = run_on(runner, program, batch, arrays)["out"]
        good = [k for k in range(batch) if k not in (3, 4)]
        wanted = np.linalg.solve(a[good], b[good])
        assert_close(found[good], wanted, 1e-3 if dtype == "float32" else 1e-11)
        assert not np.isfinite(found[[3, 4]]).all(axis=(1, 2)).any()


def test_a_solution_may_be_a_part_of_a_wider_array():
    ops, (n, m) = Recorder("systems", np.float64), (3, 2)
    a, b = (ops.external(name, shape, role="input", batched=True) for name, shape in (("a", (n, n)), ("b", (n, m))))
    wide = ops.external("wide", (n, m + 1), role="output", batched=True)
    ops.fill(wide.slice(-1, m, m + 1), 7.0)
    record_solution(ops, wide.slice(-1, 0, m), a, b)
    rng = np.random.default_rng(0)
    given = {"a": rng.normal(size=(5, n, n)), "b": rng.normal(size=(5, n, m))}
    found = run_program(ops.finish(), "native", 5, given)["wide"]
    np.testing.assert_allclose(found[..., :m], np.linalg.solve(given["a"], given["b"]), rtol=1e-10)
    assert (found[..., m] == 7.0).all()
