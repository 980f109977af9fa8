"""Products of segments add to one gradient, unless something else needs those of a segment."""

from __future__ import annotations

import numpy as np
import pytest

from chains.program.loop import Loop, all_operations
from chains.program.program import Program
from chains.program.recorder import Recorder
from tests.harness import run_program

SEGMENTS, UNITS, BATCH = 4, 3, 5


def sums_of_segments(*, last: str = "product", read: bool = False, gap: bool = False) -> Recorder:
    """``g`` is the sum of ``x[k].T @ x[k]`` over segments, of which the last one is done before the loop."""
    ops = Recorder("segments", np.float64)
    x = ops.external("x", (SEGMENTS, UNITS), role="input", batched=True)
    g = ops.external("g", (UNITS, UNITS), role="output")
    each = ops.scratch("each", (SEGMENTS, UNITS, UNITS), batched=False)
    final = each.index(0, SEGMENTS - 1)
    if last == "loop":
        pass
    elif last == "product":
        ops.matmul(final, x.index(1, SEGMENTS - 1).T, x.index(1, SEGMENTS - 1))
    elif last == "parts":
        for part in (slice(0, 1), slice(1, UNITS)):
            columns = x.index(1, SEGMENTS - 1).slice(1, part.start, part.stop)
            ops.matmul(final.slice(1, part.start, part.stop), x.index(1, SEGMENTS - 1).T, columns)
    else:
        ops.fill(final, 2.0)
    if gap:
        ops.fill(g, 1.0)
        ops.copy(ops.external("before", (UNITS, UNITS), role="output"), g)
    segments = SEGMENTS if last == "loop" else SEGMENTS - 1
    with ops.loop(segments, backwards=True, closed=True) as at:
        ops.matmul(
            at.now(each.slice(0, 0, segments), 0), at.now(x.slice(1, 0, segments), 1).T, at.now(x.slice(1, 0, segments), 1)
        )
    ops.sum(g, each)
    if read:
        ops.copy(ops.external("first", (UNITS, UNITS), role="output"), each.index(0, 0))
    return ops


@pytest.mark.parametrize(
    ("settings", "added"),
    [
        ({}, True),
        ({"last": "loop"}, True),
        ({"last": "fill"}, False),
        ({"last": "parts"}, False),
        ({"read": True}, False),
        ({"gap": True}, False),
    ],
    ids=str,
)
def test_segments_are_added_up_in_their_target_where_nothing_else_needs_them(settings, added, backend_name):
    ops = sums_of_segments(**settings)
    recorded, program = Program(ops.name, ops.dtype, tuple(ops.operations)), ops.finish()
    assert any(operation.accumulates for operation in all_operations(program.operations)) == added
    assert any(isinstance(operation, Loop) for operation in program.operations)
    given = {"x": np.random.default_rng(0).normal(size=(BATCH, SEGMENTS, UNITS))}
    wanted = run_program(recorded, "numpy", BATCH, given)
    for fill in (0x00, 0xFF):
        for name, array in run_program(program, backend_name, BATCH, given, fill).items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-13, atol=1e-13, err_msg=name)
