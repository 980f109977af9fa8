"""Operations as NumPy calls with fixed arguments that write into given arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.backends.base import UnsupportedOperationError, cannot_run
from chains.backends.lowering import Call, loop_calls, uniform
from chains.backends.numpy.formulas import CallSequence, Register, array_calls, scalar_call, sequence_calls
from chains.backends.numpy.images import convolve, convolve_input, convolve_weight, pool, pool_input
from chains.backends.numpy.memory import Memory
from chains.program import operations as ops
from chains.program.loop import Loop
from chains.program.operations import AllReduce
from chains.program.rows import UpdateRows
from chains.program.view import View
from chains.support.communicator import all_reduce

FIRST_OF_ROWS = 1 << 10  # the number of the first temporary array of an update of rows

_longest_ones: dict[np.dtype[Any], np.ndarray] = {}


def ones(length: int, dtype: np.dtype[Any]) -> np.ndarray:
    """A vector of ones, only to be read: a part of the longest such vector so far."""
    longest = _longest_ones.get(dtype)
    if longest is None or len(longest) < length:
        longest = _longest_ones[dtype] = np.ones(length, dtype)
    return longest[:length]


def lower(memory: Memory, operation: ops.Operation) -> list[Call]:
    """The calls that carry out one operation."""
    try:
        lowering = memory.functions.get(type(operation)) or LOWERINGS[type(operation)]
    except KeyError:
        raise UnsupportedOperationError(cannot_run("numpy", operation)) from None
    return lowering(memory, operation)


def _matmul(memory: Memory, operation: ops.MatMul) -> list[Call]:
    out, a, b = (memory.array(view) for view in operation.views)
    calls: list[Call] = []
    if not _is_blas(a):
        a = _copied(memory, a, 0, calls)
    if not _is_blas(b):
        b = _copied(memory, b, 1, calls)
    gaps = not all(matrix.flags.c_contiguous or matrix.flags.f_contiguous for matrix in (a, b))
    multiply = partial(np.matmul, a) if gaps else a.dot  # `dot` is faster, but copies operands whose rows have gaps
    if out.flags.c_contiguous and not operation.accumulate:
        return [*calls, partial(multiply, b, out)]
    product = memory.temporary(out.shape, out.dtype, 2)
    calls.append(partial(multiply, b, product))
    return [*calls, partial(np.add, out, product, out=out) if operation.accumulate else partial(np.copyto, out, product)]


def _batch_matmul(memory: Memory, operation: ops.BatchMatMul) -> list[Call]:
    out, a, b = (memory.array(view) for view in operation.views)
    if not operation.accumulate:
        return [partial(np.matmul, a, b, out)]
    product = memory.temporary(out.shape, out.dtype)
    return [partial(np.matmul, a, b, product), partial(np.add, out, product, out)]


def _is_blas(matrix: np.ndarray) -> bool:
    """Whether BLAS takes the matrix without a copy, perhaps transposed."""
    (rows, columns), size = matrix.strides, matrix.itemsize
    return (columns == size and rows >= size * matrix.shape[1]) or (rows == size and columns >= size * matrix.shape[0])


def _copied(memory: Memory, matrix: np.ndarray, number: int, calls: list[Call]) -> np.ndarray:
    copy = memory.temporary(matrix.shape, matrix.dtype, number)
    calls.append(partial(np.copyto, copy, matrix))
    return copy


def _map(memory: Memory, operation: ops.Map) -> list[Call]:
    outs, ins = ([memory.array(view) for view in views] for views in (operation.outs, operation.ins))
    if all(view.ndim == 0 for view in operation.views):
        return [scalar_call(operation.formula, outs, ins)]
    if outs[0].ndim > 1 and outs[0].shape[0] == 1:  # broadcasting costs more than equal shapes
        outs, ins = ([memory.squeezed(array, outs[0].ndim) for array in arrays] for arrays in (outs, ins))
    conflicts = tuple(tuple(_conflict(memory, out, view) for view in operation.ins) for out in operation.outs)
    known = {j: ins[j] for j, view in enumerate(operation.ins) if view.buffer.name == "inverse_batch"}
    dying = frozenset(j for j, view in enumerate(operation.ins) if memory.dies(view, operation))
    shapes = tuple(array.shape for array in ins)
    formula, dtype = operation.formula, memory.program.dtype
    key = id(formula), shapes, outs[0].shape, conflicts, dying, tuple(known)  # the steps of a loop have one formula
    if key not in memory.sequences:
        memory.sequences[key] = formula, sequence_calls(formula, dtype, shapes, outs[0].shape, conflicts, known, dying)
    return _formula_calls(memory, memory.sequences[key][1], outs, ins)


def _formula_calls(memory: Memory, sequence: CallSequence, outs: Sequence[np.ndarray], ins: Sequence[np.ndarray]) -> list[Call]:
    """The calls of a sequence on these arrays."""

    def array(register: Register) -> np.ndarray:
        if register.kind == "const":
            return np.asarray(register.value)
        if register.kind == "temp":
            dtype = np.bool_ if register.boolean else memory.program.dtype
            return memory.temporary(register.shape, dtype, register.number)
        return (ins if register.kind == "in" else outs)[register.number]

    calls: list[Call] = []
    for call in sequence.calls:
        target, sources = array(call.target), [array(source) for source in call.sources]
        calls += array_calls(call.operation, target, sources)
    return calls


def _conflict(memory: Memory, out: View, view: View) -> str:
    """How `out` overlaps `view` (see `sequence_calls`). NumPy copies an operand that may overlap with the result."""
    if out == view:
        return "same"
    overlap = out.buffer is view.buffer and np.may_share_memory(memory.array(out), memory.array(view))
    return "across" if overlap else "apart"


def _reduce(memory: Memory, operation: ops.Reduce) -> list[Call]:
    out, a = memory.array(operation.outs[0]), memory.array(operation.ins[0])
    missing = a.ndim - out.ndim
    axes = tuple(k for k in range(a.ndim) if k < missing or out.shape[k - missing] != a.shape[k])
    rows = max(axes, default=-1) + 1  # the leading axes, if exactly these are summed away
    if operation.kind == "max":
        return [partial(np.maximum.reduce, a, axes, None, out.reshape(_kept(a, axes)), True)]
    if not axes:
        return [partial(np.copyto, out, a)]
    if a.flags.c_contiguous and out.flags.c_contiguous and out.size > 1:
        # A product with ones costs half of np.add.reduce on small arrays.
        if axes == tuple(range(rows)):
            matrix = a.reshape(-1, out.size)
            return [partial(ones(len(matrix), a.dtype).dot, matrix, out.reshape(-1))]
        if axes == tuple(range(a.ndim - len(axes), a.ndim)):
            matrix = a.reshape(out.size, -1)
            return [partial(matrix.dot, ones(matrix.shape[1], a.dtype), out.reshape(-1))]
    if a.flags.c_contiguous and a.size <= 4096 and out.size == 1:
        return [partial(a.reshape(-1).dot, ones(a.size, a.dtype), out.reshape(()))]
    return [partial(np.add.reduce, a, axes, None, out.reshape(_kept(a, axes)), True)]


def _kept(a: np.ndarray, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of `a` with length 1 along `axes`."""
    return tuple(1 if k in axes else length for k, length in enumerate(a.shape))


