"""The recorder and what it makes of operations: shapes checked, dead code and copies left out, all of it printable."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

import chains
from chains import Chain, Conv, Dense, Dropout, Flatten, Reshape, Residual, Scale, SquaredLoss, tanh
from chains.backends import UnsupportedOperationError, backend
from chains.network import record
from chains.network.network import network_of
from chains.program.cancelling import means
from chains.program.operations import Copy, Fill, Map, MatMul, Operation, Random, Reduce
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer, View, concrete
from tests.harness import BACKENDS, LAYERS, OPTIMIZERS, run_program


@pytest.fixture
def ops():
    return Recorder("test", np.float64)


def kinds(program):
    return [operation.name for operation in program.operations]


def products(program):
    return [operation for operation in program.operations if isinstance(operation, MatMul)]


# Operations, each run on its own


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
def test_numbers_that_lie_apart_change_their_signs(stride, dtype, backend_name):
    """NumPy 2.4's own negation is wrong where numbers lie 64 bytes apart."""
    ops = Recorder("test", dtype)
    a, y = (ops.external(name, (Batch(), stride), role=role) for name, role in (("a", "input"), ("y", "output")))
    own = ops.scratch("own", (stride,))
    ops.copy(own, a)
    first = own.slice(1, 0, 1)
    ops.map(first, lambda x: -x, first)
    ops.copy(y, own)
    given = np.random.default_rng(0).normal(size=(9, stride)).astype(dtype)
    wanted = given.copy()
    wanted[:, 0] *= -1
    np.testing.assert_array_equal(run_program(ops.finish(), backend_name, 9, {"a": given})["y"], wanted)


def test_matmul_of_transposed_and_accumulated(ops, backend_name):
    rng = np.random.default_rng(0)
    a, b = ops.external("a", (4, 3), role="input"), ops.external("b", (5, 4), role="input")
    out = ops.external("out", (3, 5), role="state")
    ops.matmul(out, a.T, b.T, accumulate=True)
    ops.matmul(out, a.T, b.T, accumulate=True)
    arrays = {"a": rng.normal(size=(4, 3)), "b": rng.normal(size=(5, 4)), "out": rng.normal(size=(3, 5))}
    wanted = arrays["out"] + 2 * arrays["a"].T @ arrays["b"].T
    np.testing.assert_allclose(run_program(ops.finish(), backend_name, 1, arrays)["out"], wanted, rtol=1e-12)


def test_matmul_of_slices(ops, backend_name):
    """Operands and results with gaps between their rows."""
    whole, b = ops.external("whole", (6, 5), role="state"), ops.external("b", (3, 2), role="input")
    ops.matmul(whole.slice(1, 3, 5), whole.slice(1, 0, 3), b)
    rng = np.random.default_rng(0)
    start, other = rng.normal(size=(6, 5)), rng.normal(size=(3, 2))
    result = run_program(ops.finish(), backend_name, 1, {"whole": start, "b": other})["whole"]
    np.testing.assert_array_equal(result[:, :3], start[:, :3])
    np.testing.assert_allclose(result[:, 3:], start[:, :3] @ other, rtol=1e-12)


SUMS = [((), None), ((4,), (0, 1)), ((3, 4), (0,)), ((3, 1), (0, 2)), ((1, 4), (0, 1)), ((1, 1), (0, 1, 2))]


@pytest.mark.parametrize(("shape", "axes"), SUMS)
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_reduce_to_parameters(ops, backend_name, kind, shape, axes):
    a, out = ops.external("a", (3, 4), role="input", batched=True), ops.external("out", shape, role="output")
    getattr(ops, kind)(out, a)
    array = np.random.default_rng(0).normal(size=(6, 3, 4))
    wanted = getattr(np, kind)(array, axis=axes).reshape(shape)
    np.testing.assert_allclose(run_program(ops.finish(), backend_name, 6, {"a": array})["out"], wanted, rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 1), (1, 4), (1, 1)])
