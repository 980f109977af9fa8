"""Loops: what is recorded once is done at every step; what waits for no state is done for all steps at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chains.expr import tanh
from chains.program.loop import Loop, all_operations
from chains.program.operations import MatMul, Reduce
from chains.program.program import Program
from chains.program.recorder import Recorder
from tests.harness import run_program

STEPS, INPUTS, UNITS, BATCH = 5, 3, 4, 6


def recurrence(steps: int = STEPS, backwards: bool = False, dtype: type = np.float64) -> Recorder:
    """h' = tanh(x W + h U), with its gradients; `y` holds the states of all steps."""
    ops = Recorder("recurrence", dtype)
    x = ops.external("x", (steps, INPUTS), role="input", batched=True)
    dx = ops.external("dx", (steps, INPUTS), role="output", batched=True)
    y = ops.external("y", (steps, UNITS), role="output", batched=True)
    dy = ops.external("dy", (steps, UNITS), role="input", batched=True)
    w, u = (ops.external(name, (n, UNITS), role="input") for name, n in (("w", INPUTS), ("u", UNITS)))
    dw, du = (ops.external(name, (n, UNITS), role="output") for name, n in (("dw", INPUTS), ("du", UNITS)))
    h, a, before = ops.scratch("h", (UNITS,)), ops.scratch("a", (UNITS,)), ops.scratch("before", (steps, UNITS))
    ops.fill(h, 0.0)
    with ops.loop(steps, backwards=backwards) as at:
        ops.copy(at.now(before, 1), h)
        ops.matmul(a, at.now(x, 1), w)
        ops.matmul(a, h, u, accumulate=True)
        ops.map((h, at.now(y, 1)), lambda a: (tanh(a), tanh(a)), a)
    dh, da = ops.scratch("dh", (UNITS,)), ops.scratch("da", (UNITS,))
    each_w, each_u = (
        ops.scratch(f"d{n} of each step", (steps, k, UNITS), batched=False) for n, k in (("w", INPUTS), ("u", UNITS))
    )
    ops.fill(dh, 0.0)
    with ops.loop(steps, backwards=not backwards) as at:
        ops.map(da, lambda dh, dy, y: (dh + dy) * (1 - y * y), dh, at.now(dy, 1), at.now(y, 1))
        ops.matmul(at.now(each_w, 0), at.now(x, 1).T, da)
        ops.matmul(at.now(each_u, 0), at.now(before, 1).T, da)
        ops.matmul(at.now(dx, 1), da, w.T)
        ops.matmul(dh, da, u.T)
    ops.sum(dw, each_w)
    ops.sum(du, each_u)
    return ops


def arrays(steps: int = STEPS, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (BATCH, steps, INPUTS), "dy": (BATCH, steps, UNITS), "w": (INPUTS, UNITS), "u": (UNITS, UNITS)}
    return {name: 0.5 * rng.normal(size=shape) for name, shape in shapes.items()}


def computed(given: dict[str, np.ndarray], backwards: bool) -> dict[str, np.ndarray]:
    """The same in plain NumPy."""
    x, dy, w, u = (given[name] for name in ("x", "dy", "w", "u"))
    steps = range(x.shape[1])
    h, y = {-1: np.zeros((BATCH, UNITS))}, np.empty_like(dy)
    order = list(steps)[::-1] if backwards else list(steps)
    for k, t in enumerate(order):
        h[k] = y[:, t] = np.tanh(x[:, t] @ w + h[k - 1] @ u)
    dh, dx, dw, du = np.zeros((BATCH, UNITS)), np.empty_like(x), np.zeros_like(w), np.zeros_like(u)
    for k, t in reversed(list(enumerate(order))):
        da = (dh + dy[:, t]) * (1 - y[:, t] ** 2)
        dw, du, dx[:, t], dh = dw + x[:, t].T @ da, du + h[k - 1].T @ da, da @ w.T, da @ u.T
    return {"y": y, "dx": dx, "dw": dw, "du": du}


def unhoisted(ops: Recorder) -> Program:
    """What was recorded, as it was recorded."""
    return Program(ops.name, ops.dtype, tuple(ops.operations))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_recurrence_and_its_gradient(backend_name, steps, backwards):
    ops, given = recurrence(steps, backwards), arrays(steps)
    for fill in (0x00, 0xFF):
        found = run_program(ops.finish(), backend_name, BATCH, given, fill)
        for name, wanted in computed(given, backwards).items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-12, atol=1e-12, err_msg=name)


