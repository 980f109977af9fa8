"""Formulas: tracing, simplification, printing, and that every way of running one gives the same numbers."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import expr
from chains.activations import ACTIVATIONS
from chains.backends import backend
from chains.backends.numpy.formulas import ufunc
from chains.expr import BINARY, TERNARY, UNARY, Expr, Formula, trace, where
from chains.expr.scalar import OPERATIONS
from chains.program.recorder import Recorder
from tests.harness import run_program

REFERENCE = {
    **{name: getattr(np, name) for name in UNARY if hasattr(np, name) and name not in ("abs",)},
    "neg": np.negative, "abs": np.abs, "erf": np.vectorize(math.erf, otypes=[float]), "not": np.logical_not,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
    "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or,
    "where": lambda c, a, b: np.where(np.asarray(c, bool), a, b),
}  # fmt: skip
NUMBERS = np.array([-np.inf, -800.0, -2.5, -1.0, -0.0, 0.0, 0.3, 1.0, 7.0, 800.0, np.inf, np.nan])


def evaluate(formula: Formula, *operands: np.ndarray) -> list[np.ndarray]:
    """The formula by plain NumPy, one instruction after another, in float64."""
    values = [np.asarray(operand, np.float64) for operand in operands]
    with np.errstate(all="ignore"):
        for i in formula.instructions:
            taken = [values[k] for k in i.operands]
            values.append(np.asarray(i.value if i.operation == "const" else REFERENCE[i.operation](*taken), np.float64))
    return [values[k] for k in formula.outputs]


def execute(formula: Formula, *operands: np.ndarray, name: str = "numpy", dtype=np.float64) -> list[np.ndarray]:
    """The formula on a backend, as one `map`."""
    ops = Recorder("test", dtype)
    shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands))
    ins = [ops.external(f"x{k}", np.shape(operand), role="input") for k, operand in enumerate(operands)]
    outs = tuple(ops.external(f"y{k}", shape, role="output") for k in range(len(formula.outputs)))
    ops.map(outs, lambda *symbols: replay(formula, symbols), *ins)
    arrays = {f"x{k}": np.asarray(operand) for k, operand in enumerate(operands)}
    results = run_program(ops.finish(), name, 1, arrays)
    return [results[f"y{k}"] for k in range(len(outs))]


def replay(formula: Formula, symbols: tuple) -> tuple:
    """The formula's instructions as nodes of a formula that is being traced."""
    nodes = list(symbols)
    for i in formula.instructions:
        nodes.append(Expr(i.operation, tuple(nodes[k] for k in i.operands), i.value))
    return tuple(nodes[k] for k in formula.outputs)


def single(operation: str, operands: int) -> Formula:
    return expr.trace_nodes(
        (Expr(operation, tuple(Expr("input", value=k) for k in range(operands))),), tuple(f"x{k}" for k in range(operands))
    )


# Every operation on every backend, as an array and as a scalar


@pytest.mark.parametrize("operation", [*UNARY, "not"])
def test_unary_operations(operation, backend_name):
    formula = single(operation, 1)
    wanted = evaluate(formula, NUMBERS)[0]
    np.testing.assert_allclose(execute(formula, NUMBERS, name=backend_name)[0], wanted, rtol=1e-14)


@pytest.mark.parametrize("operation", BINARY)
def test_binary_operations(operation, backend_name):
    a, b = NUMBERS[:, None] * np.ones(len(NUMBERS)), np.ones((len(NUMBERS), 1)) * NUMBERS
    formula = single(operation, 2)
    np.testing.assert_allclose(execute(formula, a, b, name=backend_name)[0], evaluate(formula, a, b)[0], rtol=1e-14)