@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("batch", [1, 6])
def test_reduce_within_samples(ops, backend_name, kind, shape, batch):
    a, out = ops.external("a", (3, 4), role="input", batched=True), ops.external("out", shape, role="output", batched=True)
    getattr(ops, kind)(out, a)
    array = np.random.default_rng(0).normal(size=(batch, 3, 4))
    axes = tuple(k + 1 for k in range(2) if shape[k] == 1)
    wanted = getattr(np, kind)(array, axis=axes, keepdims=True)
    np.testing.assert_allclose(run_program(ops.finish(), backend_name, batch, {"a": array})["out"], wanted, rtol=1e-12)


def test_gather_and_scatter_add(ops, backend_name):
    table = ops.external("table", (5, 2), role="input")
    index = ops.external("index", (), role="input", batched=True, dtype=np.int64)
    rows = ops.external("rows", (2,), role="output", batched=True)
    total = ops.external("total", (5, 2), role="output")
    ops.gather(rows, table, index)  # an index outside is moved to the nearest row
    ops.fill(total, 0.0)
    ops.scatter_add(total, index, rows)
    values, numbers = np.random.default_rng(0).normal(size=(5, 2)), np.array([4, 0, 4, 1])
    results = run_program(ops.finish(), backend_name, 4, {"table": values, "index": numbers})
    np.testing.assert_array_equal(results["rows"], values[numbers])
    np.testing.assert_allclose(results["total"], values * np.array([1, 1, 0, 0, 2])[:, None], rtol=1e-14)


def test_copy_broadcasts_and_fill_fills(ops, backend_name):
    a, out = ops.external("a", (4,), role="input"), ops.external("out", (3, 4), role="output", batched=True)
    ops.copy(out, a)
    ops.fill(out.slice(1, 2, 3), 7.0)
    result = run_program(ops.finish(), backend_name, 2, {"a": np.arange(4.0)})["out"]
    np.testing.assert_array_equal(result[:, :2], np.broadcast_to(np.arange(4.0), (2, 2, 4)))
    np.testing.assert_array_equal(result[:, 2], np.full((2, 4), 7.0))


def test_the_inverse_batch_is_a_number(ops, backend_name):
    ops.copy(ops.external("out", (), role="output"), ops.inverse_batch)
    program = ops.finish()
    assert run_program(program, backend_name, 8, {})["out"] == 0.125


# What the recorder refuses


def test_shapes_are_checked(ops):
    a, b, out = (ops.scratch(name, shape, batched=False) for name, shape in zip("abc", [(2, 3), (4, 5), (2, 5)], strict=True))
    with pytest.raises(ValueError, match=r"matmul: a\(2, 3\) @ b\(4, 5\) does not fit c\(2, 5\)"):
        ops.matmul(out, a, b)
    with pytest.raises(ValueError, match="map: b does not broadcast to a"):
        ops.map(a, lambda b: b + 1, b)
    with pytest.raises(ValueError, match="sum: b does not broadcast to a"):
        ops.sum(b, a)
    with pytest.raises(ValueError, match="copy: a does not broadcast to b"):
        ops.copy(b, a)
    with pytest.raises(ValueError, match="2 results for 1"):
        ops.map(a, lambda a: (a, a + 1), a)
    with pytest.raises(ValueError, match="differ in shape"):
        ops.map((a, ops.scratch("d", (1, 3), batched=False)), lambda a: (a + 2, a + 1), a)
    assert ops.operations == []


@pytest.mark.parametrize("role", ["input", "constant"])
def test_what_may_only_be_read_is_not_written(ops, role):
    view = ops.constant("k", np.ones(3)) if role == "constant" else ops.external("k", (3,), role="input")
    with pytest.raises(ValueError, match=r"k.*may only be read"):
        ops.fill(view, 0.0)


# Views