def test_what_is_recorded_means_the_same_before_it_is_taken_apart():
    for backwards in (False, True):
        ops, given = recurrence(backwards=backwards), arrays()
        found = run_program(unhoisted(ops), "numpy", BATCH, given)
        for name, wanted in computed(given, backwards).items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-12, atol=1e-12, err_msg=name)


def test_only_what_waits_for_the_state_stays_in_the_loop():
    program = recurrence().finish()
    forward, pullback = (each for each in program.operations if isinstance(each, Loop))
    assert [each.name for each in forward.body] == ["copy", "matmul", "map"]
    assert [each.name for each in pullback.body] == ["map", "matmul"]
    whole = [each for each in program.operations if isinstance(each, MatMul)]
    assert [[str(view.shape) for view in each.outs] for each in whole] == [
        [f"(Batch(per_sample={STEPS}), {UNITS})"], ["(3, 4)"], ["(4, 4)"], [f"(Batch(per_sample={STEPS}), {INPUTS})"]
    ]  # fmt: skip
    assert not any(isinstance(each, Reduce) for each in program.operations)


def test_a_program_is_as_long_at_any_number_of_steps():
    short, long = recurrence(2).finish(), recurrence(150).finish()
    assert len(list(all_operations(short.operations))) == len(list(all_operations(long.operations)))
    assert len(str(short).splitlines()) == len(str(long).splitlines())
    assert long.flops() == 75 * short.flops()
    assert "150 times:" in str(long)


def nested(outer: int, inner: int) -> Recorder:
    """Sums and products along two time axes, one inside of the other; the outer one from its end on."""
    ops = Recorder("nested", np.float64)
    x = ops.external("x", (outer, inner, 3), role="input", batched=True)
    w = ops.external("w", (3, 3), role="input")
    y, last = (
        ops.external("y", (outer, inner, 3), role="output", batched=True),
        ops.external("last", (outer, 3), role="output", batched=True),
    )
    h, a = ops.scratch("h", (3,)), ops.scratch("a", (3,))
    ops.fill(h, 1.0)
    with ops.loop(outer, backwards=True) as at:
        with ops.loop(inner) as now:
            ops.matmul(a, now.now(at.now(x, 1), 1), w)
            ops.map((h, now.now(at.now(y, 1), 1)), lambda h, a: (0.5 * h + a, h - a), h, a)
        ops.copy(at.now(last, 1), h)
        ops.map(h, lambda h: h * 0.25, h)
    return ops


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (2, 3), (7, 2)])
def test_loops_in_loops(backend_name, outer, inner):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(BATCH, outer, inner, 3)), rng.normal(size=(3, 3))
    y, last, h = np.empty_like(x), np.empty((BATCH, outer, 3)), np.ones((BATCH, 3))
    for s in reversed(range(outer)):
        for t in range(inner):
            a = x[:, s, t] @ w
            h, y[:, s, t] = 0.5 * h + a, h - a
        last[:, s] = h
        h = 0.25 * h
    ops = nested(outer, inner)
    for program in (unhoisted(ops), ops.finish()):
        found = run_program(program, backend_name, BATCH, {"x": x, "w": w}, 0xFF)
        np.testing.assert_allclose(found["y"], y, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found["last"], last, rtol=1e-12, atol=1e-12)


def test_what_is_refused():
    ops = Recorder("refused", np.float64)
    x = ops.scratch("x", (4, 2))
    with pytest.raises(ValueError, match=r"axis 1 of x\(B, 4, 2\) has no 5 entries for 5 steps"), ops.loop(5) as at:
        at.now(x, 1)
    with pytest.raises(ValueError, match=r"axis 0 of x\(B, 4, 2\) has no 2 entries"), ops.loop(2) as at:
        at.now(x, 0)
    with pytest.raises(ValueError, match=r"`steps` \(=0\) must be a positive whole number"), ops.loop(0):
        pass
    with pytest.raises(ValueError, match="draw them before the loop"), ops.loop(2) as at:
        ops.random(at.now(x, 1))
    assert ops.operations == []
    with ops.loop(3):
        pass
    assert ops.operations == []


def test_what_nobody_reads_is_left_out_of_a_loop():
    ops = Recorder("live", np.float64)
    x, y = (ops.external(n, (4, 2), role=r, batched=True) for n, r in (("x", "input"), ("y", "output")))
    carried, lost, chain = (ops.scratch(name, (2,)) for name in ("carried", "lost", "chain"))
    ops.fill(carried, 0.0)
    with ops.loop(4) as at:
        ops.map(at.now(y, 1), lambda c, x: c + x, carried, at.now(x, 1))
        ops.map(lost, lambda c: 2 * c, chain)
        ops.map(chain, lambda x: x * x, at.now(x, 1))  # feeds only what is lost
        ops.map(carried, lambda c, x: c - x, carried, at.now(x, 1))  # read at the next step
    (loop,) = (each for each in ops.finish().operations if isinstance(each, Loop))
    assert [each.outs[0].buffer.name for each in loop.body] == ["y", "carried"]


