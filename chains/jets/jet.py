"""Programs on Taylor series: each operation is recorded again, for the coefficients of its operands.

`Jet.record` takes operations as layers recorded them. An array that depends on a perturbed array becomes a series, with an
array for each coefficient. Sums, copies and gathers act on each coefficient; products and convolutions become Cauchy products;
a map computes all coefficients of its results together (`chains.jets.series`). A pullback is linear in its cotangent. If the
cotangent is an adjoint (`Jet.adjoint`), with an array for the cotangent of each coefficient, so are all arrays computed from
it; their rules are the transposed ones (`chains.jets.jet`). Layers know nothing of this. Unread results are dropped as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chains.expr import Expr, Formula, as_expr, trace_nodes, where
from chains.expr.formulas import Replay
from chains.jets.series import ZERO, Index, Orders, Series, apply, indices, next_result, products
from chains.program import operations as op
from chains.program.loop import Loop, fills_first
from chains.program.operations import Operation
from chains.program.recorder import Recorder
from chains.program.view import Buffer, View, scratch_like


class Jet:
    """Records operations on series; `orders` has the highest order along each direction.

    If it `holds`, results that were recorded as constants of tangents (`Recorder.held`) have no coefficients.

    >>> jet = Jet(ops, (2,))
    >>> jet.perturb(x, (0, 1), direction)
    >>> jet.record(operations)
    >>> second = jet.coefficient(y, (0, 2))  # None where it is zero
    """

    def __init__(self, ops: Recorder, orders: Orders, *, holds: bool = False) -> None:
        self.ops = ops
        self.orders = orders
        self._holds = holds
        self._rows: dict[tuple[Buffer, Index], Buffer] = {}
        self._written: dict[Buffer, set[Index]] = {}  # the coefficients of a buffer that are not zero so far
        self._adjoints: set[Buffer] = set()
        self._zeros: set[Buffer] = set()  # buffers to which only zeros were written

    # Perturbed arrays and results

    def perturb(self, view: View, index: Index, coefficient: View) -> None:
        """Give the array `view`, a whole buffer, this coefficient."""
        self._rows[view.buffer, index] = coefficient.buffer
        self._written.setdefault(view.buffer, {ZERO}).add(index)

    def adjoint(self, view: View, rows: Iterable[Index]) -> None:
        """Make the array `view`, a whole buffer, an adjoint with these rows. The caller fills them; `row` returns each."""
        self._adjoints.add(view.buffer)
        self._written[view.buffer] = set(rows)

    def place(self, view: View, index: Index, target: View) -> None:
        """Let this coefficient of the array `view`, a whole buffer, be written to the buffer of `target`."""
        self._rows[view.buffer, index] = target.buffer

    def coefficient(self, view: View, index: Index) -> View | None:
        """The array of this coefficient; None if it is zero."""
        return self.row(view, index) if index in self._present(view) else None

    def row(self, view: View, index: Index) -> View:
        """The array of this coefficient, written or not."""
        buffer = view.buffer
        if (buffer, index) not in self._rows:
            name = f"{buffer.name} {'' if len(self.orders) == 1 else index[0]}^{index[1]}"
            self._rows[buffer, index] = buffer if index == ZERO else Buffer(name, "scratch", buffer.dtype, buffer.shape)
        found = self._rows[buffer, index]
        return view if found is buffer else replace(view, buffer=found, name=f"{view} {index[0]}^{index[1]}")

    def _present(self, view: View) -> list[Index]:
        written = self._written.get(view.buffer, {ZERO})
        return [index for index in indices(self.orders) if index in written]

    def _is_adjoint(self, view: View) -> bool:
        return view.buffer in self._adjoints

    # Operations

    def record(self, operations: Sequence[Operation]) -> None:
        """Record the operations for series, in order."""
        for operation in operations:
            with self.ops.label(operation.label):
                self._record(operation)

    def _record(self, operation: Operation) -> None:
        linear, rule = operation.linear_in, RULES.get(type(operation))
        if self._holds and operation.held:
            self._constant(operation)
        elif linear is not None and len(linear) == 2:
            self._product(operation)
        elif linear:
            self._on_rows(operation, operation.ins[linear[0]])  # the winners of a max pool are those of order zero
        elif rule is not None:
            rule(self, operation)
        elif linear is not None or not any(map(self._is_active, operation.ins)):
            self._constant(operation)
        else:
            raise NotImplementedError(f"there is no rule for the derivatives of {operation.name} ({operation.label})")

    def _constant(self, operation: Operation) -> None:
        """An operation that depends on no series."""
        zero = isinstance(operation, op.Fill) and operation.value == 0.0
        for out in operation.outs:
            self._will_write(out, [ZERO], adjoint=False, adds=operation.accumulates, zero=zero)
        self.ops.operations.append(operation.on(lambda view: self.row(view, ZERO)))

    def _loop(self, loop: Loop) -> None:
        """A loop of series, which begins with all coefficients that its arrays have in any step."""
        self.record(loop.zeros)
        around, first = self.ops.pop_operations(), self._state
        body, entry = self._body(loop, first)
        self._fill_missing(loop, entry)
        body += self.ops.pop_operations()
        self.ops.operations = around
        for buffer, rows in first.written.items():
            for index in indices(self.orders):
                if index in entry.written[buffer] - rows:
                    self.ops.fill(self.row(buffer.whole, index), 0.0)
        self.ops.operations.append(replace(loop.around(body), solves=None))  # its series are further results

    def _fill_missing(self, loop: Loop, entry: State) -> None:
        """At the end of a step: fill what the next one takes for written with zeros, if this step left it zero."""
        for buffer, rows in entry.written.items():
            missing = rows - self._written.get(buffer, rows)
            if missing and not fills_first(loop.body, buffer):
                for index in indices(self.orders):
                    if index in missing:
                        self.ops.fill(self.row(buffer.whole, index), 0.0)

    def _body(self, loop: Loop, first: State) -> tuple[list[Operation], State]:
        """The operations of any step, and what is written before it: what is before the loop, and after a step."""
        entry = first
        while True:
            self._state = entry
            self.record(loop.body)
            body, joined = self.ops.pop_operations(), entry.joined(self._state, loop)
            if joined == entry:
                return body, entry
            entry = joined

    @property
    def _state(self) -> State:
        return State(dict(self._written), frozenset(self._adjoints), frozenset(self._zeros))

    @_state.setter
    def _state(self, state: State) -> None:
        self._written, self._adjoints, self._zeros = dict(state.written), set(state.adjoints), set(state.zeros)

    def _is_active(self, view: View) -> bool:
        if self._is_adjoint(view):
            raise NotImplementedError(f"`{view}` is a cotangent, of which a pullback may take no maximum")
        return self._present(view) != [ZERO]

    def _on_rows(self, operation: Operation, linear: View) -> None:
        """An operation that is linear in one operand, row by row."""
        (out,), rows = operation.outs, self._present(linear)
        self._will_write(out, rows, self._is_adjoint(linear), adds=operation.accumulates)
        for index in rows:
            ins = tuple(self.row(each, index) if each is linear else each for each in operation.ins)
            self._append(replace(operation, outs=(self.row(out, index),), ins=ins))

    def _append(self, operation: Operation) -> None:
        if isinstance(operation, op.Copy):
            self.ops.copy(operation.outs[0], operation.ins[0])
        else:
            self.ops.operations.append(operation)

    # Products

    def _product(self, operation: Operation) -> None:
        a, b = operation.ins
        (out,) = operation.outs
        kinds = self._is_adjoint(a), self._is_adjoint(b)
        rows = self._present(a), self._present(b)
        if all(kinds):
            raise NotImplementedError(f"{operation.name} multiplies two cotangents ({operation.label})")
        if kinds[0]:
            terms = [(k, i, j) for k, i, j in adjoint_products(*rows)]
        elif kinds[1]:
            terms = [(k, i, j) for k, j, i in adjoint_products(*rows[::-1])]
        else:
            terms = list(products(self.orders, *rows))
        adds = operation.accumulates
        results = [index for index in indices(self.orders) if any(k == index for k, _, _ in terms)]
        self._will_write(out, results, any(kinds), adds=adds)
        for index in results:
            target = self.row(out, index)
            begun = adds
            for k, i, j in terms:
                if k == index:
                    self._term(operation, target, self.row(a, i), self.row(b, j), begun)
                    begun = True

    def _term(self, operation: Operation, target: View, a: View, b: View, adds: bool) -> None:
        if isinstance(operation, (op.MatMul, op.BatchMatMul)):
            self._append(replace(operation, outs=(target,), ins=(a, b), accumulate=adds))
        elif adds:
            term = scratch_like(target, f"a term of {target}")
            self._append(replace(operation, outs=(term,), ins=(a, b)))
            self.ops.map(target, lambda total, term: total + term, target, term)
        else:
            self._append(replace(operation, outs=(target,), ins=(a, b)))

    # Maps

    def _map(self, operation: op.Map) -> None:
        """All rows of all results in one map."""
        ins: dict[View, int] = {}
        symbols: list[Series] = []
        for view in operation.ins:
            if view.buffer in self._zeros:
                symbols.append({ZERO: as_expr(0.0)})  # which may be added to a cotangent
                continue
            rows = {index: self.row(view, index) for index in self._present(view)}
            symbols.append({index: Expr("input", value=ins.setdefault(each, len(ins))) for index, each in rows.items()})
        kinds = [self._is_adjoint(view) for view in operation.ins]
        try:
            found = linear_parts(operation.formula, symbols, kinds, self.orders)
        except ValueError as error:
            raise NotImplementedError(f"{operation}: {error}") from None
        outs: dict[View, Expr] = {}
        for out, result in zip(operation.outs, found, strict=True):
            series = result.transposed(symbols) if isinstance(result, Linear) else result
            self._will_write(out, series, adjoint=isinstance(result, Linear), zero=_is_zero(series))
            outs |= {self.row(out, index): series[index] for index in indices(self.orders) if index in series}
        unchanged = [out for out, node in outs.items() if node.operation == "input" and ins.get(out) == node.value]
        nodes = tuple(node for out, node in outs.items() if out not in unchanged)
        if nodes:
            formula = trace_nodes(nodes, tuple(f"x{k}" for k in range(len(ins))))
            self.ops.map(tuple(out for out in outs if out not in unchanged), Replay(formula), *ins)

    # Maxima

    def _max(self, operation: op.Reduce) -> None:
        """The largest entry, and the mean of the coefficients of all entries that equal it."""
        (out,), (a,) = operation.outs, operation.ins
        if not self._is_active(a):
            self._constant(operation)
            return
        ops, rows = self.ops, self._present(a)
        ops.max(self.row(out, ZERO), self.row(a, ZERO))
        count = scratch_like(out, f"winners of {out}")
        chosen = scratch_like(a, f"chosen of {a}")
        self._will_write(out, rows, adjoint=False)
        largest = _aligned(self.row(out, ZERO), a)
        ops.map(chosen, lambda a, largest: where(a == largest, 1.0, 0.0), a, largest)
        ops.sum(count, chosen)
        for index in rows[1:]:
            target = self.row(out, index)
            ops.map(chosen, lambda a, largest, c: where(a == largest, c, 0.0), a, largest, self.row(a, index))
            ops.sum(target, chosen)
            ops.map(target, lambda total, count: total / count, target, count)

    def _max_pool(self, operation: op.Pool) -> None:
        """The coefficients of the winners of order zero. The pullback of ones finds the winners."""
        ops, window = self.ops, operation.window
        (x,), (y,) = operation.ins, operation.outs
        if not self._is_active(x):
            self._constant(operation)
            return
        if window.stride[0] < window.size[0] or window.stride[1] < window.size[1] or window.dilation != (1, 1):
            raise NotImplementedError(
                f"derivatives of max pools are available where windows do not overlap, not for {window} ({operation.label})"
            )
        self._append(operation)
        ones, winners, chosen = scratch_like(y, "ones"), scratch_like(x, "winners"), scratch_like(x, "chosen")
        ops.fill(ones, 1.0)
        ops.pool_input("max", winners, ones, x, y, window)
        rows = self._present(x)
        self._will_write(y, rows, adjoint=False)
        area = float(math.prod(window.size))
        for index in rows[1:]:
            target = self.row(y, index)
            ops.map(chosen, lambda winner, c: winner * c, winners, self.row(x, index))
            ops.pool("mean", target, chosen, window)
            ops.map(target, lambda mean: mean * area, target)

    # What has been written

    def _will_write(self, out: View, rows: Iterable[Index], adjoint: bool, adds: bool = False, zero: bool = False) -> None:
        """Note that these rows of `out` are written. Other rows there, and new rows elsewhere, are filled with zeros."""
        buffer, rows = out.buffer, set(rows)
        before = self._written.get(buffer)
        if before is None or (out.is_whole and not adds):
            self._written[buffer] = rows
            self._adjoints.discard(buffer)
            self._zeros.discard(buffer)
            if adjoint:
                self._adjoints.add(buffer)
            if zero:
                self._zeros.add(buffer)
            return
        if adjoint != (buffer in self._adjoints) and not zero:
            if not adjoint or buffer not in self._zeros:
                raise NotImplementedError(f"`{out}` adds a cotangent and an array that is not one")
            self._adjoints.add(buffer)
        if not zero:
            self._zeros.discard(buffer)
        for index in rows - before:
            self.ops.fill(self.row(buffer.whole, index), 0.0)
        if not adds:
            for index in before - rows:
                self.ops.fill(self.row(out, index), 0.0)
        self._written[buffer] = before | rows


RULES: dict[type[Operation], Callable[[Jet, Any], None]] = {  # where operations are not linear
    op.Map: Jet._map, op.Reduce: Jet._max, op.Pool: Jet._max_pool, Loop: Jet._loop,
}  # fmt: skip


def _aligned(small: View, large: View) -> View:
    """The result of a reduction with as many axes as its operand, so that it broadcasts."""
    while small.ndim < large.ndim:
        small = small.expand(-1)
    return small


@dataclass(frozen=True)
class State:
    """What has been written before an operation, as in `Jet`."""

    written: dict[Buffer, set[Index]]
    adjoints: frozenset[Buffer]
    zeros: frozenset[Buffer]

    def joined(self, after: State, loop: Loop) -> State:
        """What has been written before a step of a loop, if this was before the first one and `after` is after it.

        Raises NotImplementedError for a cotangent in one of them that is another array in the other one.
        """
        changed = self.adjoints ^ after.adjoints
        begun = {buffer for buffer in changed if buffer in self.written and buffer not in self.zeros}
        for buffer in begun:
            if not fills_first(loop.body, buffer):
                raise NotImplementedError(f"`{buffer.name}` is a cotangent in some steps of a loop only ({loop.label})")
        written = {
            buffer: self.written.get(buffer, set()) | after.written.get(buffer, set())
            for buffer in (*self.written, *after.written)
        }
        return State(written, self.adjoints | (changed - begun), (self.zeros & after.zeros) - after.adjoints)


@dataclass(frozen=True)
class Linear:
    """A sum of products, cotangent times series. `factors` are the series by the cotangent's position among the inputs."""

    factors: dict[int, Series]

    def transposed(self, inputs: Sequence[Series]) -> Series:
        """The rows of the sum, for these rows of the inputs."""
        rows: Series = {}
        for position, factor in self.factors.items():
            for k, i, j in adjoint_products(list(inputs[position]), list(factor)):
                term = inputs[position][i] * factor[j]
                rows[k] = as_expr(rows[k] + term if k in rows else term)
        return rows

    def times(self, operation: str, series: Series, orders: Orders) -> Linear:
        """The sum multiplied or divided by a series."""
        return Linear({position: apply(operation, [factor, series], orders) for position, factor in self.factors.items()})

    def negative(self, orders: Orders) -> Linear:
        return Linear({position: apply("neg", [factor], orders) for position, factor in self.factors.items()})


