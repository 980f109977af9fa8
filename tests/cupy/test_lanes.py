"""Maps of several elements a thread: which arrays are read and written as vectors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chains.backends import backend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.source.commands import Launch
from chains.program.recorder import Recorder
from chains.program.view import View
from tests.cupy import nvrtc
from tests.cupy.support import EMULATED, needs_compiler, needs_nvrtc
from tests.harness import run_program


def vectors(compiled: Compiled) -> list[tuple[set[str], set[str]]]:
    """For each kernel, the types of what it reads at once, and of what it writes at once."""
    texts = [step.kernel.text for step in compiled.commands if isinstance(step, Launch)]
    return [(set(re.findall(r"\*\(const (\w+)\*\)", text)), set(re.findall(r" \*\((\w+)\*\)", text))) for text in texts]


def steps(dtype, offsets, columns, rows=None, batched=True):
    """y = a * b + c, in parts of flat vectors that begin at `offsets`; c is the same for all samples."""
    ops = Recorder("map", dtype)
    shape = (columns,) if rows is None else (rows, columns)
    size = int(np.prod(shape))
    places = []
    for name, role, at in zip(("a", "y"), ("input", "output"), offsets, strict=False):
        whole = ops.external(name, (size + 8,), role=role)
        strides = (columns, 1)[2 - len(shape) :]
        places.append(View(whole.buffer, shape, strides, at))
    a, y = places
    b = ops.external("b", shape, role="input")
    c = ops.external("c", (columns + 8,), role="input")
    c = View(c.buffer, (columns,), (1,), offsets[2])
    ops.map(y, lambda a, b, c: a * b + c, a, b, c)
    return ops.finish()


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "offsets", "shape", "read", "written"),
    [
        (np.float32, (0, 0, 0), (6, 12), {"float_4"}, {"float_4"}),
        (np.float32, (4, 8, 3), (6, 12), {"float_4"}, {"float_4"}),  # c begins elsewhere: it is read one by one
        (np.float32, (1, 4, 0), (6, 12), {"float_4"}, {"float_4"}),
        (np.float32, (0, 2, 0), (6, 12), {"float_2"}, {"float_2"}),
        (np.float32, (0, 1, 0), (6, 12), set(), set()),  # the result begins elsewhere
        (np.float32, (0, 0, 0), (6, 10), {"float_2"}, {"float_2"}),
        (np.float32, (0, 0, 0), (6, 7), set(), set()),
        (np.float32, (0, 0, 0), (None, 1031), {"float_4"}, {"float_4"}),  # and a rest of three
        (np.float32, (0, 0, 0), (None, 3), {"float_4"}, {"float_4"}),  # a rest alone
        (np.float64, (0, 0, 0), (6, 12), {"double_2"}, {"double_2"}),
        (np.float64, (2, 4, 1), (None, 1031), {"double_2"}, {"double_2"}),
    ],
)  # fmt: skip
def test_maps_read_what_lies_together_at_once(dtype, offsets, shape, read, written):
    program = steps(dtype, offsets, shape[1], shape[0])
    assert vectors(Compiled(program)) == [(read, written)]
    assert vectors(Compiled(program, aligned=False)) == [(set(), set())]
    rng = np.random.default_rng(0)
    size = shape[1] * (shape[0] or 1)
    lengths = {"a": (size + 8,), "b": (shape[0], shape[1]) if shape[0] else (size,), "c": (shape[1] + 8,)}
    arrays = {name: rng.normal(size=length).astype(dtype) for name, length in lengths.items()}
    wanted, found, backwards = (run_program(program, name, 1, arrays)["y"] for name in ("numpy", *EMULATED))
    part = slice(offsets[1], offsets[1] + size)
    np.testing.assert_array_equal(found[part], wanted[part])
    np.testing.assert_array_equal(backwards[part], wanted[part])


@needs_compiler
def test_arrays_that_begin_elsewhere(device):
    """Kernels then read number by number, with the same bits; the next binding reads at once again."""
    program, wanted = steps(np.float32, (0, 0, 0), 12, 6), None
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=size).astype(np.float32) for name, size in (("a", 80), ("b", 72), ("c", 20))}
    for first in (0, 1, 2, 0):
        whole = device.empty((80 + first,), np.float32)
        arrays = {name: device.array(array) for name, array in given.items()} | {"y": whole[first:]}
        binding = backend("emulated").on_device.bind(program, 1, arrays)
        assert bool(vectors(binding.compiled)[0][0]) == (first == 0)
        binding()
        wanted = np.array(whole[first : first + 72]) if wanted is None else wanted
        np.testing.assert_array_equal(np.array(whole[first : first + 72]), wanted)


@needs_compiler
def test_steps_of_a_loop_begin_at_vectors_or_are_read_one_by_one():
    """A row of three numbers a step: only every fourth row begins at a multiple of 16 bytes."""
    for columns, wide in ((3, False), (8, True)):
        ops = Recorder("loop", np.float32)
        x = ops.external("x", (5, columns), role="input")
        y = ops.external("y", (5, columns), role="output")
        with ops.loop(5) as at:
            ops.map(at.now(y, 0), lambda a: 1.5 * a, at.now(x, 0))
        program = ops.finish()
        array = np.random.default_rng(0).normal(size=(5, columns)).astype(np.float32)
        wanted, found = (run_program(program, name, 1, {"x": array})["y"] for name in ("numpy", "emulated"))
        np.testing.assert_array_equal(found, wanted)
        assert wide == any("float_4" in kernel.text for kernel in Compiled(program).source.kernels.values())


@pytest.mark.few(1)
@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_registers_of_maps_of_several(architecture):
    """Few enough for all threads that a multiprocessor has: 65,536 registers for 2,048 threads are 32; 40 for 1,536."""
    from chains import Adam, Chain, CrossEntropyLoss, Dense, tanh

    net = Chain(Dense(784, 256, tanh), Dense(256, 12))
    compiled = Compiled(net.program(CrossEntropyLoss(), Adam(1e-3), target_shape=()))
    wide = [step.kernel for step in compiled.commands if isinstance(step, Launch) and "float_4" in step.kernel.text]
    assert len(wide) >= 4
    usages = nvrtc.compiled(compiled.text(2048), architecture)[1]
    assert max(usages[kernel.name].registers for kernel in wide) <= 40
    assert max(usages[kernel.name].spills for kernel in wide) == 0