def test_what_only_its_step_reads_has_one_entry_for_all_steps():
    def scratch(reads_kept: bool) -> int:
        ops = Recorder("kept", np.float64)
        x = ops.external("x", (50, 2), role="input", batched=True)
        y = ops.external("y", (2,), role="output", batched=True)
        kept, h = ops.scratch("kept", (50, 2)), ops.scratch("h", (2,))
        ops.fill(h, 0.0)
        with ops.loop(50) as at:
            ops.map(at.now(kept, 1), lambda x, h: x - h, at.now(x, 1), h)
            ops.map(h, lambda h, k: 0.5 * h + k, h, at.now(kept, 1))
        ops.copy(y, h)
        if reads_kept:
            ops.sum(ops.external("total", (50, 2), role="output"), kept)
        program = ops.finish()
        given = np.random.default_rng(0).normal(size=(3, 50, 2))
        found, wanted = (run_program(each, "numpy", 3, {"x": given}, 0xFF)["y"] for each in (program, unhoisted(ops)))
        np.testing.assert_array_equal(found, wanted)
        return program.scratch.bytes_per_sample

    assert scratch(True) - scratch(False) == 49 * 2 * 8


def test_what_loops_within_go_through_keeps_its_entries():
    """A product of a step moves out of the loop; a loop within goes through its rows, which all steps have entries for now."""
    rows = 3
    ops = Recorder("rows of each step", np.float64)
    x = ops.external("x", (STEPS, rows, INPUTS), role="input", batched=True)
    w, y = ops.external("w", (INPUTS, UNITS), role="input"), ops.external("y", (UNITS,), role="output", batched=True)
    found = ops.scratch("rows", (rows, UNITS))
    ops.fill(y, 0.0)
    with ops.loop(STEPS) as at:
        for row in range(rows):
            ops.matmul(found.index(1, row), at.now(x, 1).index(1, row), w)
        with ops.loop(rows, closed=True) as inner:
            ops.map(y, lambda y, row: 0.5 * y + row, y, inner.now(found, 1))
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(BATCH, STEPS, rows, INPUTS)), "w": rng.normal(size=(INPUTS, UNITS))}
    wanted = np.zeros((BATCH, UNITS))
    for step in range(STEPS):
        for row in range(rows):
            wanted = 0.5 * wanted + given["x"][:, step, row] @ given["w"]
    (loop,) = [operation for operation in ops.finish().operations if isinstance(operation, Loop)]
    assert not any(isinstance(operation, MatMul) for operation in loop.body)
    for program in (unhoisted(ops), ops.finish()):
        np.testing.assert_allclose(run_program(program, "numpy", BATCH, given)["y"], wanted, rtol=1e-12)


@pytest.mark.parametrize("backwards", [False, True])
def test_directions_that_differ(backend_name, backwards):
    """The step k reads the entry k of one array, and the one as far from the end of another."""
    ops = Recorder("two directions", np.float64)
    first, second = (ops.external(name, (STEPS, INPUTS), role="input", batched=True) for name in ("first", "second"))
    w = ops.external("w", (INPUTS, UNITS), role="input")
    y = ops.external("y", (STEPS, UNITS), role="output", batched=True)
    a, b, h = (ops.scratch(name, (UNITS,)) for name in ("a", "b", "h"))
    ops.fill(h, 1.0)
    with ops.loop(STEPS, backwards=backwards) as at:
        ops.matmul(a, at.now(first, 1), w)
        ops.matmul(b, replace(at, backwards=not backwards).now(second, 1), w)
        ops.map((h, at.now(y, 1)), lambda h, a, b: (0.5 * h + a, h - b), h, a, b)
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(BATCH, STEPS, INPUTS)) for name in ("first", "second")}
    given["w"] = rng.normal(size=(INPUTS, UNITS))
    wanted, state = np.empty((BATCH, STEPS, UNITS)), np.ones((BATCH, UNITS))
    for k in range(STEPS)[:: -1 if backwards else 1]:
        wanted[:, k] = state - given["second"][:, STEPS - 1 - k] @ given["w"]
        state = 0.5 * state + given["first"][:, k] @ given["w"]
    for program in (unhoisted(ops), ops.finish()):
        np.testing.assert_allclose(run_program(program, backend_name, BATCH, given, 0xFF)["y"], wanted, rtol=1e-12)


