"""Steps that are alike are written once: as many of them as there are cost no more code, and the results are the same."""

from __future__ import annotations

import pytest

from chains import ODE, SGD, Adam, BatchNorm, Chain, Dense, LayerNorm, MSELoss, Residual, relu, tanh
from chains.backends.numpy.backend import NumpyBackend

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan import outlining
from chains.backends.native.plan.passes import plan_of
from tests.native.support import (
    Fenced,
    Maps,
    assert_equal_results,
    every_instruction_set,
    floats,
    gradient_program,
    native,
    random_arrays,
    run_fenced,
    run_on,
)
from tests.native.team import assert_same_bits, fed, problem, program_of, states
from tests.native.test_shared_weights import Recurrence

pytestmark = pytest.mark.few(3)


def deep(layers, width=16, activation=tanh):
    return Chain(*(Dense(width, width, activation) for _ in range(layers)))


def length(program):
    return compile_program(program, processor()).text.count("\n")


def alike(program):
    """How many steps are written as calls of a function for their like."""
    return sum(step.likeness is not None for segment in plan_of(program, processor()).segments for step in segment.steps)


@pytest.fixture
def outlined(changed_compiler, monkeypatch):
    """Run a function with steps that are alike written once, whatever their number, and each where it is."""

    def both(function):
        results = []
        for often in (2, 1 << 30):
            monkeypatch.setattr(outlining, "MIN_ALIKE", often)
            changed_compiler()
            results.append(function())
        return results

    return both


@pytest.mark.parametrize(
    "make",
    [deep, lambda steps: Chain(Recurrence(8), input_shape=(steps, 3)), lambda n: Chain(*(Residual(Dense(9, 9)),) * n)],
    ids=["layers", "steps", "blocks"],
)
def test_more_of_the_same_is_little_more_code(make):
    """For each step some lines, which call a function."""
    few, many = (gradient_program(make(count), "float32") for count in (8, 40))
    assert length(many) - length(few) < 20 * (len(many.operations) - len(few.operations))
    assert length(many) < 2 * length(few)


def test_what_occurs_once_or_twice_is_written_where_it_is():
    assert not alike(gradient_program(Chain(Dense(16, 16, tanh), Dense(16, 16, tanh), Dense(16, 4)), "float32"))
    assert alike(gradient_program(deep(5), "float32"))


NETWORKS = {
    "layers": deep(6),
    "layers of many numbers": deep(4, 70, relu),
    "one column": Chain(*(Dense(40, 1, tanh), Dense(1, 40, tanh)) * 3),
    "few columns": Chain(*(Dense(40, 3, tanh), Dense(3, 40)) * 3),
    "normed": Chain(*(Dense(12, 12, tanh), LayerNorm(12)) * 3),
    "normed by the batch": Chain(*(Dense(12, 12, tanh), BatchNorm(12)) * 3),
    "recurrence": Chain(Recurrence(8), Dense(8, 2), input_shape=(6, 5)),
}


@pytest.mark.few(1)
@floats
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_bits_as_without_functions(name, kind, eager, outlined):
    program = gradient_program(NETWORKS[name], kind)
    for batch in (2, 49, 300):
        arrays = random_arrays(program, batch)
        for threads in (1, 2):

            def run(batch=batch, arrays=arrays, threads=threads):
                fences = Fenced()
                result = run_fenced(NativeBackend(threads=threads), program, batch, arrays, fences)
                fences.check(f"batch {batch}, {threads} threads")
                return result

            by_calls, in_place = outlined(run)
            assert_same_bits(by_calls, in_place, f"batch {batch}, {threads} threads")
        wanted = run_on(NumpyBackend(), program, batch, arrays)
        assert_equal_results(by_calls, wanted, kind, f"batch {batch}", factor=10.0)


@pytest.mark.few(1)
@every_instruction_set
def test_every_width_of_vectors(simd, eager):
    for net in (deep(6), NETWORKS["recurrence"]):
        program = gradient_program(net, "float32")
        arrays = random_arrays(program, 101)
        wanted = run_on(NumpyBackend(), program, 101, arrays)
        assert_equal_results(run_on(native(2, simd), program, 101, arrays), wanted, "float32", factor=10.0)


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", [5, 100])
def test_samples_found_by_pointers(batch, many, outlined):
    """Steps of a recurrence that read their part of large samples where these lie in the data set."""
    net = Chain(Recurrence(24), input_shape=(9, 60))
    program = program_of(net, SGD(0.01))
    sources, order = problem(net, batch, "float32", steps=7)
    arrays = states(program, batch)

    def run():
        runner = NativeBackend(threads=2)
        assert runner.compile(program).signature.indexed == "x"
        return fed(runner, program, batch, arrays, sources, order, together=True)

    by_calls, in_place = outlined(run)
    assert_same_bits(by_calls, in_place)
    assert_equal_results(by_calls, fed(NumpyBackend(), program, batch, arrays, sources, order), "float32", factor=100)


def test_products_whose_rows_are_divided_among_threads(many, outlined):
    net = deep(3, 112)
    program = program_of(net, Adam(0.01))
    sources, order = problem(net, 9, "float32", steps=9)
    arrays = states(program, 9)

    def run():
        runner = NativeBackend(threads=3)
        assert runner.compile(program, 9).signature.parts > 1
        return fed(runner, program, 9, arrays, sources, order, together=True)

    assert_same_bits(*outlined(run))


def test_what_is_not_alike():
    """Another number, even another zero; another formula; gaps; another distance between operands."""
    m = Maps("float32")
    x, y = (m.output(name, 64, role="state") for name in "xy")
    for k in range(3):
        part = slice_of(x, 4 * k, 3)
        m.ops.fill(slice_of(y, 4 * k, 3), 0.0)
        m.ops.fill(slice_of(y, 4 * k, 3), -0.0)
        m.ops.map(slice_of(y, 20 + 4 * k, 3), lambda x: x + 1.0, part)
        m.ops.map(slice_of(y, 30 + 4 * k, 3), lambda x: x - 1.0, part)
        m.ops.map(slice_of(y, 42 + 4 * k, 3), lambda x, y: x + y, part, slice_of(x, 40 + 2 * k, 3))
    steps = [step for segment in plan_of(m.program(), processor()).segments for step in segment.steps]
    kinds = [step.likeness and step.likeness.key for step in steps]
    assert len(kinds) == 15
    assert len({repr(kind) for kind in kinds if kind}) == 4
    assert kinds.count(None) == 3
    arrays = random_arrays(m.program(), 5)
    result, wanted = (run_on(runner, m.program(), 5, arrays) for runner in (native(), NumpyBackend()))
    assert_same_bits(result, wanted)


def slice_of(view, start, width):
    return view.slice(1, start, start + width)


def test_the_stages_of_a_step_in_a_loop_share_their_code(outlined):
    rate = Chain(Dense(2, 16, tanh), Dense(16, 16, tanh), Dense(16, 2))

    def growth():
        few, many = (length(Chain(ODE(rate, (0, 1), method, 5)).program(MSELoss())) for method in ("midpoint", "tsit5"))
        return many / few

    shared, apart = outlined(growth)
    assert apart > 2.5  # six stages for two
    assert shared < 1.7
