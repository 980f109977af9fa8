"""Algebraic simplification of nodes; equal nodes become one.

The rules are those of real numbers: a simplified node may differ from the original in the last bit, and 0 * x is 0. So the
rules serve for new formulas, such as derivatives, and not for formulas of users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chains.expr.formulas import Formula
from chains.expr.nodes import Expr, as_expr
from chains.expr.replay import FUNCTIONS

COMMUTATIVE = ("add", "mul", "min", "max", "eq", "ne", "and", "or")


class Algebra:
    """Makes nodes. Equal nodes are one object, so that identity tells whether two are equal."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Expr] = {}
        self._given: set[int] = set()  # ids of nodes: comparing symbols gives no truth value

    def results(self, formula: Formula) -> list[Expr]:
        """The nodes of a formula's inputs and results, in order, not simplified."""
        results = [self._one(Expr("input", value=k)) for k in range(len(formula.inputs))]
        for step in formula.instructions:
            results.append(self._one(Expr(step.operation, tuple(results[k] for k in step.operands), step.value)))
        self._given.update(map(id, results))
        return results

    def is_given(self, node: Expr) -> bool:
        """Whether the node is a result of a formula, which is computed in any case."""
        return id(node) in self._given

    def constant(self, value: float) -> Expr:
        return self._one(as_expr(value))

    def simplified(self, node: Expr) -> Expr:
        """The node, simplified together with all nodes below it."""
        return self.make(node.operation, *map(self.simplified, node.operands)) if self._is_new(node) else self._one(node)

    def make(self, operation: str, *operands: Expr) -> Expr:
        """An operation on nodes of this object."""
        rule = _RULES.get(operation)
        simpler = self._chosen(operation, operands)
        if simpler is None and rule is not None:
            simpler = rule(self, *operands)
        if simpler is not None:
            return simpler
        node = as_expr(FUNCTIONS[operation](*operands))
        return self._one(node) if node.operation == operation or not self._is_new(node) else self.simplified(node)

    def _chosen(self, operation: str, operands: Sequence[Expr]) -> Expr | None:
        """An operation on constants and on choices between constants by one condition, as a single choice."""
        choices = [node for node in operands if node.operation == "where"]
        if operation == "where" or not choices or any(node.operands[0] is not choices[0].operands[0] for node in choices):
            return None
        sides = [[node.operands[k] if node.operation == "where" else node for node in operands] for k in (1, 2)]
        if any(node.operation != "const" for side in sides for node in side):
            return None
        return self.make("where", choices[0].operands[0], *(self.make(operation, *side) for side in sides))

    def _is_new(self, node: Expr) -> bool:
        return bool(node.operands) and self._known.get(_key(node)) is not node

    def _one(self, node: Expr) -> Expr:
        return self._known.setdefault(_key(node), node)


def is_constant(node: Expr, value: float) -> bool:
    return node.operation == "const" and node.value == value


def _key(node: Expr) -> tuple[object, ...]:
    operands = sorted(map(id, node.operands)) if node.operation in COMMUTATIVE else map(id, node.operands)
    return (node.operation, node.value, *operands)


def _scaled(node: Expr) -> tuple[float, Expr]:
    """A node as a constant times another node; the constant may be 1."""
    if node.operation == "neg":
        return -1.0, node.operands[0]
    if node.operation == "mul":
        for factor, other in (node.operands, node.operands[::-1]):
            if factor.operation == "const":
                return float(factor.value), other
    return 1.0, node


def _add(make: Algebra, a: Expr, b: Expr) -> Expr | None:
    if a.operation == "neg":
        return make.make("sub", b, a.operands[0])
    if b.operation == "neg":
        return make.make("sub", a, b.operands[0])
    (c, u), (d, v) = _scaled(a), _scaled(b)
    return make.make("mul", make.constant(c + d), u) if u is v and u.operation != "const" else None


def _sub(make: Algebra, a: Expr, b: Expr) -> Expr | None:
    if b.operation == "neg":
        return make.make("add", a, b.operands[0])
    if is_constant(a, 0.0):
        return make.make("neg", b)
    (c, u), (d, v) = _scaled(a), _scaled(b)
    return make.make("mul", make.constant(c - d), u) if u is v and c != d else None


def _neg(make: Algebra, a: Expr) -> Expr | None:
    if a.operation == "sub":
        return make.make("sub", *a.operands[::-1])
    factor, rest = _scaled(a)
    return make.make("mul", make.constant(-factor), rest) if factor != 1.0 else None


def _mul(make: Algebra, a: Expr, b: Expr) -> Expr | None:
    if b.operation == "const":
        a, b = b, a
    if a.operation == "const":
        return _times_constant(make, float(a.value), b)
    (c, u), (d, v) = _scaled(a), _scaled(b)
    if c != 1.0 or d != 1.0:
        return make.make("mul", make.constant(c * d), make.make("mul", u, v))
    for factor, quotient in ((a, b), (b, a)):
        if quotient.operation == "div" and is_constant(quotient.operands[0], 1.0) and not make.is_given(quotient):
            return make.make("div", factor, quotient.operands[1])
    return None


def _times_constant(make: Algebra, constant: float, b: Expr) -> Expr | None:
    factor, rest = _scaled(b)
    factor *= constant
    if factor == 0.0:
        return make.constant(0.0)
    if factor == 1.0:
        return rest
    if factor == -1.0:
        return make.make("neg", rest)
    return make.make("mul", make.constant(factor), rest) if rest is not b else None


def _div(make: Algebra, a: Expr, b: Expr) -> Expr | None:
    factor, rest = _scaled(a)
    return make.make("neg", make.make("div", rest, b)) if factor == -1.0 else None


def _where(make: Algebra, condition: Expr, a: Expr, b: Expr) -> Expr | None:
    return a if a is b else None


_RULES: dict[str, Callable[..., Expr | None]] = {
    "add": _add, "sub": _sub, "neg": _neg, "mul": _mul, "div": _div, "where": _where,
}  # fmt: skip
