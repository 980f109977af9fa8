"""Straight code: one sample of a small network, in code without loops."""

from __future__ import annotations

import numpy as np
import pytest

from chains import (
    GRU,
    LSTM,
    RNN,
    Adam,
    Chain,
    Dense,
    LayerNorm,
    Residual,
    Softmax,
    SquaredLoss,
    relu,
    sigmoid,
    softplus,
    tanh,
)  # fmt: skip
from chains.backends.numpy.backend import NumpyBackend
from chains.network import record
from chains.network.network import network_of
from chains.network.stepping import Stepping

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.llvm import emit
from chains.backends.native.llvm.emit import FALSE, I64, PTR, TRUE, Module, Type, Value, integer, number
from chains.backends.native.llvm.straight import Straight
from chains.backends.native.llvm.target import processor
from chains.backends.native.support import is_straight
from tests.native import test_vectormath
from tests.native.support import (
    Fenced,
    assert_equal_results,
    every_instruction_set,
    floats,
    native,
    random_arrays,
    run_fenced,
    run_on,
)

needs_x86 = pytest.mark.skipif(not processor().is_x86, reason="straight code is for x86")
FLOAT, FOUR = Type("float"), Type("float", 4)
NETWORKS = {  # lengths around those of vectors, columns that fold and columns that do not
    "whole vectors": Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)),
    "two columns": Chain(Dense(3, 48, tanh), Dense(48, 2, relu)),
    "eight columns": Chain(Dense(16, 32, sigmoid), Dense(32, 8, tanh), Dense(8, 1)),
    "parts of vectors": Chain(Dense(2, 5, tanh), Dense(5, 21, softplus), Dense(21, 37, tanh), Dense(37, 3)),
    "wide": Chain(Dense(5, 150, tanh, bias=False), Dense(150, 9)),
    "norms": Chain(Dense(5, 20), LayerNorm(20), Dense(20, 21, tanh), LayerNorm(21), Dense(21, 7), Softmax()),
    "many layers": Chain(Dense(2, 5, tanh), *(Dense(5, 5, tanh) for _ in range(13)), Dense(5, 3)),
    "residual": Chain(Dense(3, 7), Residual(Dense(7, 12, "gelu"), Dense(12, 7)), Dense(7, 33, "sin")),
}
STREAMS = {
    "GRU": Chain(GRU(4, 32), Dense(32, 1), input_shape=(9, 4)),
    "GRU before": Chain(GRU(3, 11, reset_after=False), Dense(11, 4), input_shape=(9, 3)),
    "LSTM": Chain(LSTM(2, 5, return_sequences=True), RNN(5, 13), Dense(13, 2), input_shape=(9, 2)),
}
PROGRAMS = {
    **{name: lambda kind, net=net: record.forward(network_of(net), np.dtype(kind), False) for name, net in NETWORKS.items()},
    **{name: lambda kind, net=net: Stepping(network_of(net)).record(np.dtype(kind)) for name, net in STREAMS.items()},
}


@needs_x86
@pytest.mark.few(12)
@every_instruction_set
@floats
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_sample_equals_numpy(name, kind, simd):
    program, fenced = PROGRAMS[name](kind), Fenced()
    assert is_straight(program)
    arrays = random_arrays(program, 1)
    wanted = run_on(NumpyBackend(), program, 1, arrays)
    assert_equal_results(run_fenced(native(1, simd), program, 1, arrays, fenced), wanted, kind, name)
    fenced.check(name)


def test_what_has_straight_code():
    large = Chain(Dense(100, 100, tanh), Dense(100, 3))
    assert not is_straight(record.forward(network_of(large), np.dtype("float32"), False))
    net = NETWORKS["whole vectors"]
    assert not is_straight(net.program(SquaredLoss(), Adam(0.1)))
    assert not is_straight(record.vjp(network_of(net), np.dtype("float32"), False))
    sequence = record.forward(network_of(STREAMS["GRU"]), np.dtype("float32"), False)
    assert not is_straight(sequence)