def adjoint_products(adjoint: Sequence[Index], series: Sequence[Index]) -> Iterator[tuple[Index, Index, Index]]:
    """The indices (result, of the adjoint, of the series) of the terms of a product of these rows and coefficients."""
    for i in adjoint:
        for j in series:
            if j == ZERO:
                yield i, i, j
            elif i[0] == j[0] and i[1] >= j[1]:
                yield ((i[0], i[1] - j[1]) if i[1] > j[1] else ZERO), i, j


def linear_parts(
    formula: Formula, inputs: Sequence[Series], is_adjoint: Sequence[bool], orders: Orders
) -> list[Series | Linear]:
    """Each output of a formula: a series if it contains no cotangent, else a sum of products of cotangents and series.

    Raises ValueError if an output is not linear in the cotangents.
    """
    one: Series = {ZERO: as_expr(1.0)}
    known: list[Series] = [{} if adjoint else each for adjoint, each in zip(is_adjoint, inputs, strict=True)]
    linear: dict[int, Linear] = {k: Linear({k: one}) for k, adjoint in enumerate(is_adjoint) if adjoint}
    for instruction in formula.instructions:
        number = len(known)
        if any(k in linear for k in instruction.operands):
            operands = [linear.get(k, known[k]) for k in instruction.operands]
            linear[number] = _linear(instruction.operation, operands, orders)
            known.append({})
        else:
            known.append(next_result(formula, known, orders))
    return [linear.get(output, known[output]) for output in formula.outputs]


