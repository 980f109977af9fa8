"""Operations as NumPy calls with fixed arguments that write into given arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.backends.base import UnsupportedOperationError, cannot_run
from chains.backends.numpy.formulas import CallSequence, Register, array_calls, scalar_call, sequence_calls
from chains.backends.numpy.images import convolve, convolve_input, convolve_weight, pool, pool_input
from chains.backends.numpy.memory import Memory
from chains.backends.numpy.rows import update_rows
from chains.program.all_reduce import AllReduce
from chains.program.loop import Loop
from chains.program.operations import (
    BatchMatMul,
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Copy,
    Fill,
    Gather,
    Map,
    MatMul,
    Operation,
    Pool,
    PoolInput,
    Random,
    Reduce,
    ScatterAdd,
)
from chains.program.rows import UpdateRows
from chains.program.view import View
from chains.support.communicator import all_reduce

Call = Callable[[], Any]


_longest_ones: dict[np.dtype[Any], np.ndarray] = {}


def ones(length: int, dtype: np.dtype[Any]) -> np.ndarray:
    """A vector of ones, only to be read: a part of the longest such vector so far."""
    longest = _longest_ones.get(dtype)
    if longest is None or len(longest) < length:
        longest = _longest_ones[dtype] = np.ones(length, dtype)
    return longest[:length]


def lower(memory: Memory, operation: Operation) -> list[Call]:
    """The calls that carry out one operation."""
    try:
        lowering = LOWERINGS[type(operation)]
    except KeyError:
        raise UnsupportedOperationError(cannot_run("numpy", operation)) from None
    return lowering(memory, operation)


def _matmul(memory: Memory, operation: MatMul) -> list[Call]:
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


def _batch_matmul(memory: Memory, operation: BatchMatMul) -> list[Call]:
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


def _map(memory: Memory, operation: Map) -> list[Call]:
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
        memory.sequences[key] = formula, sequence_calls(formula, dtype, shapes, outs[0].shape, conflicts, known, set(dying))
    return formula_calls(memory, memory.sequences[key][1], outs, ins)


def formula_calls(memory: Memory, sequence: CallSequence, outs: Sequence[np.ndarray], ins: Sequence[np.ndarray]) -> list[Call]:
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
    meet = out.buffer is view.buffer and np.may_share_memory(memory.array(out), memory.array(view))
    return "across" if meet else "apart"


def _reduce(memory: Memory, operation: Reduce) -> list[Call]:
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


def _gather(memory: Memory, operation: Gather) -> list[Call]:
    out, table, index = (memory.array(view) for view in operation.views)
    return [partial(np.take, table, index, 0, out, "clip")]  # "clip": with "raise", NumPy buffers the result


def _scatter_add(memory: Memory, operation: ScatterAdd) -> list[Call]:
    out, index, source = (memory.array(view) for view in operation.views)
    inside = memory.temporary(index.shape, index.dtype)  # as `gather` does, whose gradient this is
    return [partial(np.clip, index, 0, len(out) - 1, inside), partial(np.add.at, out, inside, source)]


def _update_rows(memory: Memory, operation: UpdateRows) -> list[Call]:
    return update_rows(memory, operation, formula_calls)


def _random(memory: Memory, operation: Random) -> list[Call]:
    out, key, *first = (memory.array(view) for view in operation.views)
    bits = np.random.Philox(key=[0, 0])
    generator, state = np.random.Generator(bits), bits.state
    counter, philox_key = state["state"]["counter"], state["state"]["key"]
    counter[1] = operation.draw
    direct = out.dtype == np.float32 and out.flags.c_contiguous
    numbers = out if direct else memory.temporary(out.shape, np.float32)
    size = operation.outs[0].sample_size

    def draw() -> None:
        philox_key[0], counter[2] = key[0], key[1]
        counter[0], skipped = divmod(int(first[0]) * size, 8) if first else (0, 0)
        bits.state = state
        if skipped:
            generator.random(skipped, dtype=np.float32)
        generator.random(dtype=np.float32, out=numbers)

    return [draw] if numbers is out else [draw, partial(np.copyto, out, numbers)]


def _all_reduce(memory: Memory, operation: AllReduce) -> list[Call]:
    out, a, words = (memory.array(view) for view in operation.views)

    def reduce() -> None:
        all_reduce(words, a, out)

    return [reduce]


def _copy(memory: Memory, operation: Copy) -> list[Call]:
    out, a = (memory.array(view) for view in operation.views)
    return [partial(np.copyto, out, a, "same_kind")]


def _fill(memory: Memory, operation: Fill) -> list[Call]:
    return [partial(memory.array(operation.outs[0]).fill, operation.value)]


def _loop(memory: Memory, operation: Loop) -> list[Call]:
    calls = [call for each in operation.zeros for call in lower(memory, each)]
    if not operation.advances:  # all steps are the same calls
        return [*calls, *_step(memory, operation, 0) * operation.steps]
    return [*calls, *(call for step in range(operation.steps) for call in _step(memory, operation, step))]


def _step(memory: Memory, operation: Loop, step: int) -> list[Call]:
    """The calls of one step."""
    calls = [call for each in operation.at(step) for call in lower(memory, each)]
    if operation.only is None:
        return calls
    return [_unless_zero(memory.array(operation.only.at(operation.depth, step)), calls)]


def _unless_zero(only: np.ndarray, calls: Sequence[Call]) -> Call:
    """One call for those of a step that may be left out."""

    def step() -> None:
        if only.any():
            for call in calls:
                call()

    return step


LOWERINGS: dict[type[Operation], Callable[..., list[Call]]] = {
    MatMul: _matmul,
    BatchMatMul: _batch_matmul,
    Map: _map,
    Reduce: _reduce,
    Convolve: convolve,
    ConvolveInput: convolve_input,
    ConvolveWeight: convolve_weight,
    Pool: pool,
    PoolInput: pool_input,
    Gather: _gather,
    ScatterAdd: _scatter_add,
    UpdateRows: _update_rows,
    Random: _random,
    AllReduce: _all_reduce,
    Copy: _copy,
    Fill: _fill,
    Loop: _loop,
}
