"""Instruction sets and numbers of threads: those asked for are used, nonsense is refused."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Chain, Dense, Dropout, SquaredLoss
from chains.backends.numpy.backend import NumpyBackend
from tests.harness import targets

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native.llvm import target
from tests.native.support import (
    INSTRUCTIONS,
    Fenced,
    assert_equal_results,
    gradient_program,
    make_net,
    native,
    random_arrays,
    run_fenced,
    run_on,
    small_program,
)

SPREAD = {
    "plain": lambda: (make_net(), SquaredLoss(), "real"),
    "odd": lambda: (Chain(Dense(7, 33, "gelu"), Dropout(0.3), Dense(33, 5, "softplus"), Dense(5, 1)),
                    chains.HuberLoss(0.5), "real"),
    "classes": lambda: (Chain(Dense(17, 19, "sin"), chains.Residual(Dense(19, 19, "elu")), Dense(19, 10)),
                        chains.CrossEntropyLoss(), "labels"),
}  # fmt: skip


@pytest.mark.few(2)
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


@pytest.mark.parametrize("threads", [0, -2, 1.5, "two", 10**6])
def test_nonsense_for_the_argument_threads_is_refused(threads):
    with pytest.raises((ValueError, TypeError), match="threads"):
        NativeBackend(threads=threads)


def test_too_little_scratch_is_refused():
    with pytest.raises(ValueError, match="scratch"):
        native().bind(small_program(), 10, {}, np.empty(64, np.uint8))
