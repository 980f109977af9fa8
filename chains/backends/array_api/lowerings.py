"""Operations by an array library. Most are functions that read views and return the array to be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.backends.array_api.formulas import evaluator
from chains.backends.array_api.images import VALUES as OF_IMAGES
from chains.backends.array_api.library import Array
from chains.backends.array_api.memory import Memory
from chains.backends.base import UnsupportedOperationError, cannot_run
from chains.program import operations as ops
from chains.program.loop import Loop
from chains.program.rows import UpdateRows
from chains.program.view import View
from chains.support.communicator import all_reduce

Call = Callable[[], Any]


def lower(memory: Memory, operation: ops.Operation) -> list[Call]:
    """The calls that carry out one operation."""
    kind = type(operation)
    if kind in CALLS:
        return CALLS[kind](memory, operation)
    if kind not in VALUES:
        raise UnsupportedOperationError(cannot_run("array_api", operation))
    value, (out,) = VALUES[kind](memory, operation), operation.outs
    return [lambda: memory.write(out, value())]


def _product(memory: Memory, operation: Any) -> Callable[[], Array]:
    (out,), (a, b), matmul = operation.outs, operation.ins, memory.library.xp.matmul
    if operation.accumulate:
        return lambda: memory.read(out) + matmul(memory.read(a), memory.read(b))
    return lambda: matmul(memory.read(a), memory.read(b))


def _reduce(memory: Memory, operation: ops.Reduce) -> Callable[[], Array]:
    (a,), xp, shape = operation.ins, memory.library.xp, memory.shape(operation.outs[0])
    full, missing = memory.shape(a), a.ndim - len(shape)
    axes = tuple(k for k in range(a.ndim) if k < missing or shape[k - missing] != full[k])
    reduce = partial(xp.max if operation.kind == "max" else xp.sum, axis=axes) if axes else xp.asarray
    return lambda: xp.reshape(reduce(memory.read(a)), shape)


def _gather(memory: Memory, operation: ops.Gather) -> Callable[[], Array]:
    (table, index), xp, shape = operation.ins, memory.library.xp, memory.shape(operation.outs[0])
    return lambda: xp.reshape(xp.take(memory.read(table), _inside(memory, index, table), axis=0), shape)


def _inside(memory: Memory, index: View, table: View) -> Array:
    """The entries of an index in one axis, those out of range as the nearest row of the table."""
    numbers = memory.library.converted(memory.read(index), np.dtype(np.int64))
    return memory.library.xp.clip(memory.library.xp.reshape(numbers, (-1,)), 0, memory.shape(table)[0] - 1)


def _scatter_add(memory: Memory, operation: ops.ScatterAdd) -> Callable[[], Array]:
    (out,), (index, source), xp = operation.outs, operation.ins, memory.library.xp
    shape = (-1, *memory.shape(out)[1:])

    def sums() -> Array:
        inside, rows = _inside(memory, index, out), xp.reshape(memory.read(source), shape)
        return memory.library.scattered(memory.read(out), inside, rows)

    return sums


def _random(memory: Memory, operation: ops.Random) -> Callable[[], Array]:
    """The numbers are drawn on the host, by NumPy's generator of the same stream."""
    (out,), (words, *first) = operation.outs, operation.ins

    def drawn() -> Array:
        seed, step = memory.host(words).tolist()
        block, skipped = divmod(int(memory.host(first[0])) * out.sample_size, 8) if first else (0, 0)
        key, counter = (np.array(each, np.uint64) for each in ([seed, 0], [block, operation.draw, step, 0]))
        generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
        generator.random(skipped, np.float32)
        return memory.library.from_host(generator.random(memory.shape(out), np.float32))

    return drawn


def _all_reduce(memory: Memory, operation: ops.AllReduce) -> Callable[[], Array]:
    a, words = operation.ins

    def total() -> Array:
        part = np.array(memory.host(a))
        all_reduce(np.array(memory.host(words)), part, part)
        return memory.library.from_host(part)

    return total


def _copy(memory: Memory, operation: ops.Copy) -> Callable[[], Array]:
    (out,), (a,) = operation.outs, operation.ins
    overlapping = out.buffer is a.buffer
    return lambda: memory.library.xp.asarray(memory.read(a), copy=True) if overlapping else memory.read(a)


def _fill(memory: Memory, operation: ops.Fill) -> Callable[[], Array]:
    value = memory.library.full((), operation.outs[0].dtype, operation.value)
    return lambda: value


def _map(memory: Memory, operation: ops.Map) -> list[Call]:
    outs, ins, formula, asarray = operation.outs, operation.ins, operation.formula, memory.library.xp.asarray
    scalar = all(view.ndim == 0 for view in operation.views)
    dtype = np.result_type(*(view.dtype for view in operation.views)) if scalar else memory.program.dtype
    key = id(formula), dtype
    if key not in memory.formulas:  # the steps of a loop have one formula
        memory.formulas[key] = formula, evaluator(memory.library, formula, dtype)
    compute = memory.formulas[key][1]

    def run() -> None:
        results = compute([memory.read(view) for view in ins])
        if len(outs) > 1:  # a result may be an operand that another result overwrites
            results = [asarray(result, copy=True) for result in results]
        for out, result in zip(outs, results, strict=True):
            memory.write(out, result)

    return [run]


def _in_parts(memory: Memory, operation: UpdateRows) -> list[Call]:
    return [call for part in operation.in_parts() for call in lower(memory, part)]


def _loop(memory: Memory, operation: Loop) -> list[Call]:
    calls = [call for each in operation.zeros for call in lower(memory, each)]
    if not operation.advances:  # all steps are the same calls
        return [*calls, *_step(memory, operation, 0) * operation.steps]
    return [*calls, *(call for step in range(operation.steps) for call in _step(memory, operation, step))]


def _step(memory: Memory, operation: Loop, step: int) -> list[Call]:
    """The calls of one step."""
    calls = [call for each in operation.at(step) for call in lower(memory, each)]
    if operation.skip_where_zero is None:
        return calls
    return [partial(_unless_zero, memory, operation.skip_where_zero.at(operation.depth, step), calls)]


def _unless_zero(memory: Memory, needed: View, calls: Sequence[Call]) -> None:
    if bool(memory.library.xp.any(memory.read(needed) != 0)):
        for call in calls:
            call()


VALUES: dict[type[ops.Operation], Callable[..., Callable[[], Array]]] = OF_IMAGES | {
    ops.MatMul: _product, ops.BatchMatMul: _product, ops.Reduce: _reduce, ops.Gather: _gather, ops.ScatterAdd: _scatter_add,
    ops.Random: _random, ops.AllReduce: _all_reduce, ops.Copy: _copy, ops.Fill: _fill,
}  # fmt: skip
CALLS: dict[type[ops.Operation], Callable[..., list[Call]]] = {ops.Map: _map, UpdateRows: _in_parts, Loop: _loop}
