"""The pullback of a map: all terms in one map, in the memory of the cotangents where that is free.

The term of a smaller operand, such as a bias or a mean, is a sum over axes. Factors that do not vary along these axes are left
out of the sum, and what is left may be the term of another operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from chains.expr import Expr, trace_nodes
from chains.expr.derivatives import below, cotangents, replaced
from chains.expr.factors import Product, inputs_of, product_of
from chains.expr.formulas import Formula
from chains.expr.nodes import as_expr
from chains.program.alias import across, overlap
from chains.program.fusion import is_apart
from chains.program.operations import Map
from chains.program.view import View, scratch_like


class _Out(NamedTuple):
    """An array that the map fills: with the term of an operand, or with what is left in the sum; perhaps added to an input."""

    view: View
    operand: int
    rest: bool
    added: int | None


class _Sum(NamedTuple):
    """A sum over axes of an array, for an operand. It is multiplied by a number or by what was left out of the sum."""

    array: View
    operand: int
    rest: bool
    factor: float


class MapRule:
    """The pullback of one map, for a `Transposer`."""

    def __init__(self, transposer: Any, operation: Map) -> None:
        self.t, self.operation = transposer, operation
        known = tuple(k for k, out in enumerate(operation.outs) if transposer.has_terms(out))
        spread = {k: transposer.spread_over(transposer.cotangent(operation.outs[k])) for k in known}
        self.taken = {k: transposer.take(operation.outs[k]) for k in known}
        given = [spread.get(k, out) for k, out in enumerate(operation.outs)]
        self.views = [*operation.ins, *operation.outs, *given]
        groups: dict[View, list[int]] = {}
        for position, view in enumerate(operation.ins):
            if transposer.is_active(view):
                groups.setdefault(view, []).append(position)
        self.operands = list(groups)
        small = tuple(map(self._small, self.operands))
        self.terms = _Terms(operation.formula, tuple(map(tuple, groups.values())), known, small)
        self.found = _found(self.terms)
        self.values: dict[int, View] = {}
        self.outs: list[_Out] = []
        self.later: list[_Sum] = []

    def record(self) -> None:
        shape = self.operation.outs[0].shape
        chosen = [k for k, term in enumerate(self.found) if term is not None and not self._vanishes(k, term)]
        passing = [k for k in chosen if self._passes(k)]
        for k in passing:
            self._add(_Sum(self.views[self._cotangent(self._term(k))], k, False, self._term(k).product.constant))
        for k in sorted(chosen, key=lambda k: self.operands[k].shape != shape):
            if k not in passing:
                self._place(k)
        self._record_map(self.outs)
        for each in self.later:
            self._add(each)

    def _term(self, k: int) -> _Term:
        term = self.found[k]
        assert term is not None
        return term

    def _small(self, operand: View) -> frozenset[int] | None:
        """The inputs that do not vary along the axes over which the term of an operand is summed; None without such axes."""
        out = self.operation.outs[0]
        if operand.shape == out.shape:
            return None
        return frozenset(k for k, view in enumerate(self.views) if _is_constant_along(view, operand, out))

    def _vanishes(self, k: int, term: _Term) -> bool:
        """Whether a term is a sum over x - mean, for the mean of x along these axes, times what does not vary along them.

        That is zero: the sum of x is as large as that of the means.
        """
        x, small = self.t.mean_of(self.operands[k]), self.terms.small[k]
        if x is None or small is None:
            return False
        varying = [(node, power) for node, power in term.product.factors if not inputs_of(node) <= small]
        if len(varying) != 1 or varying[0][1] != 1 or varying[0][0].operation != "sub":
            return False
        views = [self.views[int(node.value)] if node.operation == "input" else None for node in varying[0][0].operands]
        return views in ([x, self.operands[k]], [self.operands[k], x])

    def _passes(self, k: int) -> bool:
        """Whether the term of an operand, the cotangent of a result or a sum of it times a number, comes before the map."""
        number, out = self._cotangent(self._term(k)), self.operation.outs[0]
        if number < 0:
            return False
        target, term, small = self.t.cotangent(self.operands[k]), self.views[number], self.terms.small[k] is not None
        if self._term(k).product.constant != 1.0 and not (small and self._scales(k)):
            return False
        if small and term.shape != out.shape:  # a copy of it would have to be added up
            return False
        return all(not overlap(target, d) or d == term == target for d in self._cotangents)

    def _cotangent(self, term: _Term) -> int:
        """The number of the cotangent that a term is a multiple of; -1 if it is another term."""
        factors, first = term.product.factors, len(self.operation.ins) + len(self.operation.outs)
        if len(factors) == 1 and factors[0][1] == 1 and factors[0][0].operation == "input" and factors[0][0].value >= first:
            return int(factors[0][0].value)
        return -1

    @property
    def _cotangents(self) -> list[View]:
        """Those of results, as they are read and in their memory."""
        return [*self.views[-len(self.operation.outs) :], *self.taken.values()]

    def _place(self, k: int) -> None:
        """Decide where the term of an operand is written."""
        t, view = self.t, self.operands[k]
        if self.terms.small[k] is None:
            self._move(view)
            target = t.cotangent(view)
            if not any(across(target, each) for each in (*self._written, *self._cotangents)):
                begun = t.begun(target)
                if begun:
                    self.views.append(t.spread_over(target))
                self.outs.append(_Out(target, k, False, len(self.views) - 1 if begun else None))
                t.mark(target)
                return
        found = self._same(k, False) or self._same(k, True)
        if found is not None:
            self.later.append(found)
        else:
            self._apart(k)

    @property
    def _written(self) -> list[View]:
        return [out.view for out in self.outs]

    def _move(self, view: View) -> None:
        """Let the cotangent of an operand be in the memory of that of a result, which is free from here on."""
        used = (*self._written, *(self.t.cotangent(each) for each in self.operation.ins if self.t.is_active(each)))
        for k, d in self.taken.items():
            if not any(overlap(d, each) for each in used) and self.t.moved(view, self.operation.outs[k], d):
                return

    def _same(self, k: int, rest: bool) -> _Sum | None:
        """The sum of a term that is written in any case, if it differs by a number or by what is left out of the sum."""
        own = self._term(k)
        product = own.rest if rest else own.product
        for out in self.outs:
            other = self._term(out.operand)
            written = other.rest if out.rest else other.product
            if out.added is None and product is not None and written is not None and product.same_factors(written):
                factor = own.product.constant / written.constant
                if self._scales(k) or (not rest and factor == 1.0):
                    return _Sum(out.view, k, rest, factor)
        return None

    def _scales(self, k: int) -> bool:
        """Whether a sum may be multiplied afterwards: not one over samples, as backends only add up those of a loop."""
        return self.operands[k].batched or not self.operation.outs[0].batched

    def _apart(self, k: int) -> None:
        """Place a term that no operand has in its shape.

        If it needs memory, another map comes before, so that the memory is free again when the others need it.
        """
        term, free = self._term(k), self._free()
        rest = term.rest is not None and self._scales(k)
        array = scratch_like(self.operation.outs[0], f"term of {self.operands[k]}") if free is None else free
        out, total = _Out(array, k, rest, None), _Sum(array, k, rest, term.product.constant if rest else 1.0)
        if free is None and self._may_come_before(k):
            self._record_map([out])
            self._add(total)
        else:
            self.outs.append(out)
            self.later.append(total)

    def _may_come_before(self, k: int) -> bool:
        """Whether the sum of a term may be recorded before the other terms, and does not repeat work."""
        used = (*self._cotangents, *self._written, *(self.views[out.added] for out in self.outs if out.added is not None))
        if not self.outs or any(overlap(self.t.cotangent(self.operands[k]), each) for each in used):
            return False
        chosen = ((k, False, None), *((out.operand, out.rest, None) for out in self.outs))
        return is_apart(_formula(self.terms, len(self.views), chosen, ())[0], 0)

    def _free(self) -> View | None:
        """The cotangent of a result, if its memory is free after the map."""
        used = [*self._written, *(self.t.cotangent(each) for each in self.operation.ins if self.t.is_active(each))]
        out = self.operation.outs[0]
        free = (d for d in self.taken.values() if d.shape == out.shape and not any(overlap(d, each) for each in used))
        return next(free, None)

    def _record_map(self, outs: Sequence[_Out]) -> None:
        changed = [out for out in outs if not self._is_there(out)]
        if not changed:
            return
        again = tuple(each for out in changed for each in self._computed_again(out))
        chosen = tuple((out.operand, out.rest, out.added) for out in changed)
        formula, used = _formula(self.terms, len(self.views), chosen, again)
        self.t.ops.map_formula(tuple(out.view for out in changed), formula, tuple(map(self._read, used)))

    def _read(self, k: int) -> View:
        """An array that the pullback reads: an operand or a result, whose contents are kept, or a cotangent."""
        inputs, results = len(self.operation.ins), len(self.operation.outs)
        if k >= inputs + results:
            return self.views[k]
        if k not in self.values:
            self.values[k] = self.t.value(self.views[k], after=k >= inputs)
        return self.values[k]

    def _computed_again(self, out: _Out) -> list[tuple[int, int, int]]:
        """Factors of a term that a division overwrites: each with the quotient and the divisor, whose product it is.

        They are results of the map, times their cotangents: these are divided by zero where the product would be.
        """
        found, factors = [], () if out.rest else self._term(out.operand).product.factors
        inputs, results = len(self.operation.ins), len(self.operation.outs)
        for node, power in factors:
            k = int(node.value) if node.operation == "input" else len(self.views)
            others: set[int] = set().union(*(inputs_of(each) for each, _ in factors if each is not node))
            if inputs <= k < inputs + results and power == 1 and k not in others and k + results in others:
                quotient = self.t.divided(self.views[k])
                if quotient is not None:
                    self.views += quotient
                    found.append((k, len(self.views) - 2, len(self.views) - 1))
        return found

    def _is_there(self, out: _Out) -> bool:
        """Whether the term is in its place already."""
        term = self._term(out.operand)
        node = term.left if out.rest else term.node
        return out.added is None and node is not None and node.operation == "input" and self.views[int(node.value)] == out.view

    def _add(self, each: _Sum) -> None:
        """Record a sum over axes, and its product with what was left out."""
        t, view = self.t, self.operands[each.operand]
        if not each.rest and each.factor == 1.0:
            t.add(view, each.array)
            return
        formula, used = _scaled(self.terms, each.operand, each.rest, each.factor, len(self.views))
        total = scratch_like(t.cotangent(view), f"sum for {view}")
        t.ops.sum(total, each.array)
        factors = tuple(map(self._read, used[:-1]))
        t.fill(view, lambda term: t.ops.map_formula((term,), formula, (*factors, total)))


def _is_constant_along(view: View, operand: View, out: View) -> bool:
    """Whether a view does not vary along the axes over which the term of an operand is summed."""
    if view.ndim > operand.ndim:
        return False
    for axis in range(1, out.ndim + 1):
        lengths = [each.shape[-axis] if axis <= each.ndim else 1 for each in (view, operand, out)]
        if lengths[0] != 1 and lengths[1] == 1 != lengths[2]:
            return False
    return True


class _Terms(NamedTuple):
    """The terms of groups of a formula's inputs, each for one operand, if these of its outputs have cotangents.

    For smaller operands, `small` are the inputs that do not vary along the axes of the sum.
    """

    formula: Formula
    groups: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    small: tuple[frozenset[int] | None, ...]


class _Term(NamedTuple):
    """The term of an operand, as an expression and a product; and what is `left` in its sum, if factors are `out` of it."""

    node: Expr
    product: Product
    out: Expr | None = None
    left: Expr | None = None
    rest: Product | None = None


@lru_cache(2048)
def _found(terms: _Terms) -> list[_Term | None]:
    """The terms as expressions of the formula's inputs, its outputs and their cotangents; None for zero."""
    nodes = cotangents(*terms[:3])
    first = len(terms.formula.inputs) + len(terms.formula.outputs)
    return [None if node is None else _term(node, small, first) for node, small in zip(nodes, terms.small, strict=True)]


