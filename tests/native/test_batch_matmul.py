"""Products of stacks of matrices in machine code: every order of axes and size at every width, and the tiles of attention."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Attention, Chain, Dense, Embedding, Flatten, SquaredLoss
from chains.backends.numpy.backend import NumpyBackend
from chains.program.loop import all_operations
from chains.program.operations import BatchMatMul
from chains.program.recorder import Recorder

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.backend import NativeBackend
from chains.backends.native.kernels.matmul import workspace
from chains.backends.native.llvm.target import Processor
from chains.backends.native.plan.passes import plan_of
from chains.backends.native.plan.tiles import TILE_ROWS
from tests.native.support import INSTRUCTIONS, assert_equal_results, random_arrays, run_on

pytestmark = pytest.mark.few(4)

SIZES = [(1, 1, 1), (2, 7, 3), (5, 8, 17), (7, 33, 4), (32, 8, 32)]


def stacks(sizes, dtype, turned=(False, False), accumulate=False):
    """A program of out (batch, 2, m, n) = a @ b, of operands that are whole or transposed."""
    m, k, n = sizes
    ops = Recorder("stacks", dtype)
    a, b = (
        ops.external(name, (2, *shape[::-1]) if turn else (2, *shape), role="input", batched=True)
        for name, shape, turn in zip("ab", ((m, k), (k, n)), turned, strict=True)
    )
    out = ops.external("out", (m, 2, n), role="state" if accumulate else "output", batched=True)
    a, b = (view.swap(-1, -2) if turn else view for view, turn in zip((a, b), turned, strict=True))
    ops.matmul(out.swap(1, 2), a, b, accumulate=accumulate)
    return ops.finish()


@pytest.mark.few(1)
@pytest.mark.parametrize("simd", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stacks_equal_numpy(simd, dtype):
    runner = NativeBackend(threads=1, simd=simd)
    for number, sizes in enumerate(SIZES):
        turned = [(False, False), (True, False), (False, True), (True, True)][number % 4]
        for accumulate in (False, True):
            program = stacks(sizes, np.dtype(dtype), turned, accumulate)
            arrays = random_arrays(program, 5)
            wanted, actual = (run_on(each, program, 5, arrays) for each in (NumpyBackend(), runner))
            assert_equal_results(actual, wanted, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [2, 5, 16, 17])
def test_the_copy_of_a_right_side_has_room_for_whole_vectors(columns, dtype):
    """It is the last of a tile's memory, behind which lies what belongs to others."""
    for lanes in (2, 4, 8, 16):
        operation = stacks((3, 4, columns), np.dtype(dtype), (False, True)).operations[-1]
        assert workspace(operation, lanes, 16) == 4 * -(-columns // lanes) * lanes
        assert workspace(stacks((3, 4, columns), np.dtype(dtype)).operations[-1], lanes, 16) == 0


def test_a_copy_in_a_loop_has_room_too():
    """Products of steps need as much memory of a tile as one before the loop."""
    ops = Recorder("steps", np.dtype(np.float32))
    a = ops.external("a", (3, 4, 5), role="input", batched=True)
    out = ops.external("out", (3, 4, 4), role="output", batched=True)
    with ops.loop(3) as at:
        ops.matmul(at.now(out, 1), at.now(a, 1), at.now(a, 1).swap(1, 2))
    program, processor = ops.finish(), Processor("avx2", 32, 16, "", "")
    plan = plan_of(program, processor)
    (product,) = (each for each in all_operations(program.operations) if isinstance(each, BatchMatMul))
    assert plan.tile_bytes - plan.workspace_offset == 4 * workspace(product, plan.lanes, processor.registers) > 0


def test_a_tile_of_attention_is_a_few_samples():
    processor = Processor("avx2", 32, 16, "", "")
    attends = Chain(Attention(32, 4), input_shape=(32, 32))
    assert plan_of(attends.program(SquaredLoss()), processor).tile == 2
    classifies = Chain(Embedding(9, 32), Attention(32, 4), Flatten(), Dense(1024, 2), input_shape=(32,))
    assert plan_of(classifies.program(SquaredLoss()), processor).tile == TILE_ROWS