@pytest.mark.parametrize("operation", [*UNARY, "not"])
def test_unary_operations_of_one_number(operation, backend_name):
    """Scalars may be computed in another way, to the same results: infinities and NaN too."""
    formula = single(operation, 1)
    for number in NUMBERS:
        actual, wanted = execute(formula, np.array(number), name=backend_name)[0], evaluate(formula, number)[0]
        np.testing.assert_allclose(actual, wanted, rtol=1e-14, err_msg=f"{operation}({number})")


@pytest.mark.parametrize("operation", BINARY)
def test_binary_operations_of_two_numbers(operation, backend_name):
    formula = single(operation, 2)
    ops = Recorder("test", np.float64)
    ins = [ops.external(name, (), role="input") for name in "ab"]
    ops.map(ops.external("y", (), role="output"), lambda a, b: Expr(operation, (a, b)), *ins)
    binding = backend(backend_name).bind(ops.finish(), 1, {})
    for a in NUMBERS:
        for b in NUMBERS:
            binding.arrays["a"][...], binding.arrays["b"][...] = a, b
            with backend(backend_name).running():
                binding.run()
            wanted = evaluate(formula, a, b)[0]
            np.testing.assert_allclose(binding.arrays["y"], wanted, rtol=1e-14, err_msg=f"{operation}({a}, {b})")


def test_where_takes_each_side(backend_name):
    x = np.array([-1.0, 2.0, np.nan])
    formula = trace(lambda x: where(x > 0, x, 5.0))
    np.testing.assert_array_equal(execute(formula, x, name=backend_name)[0], [5.0, 2.0, 5.0])


def test_where_by_a_number(backend_name):
    """A condition that is no comparison holds where it is not zero, as in NumPy."""
    x = np.array([-1.0, 0.0, 3.0])
    assert list(where(x, 1.0, 2.0)) == [1.0, 2.0, 1.0]
    np.testing.assert_array_equal(execute(trace(lambda x: where(x, 1.0, 2.0)), x, name=backend_name)[0], [1.0, 2.0, 1.0])


def test_every_operation_has_a_ufunc():
    assert set(UNARY) | set(BINARY) | {"not"} == {name for name in OPERATIONS if ufunc(name) is not None}
    assert TERNARY == ("where",)


# Random formulas, random aliasing


