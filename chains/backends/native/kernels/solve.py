"""Small linear systems, one of each sample, with a sample in each lane of a vector.

Gauss's elimination, with the largest entry of a column as the pivot: samples exchange different rows, by choosing between two
vectors lane by lane. A matrix that is singular, or has a NaN, gives numbers that are not finite.
"""

from __future__ import annotations

from functools import partial

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.loops import blocks, row_blocks
from chains.backends.native.llvm.shuffles import transposed
from chains.backends.native.operations import Solve
from chains.program.loop import Loop
from chains.program.view import View

COLUMNS = (4, 2, 1)  # that are eliminated together: each row is tested once for all of them


def solve_of(loop: Loop) -> Solve | None:
    """What a loop solves; None where it solves nothing, or the views do not suit the kernel."""
    if loop.solves is None:
        return None
    out, *ins = loop.solves
    down, across = out.strides[1:]
    has_runs = down == out.shape[2] and (across == 1 or down == 1) and all(1 in view.strides[-2:] for view in ins)
    assert {view.buffer for view in loop.solves} <= {view.buffer for view in loop.views}, "the loop solves something else"
    return Solve((out,), tuple(ins), label=loop.label) if has_runs else None


def workspace(operation: Solve, lanes: int, registers: int) -> int:
    """Elements that a thread needs for the systems of a vector of samples."""
    n, m = operation.outs[0].sample_shape
    return (n * (n + m) + n * m) * lanes


def lower_solve(frame: Frame, operation: Solve) -> None:
    """Vectors of samples, one after another. Lanes without a sample repeat the last one, to whose place they write too."""
    space = frame.workspace
    frame.outlined("solve", [*map(frame.base, operation.views), space], _Systems(frame.lanes, operation).write)