def _gather(memory: Memory, operation: ops.Gather) -> list[Call]:
    out, table, index = (memory.array(view) for view in operation.views)
    return [_take(table, index, out)]


def _scatter_add(memory: Memory, operation: ops.ScatterAdd) -> list[Call]:
    out, index, source = (memory.array(view) for view in operation.views)
    inside = memory.temporary(index.shape, index.dtype)  # as `gather` does, whose gradient this is
    return [partial(np.clip, index, 0, len(out) - 1, inside), partial(np.add.at, out, inside, source)]


def _update_rows(memory: Memory, operation: UpdateRows) -> list[Call]:
    """The rows of the ids are gathered, updated and written back."""
    tables, operands = ([memory.array(view) for view in views] for views in (operation.tables, operation.operands))
    index, gradient = memory.array(operation.index), memory.array(operation.gradient)
    inside = _of_rows(memory, index.shape, index.dtype)
    calls: list[Call] = [partial(np.clip, index, 0, len(tables[0]) - 1, inside)]  # as `gather` does
    if operation.every:
        total = _of_rows(memory, tables[0].shape, tables[0].dtype)
        calls += [partial(total.fill, 0), partial(np.add.at, total, inside, gradient)]
        if operation.padding is not None:
            calls.append(partial(total[operation.padding].fill, 0))
        return calls + _updates(memory, operation, tables, [total, *operands])
    rows = [_of_rows(memory, (*index.shape, *tables[0].shape[1:]), tables[0].dtype)]
    calls += (
        _sums_of_ids(memory, operation, inside, rows[0]) if operation.gradient.batched else [_take(gradient, inside, rows[0])]
    )
    for k, operand in enumerate(operands):
        if operand.ndim:
            rows.append(_of_rows(memory, rows[0].shape, operand.dtype, len(rows)))
            calls.append(_take(operand, inside, rows[-1]))
            operands[k] = rows[-1]
    outs = []
    for view in operation.tables:
        if view in operation.operands:
            outs.append(operands[operation.operands.index(view)])
        else:
            rows.append(_of_rows(memory, rows[0].shape, view.dtype, len(rows)))
            outs.append(rows[-1])
    calls += _updates(memory, operation, outs, [rows[0], *operands])
    # Equal ids have equal rows, so it does not matter which is written last.
    return calls + [partial(table.__setitem__, inside, made) for table, made in zip(tables, outs, strict=True)]