def _linear(operation: str, operands: Sequence[Series | Linear], orders: Orders) -> Linear:
    """The result of an operation; at least one of the operands is linear in cotangents."""
    first, last = operands[0], operands[-1]
    if operation == "neg" and isinstance(first, Linear):
        return first.negative(orders)
    if operation in ("add", "sub"):
        return _sum(first, last.negative(orders) if operation == "sub" and isinstance(last, Linear) else last, orders)
    if operation == "mul":
        if isinstance(first, Linear) and not isinstance(last, Linear):
            return first.times("mul", last, orders)
        if isinstance(last, Linear) and not isinstance(first, Linear):
            return last.times("mul", first, orders)
    if operation == "div" and isinstance(first, Linear) and not isinstance(last, Linear):
        return first.times("div", last, orders)
    if operation == "where" and not isinstance(first, Linear):
        sides = [_as_linear(each) for each in operands[1:]]
        if sides[0] is not None and sides[1] is not None:
            zero: Series = {ZERO: as_expr(0.0)}
            a, b = sides[0].factors, sides[1].factors
            keys = dict.fromkeys([*a, *b])
            return Linear({k: apply("where", [first, a.get(k, zero), b.get(k, zero)], orders) for k in keys})
    raise ValueError(f"`{operation}` of a cotangent is not linear, as a pullback must be")


def _sum(a: Series | Linear, b: Series | Linear, orders: Orders) -> Linear:
    factors: dict[int, Series] = {}
    for each in map(_as_linear, (a, b)):
        if each is None:
            raise ValueError("a cotangent plus another number is not linear, as a pullback must be")
        for position, factor in each.factors.items():
            factors[position] = apply("add", [factors[position], factor], orders) if position in factors else factor
    return Linear(factors)


def _as_linear(part: Series | Linear) -> Linear | None:
    """A term as a sum of cotangents: zero is the empty sum, None stands for any other series."""
    if isinstance(part, Linear):
        return part
    return Linear({}) if _is_zero(part) else None


def _is_zero(series: Series) -> bool:
    return list(series) == [ZERO] and series[ZERO].operation == "const" and series[ZERO].value == 0.0