def test_views(ops):
    view = ops.scratch("a", (2, 3))
    assert view.shape == (Batch(), 2, 3)
    assert concrete(view.shape, 5) == (5, 2, 3)
    assert concrete(view.rows.shape, 5) == (10, 3)
    assert concrete(view.flat.shape, 5) == (30,)
    assert concrete(view.reshape(6).shape, 5) == (5, 6)
    assert concrete(view.expand(-1).shape, 5) == (5, 2, 3, 1)
    assert view == view.T.T
    assert view.text == "a(B, 2, 3)"
    assert str(view.rows.T) == "a.T"
    assert view.slice(2, 1, 3).slice(-1, 1, 2) == view.slice(2, 2, 3)
    assert not view.slice(2, 1, 3).contiguous
    for wrong in (
        lambda: view.reshape(5),
        lambda: view.slice(0, 0, 1),
        lambda: view.slice(1, 1, 3),
        lambda: view.T.rows.T.flat,
    ):
        with pytest.raises(ValueError, match=r"\(B, 2, 3\)|3, 2|cannot"):
            wrong()


def test_index_takes_one_entry_and_drops_the_axis(ops):
    view = ops.scratch("a", (2, 3))
    assert view.index(1, 1) == View(view.buffer, (Batch(), 3), (6, 1), 3)
    assert view.index(1, -2) == view.index(-2, 0) == view.index(1, np.int64(0))
    assert view.index(2, 1).shape == (Batch(), 2)
    assert view.index(2, 1).strides == (6, 3)
    assert view.index(-1, -1).index(1, 0) == view.index(1, 0).index(1, 2)
    assert view.index(1, 0).index(1, 2).shape == (Batch(),)
    assert ops.constant("row", np.arange(3.0)).index(0, 1).shape == ()


@pytest.mark.parametrize(
    ("axis", "k", "error", "words"),
    [
        (0, 0, ValueError, "`axis` (=0) of a view of shape (B, 2, 3) is the batch"),
        (3, 0, ValueError, "no axis 3 of a view of shape (B, 2, 3)"),
        (-4, 0, ValueError, "no axis -4"),
        (1, 2, ValueError, "`k` (=2) on axis 1 of a view of shape (B, 2, 3) must be a whole number from -2 to 1"),
        (-1, -4, ValueError, "`k` (=-4) on axis 2 of a view of shape (B, 2, 3) must be a whole number from -3 to 2"),
        (1, 0.5, TypeError, "`k` (=0.5) on axis 1"),
        (1, True, TypeError, "`k` (=True) on axis 1"),
    ],
)
def test_an_index_that_is_not_there_is_refused(ops, axis, k, error, words):
    view = ops.scratch("a", (2, 3))
    with pytest.raises(error, match=re.escape(words)):
        view.index(axis, k)


def test_no_entry_of_an_empty_axis(ops):
    with pytest.raises(ValueError, match="empty axis"):
        ops.scratch("a", (0,)).index(1, 0)


@pytest.mark.parametrize("batch", [1, 6])
def test_steps_of_a_sequence_are_indexed(ops, backend_name, batch):
    x = ops.external("x", (4, 3), role="input", batched=True)
    w, y = ops.external("w", (3, 2), role="input"), ops.external("y", (4, 2), role="output", batched=True)
    for k in range(4):
        ops.matmul(y.index(1, k), x.index(1, -1 - k), w)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(batch, 4, 3)), "w": rng.normal(size=(3, 2))}
    result = run_program(ops.finish(), backend_name, batch, arrays)["y"]
    np.testing.assert_allclose(result, arrays["x"][:, ::-1] @ arrays["w"], rtol=1e-12)


# Dead code


