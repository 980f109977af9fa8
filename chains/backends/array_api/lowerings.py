"""Operations by an array library. Most are functions that read views and return the array to be written."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from chains.backends.array_api.images import VALUES as OF_IMAGES
from chains.backends.array_api.library import Array, Library
from chains.backends.array_api.memory import Memory
from chains.backends.lowering import Call, loop_calls, uniform
from chains.program import operations as ops
from chains.program.loop import Loop
from chains.program.rows import UpdateRows
from chains.program.view import View
from chains.support.communicator import all_reduce

# The standard's names of the scalar operations that have other names here.
_STANDARD = {
    "neg": "negative", "sub": "subtract", "mul": "multiply", "div": "divide", "min": "minimum", "max": "maximum",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
    "and": "logical_and", "or": "logical_or", "not": "logical_not",
}  # fmt: skip


def lower(memory: Memory, operation: ops.Operation) -> list[Call]:
    """The calls that carry out one operation."""
    kind = type(operation)
    if kind in CALLS:
        return CALLS[kind](memory, operation)
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
    (out,), (index, source), reshape = operation.outs, operation.ins, memory.library.xp.reshape
    shape, sums = (-1, *memory.shape(out)[1:]), memory.library.scattered
    return lambda: sums(memory.read(out), _inside(memory, index, out), reshape(memory.read(source), shape))


def _random(memory: Memory, operation: ops.Random) -> Callable[[], Array]:
    draw, shape = uniform(operation), memory.shape(operation.outs[0])
    return lambda: memory.library.from_host(draw(np.empty(shape, np.float32), *map(memory.host, operation.ins)))


def _all_reduce(memory: Memory, operation: ops.AllReduce) -> Callable[[], Array]:
    def total() -> Array:
        part, words = (np.array(memory.host(view)) for view in operation.ins)
        all_reduce(words, part, part)
        return memory.library.from_host(part)

    return total


def _copy(memory: Memory, operation: ops.Copy) -> Callable[[], Array]:
    (out,), (a,), asarray = operation.outs, operation.ins, memory.library.xp.asarray
    return lambda: asarray(memory.read(a), copy=True) if out.buffer is a.buffer else memory.read(a)


def _fill(memory: Memory, operation: ops.Fill) -> Callable[[], Array]:
    value = memory.library.full((), operation.outs[0].dtype, operation.value)
    return lambda: value


def _map(memory: Memory, operation: ops.Map) -> list[Call]:
    outs, ins, formula, asarray = operation.outs, operation.ins, operation.formula, memory.library.xp.asarray
    scalar = all(view.ndim == 0 for view in operation.views)
    dtype = np.result_type(*(view.dtype for view in operation.views)) if scalar else memory.program.dtype
    functions = [(_function(memory.library, each.operation, each.value, dtype), each.operands) for each in formula.instructions]

    def run() -> None:
        values = [memory.read(view) for view in ins]
        for function, places in functions:
            values.append(function(*[values[place] for place in places]))
        results = [values[output] for output in formula.outputs]
        if len(outs) > 1:  # a result may be an operand that another result overwrites
            results = [asarray(result, copy=True) for result in results]
        for out, result in zip(outs, results, strict=True):
            memory.write(out, result)

    return [run]


@lru_cache(1 << 10)  # the steps of a loop have the same
def _function(library: Library, operation: str, value: float, dtype: np.dtype[Any]) -> Callable[..., Array]:
    """The function for a scalar operation. Operands are numbers or truth values, and become what the function takes."""
    truth, number = partial(library.converted, dtype=np.dtype(bool)), partial(library.converted, dtype=dtype)
    if operation == "const":
        constant = library.full((), dtype, value)
        return lambda: constant
    if operation == "where":
        return lambda condition, a, b: library.xp.where(truth(condition), number(a), number(b))
    kind = truth if operation in ("and", "or", "not") else number
    found = library.erf if operation == "erf" else getattr(library.xp, _STANDARD.get(operation, operation))
    return lambda *operands: found(*map(kind, operands))


def _loop(memory: Memory, operation: Loop) -> list[Call]:
    return loop_calls(operation, partial(lower, memory), lambda view: lambda: memory.host(view).any())


VALUES: dict[type[ops.Operation], Callable[..., Callable[[], Array]]] = OF_IMAGES | {
    ops.MatMul: _product, ops.BatchMatMul: _product, ops.Reduce: _reduce, ops.Gather: _gather, ops.ScatterAdd: _scatter_add,
    ops.Random: _random, ops.AllReduce: _all_reduce, ops.Copy: _copy, ops.Fill: _fill,
}  # fmt: skip
CALLS: dict[type[ops.Operation], Callable[..., list[Call]]] = {
    ops.Map: _map, Loop: _loop,
    UpdateRows: lambda memory, operation: [call for part in operation.in_parts() for call in lower(memory, part)],
}  # fmt: skip
