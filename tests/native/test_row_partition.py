"""Which products are split among threads, and when the threads meet."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Chain, Dense, SquaredLoss, tanh

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import binding as native_module
from chains.backends.native.backend import MAX_PARTITIONED_SAMPLES
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan.execution_plan import PlanStep, SumRun, Work
from chains.backends.native.plan.passes import plan_of
from chains.backends.native.plan.teams import barriers
from chains.expr import trace
from chains.program.operations import Map
from chains.program.view import Buffer, View, c_strides
from tests.native.support import native
from tests.native.team import SPLIT, program_of, vector


def parts_of(net, optimizer=SGD(0.1), parts=2):  # noqa: B008 - it has no state
    """The shapes of the products' operands, and whose they are, where any are split."""
    plan = plan_of(program_of(net, optimizer), processor(), parts)
    steps = [step for segment in plan.segments for step in segment.tiled_steps]
    return [(step.owner, *(view.shape for view in step.operation.ins)) for step in steps if step.owner is not None]


def test_products_are_split_along_the_rows_of_their_weights():
    found = parts_of(SPLIT["narrow"])
    rows = [shapes[1][0] for owner, *shapes in found[:2]]
    assert [owner for owner, *_ in found] == [0, 1, 0, 1]
    assert sum(rows) == 784
    assert rows[0] % processor().lanes(4) == 0  # whole vectors
    assert 0.85 < rows[0] / rows[1] < 1  # the first thread has other things to do
    assert [shapes[0][0] for _, *shapes in found[2:]] == rows  # of the gradient: x.T @ dy


def test_which_products_are_split():
    assert parts_of(Chain(Dense(30, 30, tanh), Dense(30, 30))) == []  # small ones
    assert parts_of(Chain(Dense(600, 600, tanh), Dense(600, 600))) == []  # large ones see the whole batch
    assert parts_of(SPLIT["narrow"], optimizer=None) == []  # what is run once
    assert len(parts_of(SPLIT["deep"])) == 2 * (3 + 3 + 2)  # layers, their weights' gradients, and their inputs'
    assert {owner for owner, *_ in parts_of(SPLIT["narrow"], parts=4)} == {0, 1, 2, 3}


def test_few_samples_are_split_and_more_shared_out():
    program, runner = program_of(SPLIT["narrow"], SGD(0.1)), native(2)
    for batch, parts in ((1, 1), (10, 2), (MAX_PARTITIONED_SAMPLES, 2), (MAX_PARTITIONED_SAMPLES + 1, 1)):
        wanted = min(parts, native_module.processors())
        assert runner.compile(program, batch).signature.parts == wanted, batch
    assert native(1).compile(program, 10).signature.parts == 1


def work(out, *ins, thread=0, length=0):
    formula = trace(lambda *xs: sum(xs[1:], xs[0]), len(ins))
    return Work((PlanStep(Map((out,), ins, formula)),), thread=thread, length=length)


def test_threads_meet_where_one_needs_what_another_has_done():
    a, b, c, d = (vector(name) for name in "abcd")
    own = work(a, b), work(c, d, thread=1)
    assert barriers([*own, work(b, a), work(d, c, thread=1)]) == (False,) * 4
    assert barriers([*own, work(b, a, c)]) == (False, False, True)
    assert barriers([*own, work(d, b)]) == (False, False, True)  # which the second one still reads
    assert barriers([*own, work(c, b)]) == (False, False, True)  # which the second one may still write


def test_they_meet_as_early_as_they_may():
    a, b, c, d = (vector(name) for name in "abcd")
    # The second one needs what comes first: it should not wait for what the first one does meanwhile.
    assert barriers([work(a, b), work(c, b), work(d, a, thread=1)]) == (False, True, False)


def test_parts_of_the_same_vectors_need_no_meeting():
    a, b, c = (vector(name) for name in "abc")
    scalar = View(Buffer("s", "scratch", np.dtype(np.float32), ()), (), ())
    assert barriers([work(a, b, length=1000), work(c, a, length=1000)]) == (False, False)
    assert barriers([work(a, b, length=1000), work(scalar, a)]) == (False, True)
    assert barriers([work(scalar, b), work(a, scalar, length=1000)]) == (False, True)
    half = View(a.buffer, (500,), (1,), 250)
    assert barriers([work(a, b, length=1000), work(vector("d", 500), half, length=500)]) == (False, True)


def test_sums_are_added_by_those_that_need_them():
    a, b = vector("a"), vector("b")
    value = View(Buffer("value", "output", np.dtype(np.float32), ()), (), ())
    sums = [SumRun(a.buffer, 0, 1000, "sum"), SumRun(value.buffer, 0, 1, "sum")]
    assert barriers([work(value, value), work(b, a, length=1000)], sums) == (False, False)
    assert barriers([work(b, a)], sums) == (True,)  # the first thread needs what others have added
    assert barriers([work(b, a, value, length=1000)], sums) == (True,)
    assert barriers([work(b, View(a.buffer, (1000,), (1,), 0), length=1000)], [SumRun(a.buffer, 0, 2000, "sum")]) == (True,)


def test_columns_of_a_matrix_are_apart():
    matrix = Buffer("m", "scratch", np.dtype(np.float32), SPLIT["narrow"].program(SquaredLoss()).buffers["x"].shape)
    whole = View(matrix, matrix.shape, c_strides(matrix.shape))
    left, right = whole.slice(1, 0, 384), whole.slice(1, 384, 784)
    assert barriers([work(left, left), work(right, right, thread=1)]) == (False, False)
    assert barriers([work(left, left), work(whole, whole, thread=1)]) == (False, True)
