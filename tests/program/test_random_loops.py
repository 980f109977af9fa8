"""Random loops, some with loops inside: what is taken out of them and made of them, against the steps as they were recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chains.backends import backend
from chains.expr import tanh, where
from chains.program.loop import Loop
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import View
from tests.harness import BACKENDS, SEED, assert_close, run_program

BATCH = 5


class Drawn:
    """A program with a loop of random operations on arrays that advance, are carried, or are of one step."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.ops = rng, Recorder("random loops", np.float64)
        self.width = int(rng.choice([1, 3, 4, 8, 9]))
        self.count = 0
        self.sums: list[tuple[View, View]] = []
        self.weights = [self.ops.external(name, (self.width, self.width), role="input") for name in "uvw"]
        self.bias = self.ops.external("bias", (self.width,), role="input")
        carried = [self.scratch("carried") for _ in range(2)]
        for view in carried:
            self.ops.fill(view, 0.5)
        self.loop((), carried, [])
        for k, view in enumerate(carried):
            self.ops.copy(self.ops.external(f"last {k}", (self.width,), role="output", batched=True), view)
        for total, each in self.sums:
            self.ops.sum(total, each)

    def one(self, things: Any) -> Any:
        return things[int(self.rng.integers(len(things)))]

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind} {self.count}"

    def scratch(self, kind: str, *shape: int, batched: bool = True) -> View:
        return self.ops.scratch(self.name(kind), (*shape, self.width), batched=batched)

    def loop(self, around: tuple[tuple[Any, int], ...], carried: list[View], outer: list[View]) -> None:
        """A loop inside of those `around`; `outer` are arrays of the step around it that are filled."""
        steps, rng, ops = int(self.one([1, 2, 3, 5])), self.rng, self.ops
        lengths = (*(length for _, length in around), steps)
        x = ops.external(self.name("x"), (*lengths, self.width), role="input", batched=True)
        y = ops.external(self.name("y"), (*lengths, self.width), role="output", batched=True)
        kept = self.scratch("kept", steps + 1)
        ops.fill(kept, 0.25)
        temporaries = [self.scratch("temporary") for _ in range(3)]
        first = self.one([temporaries[:0], temporaries[:1]])  # carried too, as it was filled before
        for view in first:
            ops.fill(view, -0.5)
        with ops.loop(steps, backwards=bool(rng.integers(2)), closed=not rng.integers(3)) as at:
            here = (*around, (at, steps))

            def now(view: View) -> View:
                for each, _ in here:
                    view = each.now(view, 1)
                return view

            ahead = int(rng.integers(2))
            filled = [now(x), *carried, *first, *outer, at.now(kept, 1, 1 - ahead)]
            targets = [*carried, *temporaries, now(y), at.now(kept, 1, ahead)]
            for _ in range(int(rng.integers(3, 9))):
                self.operation(here, carried, filled, targets)
            ops.map(now(y), lambda a: 0.5 * a, self.one(filled))

    def operation(self, here: Any, carried: list[View], filled: list[View], targets: list[View]) -> None:
        ops, rng = self.ops, self.rng
        kind = self.one(["map", "map", "matmul", "matmul", "sum", "gradient", "loop"])
        out = self.one(targets)
        if kind == "map":
            a, b = self.one(filled), self.one(filled)
            ops.map(out, lambda a, b, c: tanh(a - 0.5 * b + c), a, b, self.bias)
        elif kind == "matmul":
            known = any(view is out for view in filled)
            others = [view for view in filled if view.buffer is not out.buffer]
            weight = self.one(self.weights)
            ops.matmul(out, self.one(others), self.one([weight, weight.T]), accumulate=known and bool(rng.integers(2)))
        elif kind in ("sum", "gradient") and len(here) == 1:  # one product for all steps, or, of what is carried, as many
            (at, steps), shape = here[0], (self.width,) * (1 + (kind == "gradient"))
            each = ops.scratch(self.name("each"), (steps, *shape), batched=False)
            self.sums.append((ops.external(self.name("total"), shape, role="output"), each))
            if kind == "sum":
                ops.sum(at.now(each, 0), self.one(filled))
            else:
                ops.matmul(at.now(each, 0), self.one(filled).T, self.one(filled))
            return
        elif kind == "loop" and len(here) == 1:
            self.loop(here, carried, [view for view in filled if not view.loop_strides])
            return
        else:
            return
        if not any(view is out for view in filled):
            filled.append(out)


