"""What the native backend says it cannot run is what compiling refuses, and nothing else is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chains import Adam, Chain, Conv, Dense, Flatten, SquaredLoss
from chains.backends import UnsupportedOperationError, backend
from chains.layers import Layer
from chains.network import record
from chains.network.network import network_of
from chains.program.recorder import Recorder
from tests.harness import CASES

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import compiled
from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm.target import processor
from chains.backends.native.support import unsupported
from tests.native.support import assert_equal_results, random_arrays, run_on

TYPES = [np.dtype(name) for name in ("float32", "float64", "int32", "int64", "uint8", "uint64")]


def refused(program):
    """The sentence with which compiling refuses a program; None where it does not."""
    try:
        compile_program(program, processor())
    except UnsupportedOperationError as error:
        return str(error)
    return None


@pytest.mark.few(60)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_programs_of_the_harness_are_supported(case):
    net = case.net()
    for program in (record.forward(network_of(net), np.float32, True), record.vjp(network_of(net), np.float64, False)):
        assert unsupported(program) is None
        assert refused(program) is None


def view(ops, name, shape, kind, *, role="input", batched=True):
    return ops.external(name, shape, role=role, batched=batched, dtype=kind)


INTEGERS = [kind for kind in TYPES if np.dtype(kind).kind in "iu"]


def products(kinds, turned):
    """A product of operands of these types, with samples in rows or in columns."""
    ops = Recorder("product", np.float32)
    with ops.label("3.Odd"):
        y, x = view(ops, "y", (4,), kinds[0], role="output"), view(ops, "x", (3,), kinds[1])
        w = view(ops, "w", (3, 4), kinds[2], batched=False)
        ops.matmul(*((y.T, w.T, x.T) if turned else (y, x, w)))
    return ops.finish()


def copies(kinds, scalars):
    ops = Recorder("copy", np.float32)
    shape, batched = ((), False) if scalars else ((3,), True)
    with ops.label("3.Odd"):
        ops.copy(
            view(ops, "y", shape, kinds[0], role="output", batched=batched), view(ops, "x", shape, kinds[1], batched=batched)
        )
    return ops.finish()


def lookups(kinds, batched):
    ops = Recorder("gather", np.float32)
    with ops.label("3.Odd"):
        table, index = view(ops, "table", (5, 4), kinds[0], batched=batched), view(ops, "index", (), kinds[1])
        ops.gather(view(ops, "y", (5, 4) if batched else (4,), kinds[2], role="output"), table, index)
    return ops.finish()


HOSTILE = {
    "product": [products(kinds, turned) for kinds in itertools.product(TYPES, repeat=3) for turned in (False, True)],
    "copy": [copies(kinds, scalars) for kinds in itertools.product(TYPES, repeat=2) for scalars in (False, True)],
    # Numbers of rows of other types are refused while they are recorded.
    "gather": [lookups(kinds, batched) for kinds in itertools.product(TYPES, INTEGERS, TYPES) for batched in (False, True)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_are_refused_alike_or_compiled(name):
    """Whatever is not refused beforehand has its assembly written, and LLVM takes it."""
    said = [(unsupported(program), refused(program)) for program in HOSTILE[name]]
    assert all(before == compiling for before, compiling in said)
    assert {before is None for before, _ in said} == {True, False}
    for reason in {before for before, _ in said if before}:
        assert reason.startswith(
            f"backend 'native' cannot run the operation `{'matmul' if name == 'product' else name}` of 3.Odd, `"
        )
    for program in (program for program, (reason, _) in zip(HOSTILE[name], said, strict=True) if reason is None):
        backend("native").compile(program)


def test_nothing_is_written_to_find_out(monkeypatch):
    monkeypatch.setattr(compiled, "_made", None)
    monkeypatch.setattr(compiled, "_from_disk", None)
    auto = backend("auto")
    programs = [program for of_a_kind in HOSTILE.values() for program in of_a_kind]
    chosen = {auto.choose(program).name for program in programs}
    assert chosen == {"native", "numpy"}


class Largest(Layer):
    """The largest of each feature over the batch taken off all samples."""

    def declare(self, d):
        d.output(d.input)
        d.shared("largest", d.input)

    def forward(self, ops, x, y, p, s):
        ops.max(s.largest, x)
        ops.map(y, lambda x, m: x - m, x, s.largest)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.copy(dx, dy)


@pytest.mark.parametrize("batch", [1, 5, 16, 37, 200])
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("layers", ["image", "dense"])
def test_a_maximum_over_the_batch(layers, kind, batch):
    """In lanes, where there are images, as in rows."""
    nets = {"image": Chain(Conv(2, 3, 2), Largest(), input_shape=(2, 5, 4)), "dense": Chain(Dense(4, 3), Largest())}
    program = nets[layers].program(dtype=kind, mode="eval")
    assert unsupported(program) is None
    arrays = random_arrays(program, batch)
    actual, wanted = (run_on(runner, program, batch, arrays) for runner in (backend("native"), backend("numpy")))
    assert_equal_results(actual, wanted, kind)


@pytest.mark.parametrize("stride", [1, 2])
def test_large_products_with_weights_that_have_gaps(stride):
    """These go the way of small products where neither rows nor columns are without gaps."""
    ops = Recorder("large", np.float32)
    w = ops.external("w", (400, 400, stride), role="input")
    x, y = ops.external("x", (400,), role="input", batched=True), ops.external("y", (400,), role="output", batched=True)
    ops.matmul(y, x, w.slice(2, 0, 1).reshape(400, 400) if stride == 1 else w.index(2, 0))
    program = ops.finish()
    assert unsupported(program) is None
    arrays = random_arrays(program, 60)
    actual, wanted = (run_on(runner, program, 60, arrays) for runner in (backend("native"), backend("numpy")))
    assert_equal_results(actual, wanted, "float32")


def test_a_step_with_images_is_supported():
    net = Chain(Conv(1, 2, 3), Flatten(), Dense(8, 2), input_shape=(1, 4, 4))
    assert unsupported(net.program(SquaredLoss(), Adam())) is None