@needs_x86
def test_only_one_sample_has_it():
    program, backend = PROGRAMS["whole vectors"]("float32"), native(1)
    assert backend.compile(program, 1) is backend.compile(program, 1)
    assert backend.compile(program, 2) is backend.compile(program, 300) is not backend.compile(program, 1)
    one, several = (backend.listing(program, batch=batch) for batch in (1, 2))
    assert " phi " not in one[: one.index("@work_0(")]
    assert " phi " in several[: several.index("@work_0(")]


@pytest.mark.few(6)
@every_instruction_set
@floats
def test_functions_by_pairs_of_terms_are_within_their_errors(kind, simd, changed_compiler, monkeypatch):
    monkeypatch.setattr(emit.Function, "waits", True)
    test_vectormath.computed.cache_clear()
    for name in test_vectormath.FUNCTIONS:
        test_vectormath.test_errors_are_within_the_bounds(name, kind, simd)
    test_vectormath.computed.cache_clear()


# The words of the emitter


@pytest.fixture
def f():
    return Straight(Module(), "f", [(PTR, "a"), (PTR, "b")])


def test_a_stored_vector_is_not_loaded_again(f):
    a, _ = f.arguments
    own, value, other = f.local(20, FLOAT), number(FOUR, 1.5), number(FOUR, 2.5)
    third = f.address(own, integer(3), FLOAT)
    f.store(value, own)
    assert f.load(FOUR, own) == value
    f.store(other, f.address(own, integer(4), FLOAT))  # next to it
    f.store(other, a)  # no pointer of the caller reaches it
    assert f.load(FOUR, own) == value
    assert f.load(FOUR, third) != value
    f.store(other, third)
    assert f.load(FOUR, own) != value
    assert f.load(FLOAT, third) != other


def test_arrays_of_the_caller_may_overlap(f):
    a, b = f.arguments
    value = number(FOUR, 1.5)
    f.store(value, a)
    assert f.load(FOUR, a) == value
    f.store(value, b)
    assert f.load(FOUR, a) != value


def test_lanes_outside_a_mask_are_zeros(f):
    value, mask = number(FOUR, 1.5), f.lane_mask(4, 3)
    own = f.local(3, FLOAT)
    f.store(value, own, mask)
    loaded = f.load(FOUR, own, mask)
    f.store(f.load(FOUR, own), f.arguments[0])
    assert loaded not in (value, f.load(FOUR, own))
    assert f"{loaded.text} = select" in f.text()
    assert f"store {value}, {own}" in f.text()  # without the mask: own memory has room for the whole vector


def test_own_memory_that_is_not_read_is_left_out(f):
    read, unread = f.local(4, FLOAT), f.local(9, FLOAT)
    f.store(number(FOUR, 1.5), f.address(unread, integer(5), FLOAT))
    f.store(number(FOUR, 1.5), f.address(unread, integer(1), FLOAT), f.lane_mask(4, 2))
    f.store(number(FOUR, 2.5), read)
    f.store(f.load(FLOAT, f.address(read, integer(2), FLOAT)), f.arguments[0])
    assert unread.text not in f.text()
    assert f.text().count("store") == 2


def test_loops_and_branches_are_written_out(f):
    seen = []

    def body(i, carried):
        seen.append(i.text)
        return [f.add(carried[0], i)]

    i, (last,) = f.loop(integer(1), integer(8), 3, body, [integer(0)])
    assert (i.text, last.text, seen) == ("10", "12", ["1", "4", "7"])
    f.when(f.compare("sgt", integer(2), integer(1)), lambda: seen.append("yes"), lambda: seen.append("no"))
    f.when(FALSE, lambda: seen.append("no"))
    assert seen[-1] == "yes"
    assert f.select(TRUE, i, last) is i
    assert f.binary("and", integer(21), integer(-4)).text == "20"
    assert "label" not in f.text()


def test_a_number_that_is_not_known_is_refused(f):
    unknown = Value("%n", I64)
    with pytest.raises(AssertionError, match="i64 %n is not known in straight code"):
        f.loop(integer(0), unknown, 1, lambda i, _: None)
