"""Gradient and update in one pass: the elementwise operations on a gradient are fused with the sum that computes it.

    g0 = x.T @ dy                  p0 = p0 - (x.T @ dy) * rate
    g1 = sum(dy)            ->     p1 = p1 - sum(dy) * rate
    ...                            ...
    p = p - g * rate               p = p - g * rate, for the rest of the vector

So a step reads and writes each parameter once, and that part of the gradient is never stored. It works if one tile has all
samples, for all elementwise operations on the vector, such as momentum, moments or a penalty's part. If an operation between
the two reads the whole gradient, such as its norm, nothing is fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from chains.backends.cupy.source.maps import Run
from chains.program.alias import conflict, overlap
from chains.program.operations import MatMul, Operation, Reduce
from chains.program.view import View, c_strides


def in_one_pass(operations: Sequence[Operation]) -> list[Operation]:
    """The operations on a whole batch, with updates fused into the sums over samples that they need."""
    left, done = _soonest(operations), list[Operation]()
    while left:
        run, between, rest = _vector_run(left)
        sums = _movable(done, run, between) if run.operations else []
        if sums:
            done = [*(each for each in done if each not in sums), *between, *_in_parts(run, sums)]
            left = rest
        else:
            done.append(left.pop(0))
    return done


def _soonest(operations: Sequence[Operation]) -> list[Operation]:
    """The operations; those without samples that depend on none come first."""
    first: list[Operation] = []
    others: list[Operation] = []
    for operation in operations:
        waits = operation.batched or any(conflict(operation, other) for other in others)
        (others if waits else first).append(operation)
    return [*first, *others]


def _vector_run(operations: Sequence[Operation]) -> tuple[Run, list[Operation], list[Operation]]:
    """The run on whole vectors that begins here, or an empty one; the operations that may come before it; and the rest."""
    run, between = Run(), list[Operation]()
    for at, operation in enumerate(operations):
        if is_flat(operation) and (not run.operations or run.takes(operation)):
            run.operations.append(operation)
        elif not run.operations or any(conflict(operation, each) for each in run.operations):
            return run, between, list(operations[at:])
        else:
            between.append(operation)
    return run, between, []


def is_flat(operation: Operation) -> bool:
    """Whether the operation goes through vectors without gaps, element by element."""
    if not operation.elementwise or operation.batched:
        return False
    shape = operation.outs[0].shape
    flat = all(view.shape == shape and view.contiguous for view in operation.views if view.ndim or view in operation.outs)
    return flat and len(shape) == 1 and not any(view.loop_strides for view in operation.views)


def _movable(before: Sequence[Operation], run: Run, between: Sequence[Operation]) -> list[Operation]:
    """The sums over samples that may move to the run, by place; of several at one place, the last."""
    chosen: list[Operation] = []
    passed = [*between]
    for operation in reversed(before):
        free = _gives(operation, run) and not any(conflict(operation, other) for other in passed)
        if free and not any(_together(run, operation, other) for other in chosen):
            chosen.append(operation)
        else:
            passed.append(operation)
    return sorted(chosen, key=lambda operation: _place(run, operation))


def _place(run: Run, operation: Operation) -> tuple[int, int]:
    """The first of the run's elements that the sum gives, and the one after the last."""
    (out,) = operation.outs
    start = out.offset - next(view.offset for view in run.ins if view.buffer is out.buffer)
    return start, start + out.sample_size


def _together(run: Run, a: Operation, b: Operation) -> bool:
    """Whether an element of the run is in both sums; it would be done twice."""
    (first, stop), (other, other_stop) = _place(run, a), _place(run, b)
    return first < other_stop and other < stop


def _gives(operation: Operation, run: Run) -> bool:
    """Whether the operation sums, over the samples, a part of a vector that the run reads, and reads no result of the run."""
    if not isinstance(operation, MatMul | Reduce) or not operation.sums_over_batch or operation.accumulates:
        return False
    (out,) = operation.outs
    vectors = {view for view in (*run.ins, *run.outs) if view.buffer is out.buffer}
    if len(vectors) != 1 or not vectors <= {*run.ins} or not out.ndim or not out.contiguous or out.loop_strides:
        return False
    (vector,) = vectors
    inside = vector.offset <= out.offset and out.offset + out.sample_size <= vector.offset + vector.sample_size
    typed = all(view.dtype == out.dtype for view in run.outs)
    return inside and typed and not any(overlap(read, written) for read in operation.ins for written in run.outs)


def _in_parts(run: Run, sums: Sequence[Operation]) -> list[Operation]:
    """Each sum followed by the run on its result; last, the run on the elements between the results."""
    result: list[Operation] = []
    edges = [0]
    for operation in sums:
        start, stop = _place(run, operation)
        edges += [start, stop]
        result += [operation, *_part(run, start, operation.outs[0])]
    edges.append(run.outs[0].sample_size)
    for start, stop in list(pairwise(edges))[::2]:
        if start < stop:
            shape = (stop - start,)
            result += _part(run, start, replace(run.outs[0], shape=shape, strides=c_strides(shape)))
    return result


def _part(run: Run, start: int, like: View) -> list[Operation]:
    """The run on the elements from a place on, as many as a view has and with its axes."""

    def part(view: View) -> View:
        if not view.ndim:
            return view
        return replace(view, shape=like.shape, strides=like.strides, offset=view.offset + start, name="")

    return [operation.on(part) for operation in run.operations]
