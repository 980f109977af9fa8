"""Loops for one sample: numbers stay in registers between the operations, with the same results."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from chains import GRU, LSTM, ODE, Chain, Dense, SquaredLoss, activation, expr, tanh
from chains.network import record
from chains.network.network import network_of

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native.kernels.outline import FALSE
from chains.backends.native.llvm.emit import I64, PTR, Function, Module, Type, integer
from chains.backends.native.llvm.jit import machine_code
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan import passes
from chains.backends.native.plan.one_sample import MOST_NUMBERS, write_loops_for_one_sample
from chains.backends.native.plan.passes import PASSES, plan_of
from tests.native.support import INSTRUCTIONS, assert_equal_results, floats, gradient_program, native, random_arrays, run_on

FLOAT = Type("float")


def equation(*sizes, method="rk4", steps=4, function=tanh):
    layers = [Dense(a, b, function) for a, b in itertools.pairwise(sizes[:-1])]
    return Chain(ODE(Chain(*layers, Dense(*sizes[-2:])), [0.0, 1.0], method, steps=steps), input_shape=(sizes[0],))


NETWORKS = {
    "rk4": equation(2, 5, 5, 5, 2),
    "wide": equation(3, 19, 3),
    "euler": equation(1, 3, 1, method="euler"),
    "branches": equation(
        2, 4, 2, function=activation("sine", expr.sin)
    ),  # a sine has a branch, behind which registers are not known
    "GRU": Chain(GRU(3, 6), input_shape=(5, 3)),
    "LSTM": Chain(LSTM(2, 5), Dense(5, 2), input_shape=(4, 2)),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("simd", INSTRUCTIONS)
@floats
@pytest.mark.parametrize("name", NETWORKS)
def test_one_sample_has_the_results_that_it_has_without_code_of_its_own(name, kind, simd, changed_compiler, monkeypatch):
    """To the bit; in gradients to rounding, since LLVM contracts a product only where nothing else uses it."""
    net, backend = NETWORKS[name], NativeBackend(threads=1, simd=simd)
    for program in (record.forward(network_of(net), np.dtype(kind), False), gradient_program(net, kind, SquaredLoss())):
        assert plan_of(program, processor(simd)).has_single_loops
        arrays = random_arrays(program, 1)
        found = run_on(backend, program, 1, arrays, runs=2)
        with monkeypatch.context() as patch:
            patch.setattr(passes, "PASSES", [each for each in PASSES if each is not write_loops_for_one_sample])
            changed_compiler()
            wanted = run_on(NativeBackend(threads=1, simd=simd), program, 1, arrays, runs=2)
        changed_compiler()
        if "g" in wanted:
            assert_equal_results(found, wanted, kind, factor=0.01)
        else:
            np.testing.assert_array_equal(found["y"], wanted["y"])


@pytest.mark.parametrize(
    ("net", "marked"),
    [
        (equation(2, MOST_NUMBERS, 2), True),
        (equation(2, MOST_NUMBERS + 1, 2), False),
        (equation(2, 5, 5, 5, 5, 5, 5, 2), False),  # more steps than code is written twice for
        (Chain(Dense(2, 5, tanh), Dense(5, 2)), False),
    ],
)
def test_loops_of_few_small_steps_have_code_for_one_sample(net, marked):
    plan = plan_of(record.forward(network_of(net), np.dtype("float32"), False), processor())
    loops = [step for segment in plan.segments for step in segment.tiled_steps if step.body]
    assert [step.single for step in loops] == [marked] * len(loops)
    assert plan.has_single_loops == marked


def test_the_code_of_a_step_loads_only_what_comes_from_outside():
    """Of the network in the loop: the state, and the weights."""
    text = native().listing(equation(2, 5, 2).program(dtype=np.float32))
    loops = text.split("icmp eq i64 %count, 1")
    assert len(loops) == 2
    assert "shufflevector" in loops[1]


# The words of the emitter


def run(write, memory, *, splits=False):
    """Run what `write` writes for the addresses of two regions of float32, behind each other, and a number that is 1."""
    module = Module(splits_masks=splits)
    f = Function(module, "f", [(PTR, "memory"), (I64, "one")])
    first, one = f.arguments
    second = f.address(first, integer(64), FLOAT)
    for region in (first, second):
        f.region(region)
    f.forwarded(lambda: write(f, first, second, one))
    module.add(f)
    text = module.text()
    code = machine_code(text, ["f"], processor())
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long)(code.address("f"))(memory.ctypes.data, 1)
    return text


def numbers():
    return np.arange(1, 129).astype(np.float32)


def vector(f, pointer, used=4):
    return f.load(Type("float", 4), pointer, f.lane_mask(4, used))


@pytest.mark.parametrize("splits", [False, True])
def test_a_load_finds_what_a_store_has_written(splits):
    def write(f, first, second, one):
        f.store(vector(f, first), second, f.lane_mask(4, 3))
        f.store(vector(f, second, 3), f.address(first, integer(8), FLOAT))  # a zero behind three numbers
        x = f.load(FLOAT, f.address(second, integer(1), FLOAT))
        f.store(f.splat(x, 4), f.address(first, integer(16), FLOAT))
        f.store(x, f.address(first, integer(20), FLOAT))
        f.store(vector(f, f.address(first, integer(20), FLOAT), 1), f.address(first, integer(24), FLOAT))
        f.store(f.splat(x, 4), f.address(first, integer(32), FLOAT), f.first_lanes(4, integer(7)))

    memory = numbers()
    text = run(write, memory, splits=splits)
    assert text.count(" = load ") == 1
    assert "call <4 x float> @llvm.masked.load" not in text
    assert [*memory[8:12]] == [1.0, 2.0, 3.0, 0.0]
    assert [*memory[16:21]] == [2.0] * 5
    assert [*memory[24:28]] == [2.0, 0.0, 0.0, 0.0]
    assert [*memory[32:37]] == [2.0, 2.0, 2.0, 2.0, 37.0]


@pytest.mark.parametrize(
    "between",
    [
        lambda f, second, one: f.store(vector(f, second), f.address(second, one, FLOAT)),  # perhaps the same place
        lambda f, second, one: f.store(vector(f, second), second, f.first_lanes(4, one)),  # perhaps fewer lanes
        lambda f, second, one: f.each(one, lambda i: f.store(vector(f, second), f.address(second, one, FLOAT))),
        lambda f, second, one: f.when(f.compare("eq", one, integer(1)), lambda: None),  # another block
        lambda f, second, one: f.store(f.load(FLOAT, second), f.address(second, integer(1), FLOAT)),  # of two vectors
        lambda f, second, one: f.call("llvm.memmove.p0.p0.i64", None, second, f.address(second, one, FLOAT), integer(4), FALSE),
    ],
)  # fmt: skip
def test_a_load_reads_memory_where_registers_may_not_have_it(between):
    def written(forwards):
        def write(f, first, second, one):
            def body():
                f.store(vector(f, first), second)
                between(f, second, one)
                f.store(vector(f, second), f.address(first, integer(8), FLOAT))

            if forwards:
                body()
            else:
                written, f._written = f._written, None
                body()
                f._written = written

        return write

    found, wanted = numbers(), numbers()
    run(written(True), found)
    run(written(False), wanted)
    np.testing.assert_array_equal(found, wanted)


def test_a_product_that_was_stored_is_rounded_before_it_is_added():
    """As it would be in memory: a multiply-add rounds once."""

    def write(f, first, second, one):
        x = vector(f, first)
        f.store(f.binary("fmul", x, x), second)
        f.store(f.binary("fadd", vector(f, second), f.assign(x.type, f"fneg {f.splat(number_of(f, first), 4)}")), second)

    def number_of(f, first):
        return f.load(FLOAT, f.address(first, integer(4), FLOAT))

    memory = np.full(128, np.float32(1.0) + np.float32(2.0**-12))
    memory[4] = memory[0] * memory[0]
    run(write, memory)
    assert not memory[64:68].any()


def test_loops_of_one_step_and_known_branches_leave_no_blocks():
    def write(f, first, second, one):
        f.store(vector(f, first), second)
        f.each(integer(1), lambda i: f.store(vector(f, f.address(second, i, FLOAT)), first))
        f.when(f.compare("sgt", f.binary("sub", integer(3), integer(3)), integer(0)), lambda: f.store(vector(f, first), second))

    text = run(write, numbers())
    assert "br " not in text
    assert text.count(" = load ") == 1