def _term(node: Expr, small: frozenset[int] | None, cotangents: int) -> _Term:
    """A term with its parts. Factors with cotangents, the inputs from a number on, stay in the sum."""
    product = product_of(node)

    def is_out(factor: Expr) -> bool:
        inputs = inputs_of(factor)
        return small is not None and bool(inputs) and inputs <= small and max(inputs) < cotangents

    out, left = product.part(is_out), product.part(lambda factor: not is_out(factor))
    if out is None or left is None:
        return _Term(node, product)
    factors = tuple(each for each in product.factors if not is_out(each[0]))
    return _Term(node, product, out, left, Product(1.0, factors))


@lru_cache(2048)
def _formula(
    terms: _Terms, inputs: int, chosen: tuple[tuple[int, bool, int | None], ...], again: tuple[tuple[int, int, int], ...]
) -> tuple[Formula, list[int]]:
    """The formula of some terms, each added to an input or alone, and the inputs that it needs.

    Inputs that are computed `again` are products of two others.
    """
    results = []
    for k, rest, added in chosen:
        term = _found(terms)[k]
        assert term is not None
        node = as_expr(term.left if rest else term.node)
        if again:
            node = _with_products(node, again)
        results.append(node if added is None else as_expr(Expr("input", value=added) + node))
    formula = trace_nodes(tuple(results), tuple(f"x{k}" for k in range(inputs)))
    return formula.only(range(len(results)))


def _with_products(node: Expr, again: Sequence[tuple[int, int, int]]) -> Expr:
    """The node with products of two inputs in the places of inputs."""
    products = {k: as_expr(Expr("input", value=a) * Expr("input", value=b)) for k, a, b in again}
    leaves = (each for each in below(node) if each.operation == "input" and each.value in products)
    return replaced(node, {id(each): products[int(each.value)] for each in leaves})


@lru_cache(2048)
def _scaled(terms: _Terms, k: int, rest: bool, factor: float, inputs: int) -> tuple[Formula, list[int]]:
    """A sum, the last input, times a number and what is out of it; and the inputs that this needs."""
    term = _found(terms)[k]
    assert term is not None
    node = Expr("input", value=inputs) * factor
    if rest and term.out is not None:
        node = term.out * node
    return trace_nodes((as_expr(node),), tuple(f"x{k}" for k in range(inputs + 1))).only([0])