class _Systems:
    """Writes the code of the systems of a vector of samples."""

    def __init__(self, lanes: int, operation: Solve) -> None:
        self.lanes, self.operation = lanes, operation
        self.n, self.m = operation.outs[0].sample_shape
        self.width = self.n + self.m
        self.scalar = real_type(operation.outs[0].dtype)
        self.type = Type(self.scalar.name, lanes)

    def write(self, f: Function, arguments: list[Value]) -> None:
        target, matrix, right, space, count, _ = arguments
        n, lanes = self.n, self.lanes
        results = f.address(space, integer(n * self.width * lanes), self.scalar)
        last = f.add(count, -1)

        def vector(begin: Value, _: list[Value]) -> None:
            samples = [f.least(f.add(begin, s), last) for s in range(lanes)]
            for view, source, column in zip(self.operation.ins, (matrix, right), (0, n), strict=True):
                self._load(f, view, source, samples, f.address(space, integer(column * lanes), self.scalar))
            f.each(n, partial(self._eliminate, f, space))
            f.each(n, lambda k: self._substitute(f, space, results, f.binary("sub", integer(n - 1), k)))
            self._store(f, target, samples, results)

        f.loop(integer(0), count, lanes, vector)

    def _get(self, f: Function, base: Value, i: Value) -> Value:
        return f.load(self.type, f.address(base, f.mul(i, self.lanes), self.scalar))

    def _put(self, f: Function, value: Value, base: Value, i: Value) -> None:
        f.store(value, f.address(base, f.mul(i, self.lanes), self.scalar))

    def _at(self, f: Function, i: Value, j: Value) -> Value:
        """The number of the entry (i, j) of matrix and right side."""
        return f.add(f.mul(i, self.width), j)

    def _numbered(self, f: Function, i: Value) -> Value:
        """The number i in all lanes, an integer as wide as a number of the system."""
        kind = Type(f"i{8 * self.scalar.size}")
        return f.splat(i if kind == I64 else f.cast("trunc", i, kind), self.lanes)

    def _load(self, f: Function, view: View, source: Value, samples: list[Value], target: Value) -> None:
        """Transpose squares of numbers in registers: along the axis of a view whose numbers follow one another."""
        sample = view.strides[0] if view.batched else 0
        (rows, columns), (down, across) = view.sample_shape, view.strides[-2:]
        turned = across != 1 or (down == 1 and columns == 1)
        outer, length, stride = (columns, rows, across) if turned else (rows, columns, down)
        starts = [f.address(source, f.mul(s, sample), self.scalar) for s in samples]

        def run(o: Value) -> None:
            def square(begin: Value, used: int) -> None:
                place = f.add(f.mul(o, stride), begin)
                mask = f.lane_mask(self.lanes, used)
                vectors = [f.load(self.type, f.address(start, place, self.scalar), mask) for start in starts]
                for k, each in enumerate(transposed(f, vectors)[:used]):
                    i = f.add(begin, k)
                    self._put(f, each, target, self._at(f, i, o) if turned else self._at(f, o, i))

            blocks(f, length, self.lanes, square)

        f.each(outer, run)

    def _eliminate(self, f: Function, space: Value, k: Value) -> None:
        """Exchange row k for the pivot's, and take its multiples from the rows below. The inverse of the pivot stays."""
        below, end = f.add(k, 1), integer(self.n)

        def search(i: Value, found: list[Value]) -> list[Value]:
            size = f.intrinsic("fabs", self._get(f, space, self._at(f, i, k)))
            better = f.compare("oge", size, found[0])
            return [f.select(better, size, found[0]), f.select(better, self._numbered(f, i), found[1])]

        nothing = number(self.type, -1.0), number(self.type.of(f"i{8 * self.scalar.size}"), -1)
        chosen = f.loop(k, end, 1, search, nothing)[1][1]

        def is_pivot(i: Value) -> Value:
            return f.compare("eq", chosen, self._numbered(f, i))

        def of_pivot(columns: list[Value]) -> list[Value]:
            """The entries of the pivot's row; NaN where there is none."""

            def row(i: Value, found: list[Value]) -> list[Value]:
                here = is_pivot(i)
                pairs = zip(columns, found, strict=True)
                return [f.select(here, self._get(f, space, self._at(f, i, j)), each) for j, each in pairs]

            return f.loop(k, end, 1, row, [number(self.type, float("nan"))] * len(columns))[1]

        corner = self._at(f, k, k)
        inverse, first = f.binary("fdiv", number(self.type, 1.0), of_pivot([k])[0]), self._get(f, space, corner)

        def factor(i: Value, _: list[Value]) -> None:
            at = self._at(f, i, k)
            self._put(f, f.binary("fmul", f.select(is_pivot(i), first, self._get(f, space, at)), inverse), space, at)

        def columns(begin: Value, size: int) -> None:
            places = [f.add(begin, c) for c in range(size)]
            pivots, tops = of_pivot(places), [self._get(f, space, self._at(f, k, j)) for j in places]
            for j, each in zip(places, pivots, strict=True):
                self._put(f, each, space, self._at(f, k, j))

            def row(i: Value, _: list[Value]) -> None:
                here, factor = is_pivot(i), self._get(f, space, self._at(f, i, k))
                for j, pivot, top in zip(places, pivots, tops, strict=True):
                    at = self._at(f, i, j)
                    before = f.select(here, top, self._get(f, space, at))
                    self._put(f, f.binary("fsub", before, f.binary("fmul", factor, pivot)), space, at)

            f.loop(below, end, 1, row)

        f.loop(below, end, 1, factor)
        self._put(f, inverse, space, corner)
        row_blocks(f, below, integer(self.width), COLUMNS, columns)

    def _substitute(self, f: Function, space: Value, results: Value, k: Value) -> None:
        """Find row k of the result, and take its multiples from the rows above."""
        inverse = self._get(f, space, self._at(f, k, k))

        def column(c: Value) -> None:
            right = f.add(c, self.n)
            x = f.binary("fmul", self._get(f, space, self._at(f, k, right)), inverse)
            self._put(f, x, results, f.add(f.mul(k, self.m), c))

            def above(i: Value, _: list[Value]) -> None:
                at, factor = self._at(f, i, right), self._get(f, space, self._at(f, i, k))
                self._put(f, f.binary("fsub", self._get(f, space, at), f.binary("fmul", factor, x)), space, at)

            f.loop(integer(0), k, 1, above)

        f.each(self.m, column)

    def _store(self, f: Function, target: Value, samples: list[Value], results: Value) -> None:
        stride = self.operation.outs[0].strides[0]

        def square(begin: Value, used: int) -> None:
            vectors = [self._get(f, results, f.add(begin, k)) for k in range(used)]
            vectors += [number(self.type, 0.0)] * (self.lanes - used)
            for s, vector in zip(samples, transposed(f, vectors), strict=True):
                f.store(vector, f.address(target, f.add(f.mul(s, stride), begin), self.scalar), f.lane_mask(self.lanes, used))

        blocks(f, self.n * self.m, self.lanes, square)
