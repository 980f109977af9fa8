"""Symbolic derivatives: against central differences, against what is known of them, of high orders, and at kinks."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chains
from chains import Chain, Dense, SquaredLoss, expr
from chains.activations import ACTIVATIONS
from chains.expr import BINARY, COMPARISONS, TERNARY, UNARY, Expr, Formula, derivative, derivatives, trace, trace_nodes
from chains.expr.derivatives import slope
from chains.expr.formulas import Replay
from chains.expr.scalar import OPERATIONS
from chains.testing import check_gradients
from tests.expr.test_expr import execute, formulas

RNG = np.random.default_rng(0)
POSITIVE = RNG.uniform(0.2, 3.0, 50)
ANY = RNG.normal(size=50) * 2.0
STEPS = {"sign", "floor", *COMPARISONS}  # their derivative is zero
FUNCTIONS = {
    "tanh": expr.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + expr.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1.0 + expr.erf(x * math.sqrt(0.5))),
    "sin": expr.sin,
    "cos": expr.cos,
    "softplus": lambda x: expr.maximum(x, 0.0) + expr.log1p(expr.exp(-abs(x))),
    "silu": lambda x: x / (1.0 + expr.exp(-x)),
    "bell": lambda x: expr.exp(-0.5 * x * x),
    "root": lambda x: expr.sqrt(1.0 + x * x),
    "power": lambda x: (1.0 + x * x) ** 1.7 + 2.0**x,
    "logarithm": lambda x: expr.log(2.0 + expr.sin(x)),
    "elu": lambda x: expr.where(x > 0.0, x, expr.expm1(expr.minimum(x, 0.0))),
    "rational": lambda x: (1.0 - x) / (2.0 + x * x) ** 3,
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def single(operation: str) -> Formula:
    inputs = tuple(Expr("input", value=k) for k in range(OPERATIONS[operation].arity))
    return trace_nodes((Expr(operation, inputs),), tuple(f"x{k}" for k in range(len(inputs))))


def values(formula: Formula, *operands: np.ndarray) -> np.ndarray:
    """The first output for these numbers, in float64."""
    with np.errstate(all="ignore"):
        results = Replay(formula)(*operands)
    return np.broadcast_to(results[0] if isinstance(results, tuple) else results, np.shape(operands[0])).astype(np.float64)


def central(formula: Formula, input: int, *operands: np.ndarray, h: float = 1e-3) -> np.ndarray:
    """The central difference of sixth order with respect to one operand."""
    total = 0.0
    for k, weight in ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60)):
        moved = [[x + s * k * h if j == input else x for j, x in enumerate(operands)] for s in (1, -1)]
        total = total + weight * (values(formula, *moved[0]) - values(formula, *moved[1]))
    return total / h


# Each operation


def test_every_operation_has_a_derivative_or_is_a_step():
    assert set(OPERATIONS) == {*UNARY, *BINARY, *TERNARY, "not"}
    assert {name for name, row in OPERATIONS.items() if row.derivative is None} == STEPS


@pytest.mark.parametrize("operation", UNARY)
def test_unary_operations(operation):
    formula, x = single(operation), POSITIVE if operation in ("log", "log1p", "sqrt") else ANY
    wanted = np.zeros(50) if operation in STEPS else central(formula, 0, x)
    np.testing.assert_allclose(values(derivative(formula), x), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("input", [0, 1])
@pytest.mark.parametrize("operation", BINARY)
def test_binary_operations(operation, input):
    formula, a, b = single(operation), POSITIVE, np.copysign(POSITIVE[::-1], ANY)
    wanted = np.zeros(50) if operation in STEPS else central(formula, input, a, b)
    np.testing.assert_allclose(values(derivative(formula, input), a, b), wanted, rtol=1e-8, atol=1e-9)


def test_where_takes_the_derivative_of_the_side_it_takes():
    formula = trace(lambda c, a, b: expr.where(c > 0.0, a * a, 3.0 * b))
    c, a, b = ANY, POSITIVE, ANY
    assert not values(derivative(formula, 0), c, a, b).any()
    np.testing.assert_array_equal(values(derivative(formula, 1), c, a, b), np.where(c > 0.0, 2.0 * a, 0.0))
    np.testing.assert_array_equal(values(derivative(formula, 2), c, a, b), np.where(c > 0.0, 0.0, 3.0))


# Formulas


@settings(max_examples=300)
@given(formulas(), st.integers(0, 99))
def test_random_formulas(formula, seed):
    """Away from kinks and steps, which show in a difference that changes with its width."""
    operands = np.random.default_rng(seed).normal(size=(len(formula.inputs), 40))
    for input in range(len(formula.inputs)):
        found = values(derivative(formula, input), *operands)
        wide, narrow = (central(formula, input, *operands, h=h) for h in (1e-3, 0.6e-3))
        smooth = np.abs(wide - narrow) < 1e-5 * (1.0 + np.abs(wide))
        np.testing.assert_allclose(found[smooth], wide[smooth], rtol=1e-4, atol=1e-4)


@every_function
def test_orders_one_to_four(name):
    """Each derivative against the central difference of the one before."""
    before = trace(FUNCTIONS[name], 1)
    x = ANY[np.abs(ANY) > 0.01]
    for _ in range(4):
        after = derivative(before)
        np.testing.assert_allclose(values(after, x), central(before, 0, x), rtol=1e-7, atol=1e-8)
        before = after


@every_function
def test_orders_together_are_the_same_and_share(name):
    formula = trace(FUNCTIONS[name], 1)
    together, alone = derivatives(formula, 4), [formula]
    for _ in range(4):
        alone.append(derivative(alone[-1]))
    for result, each in zip(Replay(together)(ANY), alone, strict=True):
        np.testing.assert_array_equal(result, values(each, ANY))
    assert len(together.instructions) <= sum(len(each.instructions) for each in alone)


LONGEST = {"tanh": 20, "sigmoid": 30, "gelu": 45, "sin": 6, "cos": 6, "softplus": 60, "silu": 50, "bell": 25, "elu": 20}


@pytest.mark.parametrize("name", LONGEST)
def test_four_orders_stay_small(name):
    assert len(derivatives(trace(FUNCTIONS[name], 1), 4).instructions) <= LONGEST[name]


def test_what_is_known_of_derivatives():
    def text(function, order=1):
        formula = trace(function, 1)
        for _ in range(order):
            formula = derivative(formula)
        return formula.text(["x"])

    assert [text(expr.sin, k) for k in range(5)] == ["sin(x)", "cos(x)", "-sin(x)", "-cos(x)", "sin(x)"]
    assert text(expr.exp, 7) == "exp(x)"
    assert text(lambda x: x**3) == "3 * (x * x)"
    assert text(lambda x: x * x * x, 4) == "0"
    assert text(lambda x: 5.0 * x - 2.0) == "5"
    assert text(expr.log, 2) == "-((1 / x) / x)"
    assert text(expr.tanh) == "1 - (tanh(x) * tanh(x))"
    assert text(lambda x: expr.floor(x) + expr.sign(x)) == "0"


def test_products_in_both_orders():
    """The second product is the first one; its operands are in another order."""
    for function in (
        lambda a, b: (a * b) + expr.sin(b * a) * 3.0,
        lambda a, b: expr.where(a > b, 0.5 * a, 1.0) * (a * 0.5 * b),
        lambda a, b: expr.maximum(a, b) * 2.0 + b * expr.maximum(b, a),
    ):
        for input in (0, 1):
            at, step = np.array([0.7, 0.4]), 1e-6 * np.eye(2)[input]
            up, down = (function(*(at + sign * step)) for sign in (1.0, -1.0))
            (found,) = execute(derivative(trace(function, 2), input), *at.reshape(2, 1))
            assert math.isclose(found[0], (up - down) / 2e-6, rel_tol=1e-8)


def test_taylor_coefficients_of_a_composition():
    """Those of exp along x0 + e x1 + e^2 x2 + e^3 x3, by its series."""
    formula = trace(lambda e, x0, x1, x2, x3: expr.exp(x0 + e * (x1 + e * (x2 + e * x3))))
    x0, x1, x2, x3 = RNG.normal(size=(4, 20))
    found = Replay(derivatives(formula, 3, 0))(np.zeros(20), x0, x1, x2, x3)
    series = [np.ones(20), x1, x2 + x1**2 / 2, x3 + x1 * x2 + x1**3 / 6]
    for k, wanted in enumerate(series):
        np.testing.assert_allclose(found[k] / math.factorial(k), np.exp(x0) * wanted, rtol=1e-12)


def test_several_outputs_and_inputs():
    formula = trace(lambda a, b: (a * b, a - b, b))
    for input, wanted in ((0, (ANY, np.ones(50), np.zeros(50))), (1, (POSITIVE, -np.ones(50), np.ones(50)))):
        for found, right in zip(Replay(derivative(formula, input))(POSITIVE, ANY), wanted, strict=True):
            np.testing.assert_array_equal(np.broadcast_to(found, 50), right)
    assert derivative(formula).inputs == formula.inputs


def test_on_backends(backend_name):
    for name in ("gelu", "softplus", "elu", "power"):
        formula = derivatives(trace(FUNCTIONS[name], 1), 3)
        for found, wanted in zip(execute(formula, ANY, name=backend_name), Replay(formula)(ANY), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


# Kinks, steps and infinities

KINKS = {
    "abs": (lambda x: abs(x), -1.0),
    "max": (lambda x: expr.maximum(x, 0.0), 0.0),
    "max the other way": (lambda x: expr.maximum(0.0, x), 0.0),
    "min": (lambda x: expr.minimum(x, 0.0), 1.0),
    "min the other way": (lambda x: expr.minimum(0.0, x), 1.0),
    "sign": (lambda x: expr.sign(x), 0.0),
    "floor": (lambda x: expr.floor(x), 0.0),
    "where": (lambda x: expr.where(x > 0.0, 2.0 * x, 3.0 * x), 3.0),
    "squared": (lambda x: x**2.0, 0.0),
    "power of zero": (lambda x: x**0.0, 0.0),
    "power of x": (lambda x: (x * x) ** (1.0 + x), 0.0),
}


@pytest.mark.parametrize("name", KINKS)
def test_conventions_at_zero(name):
    function, wanted = KINKS[name]
    assert values(derivative(trace(function, 1)), np.zeros(1)) == wanted


def test_smooth_functions_made_of_kinks_are_smooth():
    """What stands to the left of all kinks is what the smooth function is there, to all orders."""
    softplus = derivatives(trace(FUNCTIONS["softplus"], 1), 4)
    np.testing.assert_allclose(np.ravel(Replay(softplus)(np.zeros(1))), [np.log(2), 0.5, 0.25, 0.0, -0.125], atol=1e-15)
    elu = derivative(trace(FUNCTIONS["elu"], 1))
    assert values(elu, np.zeros(1)) == 1.0


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "elu", "tanh", "gelu"])
def test_far_from_zero_nothing_overflows(name):
    formula = derivatives(trace(FUNCTIONS[name], 1), 2)
    with np.errstate(all="ignore"):
        _, first, second = Replay(formula)(np.array([-900.0, -90.0, 90.0, 900.0]))
    assert np.isfinite(first).all()
    assert np.isfinite(second).all()
    np.testing.assert_allclose(first, [0.0, 0.0, 1.0, 1.0] if name not in ("sigmoid", "tanh") else 0.0, atol=1e-12)


# Activations and losses without a derivative of their own


def test_a_slope_is_of_y_where_it_can_be():
    wanted = {"sigmoid": ("y",), "tanh": ("y",), "identity": ("y",), "sin": ("x",), "gelu": ("x",), "softsign": ("x", "y")}
    for name, inputs in wanted.items():
        assert slope(trace(ACTIVATIONS[name].function, 1)).inputs == inputs
    assert slope(trace(expr.exp, 1)).text() == "y"
    assert slope(trace(lambda x: x * expr.exp(x))).inputs == ("x", "y")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_of_activations_are_derived(name):
    """The derivatives that built-in activations have, written by people."""
    built_in = ACTIVATIONS[name]
    derived = chains.activation(name, built_in.function)
    with np.errstate(all="ignore"):
        y = built_in(ANY)
        np.testing.assert_allclose(derived.slope(ANY, y) + 0 * ANY, built_in.slope(ANY, y) + 0 * ANY, rtol=1e-12, atol=1e-14)


def test_an_activation_without_a_derivative(backend_name):
    swish = chains.activation("swish", FUNCTIONS["silu"])
    net = Chain(Dense(3, 5, swish), Dense(5, 2, chains.activation("squash", expr.tanh)), backend=backend_name)
    check_gradients(net, (3,), backends=[backend_name])
    assert not net.layers[1].activation.needs_input
    assert pickle.loads(pickle.dumps(swish)).slope_formula == swish.slope_formula


def test_a_loss_without_a_derivative():
    given = chains.loss("cubic", lambda y, t: abs(y - t) ** 3, derivative=lambda y, t: 3 * (y - t) * abs(y - t))
    derived = chains.loss("cubic", lambda y, t: abs(y - t) ** 3)
    net = Chain(Dense(3, 2, chains.tanh))
    p, x, t = net.init(dtype=np.float64), RNG.normal(size=(4, 3)), RNG.normal(size=(4, 2))
    (value, g), (wanted, right) = (net.value_and_grad(p, x, t, each) for each in (derived, given))
    assert value == wanted
    np.testing.assert_allclose(g, right, rtol=1e-12)
    assert derived == chains.loss("cubic", lambda y, t: abs(y - t) ** 3)
    assert net.value_and_grad(p, x, t, SquaredLoss())[0] > 0.0