def test_what_a_product_needs_moves_with_it(backend_name):
    """A sum of a product's operand of a product: each needs the one before it, and none waits for the state."""
    ops = Recorder("needed", np.float64)
    x = ops.external("x", (STEPS, INPUTS), role="input", batched=True)
    w = ops.external("w", (INPUTS, UNITS), role="input")
    y = ops.external("y", (STEPS, UNITS), role="output", batched=True)
    first, second = (ops.scratch(name, (INPUTS,)) for name in ("first", "second"))
    a, h = (ops.scratch(name, (UNITS,)) for name in ("a", "h"))
    ops.fill(h, 1.0)
    with ops.loop(STEPS) as at:
        ops.map(first, tanh, at.now(x, 1))
        ops.map(second, lambda first, x: first * x, first, at.now(x, 1))
        ops.matmul(a, second, w)
        ops.map((h, at.now(y, 1)), lambda h, a: (0.5 * h + a, h - a), h, a)
    program, given = ops.finish(), {name: array for name, array in arrays().items() if name in ("x", "w")}
    (loop,) = [operation for operation in program.operations if isinstance(operation, Loop)]
    assert [operation.name for operation in loop.body] == ["map"]
    wanted = run_program(unhoisted(ops), "numpy", BATCH, given)
    np.testing.assert_allclose(run_program(program, backend_name, BATCH, given, 0xFF)["y"], wanted["y"], rtol=1e-12)


def of_some_steps(ops, each, dw, loop):
    loop()
    ops.sum(dw, each.slice(0, 1, STEPS))


def after_another_use(ops, each, dw, loop):
    loop()
    ops.fill(dw, 2.0)
    ops.copy(ops.external("before", (INPUTS, UNITS), role="output"), dw)
    ops.sum(dw, each)


def of_rows_filled_before(ops, each, dw, loop):
    ops.fill(each, 2.0)
    loop(slice(0, 2))
    ops.sum(dw, each)


def of_a_row_that_is_overwritten(ops, each, dw, loop):
    ops.fill(each, 2.0)
    loop(slice(0, 2), slice(1, 2))
    ops.sum(dw, each)


def of_rows_filled_at_each_step(ops, each, dw, loop):
    loop(slice(0, 2), filled=slice(2, 3))
    ops.sum(dw, each)


def of_the_largest(ops, each, dw, loop):
    loop()
    ops.max(dw, each)


def with_another_sum(ops, each, dw, loop):
    loop()
    ops.sum(dw, each)
    ops.sum(ops.external("again", (INPUTS, UNITS), role="output"), each)


def into_columns(ops, each, dw, loop):
    loop()
    ops.sum(ops.external("columns", (UNITS, INPUTS), role="output").T, each)


USES = [
    of_some_steps, after_another_use, of_rows_filled_before, of_a_row_that_is_overwritten, of_rows_filled_at_each_step,
    of_the_largest, with_another_sum, into_columns,
]  # fmt: skip


@pytest.mark.parametrize("record", USES)
def test_a_sum_over_steps_that_is_no_product_stays(record):
    """The sum of the products of all steps is one product, unless something else has to do with it."""
    ops = Recorder("sums", np.float64)
    x = ops.external("x", (STEPS, INPUTS), role="input", batched=True)
    d = ops.external("d", (STEPS, UNITS), role="input", batched=True)
    dw = ops.external("dw", (INPUTS, UNITS), role="output")
    each = ops.scratch("each", (STEPS, INPUTS, UNITS), batched=False)

    def loop(*parts: slice, filled: slice = slice(0, 0)) -> None:
        with ops.loop(STEPS) as at:
            if filled.stop:
                ops.fill(at.now(each, 0).slice(0, filled.start, filled.stop), 2.0)
            for factor, part in enumerate(parts or [slice(0, INPUTS)], 1):
                rows = at.now(x, 1).slice(-1, part.start, part.stop)
                scaled = ops.scratch(f"scaled {factor}", (UNITS,))
                ops.map(scaled, lambda d, k=float(factor): k * d, at.now(d, 1))
                ops.matmul(at.now(each, 0).slice(0, part.start, part.stop), rows.T, scaled)

    record(ops, each, dw, loop)
    given = {name: array for name, array in arrays().items() if name == "x"} | {"d": arrays()["dy"]}
    found, wanted = (run_program(program, "numpy", BATCH, given, 0xFF) for program in (ops.finish(), unhoisted(ops)))
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, err_msg=name)