@st.composite
def formulas(draw):
    """A random formula of one to three inputs with one or two outputs, of operations that keep numbers tame."""
    inputs = draw(st.integers(1, 3))
    nodes: list[Expr] = [Expr("input", value=k) for k in range(inputs)]
    numbers, conditions = list(nodes), []
    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["unary", "binary", "binary", "compare", "where", "const"]))
        pick = st.sampled_from(numbers)
        if kind == "unary":
            numbers.append(Expr(draw(st.sampled_from(["neg", "abs", "sign", "sin", "tanh", "erf", "floor"])), (draw(pick),)))
        elif kind == "binary":
            numbers.append(Expr(draw(st.sampled_from(["add", "sub", "mul", "min", "max"])), (draw(pick), draw(pick))))
        elif kind == "compare":
            conditions.append(Expr(draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"])), (draw(pick), draw(pick))))
        elif kind == "where" and conditions:
            numbers.append(Expr("where", (draw(st.sampled_from(conditions)), draw(pick), draw(pick))))
        else:
            numbers.append(Expr("const", value=draw(st.sampled_from([0.0, 1.0, -2.0, 0.5]))))
    outputs = draw(st.lists(st.sampled_from(numbers + conditions), min_size=1, max_size=2))
    return expr.trace_nodes(tuple(outputs), tuple(f"x{k}" for k in range(inputs)))


@settings(max_examples=150)
@given(formulas(), st.lists(st.sampled_from([(3, 4), (4,), (1,), (3, 1), (1, 4)]), min_size=3, max_size=3), st.integers(0, 99))
def test_a_formula_over_broadcast_operands(formula, shapes, seed):
    rng = np.random.default_rng(seed)
    operands = [np.ones((3, 4)) * 0, *(rng.normal(size=shape) for shape in shapes[1:])][: len(formula.inputs)]
    operands[0] = rng.normal(size=(3, 4))
    wanted = [np.broadcast_to(value, (3, 4)) for value in evaluate(formula, *operands)]
    for actual, value in zip(execute(formula, *operands), wanted, strict=True):
        np.testing.assert_allclose(actual, value, rtol=1e-12, atol=1e-12)


@settings(max_examples=250)
@given(formulas(), st.data())
def test_a_formula_whose_results_overwrite_its_operands(formula, data):
    """Results may lie on operands, exactly or shifted: each operand is read as it was before."""
    ops = Recorder("test", np.float64)
    memory = ops.external("memory", (12,), role="state")
    offsets = data.draw(st.lists(st.integers(0, 4), min_size=len(formula.inputs), max_size=len(formula.inputs)))
    targets = data.draw(st.sampled_from([(0, 4), (4, 0), (0, 8), (8, 1)]))[: len(formula.outputs)]  # two outs lie apart
    outs = tuple(memory.slice(0, start, start + 4) for start in targets)
    ops.map(outs, lambda *symbols: replay(formula, symbols), *(memory.slice(0, k, k + 4) for k in offsets))
    start = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=12)
    wanted = start.copy()
    for target, value in zip(targets, evaluate(formula, *(start[k : k + 4] for k in offsets)), strict=True):
        wanted[target : target + 4] = value
    results = {"memory": start} | run_program(ops.finish(), "numpy", 1, {"memory": start})  # empty where it copies onto itself
    np.testing.assert_allclose(results["memory"], wanted, rtol=1e-12, atol=1e-12)


def test_two_operands_can_be_swapped(backend_name):
    ops = Recorder("swap", np.float64)
    a, b = (ops.external(name, (3,), role="state") for name in "ab")
    ops.map((a, b), lambda a, b: (b, a), a, b)
    results = run_program(ops.finish(), backend_name, 1, {"a": np.arange(3.0), "b": np.ones(3)})
    np.testing.assert_array_equal(results["a"], np.ones(3))
    np.testing.assert_array_equal(results["b"], np.arange(3.0))


@settings(max_examples=150)
@given(formulas(), st.integers(0, 99))
def test_a_formula_in_part(formula, seed):
    """`only` keeps the values of the outputs it keeps."""
    operands = list(np.random.default_rng(seed).normal(size=(len(formula.inputs), 5)))
    for k in range(len(formula.outputs)):
        part, inputs = formula.only([k])
        kept = [operands[j] for j in inputs]
        np.testing.assert_array_equal(evaluate(part, *kept)[0], evaluate(formula, *operands)[k])


@settings(max_examples=100)
@given(formulas(), st.integers(0, 99))
def test_simplification_keeps_values(formula, seed):
    """What the operators of `Expr` make of a formula has its values."""
    operands = np.random.default_rng(seed).normal(size=(len(formula.inputs), 5))
    methods = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "neg": lambda a: -a}

    def again(*symbols):
        nodes = list(symbols)
        for i in formula.instructions:
            taken = [nodes[k] for k in i.operands]
            build = methods.get(i.operation)
            if build is None and i.operation == "where":
                build = where
            nodes.append(build(*taken) if build else Expr(i.operation, tuple(taken), i.value))
        return tuple(nodes[k] for k in formula.outputs)

    simple = trace(again, len(formula.inputs))
    for actual, wanted in zip(evaluate(simple, *operands), evaluate(formula, *operands), strict=True):
        np.testing.assert_allclose(np.broadcast_to(actual, (5,)), np.broadcast_to(wanted, (5,)), rtol=1e-13, atol=1e-13)


# Tracing


def test_equal_parts_are_computed_once():
    formula = trace(lambda x: expr.exp(x) + expr.exp(x) * expr.exp(x))
    assert [i.operation for i in formula.instructions] == ["exp", "mul", "add"]