def test_results_nobody_reads_are_left_out(ops):
    a, b, out = ops.scratch("a", (3,)), ops.scratch("b", (3,)), ops.external("out", (3,), role="output", batched=True)
    ops.fill(a, 1.0)
    ops.map(b, lambda a: a + 1, a)
    ops.map((b, out), lambda a: (a * 3, a * 2), a)
    program = ops.finish()
    assert kinds(program) == ["fill", "map"]
    assert str(program.operations[1]).endswith("= a * 2")


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_the_input_gradient_is_never_in_the_gradient_program(case):
    network = network_of(case.net())
    program = record.gradient(network, record.Criterion(SquaredLoss(), network.declaration.output_shape), np.float32, True)
    assert "dx" not in {buffer.name for buffer in program._used}
    assert "dx" in {buffer.name for buffer in record.vjp(network, np.float32, True)._used}


def test_the_first_layer_makes_one_product_fewer():
    net = Chain(Dense(3, 4, tanh), Dense(4, 5, tanh), Dense(5, 2))
    assert len(products(net.program())) == 3
    assert len(products(net.program(SquaredLoss()))) == 3 + 3 + 2
    assert len(products(record.vjp(network_of(net), np.float64, False))) == 2 + 3 + 3  # the output itself is not needed


def test_frozen_slices_cost_nothing():
    net = Chain(Dense(3, 4, tanh), Dense(4, 5, tanh), Dense(5, 2))
    assert len(products(net.with_frozen("1.weight").program(SquaredLoss()))) == 3 + 2 + 2
    last = net.with_trained("2.*").program(SquaredLoss())
    assert len(products(last)) == 3 + 1
    assert not any("'" in operation.label and "2." not in operation.label for operation in last.operations)
    nothing = net.with_frozen("*").program(SquaredLoss())
    assert len(products(nothing)) == 3
    assert kinds(nothing).count("fill") == 6


def test_the_loss_alone_has_no_pullback():
    net = Chain(Dense(3, 4, tanh), Dense(4, 2))
    objective = record.Criterion(SquaredLoss(), (2,))
    program = record.loss(network_of(net), objective, np.float32, False)
    assert len(products(program)) == 2
    assert set(program.buffers) == {"p", "x", "t", "value", "inverse_batch"}


def test_an_update_needs_no_more_than_its_optimizer():
    net = Chain(Dense(3, 4, tanh), Dense(4, 2))
    assert "moments" not in net.program(SquaredLoss(), OPTIMIZERS["SGD"]).buffers
    assert net.program(SquaredLoss(), OPTIMIZERS["Adam"]).buffers["moments"].shape == (2 * net.n_params,)


# Copies


@pytest.mark.parametrize(
    "layers",
    [(Flatten(), Dense(6, 2)), (Reshape(3, 2), Flatten(), Dense(6, 2)), (Flatten(), Dropout(0.0), Dense(6, 2))],
    ids=str,
)
def test_changes_of_shape_cost_nothing(layers):
    net = Chain(*layers, input_shape=(2, 3))
    for program in (net.program(mode="eval"), net.program(SquaredLoss()), net.program(SquaredLoss(), chains.SGD(0.1))):
        assert "copy" not in kinds(program)


def test_a_copy_of_what_changes_is_kept(ops, backend_name):
    """The copy holds the value from before."""
    a, before = ops.scratch("a", (3,), batched=False), ops.scratch("before", (3,), batched=False)
    out = ops.external("out", (3,), role="output")
    ops.fill(a, 1.0)
    ops.copy(before, a)
    ops.fill(a, 5.0)
    ops.map(out, lambda a, before: a + 10 * before, a, before)
    np.testing.assert_array_equal(run_program(ops.finish(), backend_name, 1, {})["out"], [15.0] * 3)


def test_a_copy_that_changes_is_kept(ops, backend_name):
    x, own = ops.external("x", (3,), role="input"), ops.scratch("own", (3,), batched=False)
    out = ops.external("out", (3,), role="output")
    ops.copy(own, x)
    ops.map(own, lambda own: own + 1, own)
    ops.map(out, lambda x, own: x * own, x, own)
    np.testing.assert_array_equal(run_program(ops.finish(), backend_name, 1, {"x": np.arange(3.0)})["out"], [0.0, 2.0, 6.0])


