"""Symbolic derivatives of formulas.

The table of scalar operations has the derivatives of each operation with respect to its operands. The chain rule goes through
the instructions of a formula in order. Its results are simplified (`Algebra`), so that derivatives of high orders stay about
as short as people write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from chains.expr.formulas import FUNCTIONS, Formula, trace_nodes
from chains.expr.nodes import Expr, as_expr, key_of
from chains.expr.scalar import OPERATIONS, Choice

COMMUTATIVE = ("add", "mul", "min", "max", "eq", "ne", "and", "or")


class Algebra:
    """Makes simplified nodes. Equal nodes are one object, so that identity tells whether two are equal.

    The rules are those of real numbers: a simplified node may differ from the original in the last bit, and 0 * x is 0. So they
    serve for derivatives, which are new formulas, and not for formulas of users.
    """

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

    def one(self, node: Expr) -> Expr:
        """The object for a node that was made elsewhere, and for all equal ones."""
        known: dict[int, Expr] = {}

        def of(node: Expr) -> Expr:
            if id(node) not in known:
                operands = tuple(map(of, node.operands))
                known[id(node)] = self._one(Expr(node.operation, operands, node.value) if operands else node)
            return known[id(node)]

        return of(node)

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

Term = Expr | None  # None for zero


def derivative(formula: Formula, input: int = 0) -> Formula:
    """The derivatives of a formula's outputs with respect to the input at this position, as a formula of the same inputs.

    At a kink, it is the derivative from the left (see `chains.expr.scalar.ScalarOperation`); at a jump, it is 0. The result
    can be differentiated again. The k-th derivative of ``f(x0 + e * x1 + e**2 * x2 + ...)`` with respect to e, at e = 0 and
    divided by k!, is the coefficient of order k of that Taylor series.
    """
    chain = _Chain(formula)
    return trace_nodes(tuple(map(chain.number, chain.derivatives(input))), formula.inputs)


def derivatives(formula: Formula, order: int, input: int = 0) -> Formula:
    """A formula's outputs and their derivatives with respect to one input, up to an order, as one formula.

    Common parts are computed once.
    """
    found = [formula]
    for _ in range(order):
        found.append(derivative(found[-1], input))
    algebra = Algebra()
    results = [(algebra.results(each), each.outputs) for each in found]
    return trace_nodes(tuple(nodes[output] for nodes, outputs in results for output in outputs), formula.inputs)


def slope(formula: Formula) -> Formula:
    """The derivative of ``y = f(x)``, as a formula of y alone, of x alone, or of x and y."""
    chain = _Chain(formula)
    x, y = chain.results[0], Expr("input", value=1)
    found = replaced(chain.number(chain.derivatives(0)[0]), {id(chain.outputs[0]): y})
    used = {int(node.value) for node in below(found) if node.operation == "input"}
    if used == {0}:
        return trace_nodes((found,), ("x",))
    if used == {0, 1}:
        return trace_nodes((found,), ("x", "y"))
    return trace_nodes((replaced(found, {id(y): x}),), ("y",))


def cotangents(formula: Formula, inputs: Sequence[Sequence[int]], outputs: Sequence[int]) -> list[Term]:
    """For each group of inputs, the cotangent of a number that stands at all of these positions; None for zero.

    Inputs of the results are those of the formula, then its outputs, then their cotangents: zero except for those of `outputs`.
    Derivatives are written in terms of outputs where they contain them. Equal results are one node.
    """
    chain, first = _Chain(formula), len(formula.inputs)
    count = len(formula.outputs)
    given = [Expr("input", value=first + count + k) for k in range(count)]
    found: list[Term] = []
    for group in inputs:
        total: Term = None
        for position in group:
            terms = chain.derivatives(position)
            total = chain.total(total, *(chain.times(given[k], terms[k]) for k in outputs))
        total = None if total is None else _by_outputs(total, chain.outputs, first)
        found.append(None if total is None else chain.one(total))
    return found


def _by_outputs(node: Expr, outputs: Sequence[Expr], first: int) -> Expr:
    """The node in terms of symbols for `outputs`, inputs from the position `first` on.

    A number is above a bound exactly where the larger of both is.
    """
    known: dict[int, Expr] = {}
    for k, output in enumerate(outputs):
        y = Expr("input", value=first + k)
        if output.operands:
            known.setdefault(id(output), y)
        if output.operation in ("max", "min"):
            wanted = "gt" if output.operation == "max" else "lt"
            for one, bound in (output.operands, output.operands[::-1]):
                for each in below(node) if bound.operation == "const" else ():
                    if each.operation == wanted and key_of(each) == (wanted, each.value, key_of(one), key_of(bound)):
                        known[id(each)] = Expr(wanted, (y, bound))
    return replaced(node, known)


class _Chain:
    """The chain rule through a formula."""

    def __init__(self, formula: Formula) -> None:
        self._formula = formula
        self._algebra = Algebra()
        self.results = self._algebra.results(formula)
        self.outputs = [self.results[output] for output in formula.outputs]

    def number(self, term: Term) -> Expr:
        """A term as a node."""
        return self._algebra.constant(0.0) if term is None else term

    def one(self, node: Expr) -> Expr:
        """The same object for equal nodes. Each node below is visited once: formulas with recurrences share many."""
        return self._algebra.one(node)

    def derivatives(self, input: int) -> list[Term]:
        """The derivatives of the outputs with respect to an input."""
        terms: list[Term] = [None] * len(self._formula.inputs)
        terms[input] = self._algebra.constant(1.0)
        for number, step in enumerate(self._formula.instructions, len(terms)):
            changes = [terms[operand] for operand in step.operands]
            if (
                changes and self.results[number].operands[0] is not self.results[step.operands[0]]
            ):  # a * b, for an earlier b * a
                changes.reverse()
            changed = any(change is not None for change in changes)
            terms.append(self._term(number, changes, terms) if changed else None)
        return [terms[output] for output in self._formula.outputs]

    def _term(self, number: int, changes: Sequence[Term], terms: Sequence[Term]) -> Term:
        """The derivative of result `number`, given the derivatives `changes` of its operands."""
        y, make = self.results[number], self._algebra.make
        rule = OPERATIONS[y.operation].derivative
        if rule is None:
            return None
        if y.operation == "div" and (exponent := self._exponent(self._operands(number)[1])) is not None:
            return self._logistic(y, changes[0], terms[exponent])
        operands = y.operands
        if y.operation in COMMUTATIVE and operands[0].operation == "const":  # so that max(0, x) counts as max(x, 0)
            operands, changes = operands[::-1], changes[::-1]
        found = rule(y, *operands)
        if isinstance(found, Choice):
            a, b = map(self.number, changes[-2:])
            return self.total(make("where", self._algebra.simplified(found.condition), a, b))
        partials = [self._algebra.simplified(as_expr(each)) for each in found]
        return self.total(*(make("mul", a, b) for a, b in zip(partials, changes, strict=True) if b is not None))

    def times(self, factor: Expr, term: Term) -> Term:
        """A term with a factor."""
        return None if term is None or is_constant(term, 0.0) else self._algebra.make("mul", factor, term)

    def total(self, *terms: Term) -> Term:
        """The sum of terms."""
        total: Term = None
        for term in terms:
            if term is not None and not is_constant(term, 0.0):
                total = term if total is None else self._algebra.make("add", total, term)
        return total

    # Quotients whose divisor may overflow, as in the logistic function

    def _exponent(self, number: int) -> int | None:
        """The number of u, if the result with this number is the sum of a constant and exp(u)."""
        if self.results[number].operation == "add":
            for one, other in (self._operands(number), self._operands(number)[::-1]):
                if self.results[one].operation == "const" and self.results[other].operation == "exp":
                    return self._operands(other)[0]
        return None

    def _logistic(self, y: Expr, a: Term, u: Term) -> Term:
        """The derivative of y = a / b for b = k + exp(u): a' / b - y (1 - k / b) u'."""
        make, b = self._algebra.make, y.operands[1]
        k = next(operand for operand in b.operands if operand.operation == "const")
        first = None if a is None else make("div", a, b)
        if u is None:
            return first
        share = make("sub", self._algebra.constant(1.0), make("div", k, b))
        return self.total(first, make("neg", make("mul", make("mul", y, share), u)))

    def _operands(self, number: int) -> tuple[int, ...]:
        first = len(self._formula.inputs)
        return self._formula.instructions[number - first].operands if number >= first else ()


def below(node: Expr) -> Iterator[Expr]:
    """The node and all nodes below it."""
    seen: set[int] = set()
    left = [node]
    while left:
        node = left.pop()
        if id(node) not in seen:
            seen.add(id(node))
            left += node.operands
            yield node


def replaced(node: Expr, known: dict[int, Expr]) -> Expr:
    """The node with those below it, and itself, replaced where their ids are `known`."""

    def moved(node: Expr) -> Expr:
        if id(node) not in known:
            operands = tuple(map(moved, node.operands))
            same = all(a is b for a, b in zip(operands, node.operands, strict=True))
            known[id(node)] = node if same else Expr(node.operation, operands, node.value)
        return known[id(node)]

    return moved(node)
