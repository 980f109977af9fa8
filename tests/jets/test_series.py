"""Taylor coefficients of formulas: identities between functions, and JAX's nested derivatives where it is installed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from chains.activations import ACTIVATIONS
from chains.expr import (
    Expr,
    Formula,
    cos,
    derivatives,
    erf,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    sin,
    sqrt,
    tanh,
    trace,
    trace_nodes,
    where,
)
from chains.expr.formulas import Replay
from chains.jets.series import ZERO, Index, replay

ORDER = 4
CURVE = np.array([0.7, -0.9, 0.4, 1.3, -0.6])  # x0, x1, ...
OTHER = np.array([1.4, 0.5, -0.8, 0.3, 0.9])


def coefficients(formula: Formula, *curves: np.ndarray) -> np.ndarray:
    """The Taylor coefficients of a formula of one output along curves of its inputs."""
    symbols: list[dict[Index, Expr]] = []
    for number in range(len(curves)):
        own = [Expr("input", value=number * (ORDER + 1) + k) for k in range(ORDER + 1)]
        symbols.append({ZERO: own[0], **{(0, k): own[k] for k in range(1, ORDER + 1)}})
    (series,) = replay(formula, symbols, (ORDER,))
    names = tuple(f"c{k}" for k in range(len(curves) * (ORDER + 1)))
    found = Replay(trace_nodes(tuple(series.values()), names))(*np.concatenate(curves))
    values = dict(zip(series, found if isinstance(found, tuple) else (found,), strict=True))
    return np.array([values.get((0, k) if k else ZERO, 0.0) for k in range(ORDER + 1)], np.float64)


IDENTITIES: list[tuple[str, Callable, Callable]] = [
    ("exp and log", lambda x: log(exp(x)), lambda x: x + 0.0 * x),
    ("log and exp", lambda x: exp(log(x)), lambda x: x * 1.0 + 0.0 * x),
    ("expm1", lambda x: expm1(x), lambda x: exp(x) - 1.0),
    ("log1p", lambda x: log1p(x), lambda x: log(1.0 + x)),
    ("circle", lambda x: sin(x) * sin(x) + cos(x) * cos(x), lambda x: 1.0 + 0.0 * x),
    ("double angle", lambda x: sin(2.0 * x), lambda x: 2.0 * sin(x) * cos(x)),
    ("square root", lambda x: sqrt(x) * sqrt(x), lambda x: x + 0.0 * x),
    ("square root of a square", lambda x: sqrt(x * x), lambda x: x + 0.0 * x),
    ("power and root", lambda x: x**0.25, lambda x: sqrt(sqrt(x))),
    ("whole power", lambda x: x**3.0, lambda x: x * x * x),
    ("negative power", lambda x: x**-2.0, lambda x: 1.0 / (x * x)),
    ("tanh", lambda x: tanh(x), lambda x: (exp(x) - exp(-x)) / (exp(x) + exp(-x))),
    ("logistic", lambda x: 1.0 / (1.0 + exp(-x)), lambda x: 0.5 + 0.5 * tanh(0.5 * x)),
    ("logistic, the other way", lambda x: 1.0 / (exp(x) + 1.0), lambda x: 0.5 - 0.5 * tanh(0.5 * x)),
    ("erf is odd", lambda x: erf(-x), lambda x: -erf(x)),
    ("absolute value", lambda x: abs(-x), lambda x: x + 0.0 * x),
    ("larger", lambda x: maximum(x, -x), lambda x: abs(x)),
    ("smaller", lambda x: minimum(x, -x), lambda x: -abs(x)),
    ("choice", lambda x: where(x > 0.0, x * x, exp(x)), lambda x: x * x),
    ("quotient", lambda x: (x * x + x) / x, lambda x: x + 1.0),
]


@pytest.mark.parametrize(("left", "right"), [pair[1:] for pair in IDENTITIES], ids=[pair[0] for pair in IDENTITIES])
def test_identities_hold_for_every_coefficient(left, right):
    np.testing.assert_allclose(coefficients(trace(left), CURVE), coefficients(trace(right), CURVE), rtol=1e-13, atol=1e-13)


TWO = [
    ("product rule", lambda a, b: (a + b) * (a - b), lambda a, b: a * a - b * b),
    ("quotient of two", lambda a, b: (a * b) / b, lambda a, b: a + 0.0 * b),
    ("power of two", lambda a, b: b**a, lambda a, b: exp(a * log(b))),
    ("logarithm of a product", lambda a, b: log(a * b), lambda a, b: log(a) + log(b)),
]


@pytest.mark.parametrize(("left", "right"), [pair[1:] for pair in TWO], ids=[pair[0] for pair in TWO])
def test_identities_of_two_curves(left, right):
    found, wanted = (coefficients(trace(f), CURVE, OTHER) for f in (left, right))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_erf_is_the_integral_of_the_bell():
    """k times coefficient k of erf(x) is coefficient k - 1 of the bell times x'."""
    slope = coefficients(trace(lambda x: 2.0 / math.sqrt(math.pi) * exp(-x * x)), CURVE)
    for k in range(1, ORDER + 1):
        wanted = sum(j * CURVE[j] * slope[k - j] for j in range(1, k + 1)) / k
        assert coefficients(trace(lambda x: erf(x)), CURVE)[k] == pytest.approx(wanted, rel=1e-13)


