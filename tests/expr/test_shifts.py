"""How results change when inputs shift or scale: every rule against numbers; and formulas as products."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chains import expr
from chains.expr import Expr, trace, trace_nodes
from chains.expr.derivatives import Algebra
from chains.expr.factors import inputs_of, product_of
from chains.expr.formulas import Replay
from chains.expr.shifts import STAYS, Change, changes

SHIFT, HALF, GROWS, SQUARE = Change(False, 1.0), Change(False, 0.5), Change(True, 1.0), Change(True, 2.0)
# A formula, the changes of its inputs, and that of its result; None where no rule may say.
KNOWN = {
    "softmax": (lambda x, m, t: expr.exp(x - m) / t, (STAYS, SHIFT, Change(True, -1.0)), STAYS),
    "logarithm": (lambda t, m: expr.log(t) + m, (Change(True, -1.0), SHIFT), STAYS),
    "difference": (lambda a, b: a - b, (SHIFT, SHIFT), STAYS),
    "times a number": (lambda a: expr.exp(-0.5 * a + 3.0), (SHIFT,), Change(True, -0.5)),
    "over a number": (lambda a, b: b - a / 2.0, (SHIFT, HALF), STAYS),
    "powers": (lambda a: expr.sqrt(a) * a**1.5, (GROWS,), SQUARE),
    "an inverse": (lambda a, b: b / (a * a), (GROWS, GROWS), Change(True, -1.0)),
    "a positive part": (lambda a: expr.maximum(a, 0.0) + abs(a), (GROWS,), GROWS),
    "the larger": (lambda a, b: expr.maximum(a, b), (SHIFT, SHIFT), SHIFT),
    "a choice": (lambda a, b, c: expr.where(a > b, b, c), (SHIFT, SHIFT, SHIFT), SHIFT),
    "a sign": (lambda a: expr.sign(a) * 2.0, (GROWS,), STAYS),
    "unequal shifts": (lambda a, b: expr.maximum(a, b), (SHIFT, HALF), None),
    "a sum of scales": (lambda a, b: a + b, (GROWS, SQUARE), None),
    "a number added": (lambda a: a + 1.0, (GROWS,), None),
    "a shift times an array": (lambda a, b: a * b, (SHIFT, STAYS), None),
    "a sine": (lambda a: expr.sin(a), (SHIFT,), None),
    "a shift compared": (lambda a: expr.where(a > 0.0, 1.0, 2.0), (SHIFT,), None),
    "a changing condition": (lambda a, b: expr.where(a > 1.0, a, b), (GROWS, GROWS), None),
    "a changing exponent": (lambda a, b: a**b, (STAYS, SHIFT), None),
    "over a shift": (lambda a: 1.0 / a, (SHIFT,), None),
}


@pytest.mark.parametrize("name", KNOWN)
def test_changes_are_those_of_numbers(name):
    function, inputs, wanted = KNOWN[name]
    formula = trace(function)
    (found,) = changes(formula, inputs)
    assert found == wanted
    rng = np.random.default_rng(0)
    for d in (-0.7, 0.4) if found is not None else ():
        values = rng.uniform(0.5, 2.0, (len(inputs), 20))
        moved = [_changed(value, each, d) for value, each in zip(values, inputs, strict=True)]
        run = Replay(formula)
        np.testing.assert_allclose(run(*moved), _changed(run(*values), found, d), rtol=1e-12)


def _changed(value, change, d):
    return value * math.exp(change.degree * d) if change.scales else value + change.degree * d


def test_products_are_those_of_numbers():
    formula = trace(lambda a, b, c: -3.0 * (a - b) / c * (b * -(a - b)) / (2.0 * a))
    node = Algebra().results(formula)[formula.outputs[0]]
    product = product_of(node)
    assert product.constant == 1.5
    some = product.part(lambda each: inputs_of(each) <= {1, 2})
    rest = product.part(lambda each: not inputs_of(each) <= {1, 2})
    both = trace_nodes((product.constant * some * rest,), formula.inputs)
    values = np.random.default_rng(0).normal(size=(3, 10))
    np.testing.assert_allclose(Replay(both)(*values), Replay(formula)(*values), rtol=1e-13)


def test_a_product_of_many_products_is_found_quickly():
    """Each is a product of the one before and itself: taking all apart would take 2 ** 60 steps."""
    node = Expr("input", value=0)
    for _ in range(60):
        node = Expr("mul", (node, node))
    assert product_of(node).factors[0][1] == 2**8