def test_equal_functions_give_equal_formulas():
    assert trace(lambda x: x * 2 + 1) == trace(lambda x: x * 2.0 + 1.0)
    assert trace(lambda x: x * 2 + 1) != trace(lambda x: x * 2 + 2)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x + 0, "x"), (lambda x: 0 + x, "x"), (lambda x: x - 0, "x"), (lambda x: x * 1, "x"),
        (lambda x: 1 * x, "x"), (lambda x: x / 1, "x"), (lambda x: 0 - (-x), "0 - (-x)"), (lambda x: x**1, "x"),
        (lambda x: x**2, "x * x"), (lambda x: x**0.5, "sqrt(x)"), (lambda x: x**-1, "1 / x"), (lambda x: x**3, "x ** 3"),
        (lambda x: x * where(x > 0, 1.0, 0.0), "where(x > 0, x, 0)"), (lambda x: abs(x) + 1, "abs(x) + 1"),
        (lambda x: 1 - x, "1 - x"), (lambda x: 2 / x, "2 / x"), (lambda x: 2**x, "2 ** x"),
        (lambda x: np.exp(x) + np.float64(2), "exp(x) + 2"), (lambda x: ~(x > 0), "not(x > 0)"),
        (lambda x: (x > 0) & (x < 1) | (x == 3), "((x > 0) & (x < 1)) | (x == 3)"),
        (lambda x: expr.minimum(x, 1) + expr.maximum(0, x), "min(x, 1) + max(0, x)"),
        (lambda x: (x, -x), "x, -x"), (np.tanh, "tanh(x)"), (abs, "abs(x)"),
    ],
)  # fmt: skip
def test_text_and_simplification(function, text):
    assert trace(function, 1).text(["x"]) == text


def test_a_double_minus_cancels():
    assert trace(lambda x: np.negative(-x)).text(["x"]) == "x"


def test_str_shows_arguments():
    assert str(trace(lambda a, b: a * b + 1)) == "(a, b) -> (a * b) + 1"


def test_arguments_of_a_function_that_does_not_say():
    assert trace(lambda *terms: sum(terms), 3).text() == "(x0 + x1) + x2"
    assert trace(lambda x, slope=0.5: slope * x, 1).text(["x"]) == "0.5 * x"


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: x if x > 0 else 0.0, "where"),
        (lambda x: math.exp(x), "chains.expr"),
        (lambda x: np.arctan(x), "arctan"),
        (lambda x: np.mean(x * x), "one element"),  # which NumPy would answer with the symbol itself
        (lambda x: (x * x).sum(), "one element"),
        (lambda x: x + "1", "'1'"),
        (lambda x: "text", "'text'"),
        (lambda x: None, "None"),
        (lambda x: np.array([x, -x]), "several results are a tuple"),
        (lambda x: np.add.reduce(x), "reduce|add"),
        (lambda x: x + np.ones(3), "array|ufunc|add|numbers"),
        (lambda x: where(True, x, 0.0), "True"),
    ],
)
def test_what_is_no_formula_is_refused(function, named):
    with pytest.raises(TypeError, match=named):
        trace(function, 1)


