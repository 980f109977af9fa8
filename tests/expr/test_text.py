"""Formulas as text: short ones in full, long ones with names for what they use more than once."""

from __future__ import annotations

from chains.expr import exp, tanh, trace
from chains.expr.formulas import Replay


def test_a_short_formula_is_written_in_full():
    assert trace(lambda x: tanh(x) * tanh(x)).text() == "tanh(x) * tanh(x)"


def test_what_a_long_formula_uses_again_has_a_name():
    def f(x):
        for _ in range(6):
            x = x * x + 1.0
        return x, exp(-x)

    formula = trace(f)
    text = formula.text()
    assert text.startswith("t6, exp(-t6) where t1 = (x * x) + 1, t2 = (t1 * t1) + 1, ")
    assert len(text) < 200
    assert Replay(formula)(0.5)[0] == f(0.5)[0]


def test_text_of_a_formula_that_doubles_at_every_step_stays_short():
    def f(x):
        for _ in range(60):
            x = tanh(x) * x
        return x

    assert len(trace(f).text()) < 3_000
