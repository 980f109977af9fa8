"""Maps within maps: where only one map reads an array that another one fills, the first computes it itself.

So a derived pullback goes through memory as seldom as one by hand, though each rule records maps of its own. The operations on
an element are the same, in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from chains.expr import Expr, trace_nodes
from chains.expr.formulas import Formula, Replay
from chains.expr.nodes import as_expr
from chains.program.alias import across, overlap
from chains.program.operations import Copy, Map, Operation
from chains.program.view import Buffer, View

CHEAP = frozenset(("const", "neg", "add", "sub", "mul"))  # operations that may be done in two maps instead of one
COPIED = Formula(("x0",), (), (0,))
MOST_READ = 2  # arrays that a map may read more, instead of writing one and reading it


def fused(operations: Sequence[Operation], private: Collection[Buffer]) -> list[Operation]:
    """The operations with maps in the maps that alone read their results. Nothing else reads `private` arrays afterwards."""
    found = list(operations)
    position = 0
    while position < len(found):
        pair = _pair(found, position, private)
        if pair is None:
            position += 1
            continue
        count = len(found)
        _fuse(found, *pair, position)
        position -= count - len(found)
    return found


def _pair(operations: Sequence[Operation], second: int, private: Collection[Buffer]) -> tuple[int, int] | None:
    """An earlier map and the number of its result that the map at a position may compute itself."""
    reader = operations[second]
    for view in reader.ins if isinstance(reader, Map) else ():
        for first in reversed(range(second)):
            operation = operations[first]
            if isinstance(operation, (Map, Copy)) and view in operation.outs:
                out = operation.outs.index(view)
                if _may_move(operations, first, out, second) and _is_read_once(operations, view, second, private):
                    return first, out
            if any(overlap(view, each) for each in operation.views):
                break
    return None


def _is_read_once(operations: Sequence[Operation], view: View, second: int, private: Collection[Buffer]) -> bool:
    """Whether nothing reads the array after the map at a position."""
    if view in operations[second].outs:
        return True
    later = operations[second + 1 :]
    return view.buffer in private and not any(overlap(view, each) for one in later for each in one.reads)


def _may_move(operations: Sequence[Operation], first: int, out: int, second: int) -> bool:
    """Whether a result of a map may be computed by a later one, from operands that are as they were."""
    writer, reader = operations[first], operations[second]
    if writer.outs[0].shape != reader.outs[0].shape or writer.held != reader.held:
        return False
    inputs = _formula(writer).only([out])[1]
    needed = [writer.ins[k] for k in inputs]
    others = [each for k, each in enumerate(writer.outs) if k != out]
    written = [*others, *(each for one in operations[first + 1 : second] for each in one.writes)]
    if any(overlap(each, one) for each in needed for one in written):
        return False
    crossing = [(each, one) for each in needed for one in reader.outs] + [(writer.outs[out], one) for one in reader.ins]
    if any(across(each, one) for each, one in crossing):
        return False
    more = {each for each in needed if each.shape == reader.outs[0].shape and each not in reader.ins}
    return not others or (len(more) <= MOST_READ and is_apart(_formula(writer), out))


@lru_cache(2048)
def is_apart(formula: Formula, out: int) -> bool:
    """Whether a result shares only cheap operations with the others."""
    rest, _ = formula.only([k for k in range(len(formula.outputs)) if k != out])
    own, _ = formula.only([out])
    all_of_it, of_own, of_rest = (sum(each.operation not in CHEAP for each in one.instructions) for one in (formula, own, rest))
    return all_of_it == of_own + of_rest


def _fuse(operations: list[Operation], first: int, out: int, second: int) -> None:
    """Move a result of a map to the map that reads it."""
    writer, reader = operations[first], operations[second]
    assert isinstance(reader, Map)
    view = writer.outs[out]
    formula, inputs = _formula(writer).only([out])
    ins = tuple(dict.fromkeys([*(each for each in reader.ins if each != view), *(writer.ins[k] for k in inputs)]))
    of_writer = tuple(ins.index(writer.ins[k]) for k in inputs)
    of_reader = tuple(None if each == view else ins.index(each) for each in reader.ins)
    both, used = _composed(formula, of_writer, reader.formula, of_reader, len(ins))
    operations[second] = replace(reader, ins=tuple(ins[k] for k in used), formula=both)
    left = [k for k in range(len(writer.outs)) if k != out]
    if not left:
        del operations[first]
        return
    rest, kept = _formula(writer).only(left)
    outs = tuple(writer.outs[k] for k in left)
    operations[first] = replace(writer, outs=outs, ins=tuple(writer.ins[k] for k in kept), formula=rest)  # type: ignore[call-arg]


def _formula(operation: Operation) -> Formula:
    """That of a map; a copy returns its operand."""
    return operation.formula if isinstance(operation, Map) else COPIED


@lru_cache(2048)
def _composed(
    inner: Formula, of_inner: tuple[int, ...], outer: Formula, of_outer: tuple[int | None, ...], inputs: int
) -> tuple[Formula, list[int]]:
    """The outer formula, some of whose inputs are the result of the inner one, and the inputs that it needs."""
    symbols = [Expr("input", value=k) for k in range(inputs)]
    value = Replay(inner)(*(symbols[k] for k in of_inner))
    results = Replay(outer)(*(value if k is None else symbols[k] for k in of_outer))
    nodes = tuple(map(as_expr, results if isinstance(results, tuple) else (results,)))
    return trace_nodes(nodes, tuple(f"x{k}" for k in range(inputs))).only(range(len(nodes)))
