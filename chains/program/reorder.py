"""Reordering: relu is moved from before a max pool to after it.

The largest entry of a window is the same before and after relu, and in both orders a window without a positive entry passes
no gradient on. So the results are the same to the last bit, except for the sign of negative zeros. With windows of two by
two, relu and its pullback then cost a quarter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chains.expr import Formula, maximum, trace, where
from chains.program.alias import same
from chains.program.operations import Copy, Map, Operation, Pool, PoolInput, users
from chains.program.view import Buffer, View, scratch_like

_RELU = trace(lambda x: maximum(x, 0.0))
_PULLBACK = trace(lambda dy, y: dy * where(y <= 0.0, 0.0, 1.0))


def relu_after_max_pool(operations: Sequence[Operation]) -> list[Operation]:
    """Operations with the same results; a relu whose output only a max pool and both pullbacks read moves after the pool."""
    result = list(operations)
    touching = users(result)
    position = 0
    while position < len(result):
        found = _found(result, touching, position)
        if found is not None:
            result = [new for old in result for new in found.moved(old)]
            touching = users(result)
        position += 1
    return result


@dataclass(frozen=True, eq=False)
class _Found:
    """A relu, perhaps the end of a longer formula; the pool that reads it; and both pullbacks, if recorded."""

    relu: Map
    pool: Pool
    pool_input: PoolInput | None = None
    pullback: Map | None = None

    def moved(self, operation: Operation) -> list[Operation]:
        """The operations that replace this one when relu moves."""
        pooled = self.pool.outs[0]
        if operation is self.relu:
            return _without_relu(self.relu)
        if operation is self.pool:
            return [self.pool, Map((pooled,), (pooled,), _RELU, label=self.relu.label)]
        if operation is self.pool_input and self.pullback is not None:
            # A window without a positive entry now gives 0 to some entry, where relu's slope was 0 before.
            d_pooled, y, _ = self.pool_input.ins
            passed = scratch_like(d_pooled, f"{d_pooled} through relu")
            masked = Map((passed,), (d_pooled, pooled), _PULLBACK, label=self.pullback.label)
            return [masked, replace(self.pool_input, ins=(passed, y, pooled))]
        if operation is self.pullback:
            return _copy(self.pullback.outs[0], self.pullback.ins[0], self.pullback.label)
        return [operation]


def _found(operations: list[Operation], touching: Mapping[Buffer, list[int]], position: int) -> _Found | None:
    """The operations that move with a relu at this position; None if there is no relu, or a result might change."""
    relu = operations[position]
    if not isinstance(relu, Map) or _argument_of_relu(relu.formula) is None or relu.outs[0].buffer.role != "scratch":
        return None

    def after(buffer: Buffer) -> list[Operation]:
        return [operations[k] for k in touching[buffer] if k > position]

    y = relu.outs[0]
    readers = after(y.buffer)
    if not readers or type(readers[0]) is not Pool or readers[0].kind != "max" or not same(readers[0].ins[0], y):
        return None
    pool, pullbacks = readers[0], readers[1:]
    pooled = pool.outs[0]
    others = (operations[k] for k in touching[pooled.buffer] if operations[k] is not pool)
    if any(out.buffer is pooled.buffer for operation in others for out in operation.outs):
        return None
    if not pullbacks:
        return _Found(relu, pool)
    if len(pullbacks) != 2:
        return None
    pool_input, pullback = pullbacks
    if not isinstance(pool_input, PoolInput) or not isinstance(pullback, Map) or not _is_equal(pullback.formula, _PULLBACK):
        return None
    dy = pool_input.outs[0]
    places = zip((*pool_input.ins[1:], *pullback.ins), (y, pooled, dy, y), strict=True)
    # No other operation may read the gradient with respect to relu's input.
    seen = [operation for operation in after(dy.buffer) if operation is not pool_input]
    alone = seen[:1] == [pullback] and (len(seen) == 1 or same(pullback.outs[0], dy)) and dy.buffer.role == "scratch"
    return _Found(relu, pool, pool_input, pullback) if alone and all(same(a, b) for a, b in places) else None


def _argument_of_relu(formula: Formula) -> int | None:
    """The number of the argument of relu, if the formula's only output is a relu."""
    number = formula.outputs[0] - len(formula.inputs)
    if len(formula.outputs) > 1 or number < 0 or formula.instructions[number].operation != "max":
        return None
    a, b = formula.instructions[number].operands
    return a if _is_zero(formula, b) else b if _is_zero(formula, a) else None


def _is_zero(formula: Formula, number: int) -> bool:
    instruction = formula.instructions[number - len(formula.inputs)] if number >= len(formula.inputs) else None
    return instruction is not None and instruction.operation == "const" and instruction.value == 0.0


def _without_relu(operation: Map) -> list[Operation]:
    argument = _argument_of_relu(operation.formula)
    assert argument is not None
    formula, inputs = replace(operation.formula, outputs=(argument,)).only([0])
    ins = tuple(operation.ins[k] for k in inputs)
    if formula.copied_input is not None:
        return _copy(operation.outs[0], ins[0], operation.label)
    return [replace(operation, ins=ins, formula=formula)]


def _copy(out: View, a: View, label: str) -> list[Operation]:
    return [] if out == a else [Copy((out,), (a,), label=label)]


def _is_equal(a: Formula, b: Formula) -> bool:
    """Whether two formulas differ at most in the names of their inputs."""
    return (len(a.inputs), a.instructions, a.outputs) == (len(b.inputs), b.instructions, b.outputs)