def test_a_power_at_zero():
    assert list(coefficients(trace(lambda x: x**3.0), np.array([0.0, 1.0, 0.0, 0.0, 0.0]))) == [0.0, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("at", [-1000.0, 1000.0])
@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "tanh", "gelu", "mish"])
def test_nothing_becomes_nan_far_out(name, at):
    found = coefficients(trace(ACTIVATIONS[name].function, 1), np.array([at, 1.0, 0.0, 0.0, 0.0]))
    assert np.isfinite(found).all()


def in_jax(jax):
    """The activations by name, in JAX."""
    nn, jnp = jax.nn, jax.numpy
    return {
        "identity": lambda x: x,
        "sigmoid": nn.sigmoid,
        "tanh": jnp.tanh,
        "relu": nn.relu,
        "sin": jnp.sin,
        "softplus": nn.softplus,
        "softsign": nn.soft_sign,
        "silu": nn.silu,
        "mish": lambda x: x * jnp.tanh(nn.softplus(x)),
        "gelu": lambda x: nn.gelu(x, approximate=False),
        "selu": nn.selu,
        "leaky_relu": nn.leaky_relu,
        "elu": nn.elu,
    }


def test_every_activation_is_one_of_jax(jax64):
    assert in_jax(jax64).keys() == ACTIVATIONS.keys()


@pytest.mark.few(4)
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_as_in_jax(name, jax64):
    function = in_jax(jax64)[name]
    for curve in (CURVE, OTHER, -OTHER):

        def along(e, curve=curve):
            return function(sum(c * e**k for k, c in enumerate(curve)))

        found, derivative = coefficients(trace(ACTIVATIONS[name].function, 1), curve), along
        for k in range(1, ORDER + 1):
            derivative = jax64.grad(derivative)
            assert found[k] == pytest.approx(float(derivative(0.0)) / math.factorial(k), rel=1e-9, abs=1e-9)


SMOOTH = {
    "softplus": lambda x: maximum(x, 0.0) + log1p(exp(-abs(x))),
    "softplus, the other way": lambda x: maximum(0.0, x) + log1p(exp(-abs(x))),
    "logistic of -x": lambda x: log1p(exp(-abs(x))) - minimum(0.0, x),
    "elu": lambda x: where(x > 0.0, x, expm1(minimum(x, 0.0))),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions_made_of_kinks(name):
    """At the kink, x = 0, they have the derivatives of what they are written for, and those that formulas have."""
    formula = trace(SMOOTH[name], 1)
    found, symbolic = coefficients(formula, np.eye(ORDER + 1)[1]), Replay(derivatives(formula, 3))(0.0)
    np.testing.assert_allclose(found[:4], [symbolic[k] / math.factorial(k) for k in range(4)], rtol=1e-14, atol=1e-15)
    half = {"softplus": 0.5, "softplus, the other way": 0.5, "logistic of -x": -0.5, "elu": 1.0}[name]
    assert found[1] == half
    if name != "elu":  # which has a second derivative on the left only
        assert found[2] == 0.125