def _of_rows(memory: Memory, shape: tuple[int, ...], dtype: Any, number: int = 0) -> np.ndarray:
    """A temporary array of an update of rows. Its number follows those of the update's formula."""
    return memory.temporary(shape, dtype, FIRST_OF_ROWS + number)


def _take(table: np.ndarray, index: np.ndarray, out: np.ndarray) -> Call:
    return partial(np.take, table, index, 0, out, "clip")  # "clip": with "raise", NumPy buffers the result


def _sums_of_ids(memory: Memory, operation: UpdateRows, inside: np.ndarray, out: np.ndarray) -> list[Call]:
    """For each entry of the index, the sum of the gradients of all entries with the same id."""
    marks, gradient = memory.array(operation.marks), memory.array(operation.gradient)
    same = _of_rows(memory, inside.shape, marks.dtype, 1)  # the position of one of the equal ids
    total = _of_rows(memory, out.shape, out.dtype, FIRST_OF_ROWS)
    calls: list[Call] = [
        partial(marks.__setitem__, inside, np.arange(len(inside))),
        _take(marks, inside, same),
        partial(total.fill, 0),
        partial(np.add.at, total, same, gradient),
        _take(total, same, out),
    ]
    if operation.padding is not None:
        padded = _of_rows(memory, inside.shape, np.bool_)
        calls.append(partial(np.equal, inside, operation.padding, padded))
        calls.append(partial(np.copyto, out, 0, "same_kind", padded[:, np.newaxis]))
    return calls


def _updates(memory: Memory, operation: UpdateRows, outs: list[np.ndarray], ins: list[np.ndarray]) -> list[Call]:
    """The calls of the formula. A result overwrites the operand that is the same table."""
    conflicts = [["apart", *("same" if view == out else "apart" for view in operation.operands)] for out in operation.tables]
    shapes = [array.shape for array in ins]
    sequence = sequence_calls(operation.formula, memory.program.dtype, shapes, ins[0].shape, conflicts, {}, {0})
    return _formula_calls(memory, sequence, outs, ins)


def _random(memory: Memory, operation: ops.Random) -> list[Call]:
    out, *words = (memory.array(view) for view in operation.views)
    direct = out.dtype == np.float32 and out.flags.c_contiguous
    numbers = out if direct else memory.temporary(out.shape, np.float32)
    draw = partial(uniform(operation), numbers, *words)
    return [draw] if numbers is out else [draw, partial(np.copyto, out, numbers)]


def _all_reduce(memory: Memory, operation: AllReduce) -> list[Call]:
    out, a, words = (memory.array(view) for view in operation.views)

    def reduce() -> None:
        all_reduce(words, a, out)

    return [reduce]


def _copy(memory: Memory, operation: ops.Copy) -> list[Call]:
    out, a = (memory.array(view) for view in operation.views)
    return [partial(np.copyto, out, a, "same_kind")]


def _fill(memory: Memory, operation: ops.Fill) -> list[Call]:
    return [partial(memory.array(operation.outs[0]).fill, operation.value)]


def _loop(memory: Memory, operation: Loop) -> list[Call]:
    return loop_calls(operation, partial(lower, memory), lambda view: memory.array(view).any)


LOWERINGS: dict[type[ops.Operation], Callable[..., list[Call]]] = {
    ops.MatMul: _matmul,
    ops.BatchMatMul: _batch_matmul,
    ops.Map: _map,
    ops.Reduce: _reduce,
    ops.Convolve: convolve,
    ops.ConvolveInput: convolve_input,
    ops.ConvolveWeight: convolve_weight,
    ops.Pool: pool,
    ops.PoolInput: pool_input,
    ops.Gather: _gather,
    ops.ScatterAdd: _scatter_add,
    UpdateRows: _update_rows,
    ops.Random: _random,
    AllReduce: _all_reduce,
    ops.Copy: _copy,
    ops.Fill: _fill,
    Loop: _loop,
}