def test_a_copy_in_part_is_kept(ops, backend_name):
    a, b = ops.external("a", (2,), role="input"), ops.scratch("b", (4,), batched=False)
    out = ops.external("out", (4,), role="output")
    ops.fill(b, 3.0)
    ops.copy(b.slice(0, 1, 3), a)
    ops.map(out, lambda b: b * 2, b)
    np.testing.assert_array_equal(
        run_program(ops.finish(), backend_name, 1, {"a": np.array([1.0, 2.0])})["out"], [6.0, 2.0, 4.0, 6.0]
    )


@pytest.mark.parametrize(("small", "large"), [((1,), (4,)), ((3, 1), (3, 4)), ((1, 4), (3, 4))])
def test_a_broadcasting_copy_is_kept(ops, backend_name, small, large):
    x, own = ops.external("x", small, role="input", batched=True), ops.scratch("own", large)
    out = ops.external("out", large, role="output", batched=True)
    ops.copy(own, x)
    ops.map(out, lambda own: own * 2, own)
    array = np.random.default_rng(0).normal(size=(2, *small))
    result = run_program(ops.finish(), backend_name, 2, {"x": array})["out"]
    np.testing.assert_array_equal(result, np.broadcast_to(2 * array, (2, *large)))


def test_a_copy_onto_itself_is_not_recorded(ops):
    a = ops.scratch("a", (3,))
    ops.copy(a, a)
    assert ops.operations == []


# Printing


def test_a_program_can_be_read():
    net = Chain(Dense(3, 4, tanh), Dropout(0.5), Dense(4, 2))
    text = str(net.program(SquaredLoss(), chains.Adam()))
    for part in ("program training step (float32)", "0.Dense", "2.Dense'", "Adam", "p.0.weight", "x.T @", "tanh(y0 + p.0.bias)",
                 "(B, 4)", "buffers (B: batch size)", "scratch", "matrix flops a sample", "state    p:"):  # fmt: skip
        assert part in text, part
    assert text.count("\n") > 20


def test_counts_in_the_header():
    program = Chain(Dense(3, 4, tanh), Dense(4, 2)).program(SquaredLoss())
    header = str(program).splitlines()[0]
    counts = {name: kinds(program).count(name) for name in set(kinds(program))}
    assert f"{len(program.operations)} operations" in header
    assert all(f"{count} {name}" in header for name, count in counts.items())
    assert program.flops(10) == 10 * program.flops() == 10 * 2 * (12 + 8 + 12 + 8 + 8)
    assert f"{program.flops()} matrix flops" in header
    assert repr(program) == f"<Program gradient (float32): {len(program.operations)} operations>"


def test_a_convolution_counts_the_multiply_adds_of_its_windows():
    net = Chain(Conv(4, 6, (3, 2), groups=2), input_shape=(4, 5, 4))  # 6 images of 3 x 3, of windows in two of the four
    program = record.forward(network_of(net), np.dtype("float32"), training=False)
    assert program.flops(10) == 10 * 2 * (6 * 3 * 3) * (2 * 3 * 2)


def test_every_buffer_is_printed_with_its_offset():
    program = Chain(Dense(3, 4, chains.gelu), Residual(Scale())).program(SquaredLoss())
    lines = str(program).split("buffers (B: batch size)\n")[1].splitlines()
    assert len(lines) == len(program._used)
    for buffer, line in zip(program._used, lines, strict=True):
        assert line.split()[0] == buffer.role
        assert f" {buffer.name}: {buffer.nbytes} bytes" in line
        assert buffer.role != "scratch" or f"at {program.scratch.offset_text(buffer)}" in line