@pytest.mark.parametrize("name", [name for name in UNARY if hasattr(expr, name)])
def test_functions_take_numbers_and_arrays(name):
    x = np.array([0.2, 0.7])
    np.testing.assert_allclose(getattr(expr, name)(x), REFERENCE[name](x), rtol=1e-14)
    np.testing.assert_allclose(getattr(expr, name)(0.2), REFERENCE[name](0.2), rtol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_take_numbers_and_arrays(name):
    x = np.array([-0.4, 0.7])
    f = ACTIVATIONS[name]
    np.testing.assert_allclose(f(x), evaluate(trace(f.function, 1), x)[0], rtol=1e-14)
    np.testing.assert_allclose(f(-0.4), f(x)[0], rtol=1e-14)
    slope = (f(x + 1e-6) - f(x - 1e-6)) / 2e-6
    np.testing.assert_allclose(f.slope(x, f(x)), slope, rtol=1e-8)


GELU_WITHOUT_SCIPY = """
import math, sys
sys.modules["scipy"] = sys.modules["scipy.special"] = None
import numpy as np
from chains import Activation, Chain, gelu
for dtype in (np.float32, np.float64):
    y = Chain(Activation(gelu), input_shape=(2,))(np.array([[0.5, -1.0]]), np.empty(0, dtype))
    assert y.dtype == dtype and abs(y[0, 0] - 0.25 * (1 + math.erf(0.5 / math.sqrt(2)))) < 1e-6, y
assert abs(gelu(0.5) - y[0, 0]) < 1e-12
"""


def test_the_error_function_needs_no_scipy():
    done = subprocess.run([sys.executable, "-c", GELU_WITHOUT_SCIPY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["sin", "tanh", "erf", "expm1", "log1p", "sqrt", "floor"])
def test_zero_keeps_its_sign(name, dtype, backend_name):
    x = np.array([-0.0, 0.0] * 20, dtype)
    y = execute(trace(getattr(expr, name), 1), x, name=backend_name, dtype=dtype)[0]
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


BOOLEAN_SUMS = {
    "sum": (lambda a, b: (a > 0) + (b > 0), lambda a, b: 1.0 * (a > 0) + (b > 0)),
    "difference": (lambda a, b: (a > 0) - (b > 0), lambda a, b: 1.0 * (a > 0) - 1.0 * (b > 0)),
    "product": (lambda a, b: (a > 0) * (b > 0), lambda a, b: 1.0 * (a > 0) * (b > 0)),
    "three": (lambda a, b: (a > 0) + (b > 0) + (a > b), lambda a, b: 1.0 * (a > 0) + (b > 0) + (a > b)),
    "count": (lambda a, b: 3 * ((a > 0) + (b > 0)), lambda a, b: 3.0 * (1.0 * (a > 0) + (b > 0))),
    "negative": (lambda a, b: -(a > 0) + b, lambda a, b: -1.0 * (a > 0) + b),
    "not": (lambda a, b: ~(a > 0) + (b > 0), lambda a, b: 1.0 * ~(a > 0) + (b > 0)),
    "alone": (lambda a, b: a > b, lambda a, b: 1.0 * (a > b)),
    "larger": (lambda a, b: expr.maximum(a > 0, b > 0), lambda a, b: np.maximum(1.0 * (a > 0), b > 0)),
    "compared": (lambda a, b: ((a > 0) + (b > 0)) > 1, lambda a, b: 1.0 * ((a > 0) & (b > 0))),
    "root": (lambda a, b: expr.sqrt((a > 0) + (b > 0)), lambda a, b: np.sqrt(1.0 * (a > 0) + (b > 0))),
}


@pytest.mark.parametrize("name", BOOLEAN_SUMS)
def test_comparisons_count_as_one_and_zero(name, dtype, backend_name):
    function, wanted = BOOLEAN_SUMS[name]
    a, b = np.meshgrid(np.array([-1.5, 0.0, 0.5, 2.0], dtype), np.array([-2.0, 0.0, 0.5, 3.0], dtype))
    a, b = a.reshape(-1), b.reshape(-1)
    actual = execute(trace(function, 2), a, b, name=backend_name, dtype=dtype)[0]
    np.testing.assert_allclose(actual, wanted(a, b).astype(dtype), rtol=2e-7 if dtype == np.float32 else 1e-15)


def test_numbers_for_inputs():
    formula = trace(lambda a, b, c: (a - b * c, c, b / (a + 2.0)))
    known = formula.given({1: 3.0, 2: 0.5})
    assert known.inputs == formula.inputs[:1]
    assert known.text(["a"]) == "a - (3 * 0.5), 0.5, 3 / (a + 2)"
    assert formula.given({}) == formula
