"""The conformance test: the backends of the package pass, and planted faults are found."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from time import sleep
from types import MappingProxyType

import numpy as np
import pytest

from chains.backends import ArrayBackend, NumpyBackend, UnsupportedOperationError
from chains.backends.numpy.lowerings import LOWERINGS
from chains.program import operations as ops
from chains.program.loop import Loop
from chains.testing import Conformance, check_backend
from chains.testing.conformance import _checks

CHECKS = tuple(_checks())
BACKENDS = {
    "numpy": lambda: "numpy",
    "native": lambda: pytest.importorskip("llvmlite") and "native",
    "torch": lambda: pytest.importorskip("torch") and ArrayBackend("torch"),
    "strict": lambda: pytest.importorskip("array_api_strict") and ArrayBackend("array_api_strict"),
    "emulated": lambda: "emulated",
    "one-kernel": lambda: "one-kernel",
}
LONG = [("emulated", "sizes"), ("one-kernel", "sizes")]  # half a minute each, thread by thread


@pytest.mark.few(20, always=lambda name, only: name == "numpy")
@pytest.mark.parametrize(("name", "only"), [case for case in product(BACKENDS, CHECKS) if case not in LONG])
def test_the_backends_of_the_package_pass(name, only):
    table = check_backend(BACKENDS[name](), only=only)
    assert isinstance(table, Conformance)
    assert not table.faults
    (row,) = table.rows
    assert row.passed + len(row.refused) >= 2
    assert 0.0 <= row.worst <= 1.0
    if name not in ("native", "emulated", "one-kernel"):
        assert not table.refused


def test_the_table_names_the_checks_and_what_is_refused():
    class Partial(NumpyBackend):
        name = "partial"
        functions = {ops.Random: lambda memory, operation: _lacking(operation)}  # noqa: RUF012

    table = check_backend(Partial(), only="operations: r*")
    assert str(table).startswith("backend 'partial'\ncheck ")
    assert "operations: random" in str(table)
    assert "refused: backend 'partial' cannot run the operation `random`" in str(table)
    assert table.rows[0].passed == 0


def _lacking(operation):
    raise UnsupportedOperationError(f"backend 'partial' cannot run the operation `{operation.name}`")


@pytest.mark.parametrize("thing", [3, None, NumpyBackend, np])
def test_what_is_no_backend_is_refused(thing):
    with pytest.raises(TypeError, match="`backend`"):
        check_backend(thing)


def test_a_pattern_of_no_check_is_refused():
    with pytest.raises(ValueError, match=r"`only` \(='nothing'\)"):
        check_backend("numpy", only="nothing")


# Planted faults: NumPy with one thing wrong, and the check that must find it.


def changed(kind, change):
    """A backend whose operations of this class do something else, too."""

    class Changed(NumpyBackend):
        name = "changed"
        functions = {kind: lambda memory, operation: change(memory, operation, LOWERINGS[kind](memory, operation))}  # noqa: RUF012

    return Changed()


def transposed_operands_are_taken_as_they_lie(memory, operation, calls):
    out, a, b = (memory.array(view) for view in operation.views)
    if not b.flags.f_contiguous or min(b.shape) < 2 or operation.accumulate:
        return calls
    return [lambda: np.copyto(out, a @ b.ravel("K").reshape(b.shape))]


def sums_are_not_added(memory, operation, calls):
    out, a, b = (memory.array(view) for view in operation.views)
    return [lambda: np.copyto(out, a @ b)]


def gaps_are_overwritten(memory, operation, calls):
    out = memory.array(operation.outs[0])
    base = memory.arrays.get(operation.outs[0].buffer.name)
    return calls if base is None or base.size == out.size else [*calls, lambda: base.reshape(-1)[-1:].fill(0.0)]


def scratch_is_read_before_it_is_filled(memory, operation, calls):
    out = memory.array(operation.outs[0])
    if operation.outs[0].buffer.role != "scratch":
        return calls
    return [lambda: np.multiply(out, 0.0, out), *calls[:-1], lambda: (old := out.copy(), calls[-1](), np.add(out, old, out))]


def nan_is_lost_in_a_maximum(memory, operation, calls):
    out = memory.array(operation.outs[0])
    return [*calls, lambda: np.nan_to_num(out, copy=False, nan=0.0)]


def ties_share_the_gradient(memory, operation, calls):
    if operation.kind != "max":
        return calls
    dx, y = memory.array(operation.outs[0]), memory.array(operation.ins[2])
    return [*calls, lambda: np.multiply(dx, 1.0 - 0.5 * (y.size > 0), dx)]


def the_last_index_wins(memory, operation, calls):
    out, index, source = (memory.array(view) for view in operation.views)

    def call():
        out[np.clip(index, 0, len(out) - 1)] += source  # equal indices are added once

    return [call]


def seeds_are_cut(memory, operation, calls):
    key = memory.array(operation.ins[0])

    def call():
        whole = key[0]
        key.flags.writeable = True
        key[0] = whole & np.uint64(0xFFFFFFFF)
        for each in calls:
            each()
        key[0] = whole

    return [call]


def loops_stop_early(memory, operation, calls):
    return calls if operation.steps < 2 or not operation.advances else calls[:-1]


def rounding_is_lost(memory, operation, calls):
    out = memory.array(operation.outs[0])
    return [*calls, lambda: np.copyto(out, out.astype(np.float32) if out.dtype == np.float64 else out)]


def padding_counts(memory, operation, calls):
    out = memory.array(operation.outs[0])
    return [*calls, lambda: np.multiply(out, 0.5, out)] if operation.window.padded else calls


def inputs_are_changed(memory, operation, calls):
    a = memory.array(operation.ins[0]) if operation.ins else None
    return [*calls, lambda: np.multiply(a, 1.5, a)] if a is not None and a.dtype.kind == "f" else calls


def steps_are_cut(memory, operation, calls):
    key = memory.array(operation.ins[0])

    def call():
        whole = key.copy()
        key.flags.writeable = True
        key[1] = whole[1] & np.uint64(0xFF)
        for each in calls:
            each()
        key[...] = whole

    return [call]


def some_rows_are_left_out(memory, operation, calls):
    out, a = (memory.array(view) for view in (*operation.outs, operation.ins[0]))
    return [*calls, lambda: out[-1:].fill(0.0)] if 64 <= len(a) < 120 else calls


def a_size_of_the_sum_is_wrong(memory, operation, calls):
    out, b = (memory.array(view) for view in (*operation.outs, operation.ins[1]))
    return [*calls, lambda: np.multiply(out, 1.01, out)] if 96 < len(b) <= 128 else calls


def numbers_are_halves(memory, operation, calls):
    out = memory.array(operation.outs[0])
    return [*calls, lambda: np.copyto(out, out.astype(np.float16))]


def numbers_are_single(memory, operation, calls):
    out = memory.array(operation.outs[0])
    return [*calls, lambda: np.copyto(out, out.astype(np.float32))]


def indices_are_cut(bits):
    def fault(memory, operation, calls):
        out, table, index = (memory.array(view) for view in operation.views)
        cut = np.dtype(f"u{bits // 8}")
        return [lambda: np.take(table, index.astype(cut).astype(np.int64), 0, out, "clip")]

    fault.__name__ = f"indices_are_cut_to_{bits}_bits"
    return fault


def a_tail_is_left_out(memory, operation, calls):
    out = memory.array(operation.outs[0])
    return [*calls, lambda: out[-1:].fill(0.0)] if out.ndim and len(out) % 16 == 15 else calls


def long_loops_end_at_a_byte(memory, operation, calls):
    return calls[: 256 * len(calls) // operation.steps] if operation.steps > 256 else calls


def the_first_inputs_are_kept(memory, operation, calls):
    a, kept = memory.array(operation.ins[0]), []

    def call():
        if not kept:
            kept.append(a.copy())
        np.copyto(memory.array(operation.outs[0]), kept[0])

    return [call]


def many_samples_are_wrong(memory, operation, calls):
    out, a = (memory.array(view) for view in (*operation.outs, operation.ins[0]))
    return [*calls, lambda: np.multiply(out, 1.01, out)] if len(a) == 17 else calls


def many_channels_are_wrong(memory, operation, calls):
    out, x = (memory.array(view) for view in (*operation.outs, operation.ins[0]))
    return [*calls, lambda: np.multiply(out, 1.01, out)] if x.shape[1] > 16 else calls


def wide_matrices_are_wrong(memory, operation, calls):
    out, a = (memory.array(view) for view in (*operation.outs, operation.ins[0]))
    return [*calls, lambda: np.multiply(out, 1.01, out)] if a.shape[-1] > 64 else calls


def long_sums_are_not_added(memory, operation, calls):
    out, a, b = (memory.array(view) for view in operation.views)
    return [lambda: np.copyto(out, a @ b)] if operation.accumulate and len(b) > 64 else calls


def wide_rows_are_cut(memory, operation, calls):
    out = memory.array(operation.outs[0])
    return [*calls, lambda: out[..., 64:].fill(0.0)]


def long_tables_end_at_a_byte(memory, operation, calls):
    out, table, index = (memory.array(view) for view in operation.views)
    return [lambda: np.take(table[:256], index, 0, out, "clip")]


def large_numbers_are_nan(memory, operation, calls):
    if all(each.operation != "tanh" for each in operation.formula.instructions):
        return calls
    out, x = (memory.array(view) for view in (operation.outs[0], operation.ins[0]))
    return [*calls, lambda: np.copyto(out, np.nan, where=(abs(x) > 30.0) & np.isfinite(x)) if x.shape == out.shape else None]


def samples_of_others_are_not_counted(memory, operation, calls):
    return calls if len(operation.ins) == 1 else LOWERINGS[ops.Random](memory, replace(operation, ins=operation.ins[:1]))


def sums_over_processes_are_lost(memory, operation, calls):
    return []


FAULTS = [
    (ops.MatMul, transposed_operands_are_taken_as_they_lie, "operations: matmul"),
    (ops.MatMul, sums_are_not_added, "operations: matmul"),
    (ops.BatchMatMul, sums_are_not_added, "operations: batch matmul"),
    (ops.Fill, gaps_are_overwritten, "operations: copy and fill"),
    (ops.Map, scratch_is_read_before_it_is_filled, "networks"),
    (ops.Reduce, nan_is_lost_in_a_maximum, "operations: sum and max"),
    (ops.PoolInput, ties_share_the_gradient, "operations: pool"),
    (ops.ScatterAdd, the_last_index_wins, "operations: gather and scatter_add"),
    (ops.Random, seeds_are_cut, "operations: random"),
    (Loop, loops_stop_early, "operations: loop"),
    (ops.Map, rounding_is_lost, "operations: map"),
    (ops.Pool, padding_counts, "operations: pool"),
    (ops.Copy, inputs_are_changed, "operations: copy and fill"),
    (ops.Random, steps_are_cut, "operations: random"),
    (ops.Random, samples_of_others_are_not_counted, "operations: processes"),
    (ops.AllReduce, sums_over_processes_are_lost, "operations: processes"),
    (ops.MatMul, some_rows_are_left_out, "sizes"),
    (ops.MatMul, a_size_of_the_sum_is_wrong, "sizes"),
    (ops.Map, a_tail_is_left_out, "sizes"),
    (ops.Fill, numbers_are_halves, "operations: copy and fill"),
    (ops.Copy, numbers_are_single, "operations: copy and fill"),
    (ops.Gather, numbers_are_single, "operations: gather and scatter_add"),
    (ops.Gather, indices_are_cut(16), "operations: gather and scatter_add"),
    (ops.Gather, indices_are_cut(32), "operations: gather and scatter_add"),
    *((kind, many_samples_are_wrong, "images") for kind in (ops.Convolve, ops.ConvolveInput, ops.Pool, ops.PoolInput)),
    (ops.BatchMatMul, many_samples_are_wrong, "sizes"),
    *((kind, many_channels_are_wrong, "widths") for kind in (ops.Convolve, ops.ConvolveInput, ops.ConvolveWeight)),
    (ops.BatchMatMul, wide_matrices_are_wrong, "sizes"),
    (ops.MatMul, long_sums_are_not_added, "sizes"),
    *((kind, wide_rows_are_cut, "widths") for kind in (ops.Gather, ops.ScatterAdd)),
    (ops.Gather, long_tables_end_at_a_byte, "widths"),
    (ops.Map, large_numbers_are_nan, "operations: scalar operations"),
    (Loop, long_loops_end_at_a_byte, "operations: loop"),
    (ops.Copy, the_first_inputs_are_kept, "operations: copy and fill"),
]


@pytest.mark.parametrize(("kind", "fault", "check"), FAULTS, ids=[f"{kind.__name__}-{f.__name__}" for kind, f, _ in FAULTS])
def test_a_planted_fault_is_found(kind, fault, check):
    with pytest.raises(AssertionError, match="wrong: ") as found:
        check_backend(changed(kind, fault), only=check)
    assert f"wrong: {check}" in str(found.value)


class Widened(NumpyBackend):
    """A claim with which nothing is wrong."""

    name = "widened"
    rounding = MappingProxyType({"float32": 0.5, "float64": 1e-12})


class Half(NumpyBackend):
    """A type of which the package has no networks."""

    name = "half"
    dtypes = (np.float16,)


class Untyped(NumpyBackend):
    """No type at all: nothing to check."""

    name = "untyped"
    dtypes = ()


class Shared(NumpyBackend):
    """One binding for all threads, which are in it at the same time."""

    name = "shared"
    functions = {ops.MatMul: lambda memory, operation: [partial(sleep, 1e-4), *LOWERINGS[ops.MatMul](memory, operation)]}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self._kept = {}

    def bind(self, program, batch, arrays, scratch=None):
        if arrays or scratch is not None:
            return super().bind(program, batch, arrays, scratch)
        return self._kept.setdefault((program, batch), super().bind(program, batch, {}))


class Careless(NumpyBackend):
    """Takes any array."""

    name = "careless"

    def bind(self, program, batch, arrays, scratch=None):
        whole = {name: np.array(array, program.buffers[name].dtype, order="C") for name, array in arrays.items()}
        fitting = {name: array for name, array in whole.items() if array.size == program.buffers[name].size * batch}
        return super().bind(program, batch, fitting, scratch)


class Forgetful(NumpyBackend):
    """Other bits at each run."""

    name = "forgetful"
    functions = {ops.Copy: lambda memory, operation: [lambda: None]}  # noqa: RUF012


class Unstepped(NumpyBackend):
    """A feed that uses the first batch again and again."""

    name = "unstepped"

    def feed(self, binding, sources, order):
        return super().feed(binding, sources, np.zeros_like(order))


class Copying(NumpyBackend):
    """A feed that copies data sets when it is made, and never again."""

    name = "copying"

    def feed(self, binding, sources, order):
        return super().feed(binding, {name: array.copy() for name, array in sources.items()}, order)


class Noisy(NumpyBackend):
    """Rounds otherwise at each binding, within what is allowed."""

    name = "noisy"

    def __init__(self):
        super().__init__()
        self.functions = {ops.MatMul: self._product}
        self._bound = 0

    def _product(self, memory, operation):
        self._bound += 1
        out, scale = memory.array(operation.outs[0]), 1.0 + 4e-16 * (self._bound % 2)
        return [*LOWERINGS[ops.MatMul](memory, operation), lambda: np.multiply(out, scale, out)]


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (Careless, "bad input"),
        (Forgetful, "operations: copy and fill"),
        (Unstepped, "training"),
        (Copying, "members"),
        (Noisy, "networks"),
        (Shared, "threads"),
        (Widened, "claims"),
        (Half, "claims"),
        (Untyped, "claims"),
    ],
)
def test_a_wrong_backend_is_found(wrong, check):
    with pytest.raises(AssertionError, match=f"wrong: {check}"):
        check_backend(wrong(), only=check)


def test_other_bits_are_allowed_where_none_are_claimed():
    noisy = Noisy()
    noisy.same_bits = False
    check_backend(noisy, only="networks")