def arrays(program: Program, rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {b.name: tuple(BATCH if not isinstance(n, int) else n for n in b.shape) for b in program.buffers.values()}
    inputs = [b.name for b in program.buffers.values() if b.role == "input"]
    return {name: 0.4 * rng.normal(size=shapes[name]) for name in sorted(inputs)}


@pytest.mark.parametrize("draw", range(30))
def test_random_loops(draw):
    rng = np.random.default_rng([SEED, draw])
    ops = Drawn(rng).ops
    recorded = Program(ops.name, ops.dtype, tuple(ops.operations))
    given = arrays(recorded, rng)
    wanted = run_program(recorded, "numpy", BATCH, given)
    program = ops.finish()
    assert any(isinstance(each, Loop) for each in recorded.operations)
    for name in BACKENDS if draw < 6 else ["numpy"]:
        if backend(name).unsupported(program) is not None:
            continue
        for fill in (0x00, 0xFF):
            found = run_program(program, name, BATCH, {n: a for n, a in given.items() if n in program.buffers}, fill)
            for key, array in found.items():
                assert_close(array, wanted[key], 1e-11, f"{key} of draw {draw} on {name}\n{program}")


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("draw", range(3))
def test_steps_that_are_left_out(name, draw):
    """Each sample has steps of its own, of which some are no sample's; sums go over those that are done, in all tiles."""
    rng, steps, width, batch = np.random.default_rng([SEED, draw]), 7, int([1, 4, 9][draw]), [1, 5, 300][draw]
    ops = Recorder("left out", np.float64)
    only = ops.external("only", (steps, 1), role="input", batched=True)
    x, y = (ops.external(n, (steps, width), role=r, batched=True) for n, r in (("x", "input"), ("y", "output")))
    total, last = (
        ops.external("total", (width, width), role="output"),
        ops.external("last", (width,), role="output", batched=True),
    )
    sums = ops.external("sums", (width,), role="output")
    kept, each = ops.scratch("kept", (steps, width)), ops.scratch("each", (steps, width, width), batched=False)
    of_steps = ops.scratch("of steps", (steps, width), batched=False)
    ops.fill(last, 0.5)
    ops.fill(y, -1.0)
    for backwards in (False, True):
        with ops.loop(steps, backwards=backwards, skip_where_zero=lambda at: at.now(only, 1)) as at:
            now = at.now(kept, 1)
            if not backwards:
                ops.map(now, lambda x, last: tanh(x - last), at.now(x, 1), last)
                ops.map(last, lambda o, new, old: where(o > 0.0, new, old), at.now(only, 1), now, last)
            else:
                ops.map(at.now(y, 1), lambda o, a, old: where(o > 0.0, a, old), at.now(only, 1), now, at.now(y, 1))
                weighed = ops.scratch("weighed", (width,))
                ops.map(weighed, lambda o, a: o * a, at.now(only, 1), now)
                ops.matmul(at.now(each, 0), now.T, weighed)
                ops.sum(at.now(of_steps, 0), weighed)
    ops.sum(total, each)
    ops.sum(sums, of_steps)
    program = ops.finish()
    assert backend(name).unsupported(program) is None
    done = (rng.random((batch, steps, 1)) < 0.3).astype(float) * (rng.random((1, steps, 1)) < 0.6)
    given = {"only": done, "x": rng.normal(size=(batch, steps, width))}
    kept_rows, state = np.zeros((batch, steps, width)), np.full((batch, width), 0.5)
    for t in range(steps):
        kept_rows[:, t] = np.tanh(given["x"][:, t] - state)
        state = np.where(done[:, t] > 0.0, kept_rows[:, t], state)
    wanted = {
        "last": state, "y": np.where(done > 0.0, kept_rows, -1.0), "sums": (done * kept_rows).sum((0, 1)),
        "total": np.einsum("bti,btj->ij", kept_rows, done * kept_rows),
    }  # fmt: skip
    for fill in (0x00, 0xFF):
        found = run_program(program, name, batch, given, fill)
        for key, array in wanted.items():
            assert_close(found[key], array, 1e-12, key)
