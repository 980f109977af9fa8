"""What is known about arrays before a pullback is derived, and makes it shorter.

Softmax subtracts the largest entry, so that no exponential overflows, and its results would be the same with any other number.
Then all derivatives through the largest entry cancel. The sum of ``x - mean`` is zero. What is divided in its own memory is the
product of quotient and divisor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chains.expr.derivatives import Algebra
from chains.expr.factors import product_of
from chains.expr.formulas import Formula
from chains.expr.shifts import STAYS, Change, changes
from chains.program.alias import overlap
from chains.program.operations import Copy, Map, Operation, Reduce
from chains.program.view import Batch, Buffer, View


def cancels(operations: Sequence[Operation], position: int, is_result: Callable[[View], bool]) -> bool:
    """Whether no result changes if a number is added to each element of what the operation at the position fills.

    Then all of them stay for every such number, so their derivatives with respect to the array are zero.
    """
    (array,) = operations[position].outs
    found: dict[View, Change] = {array: Change(False, 1.0)}
    touched: set[Buffer] = {array.buffer}
    if is_result(array) or any(view.buffer is array.buffer for each in operations[:position] for view in each.views):
        return False
    for operation in operations[position + 1 :]:
        if not any(view.buffer in touched for view in operation.views):
            continue
        changed = _changes(operation, found, touched, array)
        if changed is None:
            return False
        for out, change in zip(operation.outs, changed, strict=True):
            if change is None or out.buffer in touched or (change != STAYS and is_result(out)):
                return False
            if change != STAYS:
                found[out] = change
                touched.add(out.buffer)
    return True


def _changes(
    operation: Operation, found: dict[View, Change], touched: set[Buffer], array: View
) -> Sequence[Change | None] | None:
    """The changes of what an operation fills; None where no rule says, as for a part of an array that changes."""
    if any(view.buffer in touched and view not in found for view in operation.ins):
        return None
    given = tuple(found.get(view, STAYS) for view in operation.ins)
    if isinstance(operation, Map):
        return changes(operation.formula, given)
    if isinstance(operation, Copy):
        return given
    return (_reduced(operation, given[0], array),) if isinstance(operation, Reduce) else None


def _reduced(operation: Reduce, change: Change, array: View) -> Change | None:
    """The change of a sum or a maximum over axes along which the number does not vary."""
    (out,), (a,) = operation.outs, operation.ins
    count = 1
    for axis in range(1, a.ndim + 1):
        extent = a.shape[-axis]
        if extent == 1 or (axis <= out.ndim and out.shape[-axis] == extent):
            continue
        if axis <= array.ndim and array.shape[-axis] != 1:
            return None
        if isinstance(extent, Batch):
            return change if change.scales else None
        count *= extent
    return change if change.scales or operation.kind == "max" else Change(False, change.degree * count)


def means(operations: Sequence[Operation]) -> dict[View, tuple[View, int]]:
    """The arrays that hold the mean of another one over axes, each with that one, and the position from which both are kept."""
    totals: dict[View, tuple[View, int]] = {}
    found: dict[View, tuple[View, int]] = {}
    for position, operation in enumerate(operations):
        mean = _mean(operation, totals)
        for known in (found, totals):
            for view, (source, _) in list(known.items()):
                if any(overlap(out, each) for out in operation.writes for each in (view, source)):
                    del known[view]
        if isinstance(operation, Reduce) and operation.kind == "sum":
            count = _count(operation)
            if count:
                totals[operation.outs[0]] = (operation.ins[0], count)
        elif mean is not None:
            found[operation.outs[0]] = (mean, position)
    return found


def _mean(operation: Operation, totals: dict[View, tuple[View, int]]) -> View | None:
    """The array whose mean a map makes of its sum."""
    if not isinstance(operation, Map) or len(operation.outs) > 1 or len(operation.ins) > 1:
        return None
    total = totals.get(operation.ins[0])
    if total is None or operation.outs[0].shape != operation.ins[0].shape:
        return None
    factor = _factor(operation.formula)
    return total[0] if factor is not None and abs(factor * total[1] - 1.0) < 1e-12 else None


def _factor(formula: Formula) -> float | None:
    """The number that a formula multiplies its input by."""
    product = product_of(Algebra().results(formula)[formula.outputs[0]])
    if [(node.operation, power) for node, power in product.factors] != [("input", 1)]:
        return None
    return product.constant


def _count(operation: Reduce) -> int | None:
    """How many elements a sum has; None for one over samples."""
    (out,), (a,) = operation.outs, operation.ins
    return None if a.batched != out.batched else a.sample_size // out.sample_size if out.sample_size else None


def divisions(operations: Sequence[Operation]) -> dict[View, tuple[int, View, View]]:
    """The arrays that a map divides: each with the position, the quotient and the divisor."""
    found = {}
    for position, operation in enumerate(operations):
        if isinstance(operation, Map) and len(operation.outs) == 1 and len(operation.ins) == 2:
            step, *more = operation.formula.instructions
            (quotient,), (a, b) = operation.outs, operation.ins
            if not more and step.operation == "div" and step.operands == (0, 1) and a.shape == quotient.shape:
                found[a] = (position, quotient, b)
    return found
