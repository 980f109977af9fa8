"""Random programs over the whole vocabulary, recorded operation by operation, with bounds on the results.

In an *exact* program all numbers are multiples of a power of two small enough that no sum is ever rounded: every order of
summation gives the same numbers. A *smooth* program calls functions that are continuous, so that a difference in rounding stays
one; how far it may grow is kept beside every buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains import expr
from chains.program.operations import Window
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer, View, concrete

EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 20, 33)
LARGEST_BATCH = 100
BITS = {"float32": 22, "float64": 40}  # of the numbers of exact programs
LOOSEST = 1 << 13  # units of rounding that a result of a smooth program may be off
COUNTS = {"operations": (2, 9), "formula": (1, 4)}


@dataclass(frozen=True)
class Size:
    """Bounds on numbers: their magnitude; for exact ones the power of two ``2**-grain`` that all are multiples of, for others
    by how many units of rounding they may be off.
    """

    bound: float
    grain: int = 0
    error: float = 0.0

    def __or__(self, other: Size) -> Size:
        return Size(max(self.bound, other.bound), max(self.grain, other.grain), max(self.error, other.error))

    def __add__(self, other: Size) -> Size:
        bound = self.bound + other.bound
        return Size(bound, max(self.grain, other.grain), self.error + other.error + bound)

    def __mul__(self, other: Size) -> Size:
        bound = self.bound * other.bound
        error = self.bound * other.error + other.bound * self.error + bound
        return Size(bound, self.grain + other.grain, error)

    def times(self, count: int) -> Size:
        """The sum of so many."""
        return Size(self.bound * count, self.grain, self.error * count + 4.0 * math.sqrt(count) * self.bound)

    def through(self, bound: float, slope: float = 1.0) -> Size:
        """A function of it, whose values have this bound and whose slope has that one."""
        return Size(bound, self.grain, slope * self.error + 4.0 * bound)

    def fits(self, dtype: str, exact: bool) -> bool:
        if exact:
            return self.bound * 2.0**self.grain < 2 ** BITS[dtype]
        return self.error < LOOSEST and self.bound < 1e4


Rule = tuple[Callable[..., Any], Callable[..., Size]]  # what is computed, and the size of the result


@dataclass(frozen=True)
class Formula:
    """Rules, each on results before it by number, and a factor for the last result."""

    steps: list[tuple[Rule, tuple[int, ...]]]
    factor: float

    def value(self, given: Sequence[Any]) -> Any:
        return self._last(given, 0) * self.factor

    def size(self, given: Sequence[Size]) -> Size:
        return self._last(given, 1) * Size(abs(self.factor))

    def _last(self, given: Sequence[Any], which: int) -> Any:
        known = list(given)
        for rule, operands in self.steps:
            known.append(rule[which](*(known[k] for k in operands)))
        return known[-1]


# Functions of one number for smooth formulas: what they make of a size
SMOOTH: dict[str, Rule] = {
    "tanh": (expr.tanh, lambda s: s.through(min(1.0, s.bound))),
    "sin": (expr.sin, lambda s: Size(1.0, 0, s.error + s.bound + 4.0)),
    "cos": (expr.cos, lambda s: Size(1.0, 0, s.error + s.bound + 4.0)),
    "erf": (expr.erf, lambda s: s.through(1.0, 1.13)),
    "abs": (abs, lambda s: s),
    "neg": (lambda x: -x, lambda s: s),
    "exp(-abs)": (lambda x: expr.exp(-abs(x)), lambda s: s.through(1.0)),
    "expm1(-abs)": (lambda x: expr.expm1(-abs(x)), lambda s: s.through(1.0)),
    "log1p(x*x)": (lambda x: expr.log1p(x * x), lambda s: s.through(math.log1p(s.bound**2))),
    "log(1+abs)": (lambda x: expr.log(1.0 + abs(x)), lambda s: s.through(math.log1p(s.bound))),
    "sqrt(1+x*x)": (lambda x: expr.sqrt(1.0 + x * x), lambda s: s.through(1.0 + s.bound)),
    "sigmoid": (lambda x: 1.0 / (1.0 + expr.exp(-x)), lambda s: s.through(1.0, 0.25)),
    "softsign": (lambda x: x / (1.0 + abs(x)), lambda s: s.through(1.0)),
    "pow": (lambda x: (1.0 + abs(x)) ** -1.5, lambda s: s.through(1.0, 1.5)),
    "half": (lambda x: 0.5 * x, lambda s: Size(0.5 * s.bound, s.grain + 1, 0.5 * s.error)),
}
EXACT: dict[str, Rule] = {
    "abs": SMOOTH["abs"],
    "neg": SMOOTH["neg"],
    "half": SMOOTH["half"],
    "floor": (expr.floor, lambda s: Size(s.bound + 1.0)),
    "sign": (expr.sign, lambda s: Size(1.0)),
    "clip": (lambda x: expr.maximum(expr.minimum(x, 5.0), -5.0), lambda s: Size(min(s.bound, 5.0), s.grain)),
    "positive": (lambda x: expr.where(x > 0, x, 0.0), lambda s: s),
    "odd": (lambda x: expr.where((x > 1.0) | (x < -2.0), 2.0, 1.0), lambda s: Size(2.0)),
    "far": (lambda x: expr.where(~((x <= 3.0) & (x >= -3.0)), -1.0, x), lambda s: s | Size(1.0)),
}
PAIRS: dict[str, Rule] = {
    "add": (lambda a, b: a + b, lambda s, t: s + t),
    "sub": (lambda a, b: a - b, lambda s, t: s + t),
    "mul": (lambda a, b: a * b, lambda s, t: s * t),
    "min": (expr.minimum, lambda s, t: s | t),
    "max": (expr.maximum, lambda s, t: s | t),
}
EXACT_PAIRS: dict[str, Rule] = {
    **PAIRS,
    "less": (lambda a, b: expr.where(a < b, a, 1.0), lambda s, t: s | Size(1.0)),
    "equal": (lambda a, b: expr.where(a == b, b, -a), lambda s, t: s | t),
    "unequal": (lambda a, b: expr.where((a != b) & (a >= 0.0), 1.0, b), lambda s, t: t | Size(1.0)),
}


class Drawn:
    """A program being drawn: what was filled so far, and how large its numbers may be."""

    def __init__(self, rng: np.random.Generator, dtype: str, exact: bool) -> None:
        self.rng, self.dtype, self.exact = rng, dtype, exact
        self.ops = Recorder("random", np.dtype(dtype))
        self.filled: list[View] = []  # whole buffers, and parts that were filled
        self.sizes: dict[Buffer, Size] = {}
        self.tables: dict[str, int] = {}  # rows of the tables that index inputs point into
        self._count = 0
        steps = int(rng.integers(*COUNTS["operations"]))
        while len(self.ops.operations) < steps:
            getattr(self, self.one_of(KINDS))()
        self._keep()

    @property
    def program(self) -> Program:
        return self.ops.finish()

    # Draws

    def one_of(self, things: Any) -> Any:
        return things[int(self.rng.integers(len(things)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def shape(self, most: int = 3) -> tuple[int, ...]:
        """A sample shape, often that of something filled, so that one operation reads what another wrote."""
        known = [view.sample_shape for view in self.filled if len(view.sample_shape) <= most]
        if known and self.chance(0.5):
            return self.one_of(known)
        return tuple(self.extent() for _ in range(int(self.rng.integers(0, most + 1))))

    def extent(self) -> int:
        known = [extent for view in self.filled[-4:] for extent in view.sample_shape]
        return self.one_of(known) if known and self.chance(0.4) else self.one_of(EXTENTS)

    def name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    # Views

    def input(self, shape: tuple[int, ...], batched: bool) -> View:
        role = "state" if self.chance(0.15) else "input"
        view = self.ops.external(self.name(role), shape, role=role, batched=batched)
        self.sizes[view.buffer] = Size(4.0) if self.exact else Size(2.0)
        self.filled.append(view)
        return view

    def operand(self, shape: tuple[int, ...], batched: bool) -> View:
        """A view of this sample shape that is filled: a part of what there is, or an input."""
        found = [view for whole in self.filled for view in self._cut(whole, shape, batched)]
        return self.one_of(found) if found and self.chance(0.75) else self._fresh(shape, batched)

    def _fresh(self, shape: tuple[int, ...], batched: bool) -> View:
        """An input of this shape, or a part of a larger one."""
        if shape and self.chance(0.25):
            axis = int(self.rng.integers(len(shape)))
            longer = [*shape[:axis], shape[axis] + int(self.rng.integers(1, 4)), *shape[axis + 1 :]]
            (view,) = self._cut(self.input(tuple(longer), batched), shape, batched)
            return view
        return self.input(shape, batched)

    def _cut(self, whole: View, shape: tuple[int, ...], batched: bool) -> list[View]:
        """The whole, a random part of it, or its elements in another shape, if these have the shape wanted."""
        if whole.batched != batched or (whole.batched and whole.shape[0] != Batch()):
            return []
        view, front = whole, int(batched)
        while view.ndim - front > len(shape):  # an entry of an axis
            axis = int(self.rng.integers(front, view.ndim))
            extent = view.shape[axis]
            if extent == 0:
                return []
            view = view.index(axis, int(self.rng.integers(extent)))
        while view.ndim - front < len(shape):
            view = view.expand(int(self.rng.integers(front, view.ndim + 1)))
        have = view.sample_shape
        if have != shape and whole.contiguous and whole.sample_size == math.prod(shape):
            return [whole.reshape(*shape)]
        if any(wanted > extent for wanted, extent in zip(shape, have, strict=True)):
            if not batched and len(shape) == 2 and have[::-1] == shape:
                return [view.T]
            return []
        for axis, (wanted, extent) in enumerate(zip(shape, have, strict=True)):
            start = int(self.rng.integers(extent - wanted + 1))
            view = view.slice(front + axis, start, start + wanted) if wanted != extent else view
        return [view]

    def result(self, shape: tuple[int, ...], batched: bool, apart: tuple[View, ...] = ()) -> View:
        """A view to fill, in none of the buffers of `apart`: a new buffer's, or one that is filled already."""
        taken = {view.buffer for view in apart}
        if self.chance(0.2):
            writable = [v for v in self.filled if v.buffer.role not in ("input", "constant") and v.buffer not in taken]
            found = [view for whole in writable for view in self._cut(whole, shape, batched)]
            if found:
                return self.one_of(found)
        if self.chance(0.3):
            return self.ops.external(self.name("y"), shape, role="output", batched=batched)
        return self.ops.scratch(self.name("scratch "), shape, batched=batched)

    def size(self, view: View) -> Size:
        return self.sizes[view.buffer]

    def fits(self, size: Size) -> bool:
        return size.fits(self.dtype, self.exact)

    def done(self, view: View, size: Size) -> None:
        """A view was filled by numbers of this size."""
        before = self.sizes.get(view.buffer)
        self.sizes[view.buffer] = size if before is None else size | before
        if before is None:
            self.filled.append(view)

    def tame(self, view: View) -> View:
        """The same numbers made small enough to multiply, in a new buffer where they are not."""
        if self.size(view).bound <= 8.0 and self.size(view).grain <= 2:
            return view
        out = self.ops.scratch(self.name("tame "), view.sample_shape, batched=view.batched)
        if self.exact:
            self.ops.map(out, lambda x: expr.floor(expr.maximum(expr.minimum(x, 4.0), -4.0)), view)
            self.done(out, Size(4.0))
        else:
            self.ops.map(out, expr.tanh, view)
            self.done(out, self.size(view).through(1.0))
        return out

    # Operations

    def matmul(self) -> None:
        m, k, n = (self.extent() for _ in range(3))
        kind = self.one_of(("rows", "rows", "sum", "plain", "sequence", "sequence sum"))
        if kind == "rows":
            a, out_shape, batched, count = self.operand((k,), True), (n,), True, k
            b = self.weight(k, n)
        elif kind == "sum":
            a, b = self.operand((m,), True).T, self.operand((n,), True)
            out_shape, batched, count = (m, n), False, LARGEST_BATCH
        elif kind == "plain":
            a, b, out_shape, batched, count = self.weight(m, k), self.weight(k, n), (m, n), False, k
        else:
            length = self.one_of((1, 2, 3, 5))
            a = self.whole((length, k))
            if kind == "sequence":
                b, out_shape, batched, count = self.weight(k, n), (length, n), True, k
                a = a.rows
            else:
                b = self.whole((length, n)).rows
                a, out_shape, batched, count = a.rows.T, (k, n), False, LARGEST_BATCH * length
        size = (self.size(a) * self.size(b)).times(count)
        if not self.fits(size):
            return
        out = self.ops.external(self.name("y"), out_shape, role="output", batched=batched)
        if self.chance(0.5):
            out = self.ops.scratch(self.name("product "), out_shape, batched=batched)
        if kind not in ("sequence", "sequence sum") and self.chance(0.3):
            out = self.result(out_shape, batched, (a, b))
        accumulate = self.chance(0.35)
        if accumulate:
            if out.buffer not in self.sizes:
                self.ops.fill(out, 1.0)
                self.done(out, Size(1.0))
            size = size + self.size(out)
            if not self.fits(size):
                return
        self.ops.matmul(out.rows if kind == "sequence" else out, a, b, accumulate=accumulate)
        self.done(out, size)

    def weight(self, rows: int, columns: int) -> View:
        if self.chance(0.4):
            return self.operand((columns, rows), False).T
        return self.operand((rows, columns), False)

    def whole(self, shape: tuple[int, ...]) -> View:
        """Samples of this shape without gaps."""
        view = self.operand(shape, True)
        return view if view.contiguous else self.input(shape, True)

    def map(self) -> None:
        batched = self.chance(0.75)
        shape = self.shape()
        ins = [self._broadcast(shape, batched) for _ in range(int(self.rng.integers(1, 4)))]
        formulas = [self._formula(len(ins)) for _ in range(1 if self.chance(0.7) else 2)]
        sizes = [formula.size([self.size(view) for view in ins]) for formula in formulas]
        if not all(map(self.fits, sizes)):
            return
        outs: list[View] = []
        for _ in formulas:
            same = [v for v in ins if v.buffer.role not in ("input", "constant") and _as_shape(v, shape, batched)]
            other = [v for v in same if all(v.buffer is not o.buffer for o in outs)]
            apart = (*ins, *outs) if self.chance(0.95) else tuple(outs)
            outs.append(self.one_of(other) if other and self.chance(0.5) else self.result(shape, batched, apart))

        self.ops.map(tuple(outs), lambda *given: tuple(formula.value(given) for formula in formulas), *ins)
        for out, size in zip(outs, sizes, strict=True):
            self.done(out, size)

    def _broadcast(self, shape: tuple[int, ...], batched: bool) -> View:
        """An operand that broadcasts to this shape."""
        if self.chance(0.5):
            return self.operand(shape, batched)
        if batched and self.chance(0.4):
            return self.operand(tuple(1 if self.chance(0.3) else extent for extent in shape), True)
        some = shape[int(self.rng.integers(0, len(shape) + 1)) :]
        return self.operand(tuple(1 if self.chance(0.3) else extent for extent in some), False)

    def _formula(self, ins: int) -> Formula:
        single, pairs = (EXACT, EXACT_PAIRS) if self.exact else (SMOOTH, PAIRS)
        steps: list[tuple[Rule, tuple[int, ...]]] = []
        for known in range(ins, ins + int(self.rng.integers(*COUNTS["formula"]))):
            a, b = int(self.rng.integers(known)), int(self.rng.integers(known))
            alone = self.chance(0.4)
            rule = self.one_of(list((single if alone else pairs).values()))
            steps.append((rule, (a,) if alone else (a, b)))
        return Formula(steps, self.one_of((-2.0, 1.0, 3.0)))

    def reduce(self) -> None:
        batched, shape = self.chance(0.75), self.shape()
        a = self.operand(shape, batched)
        kept = [1 if self.chance(0.4) else extent for extent in shape]
        over = batched and self.chance(0.4)
        drop = int(self.rng.integers(0, len(shape) + 1)) if over or not batched else 0
        kept = kept[drop:]
        count = math.prod(shape) // max(1, math.prod(kept)) * (LARGEST_BATCH if over else 1)
        kind = self.one_of(("sum", "max"))
        size = self.size(a).times(count) if kind == "sum" else self.size(a)
        if not self.fits(size):
            return
        out = self.result(tuple(kept), batched and not over, (a,))
        getattr(self.ops, kind)(out, a)
        self.done(out, size)

    def _window(self) -> Window:
        def pair(*choices: int) -> tuple[int, int]:
            return self.one_of(choices), self.one_of(choices)

        padding = (pair(0, 0, 1), pair(0, 0, 1))
        return Window(pair(1, 2, 3, 3), pair(1, 1, 1, 2, 3), padding, pair(1, 1, 1, 2))

    def _images(self) -> tuple[Window, int, tuple[int, int], tuple[int, int]]:
        """A window, channels, and the sizes of the images that go in and come out."""
        while True:
            window, inputs = self._window(), (self.one_of((1, 3, 4, 5, 8, 9)), self.one_of((1, 2, 5, 6, 8, 11)))
            outputs = window.outputs(inputs)
            if min(outputs) > 0 and all(max(pad) < span for pad, span in zip(window.padding, window.span, strict=True)):
                return window, self.one_of((1, 2, 3, 4, 8)), inputs, outputs

    def convolve(self) -> None:
        window, channels, inputs, positions = self._images()
        groups = channels if self.chance(0.2) else 1
        outputs = groups * self.one_of((1, 2, 3)) if groups > 1 else self.one_of((1, 2, 5, 8))
        w_shape, kind = (outputs, channels // groups, *window.size), self.one_of(("y", "dx", "dw"))
        images = {"x": (channels, *inputs), "y": (outputs, *positions)}
        if kind == "dw":
            x, dy = self.operand(images["x"], True), self.operand(images["y"], True)
            size = (self.size(x) * self.size(dy)).times(LARGEST_BATCH * math.prod(positions))
            if self.fits(size):
                out = self.result(w_shape, False, (x, dy))
                self.ops.convolve_weight(out, x, dy, window, groups=groups)
                self.done(out, size)
            return
        source, target = ("x", "y") if kind == "y" else ("y", "x")
        a, w = self.operand(images[source], True), self.operand(w_shape, False)
        terms = channels // groups if kind == "y" else outputs // groups
        size = (self.size(a) * self.size(w)).times(terms * window.area)
        if self.fits(size):
            out = self.result(images[target], True, (a, w))
            (self.ops.convolve if kind == "y" else self.ops.convolve_input)(out, a, w, window, groups=groups)
            self.done(out, size)

    def pool(self) -> None:
        window, channels, inputs, positions = self._images()
        kind, counted = self.one_of(("max", "mean")), self.chance(0.5)
        if kind == "mean" and self.exact:
            counted = True
            if window.area not in (1, 2, 4):
                return
        if kind == "max" and _has_empty_windows(window, inputs, positions):  # their largest entry is -inf
            return
        x = self.operand((channels, *inputs), True)
        size = self.size(x)
        if kind == "mean":
            size = Size(size.bound, size.grain + 2, size.error + 4.0 * size.bound)
        if not self.fits(size):
            return
        y = self.result((channels, *positions), True, (x,))
        self.ops.pool(kind, y, x, window, count_padding=counted)
        self.done(y, size)
        # A gradient of the largest depends on which entry equals it: only exact numbers tell that without doubt.
        if self.chance(0.6) and (self.exact or kind == "mean"):
            dy = self.operand((channels, *positions), True)
            slope = self.size(dy).times(window.area)
            slope = Size(slope.bound, slope.grain + 2, slope.error) if kind == "mean" else slope
            if self.fits(slope):
                dx = self.result((channels, *inputs), True, (x, y, dy))
                self.ops.pool_input(kind, dx, dy, x, y, window, count_padding=counted)
                self.done(dx, slope)

    def gather(self) -> None:
        rows, row, shape = self.one_of((1, 2, 5, 11)), self.shape(2), self.shape(1)
        kind = self.one_of((np.int64, np.int32))
        index = self.ops.external(self.name("index"), shape, role="input", batched=True, dtype=np.dtype(kind))
        self.tables[index.buffer.name] = rows
        if self.chance(0.5):
            table = self.operand((rows, *row), False)
            out = self.result((*shape, *row), True, (table,))
            self.ops.gather(out, table, index)
            self.done(out, self.size(table))
            return
        source = self.operand((*shape, *row), True)
        size = self.size(source).times(LARGEST_BATCH * math.prod(shape))
        out = self.result((rows, *row), False, (source,))
        before = self.sizes.get(out.buffer, Size(2.0))
        if self.fits(size + before):
            if out.buffer not in self.sizes:
                self.ops.fill(out, 2.0)
            self.ops.scatter_add(out, index, source)
            self.done(out, size + before)

    def random(self) -> None:
        shape, batched = self.shape(), self.chance(0.8)
        out = self.ops.scratch(self.name("uniform "), shape, batched=batched)
        self.ops.random(out)
        levels = self.one_of((2.0, 5.0, 8.0))
        whole = self.result(shape, batched)
        self.ops.map(
            whole, lambda u: expr.floor(levels * u), out
        )  # 24 bits: no product is rounded in a way that moves the floor
        self.done(whole, Size(levels))

    def copy(self) -> None:
        batched, shape = self.chance(0.75), self.shape()
        a = self._broadcast(shape, batched)
        out = self.result(shape, batched, (a,))
        self.ops.copy(out, a)
        self.done(out, self.size(a))

    def fill(self) -> None:
        value = float(self.one_of((-3.0, 0.0, 1.0, 2.5)))
        out = self.result(self.shape(), self.chance(0.6))
        self.ops.fill(out, value)
        self.done(out, Size(abs(value), 1))

    def _keep(self) -> None:
        """Give some of the intermediate results to the caller."""
        for view in list(self.filled):
            if view.buffer.role == "scratch" and self.chance(0.7):
                kept = self.tame(view) if self.chance(0.3) else view
                out = self.ops.external(self.name("kept"), kept.sample_shape, role="output", batched=kept.batched)
                self.ops.copy(out, kept)
                self.done(out, self.size(kept))

    # Numbers

    def arrays(self, program: Program, batch: int) -> dict[str, np.ndarray]:
        """Numbers for the inputs and states, within the sizes that were promised; results are NaN."""
        found: dict[str, np.ndarray] = {}
        for name, buffer in program.buffers.items():
            shape = concrete(buffer.shape, batch)
            if buffer.data is not None:
                continue
            if name == "random":
                found[name] = np.array([self.rng.integers(1 << 40), self.rng.integers(1 << 20)], np.uint64)
            elif name in self.tables:
                rows = self.tables[name]
                beyond = 2 * self.chance(0.3)
                found[name] = self.rng.integers(-beyond, rows + beyond, shape).astype(buffer.dtype)
            elif buffer.role == "output":
                found[name] = np.full(shape, np.nan, buffer.dtype)
            elif self.exact:
                found[name] = self.rng.integers(-4, 5, shape).astype(buffer.dtype)
            else:
                found[name] = self.rng.uniform(-2.0, 2.0, shape).astype(buffer.dtype)
        return found


KINDS = (
    *("matmul",) * 4, *("map",) * 5, *("reduce",) * 2, *("convolve",) * 2, "pool", *("gather",) * 2, "random", "copy", "fill"
)  # fmt: skip


def _has_empty_windows(window: Window, inputs: tuple[int, int], positions: tuple[int, int]) -> bool:
    """Whether some position of the window covers padding alone. No layer's does: its dilation is 1."""
    for axis, (size, stride, pads, step) in enumerate(
        zip(window.size, window.stride, window.padding, window.dilation, strict=True)
    ):
        for first in range(-pads[0], positions[axis] * stride - pads[0], stride):
            if not any(0 <= first + k * step < inputs[axis] for k in range(size)):
                return True
    return False


def _as_shape(view: View, shape: tuple[int, ...], batched: bool) -> bool:
    return view.batched == batched and view.sample_shape == shape
