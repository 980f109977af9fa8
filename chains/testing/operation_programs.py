"""Programs that show each operation on every kind of view, to compare backends by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from chains import expr
from chains.expr.scalar import OPERATIONS
from chains.program.operations import COMMUNICATOR, Window
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import View, concrete

IDS = np.dtype(np.int64)
ROWS = 4  # of tables; indices go beyond on both sides
SPECIAL = np.array([0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.5, -0.75, 8.0, -3.0])
LARGE = np.array([20.0, -20.0, 50.0, -50.0, 88.0, -88.0, 200.0, -200.0])  # where functions saturate or overflow
LONG_TABLE = 300  # rows: more than 8 bits count
STEPS = 300  # of a long loop: more than 8 bits count
SEED, STEP, FIRST_SAMPLE = 2**63 + 2**40 + 5, 2**63 + 2**33 + 259, 2**33 + 3  # of random numbers: no bits may be lost

# Kinds of views of an array of a sample shape: with gaps after each row, with the last two axes exchanged, with gaps between
# samples, and the whole buffer.
KINDS = ("whole", "part", "swapped", "entry")


class Arrays:
    """Makes buffers, and views of them of a shape. Results are states, so that what is around a view is seen to be kept."""

    def __init__(self, name: str, dtype: Any, *, parallel: bool = False) -> None:
        self.ops = Recorder(name, np.dtype(dtype), parallel=parallel)

    def view(self, name: str, shape: tuple[int, ...], kind: str, *, batched: bool = True, result: bool = False) -> View:
        """A view of this kind; "swapped" takes two axes, and is "part" for fewer."""
        make = partial(self.ops.external, f"{name} {kind}", batched=batched, role="state" if result else "input")
        if kind == "swapped" and len(shape) > 1:
            return make((*shape[:-2], shape[-1], shape[-2])).swap(-1, -2)
        if kind == "entry":
            return make((2, *shape)).index(1 if batched else 0, 1)
        if kind == "whole" or not shape:
            return make(shape)
        return make((*shape[:-1], shape[-1] + 3)).slice(-1, 2, 2 + shape[-1])

    def input(self, name: str, *shape: int, batched: bool = True, dtype: Any = None) -> View:
        return self.ops.external(name, shape, role="input", batched=batched, dtype=dtype)

    def result(self, name: str, *shape: int, batched: bool = True) -> View:
        return self.ops.external(name, shape, role="state", batched=batched)


def matmul(a: Arrays, kind: str) -> None:
    x, w = a.view("x", (3,), kind), a.view("w", (3, 5), kind, batched=False)
    y, dw = a.view("y", (5,), kind, result=True), a.view("dw", (3, 5), kind, batched=False, result=True)
    a.ops.matmul(y, x, w)
    a.ops.matmul(dw, x.T, y)
    a.ops.matmul(a.view("sum", (3,), kind, result=True), y, w.T, accumulate=True)
    a.ops.matmul(a.view("product", (3, 3), kind, batched=False, result=True), w, w.T, accumulate=True)


def batch_matmul(a: Arrays, kind: str) -> None:
    x, w = a.view("x", (2, 3, 4), kind), a.view("w", (2, 4, 5), kind)
    y = a.view("y", (2, 3, 5), kind, result=True)
    a.ops.matmul(y, x, w)
    a.ops.matmul(a.view("sum", (2, 3, 4), kind, result=True), y, w.swap(-1, -2), accumulate=True)


def maps(a: Arrays, kind: str) -> None:
    x, b = a.view("x", (2, 3), kind), a.view("b", (2, 3), kind, batched=False)
    a.ops.map(a.view("y", (2, 3), kind, result=True), lambda x, b: expr.tanh(x) * 2.1 + b, x, b)
    row = a.view("row", (3,), kind, batched=False)
    same = a.view("same", (2, 3), kind, result=True)
    a.ops.map(same, lambda y, row: y - row * y, same, row)
    first, second = a.view("first", (2, 3), kind, result=True), a.view("second", (2, 3), kind, result=True)
    a.ops.map((first, second), lambda p, q: (q + 1.0, p), first, second)
    column = a.view("column", (2, 1), kind)
    a.ops.map(a.view("outer", (2, 3), kind, result=True), lambda column, row: column - 0.1 * row, column, row)


def scalars(a: Arrays, kind: str) -> None:
    number = a.input("number", batched=False)
    a.ops.map(a.result("scalar", batched=False), lambda n: expr.sqrt(n * n) + 1.0, number)
    a.ops.map(a.result("of a number", 3), lambda n, i: n * i, number, a.ops.inverse_batch)


def formulas(a: Arrays, kind: str) -> None:
    """Every scalar operation, on operands with zeros, infinities and NaN; those of one number on large ones, too."""
    x, y, z = (a.input(name, 8) for name in ("special x", "special y", "special z"))
    large = a.input("large", 8)
    for name, operation in OPERATIONS.items():
        if operation.arity == 1 and name != "not":
            a.ops.map(a.result(f"{name} of large numbers", 8), _formula(name, operation.truth), large)
        a.ops.map(a.result(f"{name} ", 8), _formula(name, operation.truth), *(x, y, z)[: operation.arity])
    a.ops.map(a.result("truth ", 8), lambda x, y: (x > y) * 3.0 + y, x, y)


def _formula(name: str, truth: bool) -> Callable[..., Any]:
    if name == "where":
        return lambda x, y, z: expr.where(x < y, y, z)
    if name in ("and", "or", "not"):
        found: Any = OPERATIONS[name].ufunc
        return lambda *operands: expr.where(found(*(each > 0.0 for each in operands)), 1.0, -1.0)
    function: Any = expr.erf if name == "erf" else OPERATIONS[name].ufunc
    return (lambda *operands: expr.where(function(*operands), 1.0, -1.0)) if truth else function


def reductions(a: Arrays, kind: str) -> None:
    x, special = a.view("x", (2, 3), kind), a.view("special", (2, 3), kind)
    for name, record in (("sum", a.ops.sum), ("max", a.ops.max)):
        shapes: list[tuple[tuple[int, ...], bool]] = [((2, 3), False), ((1, 3), True), ((2, 1), True), ((), False)]
        for number, (shape, batched) in enumerate(shapes):
            record(a.view(f"{name} {number}", shape, kind, batched=batched, result=True), x)
        record(a.view(f"{name} with infinities and NaN", (2, 1), kind, result=True), special)


WINDOWS = (
    (Window((2, 2)), 1),
    (Window((2, 3), (2, 1), ((1, 0), (1, 2))), 2),
    (Window((2, 2), (1, 2), dilation=(2, 1)), 1),
    (Window((1, 1)), 2),
)


def convolutions(a: Arrays, kind: str) -> None:
    for number, (window, groups) in enumerate(WINDOWS):
        positions = window.outputs((5, 6))
        x = a.view(f"x {number}", (4, 5, 6), kind)
        w = a.view(f"w {number}", (2, 4 // groups, *window.size), kind, batched=False)
        dy = a.view(f"dy {number}", (2, *positions), kind)
        a.ops.convolve(a.view(f"y {number}", (2, *positions), kind, result=True), x, w, window, groups=groups)
        a.ops.convolve_input(a.view(f"dx {number}", (4, 5, 6), kind, result=True), dy, w, window, groups=groups)
        dw = a.view(f"dw {number}", w.sample_shape, kind, batched=False, result=True)
        a.ops.convolve_weight(dw, x, dy, window, groups=groups)


def pools(a: Arrays, kind: str) -> None:
    for number, (window, _) in enumerate(WINDOWS):
        shape = (2, *window.outputs((5, 6)))
        x, dy = a.view(f"ties {number}", (2, 5, 6), kind), a.view(f"dy {number}", shape, kind)
        for name, counted in (("max", True), ("mean", True), ("mean", False)):
            text = f"{name} {counted} {number}"
            y = a.view(f"y {text}", shape, kind, result=True)
            dx = a.view(f"dx {text}", (2, 5, 6), kind, result=True)
            a.ops.pool(name, y, x, window, count_padding=counted)
            a.ops.pool_input(name, dx, dy, x, y, window, count_padding=counted)


def rows(a: Arrays, kind: str) -> None:
    """Rows taken from a table and added to it, with equal indices and indices out of range, some of more than 32 bits."""
    index, short = a.input("index", dtype=IDS), a.input("short index", dtype=np.int32)
    table, source = a.view("table", (ROWS, 3), kind, batched=False), a.view("source", (3,), kind)
    for number, ids in enumerate((index, short, a.input("far index", dtype=IDS))):
        a.ops.gather(a.view(f"rows {number}", (3,), kind, result=True), table, ids)
        a.ops.scatter_add(a.view(f"added {number}", (ROWS, 3), kind, batched=False, result=True), ids, source)


def random(a: Arrays, kind: str) -> None:
    a.ops.random(a.view("numbers", (2, 3), kind, result=True))
    if kind != "whole":
        return
    a.ops.random(a.result("fixed", 5), fixed=True)
    a.ops.random(a.result("without samples", 7, batched=False))


def copies(a: Arrays, kind: str) -> None:
    a.ops.copy(a.view("y", (2, 3), kind, result=True), a.view("x", (2, 3), kind))
    a.ops.copy(a.view("from a row", (2, 3), kind, result=True), a.view("row", (3,), kind, batched=False))
    a.ops.fill(a.view("filled", (2, 3), kind, result=True), -0.1)


def conversions(a: Arrays, kind: str) -> None:
    a.ops.copy(a.result("numbers of ids"), a.input("index", dtype=IDS))
    a.ops.copy(a.result("constant", 2, batched=False), a.ops.constant("two numbers", np.array([0.1, -1 / 3], a.ops.dtype)))


def processes(a: Arrays, kind: str) -> None:
    """What only programs for several processes have. There is no communicator, so the sum is that of one process."""
    a.ops.random(a.result("numbers", 3))
    a.ops.all_reduce(a.result("total", 2, 3, batched=False), a.input("part", 2, 3, batched=False))
    a.ops.map(a.result("mean", 3), lambda x, i: x * i, a.input("x", 3), a.ops.inverse_batch)


def loops(a: Arrays, kind: str) -> None:
    x, h, w = a.input("x", 4, 3), a.ops.scratch("h", (3,)), a.input("w", 3, 3, batched=False)
    for backwards in (False, True):
        y, dw = a.result(f"y {backwards}", 4, 3), a.result(f"dw {backwards}", 3, 3, batched=False)
        a.ops.fill(h, 0.25)
        with a.ops.loop(4, backwards=backwards) as at:
            a.ops.matmul(at.now(y, 1), h, w)
            a.ops.map(h, lambda y, x: expr.tanh(y + x), at.now(y, 1), at.now(x, 1))
            a.ops.matmul(dw, h.T, at.now(x, 1), accumulate=True)
    needed, total = a.input("needed", 4), a.result("total", 3, batched=False)
    with a.ops.loop(4, skip_where_zero=lambda at: at.now(needed, 1).expand(1)) as at:
        part = a.ops.scratch("part", (3,))
        a.ops.map(part, lambda n, x: n * x, at.now(needed, 1).expand(1), at.now(x, 1))
        a.ops.matmul(total.reshape(1, 3), at.now(needed, 1).expand(1).T, part, accumulate=True)
    nested = a.result("nested", 4, 3)
    with a.ops.loop(4) as outer:
        row = outer.now(nested, 1)
        with a.ops.loop(3) as inner:
            a.ops.map(inner.now(row, 1), lambda y, x: y + x * x, inner.now(row, 1), inner.now(outer.now(x, 1), 1))
    count, long = a.ops.scratch("count", (1,)), a.result("long", STEPS)
    a.ops.fill(count, 0.0)
    with a.ops.loop(STEPS) as at:
        a.ops.map(count, lambda n: n + 0.1, count)
        a.ops.copy(at.now(long, 1).expand(1), count)


FAMILIES: dict[str, tuple[Callable[[Arrays, str], None], tuple[str, ...]]] = {
    "matmul": (matmul, KINDS),
    "batch matmul": (batch_matmul, KINDS),
    "map": (maps, KINDS),
    "scalars": (scalars, ("whole",)),
    "scalar operations": (formulas, ("whole",)),
    "sum and max": (reductions, KINDS),
    "convolve": (convolutions, ("whole", "part", "entry")),
    "pool": (pools, ("whole", "part", "entry")),
    "gather and scatter_add": (rows, ("whole", "part", "entry")),
    "random": (random, KINDS),
    "copy and fill": (copies, KINDS),
    "conversions": (conversions, ("whole",)),
    "processes": (processes, ("whole",)),
    "loop": (loops, ("whole",)),
}

# The inner size and the columns of products: below, at and above the usual sizes of vectors, tiles and blocks.
PRODUCTS = ((1, 1), (9, 70), (35, 100), (100, 15), (130, 66), (260, 2), (5, 260))


def products(dtype: Any) -> Iterator[Program]:
    """For each of `PRODUCTS`, those of a dense layer, its output and both gradients, and those of attention."""
    for inner, columns in PRODUCTS:
        a = Arrays(f"product of {inner} with {columns} columns", dtype)
        x, w, y = a.input("x", inner), a.input("w", inner, columns, batched=False), a.result("y", columns)
        a.ops.matmul(y, x, w)
        a.ops.matmul(a.result("dw", inner, columns, batched=False), x.T, y)
        a.ops.matmul(a.result("dx", inner), y, w.T)
        a.ops.matmul(a.result("sum", inner), y, w.T, accumulate=True)
        keys, values = a.input("keys", 3, inner), a.input("values", inner, columns)
        a.ops.matmul(a.result("mixed", 3, columns), keys, values)
        yield a.ops.finish()


def wide(dtype: Any) -> Iterator[Program]:
    """Images of many channels, and long tables of wide rows."""
    a, window = Arrays("many channels", dtype), Window((2, 2))
    x, w, dy = a.input("x", 20, 3, 4), a.input("w", 18, 20, 2, 2, batched=False), a.input("dy", 18, 2, 3)
    a.ops.convolve(a.result("y", 18, 2, 3), x, w, window)
    a.ops.convolve_input(a.result("dx", 20, 3, 4), dy, w, window)
    a.ops.convolve_weight(a.result("dw", 18, 20, 2, 2, batched=False), x, dy, window)
    yield a.ops.finish()
    a = Arrays("long tables of wide rows", dtype)
    index = a.input("long index", dtype=IDS)
    a.ops.gather(a.result("rows", 70), a.input("table", LONG_TABLE, 70, batched=False), index)
    a.ops.scatter_add(a.result("added", LONG_TABLE, 70, batched=False), index, a.input("source", 70))
    yield a.ops.finish()


def any_batch(dtype: Any) -> Iterator[Program]:
    """Operations whose work grows with the number of samples, for any of them."""
    a = Arrays("rows of products", dtype)
    x, w, y = a.input("x", 3), a.input("w", 3, 5, batched=False), a.result("y", 5)
    a.ops.matmul(y, x, w)
    a.ops.matmul(a.result("dw", 3, 5, batched=False), x.T, y)
    yield a.ops.finish()
    a = Arrays("rows of other operations", dtype)
    x, index = a.input("x", 3), a.input("index", dtype=IDS)
    a.ops.map(a.result("mapped", 3), lambda x: expr.tanh(x) + 0.1, x)
    a.ops.sum(a.result("sum", 3, batched=False), x)
    a.ops.max(a.result("largest", 1), x)
    a.ops.gather(a.result("rows", 3), a.input("table", ROWS, 3, batched=False), index)
    a.ops.scatter_add(a.result("added", ROWS, 3, batched=False), index, x)
    a.ops.random(a.result("random numbers", 3))
    a.ops.matmul(a.result("mixed", 2, 2), a.input("keys", 2, 3), a.input("values", 3, 2))
    yield a.ops.finish()


def any_images(dtype: Any) -> Iterator[Program]:
    """Operations on small images, for any number of them."""
    a, window = Arrays("rows of images", dtype), Window((2, 2))
    x, w, dy = a.input("x", 1, 3, 2), a.input("w", 2, 1, 2, 2, batched=False), a.input("dy", 2, 2, 1)
    a.ops.convolve(a.result("y", 2, 2, 1), x, w, window)
    a.ops.convolve_input(a.result("dx", 1, 3, 2), dy, w, window)
    a.ops.convolve_weight(a.result("dw", 2, 1, 2, 2, batched=False), x, dy, window)
    for kind in ("max", "mean"):
        y = a.result(f"{kind} pooled", 1, 2, 1)
        a.ops.pool(kind, y, x, window)
        a.ops.pool_input(kind, a.result(f"{kind} dx", 1, 3, 2), dy.slice(1, 0, 1), x, y, window)
    yield a.ops.finish()


def operation_programs(family: str, dtype: Any) -> Iterator[Program]:
    """The programs of a family of operations, one for each kind of view."""
    record, kinds = FAMILIES[family]
    for kind in kinds:
        arrays = Arrays(f"{family}, {kind} views", dtype, parallel=family == "processes")
        record(arrays, kind)
        yield arrays.ops.finish()


def random_arrays(program: Program, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for the inputs and states of a program."""
    rng, arrays = np.random.default_rng(seed), {}
    for name, buffer in program.buffers.items():
        if buffer.role in ("input", "state") and buffer.data is None and name != "inverse_batch":
            arrays[name] = _drawn(name, buffer.dtype, concrete(buffer.shape, batch), rng, seed)
    return arrays


def _drawn(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator, seed: int) -> np.ndarray:
    """Numbers for a buffer, of the sort that its name says."""
    if name == "random":
        return np.array([SEED + seed, STEP + seed], dtype)
    if name == "first_sample":
        return np.array(FIRST_SAMPLE + seed, dtype)
    if name == COMMUNICATOR:
        return np.zeros(shape, dtype)
    if name.startswith("far"):
        return rng.choice([-(2**40) + 2, 2**32 + 1, 2**63 - 1], shape).astype(dtype)
    if dtype.kind == "i":
        return rng.integers(-2, (LONG_TABLE if name.startswith("long") else ROWS) + 2, shape).astype(dtype)
    if name.startswith("special"):
        return SPECIAL[rng.integers(0, len(SPECIAL), shape)].astype(dtype)
    if name == "large":
        return LARGE[rng.integers(0, len(LARGE), shape)].astype(dtype)
    if name.startswith(("ties", "needed")):
        return rng.integers(0, 3, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)
