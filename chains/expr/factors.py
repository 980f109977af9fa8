"""Formulas as products: their constant, and the factors that depend on some inputs only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chains.expr.derivatives import below
from chains.expr.nodes import Expr, as_expr

MOST = 8  # products within products that are taken apart: their number may double with each


@dataclass(frozen=True)
class Product:
    """A constant times powers of factors, which are no products themselves. Equal factors are one node."""

    constant: float
    factors: tuple[tuple[Expr, int], ...]

    def part(self, chosen: Callable[[Expr], bool]) -> Expr | None:
        """The product of some of the factors, without the constant; None if there are none."""
        above, below = (_product([node for node, n in self.factors for _ in range(s * n) if chosen(node)]) for s in (1, -1))
        return above if below is None else (as_expr(1.0) if above is None else above) / below

    def same_factors(self, other: Product) -> bool:
        """Whether both differ by a constant at most."""
        powers, others = ({id(node): power for node, power in each.factors} for each in (self, other))
        return powers == others


def product_of(node: Expr) -> Product:
    """A node, below which equal nodes are one object, as a product."""
    found: dict[int, tuple[Expr, int]] = {}
    constant = _collect(node, 1, found, MOST)
    return Product(constant, tuple(each for each in found.values() if each[1]))


def _product(nodes: list[Expr]) -> Expr | None:
    found: Expr | None = None
    for node in nodes:
        found = node if found is None else as_expr(found * node)
    return found


def _collect(node: Expr, power: int, found: dict[int, tuple[Expr, int]], depth: int) -> float:
    """Add the factors of a power of a node to those that were found. Returns its constant."""
    if node.operation == "const" and node.value != 0.0:
        return float(node.value) ** power
    if node.operation == "neg" and depth:
        return -_collect(node.operands[0], power, found, depth - 1)
    if node.operation in ("mul", "div") and depth:
        a, b = node.operands
        other = power if node.operation == "mul" else -power
        return _collect(a, power, found, depth - 1) * _collect(b, other, found, depth - 1)
    found[id(node)] = (node, found.get(id(node), (node, 0))[1] + power)
    return 1.0


def inputs_of(node: Expr) -> set[int]:
    """The inputs that a node depends on."""
    return {int(each.value) for each in below(node) if each.operation == "input"}
