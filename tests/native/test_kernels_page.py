"""The page about a first kernel (`docs/design/kernels.md`): its code, added as it says, equals NumPy in both layouts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from chains.program.operations import Window
from chains.testing import run_program

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import operations
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan.passes import plan_of
from tests.native.support import Maps, floats

PAGE = Path(__file__).parents[2] / "docs/design/kernels.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not here")
SHAPES = [(1,), (5,), (33,), (3, 4)]


@pytest.fixture
def cumulative(monkeypatch) -> type:
    """The operation of the page, with its kernel and its record."""
    the_class, kernel, record = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    module = ModuleType("cumulative")
    exec(the_class, module.__dict__)
    exec(kernel, module.__dict__)
    monkeypatch.setitem(sys.modules, f"{operations.KERNELS}.cumulative", module)
    monkeypatch.setattr(operations, "RECORDS", dict(operations.RECORDS))
    exec(record, {**vars(operations), "CumulativeSum": module.CumulativeSum})
    return module.CumulativeSum


@floats
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_samples_in_rows(cumulative, kind, shape):
    m = Maps(kind)
    x, y, z = m.input("x", *shape), m.output("y", *shape), m.output("z", *shape)
    m.ops.record(cumulative((y,), (x,)))
    m.ops.map(z, lambda x, y: x * y, x, y)
    program = m.program()
    for batch in (1, 37):
        x = np.random.default_rng(batch).normal(size=(batch, *shape)).astype(kind)
        found = run_program(program, "native", batch, {"x": x})
        np.testing.assert_allclose(found["y"], np.cumsum(x, -1), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found["z"], x * found["y"])


def test_operands_with_gaps(cumulative):
    m = Maps("float64")
    x, y = m.input("x", 6, 4), m.output("y", 6, 4)
    m.ops.record(cumulative((y.swap(1, 2).slice(1, 0, 3),), (x.swap(1, 2).slice(1, 1, 4),)))
    m.ops.fill(y.slice(2, 3, 4), 0.0)
    x = np.random.default_rng(0).normal(size=(9, 6, 4))
    found = run_program(m.program(), "native", 9, {"x": x})["y"]
    np.testing.assert_allclose(found[:, :, :3], np.cumsum(x[:, :, 1:], 1), rtol=1e-12)


@floats
def test_samples_in_lanes(cumulative, kind):
    """Between two convolutions no layout is changed."""
    m, window = Maps(kind), Window((2, 2))
    x, w = m.input("x", 2, 5, 6), m.input("w", 2, 2, 2, 2, batched=False)
    h, y = m.ops.scratch("h", (2, 4, 5)), m.output("y", 2, 3, 4)
    m.ops.convolve(h, x, w, window)
    m.ops.record(cumulative((h2 := m.ops.scratch("sums", (2, 4, 5)),), (h,)))
    m.ops.convolve(y, h2, w, window)
    program = m.program()
    names = [step.operation.name for step in plan_of(program, processor(None)).steps]
    assert names == ["relayout", "convolve", "cumulativesum", "convolve", "relayout"]
    rng = np.random.default_rng(1)
    arrays = {"x": rng.normal(size=(19, 2, 5, 6)).astype(kind), "w": rng.normal(size=(2, 2, 2, 2)).astype(kind)}

    def convolved(x: np.ndarray) -> np.ndarray:
        patches = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))
        return np.einsum("bchwij,ocij->bohw", patches, arrays["w"])

    wanted = convolved(np.cumsum(convolved(arrays["x"]), -1))
    np.testing.assert_allclose(run_program(program, "native", 19, arrays)["y"], wanted, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused(cumulative):
    m = Maps("float64")
    with pytest.raises(ValueError, match=r"cumulativesum: .* does not fit"):
        m.ops.record(cumulative((m.output("y", 3),), (m.input("x", 4),)))