def test_sums_over_the_batch_are_known():
    program = Chain(Dense(3, 4, tanh), Dense(4, 2)).program(SquaredLoss())
    summed = [operation for operation in program.operations if operation.sums_over_batch]
    assert {view.buffer.name.split(".")[0] for operation in summed for view in operation.outs} == {"g", "value"}
    assert all(isinstance(operation, (MatMul, Reduce)) for operation in summed)


def test_operations_say_their_names(ops):
    for kind, name in ((MatMul, "matmul"), (Map, "map"), (Copy, "copy"), (Fill, "fill"), (Random, "random")):
        assert kind.name.fget(kind.__new__(kind)) == name


def test_programs_are_recorded_once():
    net, calls = Chain(Dense(3, 2)), []
    x, t, p = np.zeros((4, 3)), np.zeros((4, 2)), net.init()
    for loss in (SquaredLoss(), SquaredLoss(), chains.MSELoss()):
        net.value_and_grad(p, x, t, loss)
        calls.append(len(network_of(net).programs))
    assert calls == [1, 1, 2]


@dataclass(frozen=True)
class Teleport(Operation):
    """What no backend can do."""


def test_an_unknown_operation_is_refused_by_name(backend_name):
    view = Recorder("test", np.float64).external("y", (2,), role="output")
    program = Program("odd", np.dtype(np.float64), (Teleport((view,), (), label="3.Gate"),))
    with pytest.raises(UnsupportedOperationError, match=r"teleport.*3\.Gate"):
        backend(backend_name).bind(program, 1, {})


@pytest.mark.parametrize("name", [*BACKENDS, "emulated"])
def test_one_over_the_batch_may_be_given(name):
    """As where the batch is a part of one that others have parts of too."""
    net, rng = Chain(Dense(3, 2)), np.random.default_rng(0)
    arrays = {"p": net.init(dtype=np.float64), "x": rng.normal(size=(4, 3)), "t": rng.normal(size=(4, 2))}
    program = record.gradient(network_of(net), record.Criterion(SquaredLoss(), (2,)), np.dtype(np.float64), True)
    alone = run_program(program, name, 4, arrays)
    half = run_program(program, name, 4, {**arrays, "inverse_batch": np.array(1 / 8)})
    for result in ("value", "g"):
        np.testing.assert_allclose(half[result], alone[result] / 2, rtol=1e-14)


def test_what_authors_of_layers_see_can_be_printed():
    ops = Recorder("mine", np.float32)
    z = ops.scratch("z", (3,))
    ops.fill(z, 0.0)
    assert repr(z) == "<View z(B, 3) of scratch 'z', float32>"
    assert repr(ops) == "<Recorder of the program mine (float32): 1 operation so far>"


def test_a_copy_to_another_type_stays():
    """It rounds."""
    ops = Recorder("rounded", np.float64)
    x = ops.external("x", (3,), role="input", batched=True)
    y = ops.external("y", (3,), role="output", batched=True)
    rounded = Buffer("rounded", "scratch", np.dtype(np.float32), (Batch(), 3)).whole
    ops.copy(rounded, x)
    ops.copy(y, rounded)
    given = np.array([[0.1, 0.2, 0.3]])
    found = run_program(ops.finish(), "numpy", 1, {"x": given})["y"]
    np.testing.assert_array_equal(found, given.astype(np.float32))


@pytest.mark.parametrize(("batched", "factor", "known"), [(True, 1 / 3, True), (True, 0.5, False), (False, 1 / 3, False)])
def test_a_mean_is_a_sum_of_known_length_divided_by_it(batched, factor, known):
    """A sum over samples is none: their number is not known."""
    ops = Recorder("sums", np.float64)
    x = ops.external("x", (3,), role="input", batched=True)
    total, mean = (ops.external(name, (1,), role="output", batched=batched) for name in ("total", "mean"))
    ops.sum(total, x)
    ops.map(mean, lambda total: factor * total, total)
    assert means(ops.operations) == ({mean: (x, 1)} if known else {})
