"""Levenberg-Marquardt in machine code, written once for all programs: `chains.minimize.levenberg_marquardt` says what it does.

A thread takes one member after another. Two programs are called by their addresses: one gives value, J'r and J'J at a point,
the other the value alone. J'J is stored in rows of `ld` numbers, of which those from the diagonal on are read. Rows and columns
after the last parameter are those of the unit matrix, so that all blocks are whole. The right side is another column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from chains.backends.native.llvm.emit import I64, PTR, Function, Module, Type, Value, integer, number
from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.struct import Struct
from chains.backends.native.llvm.target import processor
from chains.backends.native.runtime.epoch import each_member

DOUBLE = Type("double")
EPSILON = 2.0**-52
BLOCK_VECTORS = 3  # vectors of columns whose sums are kept in registers

# The arguments of a thread. The constants of the method are those of `chains.minimize.levenberg_marquardt`, which passes them.
FIT = Struct(
    {
        "run": "ptr", "words": "ptr",  # the program of the model, and its argument
        "run_value": "ptr", "value_words": "ptr",  # the program of the value
        "p": "ptr", "g": "ptr", "matrix": "ptr", "model_value": "ptr", "trial_value": "ptr",  # their arrays
        "n": "i64",  # parameters
        "size": "i64",  # rows of the matrix, with those that fill the last block
        "ld": "i64",  # numbers of a row
        "factor": "ptr",  # the matrix of the equations, then its factor
        "d": "ptr", "scaled": "ptr", "scale": "ptr", "slope": "ptr", "sizes": "ptr", "squares": "ptr",  # `ld` numbers
        "at": "ptr", "largest": "ptr", "found": "ptr", "start": "ptr", "low": "ptr", "high": "ptr",  # rows of a member
        "numbers": "ptr",  # its `NUMBERS`
        "iterations": "i64",
    },
    {
        "promise": "double", "floor": "double", "rest": "double", "ftol": "double", "min_scale": "double",
        "tolerance": "double", "forget": "double", "max_corrections": "i64", "max_factorings": "i64",
        "least": "double", "most": "double", "tried": "double", "damping": "double",  # what changes
    },
    {"next": "ptr", "count": "i64", "members": "ptr", "places": "ptr", "place_count": "i64"},  # as of `epoch.LANE`
)  # fmt: skip
# Of a member, doubles. `promised`, `size`, `largest` and `recent` are of the loss, `recent` since the start was set. `used` is
# the number of parameters on which something depends at the start. `radius` and `tried` are squares of lengths.
NUMBERS = (
    "value", "promised", "size", "largest", "recent", "used", "fall", "damping", "radius", "tried", "iterations", "calls",
    "status",
)  # fmt: skip
# The status, in the order of `chains.minimize.rows.MESSAGES`.
RUNNING, CONVERGED, FALLS_LITTLE, PRECISE, STUCK, INFINITE, SINGULAR = range(7)


def block_rows() -> tuple[int, int]:
    """The rows of a block of the factor, and the numbers of a vector."""
    lanes = processor().lanes(8)
    return (8 if lanes == 8 else 4), lanes


@cache
def fit_code() -> Code:
    """The machine code of `fits`."""
    module = Module()
    for write in (_factored, _length, _solved, _look, _trial, _converged, _step, _advance):
        module.add(write(module), "internal")
    module.add(_fits(module))
    return machine_code(module.text(), ["fits"], processor())


class _Fit:
    """A function of a thread's `FIT`, and short forms for what it reads and writes."""

    def __init__(self, module: Module, name: str, result: str = "void", others: tuple[tuple[Type, str], ...] = ()) -> None:
        self.f = Function(module, name, [(PTR, "fit"), *others], result)
        self.fit = self.f.arguments[0]
        self.lanes = processor().lanes(8)

    def get(self, name: str) -> Value:
        return FIT.load(self.f, self.fit, name)

    def set(self, name: str, value: Value) -> None:
        FIT.store(self.f, self.fit, **{name: value})

    def _number_at(self, name: str) -> Value:
        return self.f.address(self.get("numbers"), integer(NUMBERS.index(name)), DOUBLE)

    def number(self, name: str) -> Value:
        """A number of the member."""
        return self.f.load(DOUBLE, self._number_at(name))

    def put(self, name: str, value: Value) -> None:
        self.f.store(value, self._number_at(name))

    def at(self, vector: Value, i: Value) -> Value:
        return self.f.load(DOUBLE, self.f.address(vector, i, DOUBLE))

    def write(self, vector: Value, i: Value, value: Value) -> None:
        self.f.store(value, self.f.address(vector, i, DOUBLE))

    def constant(self, value: float) -> Value:
        return number(DOUBLE, value)

    def total(self, count: Value, term: Callable[[Value], Value]) -> Value:
        """The sum of a term for each parameter."""
        return self.f.fold(count, self.constant(0.0), lambda i, total: self.plus(total, term(i)))

    def most(self, count: Value, term: Callable[[Value], Value]) -> Value:
        """The largest of the terms, at least 0; a NaN is not seen."""
        return self.f.fold(count, self.constant(0.0), lambda i, most: self.larger(term(i), most))

    def larger(self, a: Value, b: Value) -> Value:
        return self.f.select(self.f.compare("ogt", a, b), a, b)

    def smaller(self, a: Value, b: Value) -> Value:
        return self.f.select(self.f.compare("olt", a, b), a, b)

    def times(self, a: Value, b: Value) -> Value:
        return self.f.binary("fmul", a, b)

    def plus(self, a: Value, b: Value) -> Value:
        return self.f.binary("fadd", a, b)

    def minus(self, a: Value, b: Value) -> Value:
        return self.f.binary("fsub", a, b)

    def over(self, a: Value, b: Value) -> Value:
        return self.f.binary("fdiv", a, b)

    def root(self, a: Value) -> Value:
        return self.f.intrinsic("sqrt", a)

    def size_of(self, a: Value) -> Value:
        return self.f.intrinsic("fabs", a)

    def is_finite(self, a: Value) -> Value:
        return self.f.compare("olt", self.size_of(a), self.constant(float("inf")))

    def call(self, name: str, result: Type, *others: Value) -> Value:
        return self.f.invoke(name, result, self.fit, *others)

    def length(self, vector: Value) -> Value:
        return self.call("length", DOUBLE, vector)

    def diagonal(self, i: Value) -> Value:
        """An entry of the diagonal of the matrix."""
        return self.at(self.get("matrix"), self.f.add(self.f.mul(i, self.get("ld")), i))

    def curvature(self, vector: Value) -> Value:
        """The product of the matrix with a vector on both sides."""
        n, ld, matrix = self.get("n"), self.get("ld"), self.get("matrix")

        def term(i: Value) -> Value:
            row, own = self.f.address(matrix, self.f.mul(i, ld), DOUBLE), self.at(vector, i)
            add = lambda k, total: self.f.fma(self.at(row, k), self.at(vector, k), total)  # noqa: E731
            above = self.f.fold(n, self.constant(0.0), add, self.f.add(i, 1))
            return self.times(own, self.f.fma(self.at(row, i), own, self.times(self.constant(2.0), above)))

        return self.total(n, term)

    def whole_promise(self, down: Value) -> Value:
        """The fall that the step of a trial promises, if it goes down by `down` along the slope."""
        damped = self.times(self.number("damping"), self.number("tried"))
        return self.times(self.constant(0.5), self.minus(damped, down))

    def at_bound(self, i: Value) -> Value:
        """Whether a parameter is at a bound and would leave it along the negative gradient."""
        here, down, zero = self.at(self.get("at"), i), self.at(self.get("g"), i), self.constant(0.0)
        below = self.both(self.f.compare("ole", here, self.at(self.get("low"), i)), self.f.compare("ogt", down, zero))
        above = self.both(self.f.compare("oge", here, self.at(self.get("high"), i)), self.f.compare("olt", down, zero))
        return self.any_of(below, above)

    def negated(self, a: Value) -> Value:
        return self.f.assign(a.type, f"fneg {a}")

    def both(self, a: Value, b: Value) -> Value:
        return self.f.binary("and", a, b)

    def any_of(self, a: Value, b: Value) -> Value:
        return self.f.binary("or", a, b)


def _length(module: Module) -> Function:
    """The sum of `scale` times the squares of a vector."""
    w = _Fit(module, "length", "double", ((PTR, "vector"),))
    vector, scale = w.f.arguments[1], w.get("scale")

    def term(i: Value) -> Value:
        x = w.at(vector, i)
        return w.times(x, w.times(w.at(scale, i), x))

    w.f.returns(w.total(w.get("n"), term))
    return w.f


def _factored(module: Module) -> Function:
    """Make U of the matrix + damping * scale = U'U, row block by row block, and solve U'y = -slope; 1 where it is positive."""
    w = _Fit(module, "factored", "i64", ((DOUBLE, "damping"),))
    f, lanes, damping = w.f, w.lanes, w.f.arguments[1]
    vector, (rows, _) = Type("double", lanes), block_rows()
    n, size, ld = w.get("n"), w.get("size"), w.get("ld")
    u, matrix, scale, slope = w.get("factor"), w.get("matrix"), w.get("scale"), w.get("slope")

    def row(i: Value, base: Value = u) -> Value:
        return f.address(base, f.mul(i, ld), DOUBLE)

    def copy(i: Value) -> None:
        source, target = row(i, matrix), row(i)
        first = f.mul(f.assign(I64, f"sdiv {i}, {lanes}"), lanes)
        f.loop(
            first, ld, lanes, lambda c, _: f.store(f.load(vector, f.address(source, c, DOUBLE)), f.address(target, c, DOUBLE))
        )

        def parameter() -> None:
            w.write(target, i, f.fma(damping, w.at(scale, i), w.at(target, i)))
            w.write(target, size, w.negated(w.at(slope, i)))

        f.when(f.compare("slt", i, n), parameter)

    f.each(size, copy)

    def block(first: Value, _: list[Value]) -> None:
        targets = [row(f.add(first, r)) for r in range(rows)]

        def columns(count: int) -> Callable[[Value, list[Value]], None]:
            def run(c: Value, _: list[Value]) -> None:
                places = [[f.address(t, f.add(c, k * lanes), DOUBLE) for k in range(count)] for t in targets]
                start = [f.load(vector, place) for each in places for place in each]

                def eliminate(k: Value, sums: list[Value]) -> list[Value]:
                    above = row(k)
                    right = [f.load(vector, f.address(above, f.add(c, j * lanes), DOUBLE)) for j in range(count)]
                    left = f.address(above, first, DOUBLE)
                    result = []
                    for r in range(rows):
                        factor = w.negated(f.splat(f.load(DOUBLE, f.address(left, integer(r), DOUBLE)), lanes))
                        result += [f.fma(factor, right[j], sums[r * count + j]) for j in range(count)]
                    return result

                sums = f.loop(integer(0), first, 1, eliminate, start)[1]
                for place, total in zip((p for each in places for p in each), sums, strict=True):
                    f.store(total, place)

            return run

        width = BLOCK_VECTORS * lanes
        rest, _ = f.loop(first, f.add(ld, 1 - width), width, columns(BLOCK_VECTORS))
        f.loop(rest, ld, lanes, columns(1))
        for r in range(rows):
            diagonal = w.at(targets[r], f.add(first, r))
            f.return_if(f.inverse(f.compare("ogt", diagonal, w.constant(0.0))), lambda: integer(0))
            inverse = w.over(w.constant(1.0), w.root(diagonal))
            factors = [w.times(w.at(targets[r], f.add(first, s)), inverse) for s in range(r + 1, rows)]
            spread = [f.splat(w.negated(each), lanes) for each in factors]
            scaling = f.splat(inverse, lanes)

            def eliminate_below(
                c: Value, _: list[Value], r: int = r, scaling: Value = scaling, spread: list[Value] = spread
            ) -> None:
                place = f.address(targets[r], c, DOUBLE)
                own = w.times(f.load(vector, place), scaling)
                f.store(own, place)
                for s, factor in enumerate(spread, r + 1):
                    below = f.address(targets[s], c, DOUBLE)
                    f.store(f.fma(factor, own, f.load(vector, below)), below)

            f.loop(first, ld, lanes, eliminate_below)

    f.loop(integer(0), size, rows, block)
    f.returns(integer(1))
    return f


def _solved(module: Module) -> Function:
    """Solve the damped equations for d, raising the damping until they are positive; 1 where that ends."""
    w = _Fit(module, "solved", "i64")
    f, lanes = w.f, w.lanes
    vector = Type("double", lanes)
    size, ld, u, d = (w.get(name) for name in ("size", "ld", "factor", "d"))

    def factor(_: Value, done: Value) -> Value:
        def attempt() -> Value:
            damping = w.get("damping")
            positive = w.call("factored", I64, damping)
            w.set("damping", f.select(f.compare("eq", positive, integer(1)), damping, w.times(damping, w.constant(10.0))))
            return positive

        return f.either(f.compare("eq", done, integer(0)), attempt, lambda: integer(1))

    done = f.fold(w.get("max_factorings"), integer(0), factor)
    f.return_if(f.compare("eq", done, integer(0)), lambda: integer(0))
    f.each(ld, lambda i: w.write(d, i, w.constant(0.0)))
    last = f.add(size, -1)

    def back(k: Value, _: list[Value]) -> None:
        i = f.binary("sub", last, k)
        row = f.address(u, f.mul(i, ld), DOUBLE)
        first = f.mul(f.assign(I64, f"sdiv {i}, {lanes}"), lanes)

        def products(c: Value, sums: list[Value]) -> list[Value]:
            return [f.fma(f.load(vector, f.address(row, c, DOUBLE)), f.load(vector, f.address(d, c, DOUBLE)), sums[0])]

        sums = f.loop(first, size, lanes, products, [number(vector, 0.0)])[1][0]
        name = f"llvm.vector.reduce.fadd.{vector.mangled}"
        f.module.declare(name, f"declare double @{name}(double, {vector})")
        total = f.assign(DOUBLE, f"call reassoc double @{name}(double {w.constant(0.0).text}, {sums})")
        w.write(d, i, w.over(w.minus(w.at(row, size), total), w.at(row, i)))

    f.loop(integer(0), size, 1, back)
    w.set("tried", w.length(d))
    f.returns(integer(1))
    return f


def _look(module: Module) -> Function:
    """Compute the model at the point, its scale, and what the bounds hold. Returns 1 unless the value or g is not finite."""
    w = _Fit(module, "look", "i64")
    f, n, zero = w.f, w.get("n"), w.constant(0.0)
    g, largest, scale, slope = (w.get(name) for name in ("g", "largest", "scale", "slope"))
    squares, sizes = w.get("squares"), w.get("sizes")
    f.line(f"call void {w.get('run').text}({w.get('words')})")
    w.put("value", f.load(DOUBLE, w.get("model_value")))
    f.when(f.compare("oeq", w.number("used"), zero), lambda: _note_sizes(w))
    w.put("promised", _promised(w))
    w.put("size", _size(w))
    for name in ("largest", "recent"):
        w.put(name, w.larger(w.number("size"), w.number(name)))
    f.each(n, lambda i: w.write(largest, i, w.larger(w.diagonal(i), w.at(largest, i))))
    top = w.times(w.get("min_scale"), w.most(n, lambda i: w.times(w.at(largest, i), w.at(squares, i))))

    def rescale(i: Value) -> None:
        idle = f.compare("oeq", w.at(largest, i), zero)  # frozen, or nothing has depended on it yet
        w.write(scale, i, f.select(idle, zero, w.larger(w.at(largest, i), w.over(top, w.at(sizes, i)))))
        held = w.any_of(idle, w.at_bound(i))
        w.write(slope, i, f.select(held, zero, w.at(g, i)))
        f.when(held, lambda: _leave_out(w, i))

    f.each(n, rescale)
    size = w.plus(w.total(n, lambda i: w.size_of(w.at(g, i))), w.size_of(w.number("value")))
    f.returns(f.cast("zext", w.is_finite(size), I64))
    return f


def _note_sizes(w: _Fit) -> None:
    """Count the parameters on which something depends; the others are zero at the start."""
    f, n, start, zero, one = w.f, w.get("n"), w.get("start"), w.constant(0.0), w.constant(1.0)
    used: Callable[[Any], Any] = lambda i: f.compare("une", w.diagonal(i), zero)  # noqa: E731
    w.put("used", w.larger(w.total(n, lambda i: f.select(used(i), one, zero)), one))
    f.each(n, lambda i: w.write(start, i, f.select(used(i), w.at(start, i), zero)))
    _set_sizes(w)


def _set_radius(w: _Fit) -> None:
    """The radius and the damping at a start."""
    length, zero = w.length(w.get("at")), w.constant(0.0)
    for other in (w.times(w.constant(2.0), w.number("value")), w.constant(1.0)):
        length = w.f.select(w.f.compare("oeq", length, zero), other, length)
    w.put("damping", w.get("least"))
    w.put("radius", length)
    w.put("tried", length)


def _begin_again(w: _Fit) -> None:
    """Let the point be the start."""
    f, n, zero = w.f, w.get("n"), w.constant(0.0)
    for name in ("recent", "used"):
        w.put(name, zero)
    f.each(n, lambda i: w.write(w.get("largest"), i, zero))
    f.each(n, lambda i: w.write(w.get("start"), i, w.at(w.get("at"), i)))
    w.call("look", I64)
    _set_radius(w)


def _set_sizes(w: _Fit) -> None:
    """The squares of the parameters at the start, and their sizes; how much damping singular equations need."""
    f, n, zero = w.f, w.get("n"), w.constant(0.0)
    start, squares, sizes = w.get("start"), w.get("squares"), w.get("sizes")
    w.set("least", w.times(w.number("used"), w.constant(EPSILON)))
    f.each(n, lambda i: w.write(squares, i, w.times(w.at(start, i), w.at(start, i))))
    mean = w.over(w.total(n, lambda i: w.at(squares, i)), w.number("used"))
    mean = f.select(f.compare("oeq", mean, zero), w.constant(1.0), mean)
    f.each(n, lambda i: w.write(sizes, i, w.larger(w.at(squares, i), mean)))


def _promised(w: _Fit) -> Value:
    """The sum of the falls that single parameters promise: `chains.minimize.stopping.promised_fall`."""
    f, g, at, zero = w.f, w.get("g"), w.get("at"), w.constant(0.0)
    low, high = w.get("low"), w.get("high")

    def fall(i: Value) -> Value:
        down, here, column = w.at(g, i), w.at(at, i), w.diagonal(i)
        way = f.select(f.compare("ogt", down, zero), w.minus(here, w.at(low, i)), w.minus(w.at(high, i), here))
        step = f.select(f.compare("ogt", column, zero), w.over(w.size_of(down), column), zero)
        return w.times(w.size_of(down), w.smaller(way, step))

    return w.times(w.constant(0.5), w.total(w.get("n"), fall))


def _size(w: _Fit) -> Value:
    """The size of the loss: of the residuals or the predictions."""
    predicted = w.times(w.constant(0.5), w.curvature(w.get("at")))
    return w.larger(predicted, w.number("value"))


def _leave_out(w: _Fit, i: Value) -> None:
    """Let the row and the column of a parameter be those of the unit matrix."""
    f, n, ld, matrix, zero = w.f, w.get("n"), w.get("ld"), w.get("matrix"), w.constant(0.0)
    f.each(i, lambda k: w.write(matrix, f.add(f.mul(k, ld), i), zero))
    row = f.address(matrix, f.mul(i, ld), DOUBLE)
    f.loop(i, n, 1, lambda k, _: w.write(row, k, zero))
    w.write(row, i, w.constant(1.0))


def _trial(module: Module) -> Function:
    """A step d about as long as the radius, or a shorter one without damping; 1 where the equations have a solution."""
    w = _Fit(module, "trial", "i64")
    f, n, size, ld = w.f, w.get("n"), w.get("size"), w.get("ld")
    u, d, scaled, scale = (w.get(name) for name in ("factor", "d", "scaled", "scale"))
    vector, lanes = Type("double", w.lanes), w.lanes
    least, radius = w.get("least"), w.number("radius")
    longer = w.root(w.over(w.number("tried"), radius))
    w.set("damping", w.larger(w.times(w.number("damping"), longer), least))

    def correct(k: Value, going: Value) -> Value:
        def solve() -> Value:
            good = w.call("solved", I64)

            def judge() -> Value:
                length, damping = w.get("tried"), w.get("damping")
                excess = w.minus(w.root(w.over(length, radius)), w.constant(1.0))
                near = f.compare("ole", w.size_of(excess), w.get("tolerance"))
                free = w.both(f.compare("olt", excess, w.constant(0.0)), f.compare("oeq", damping, least))
                last = f.compare("eq", k, w.get("max_corrections"))

                def improve() -> Value:
                    f.each(ld, lambda i: w.write(scaled, i, w.constant(0.0)))
                    f.each(n, lambda i: w.write(scaled, i, w.times(w.at(scale, i), w.at(d, i))))

                    def forward(i: Value, total: Value) -> Value:
                        row = f.address(u, f.mul(i, ld), DOUBLE)
                        z = w.over(w.at(scaled, i), w.at(row, i))
                        first = f.mul(f.assign(I64, f"sdiv {i}, {lanes}"), lanes)
                        factor = f.splat(w.negated(z), lanes)

                        def below(c: Value, _: list[Value]) -> None:
                            place = f.address(scaled, c, DOUBLE)
                            f.store(f.fma(factor, f.load(vector, f.address(row, c, DOUBLE)), f.load(vector, place)), place)

                        f.loop(first, size, lanes, below)
                        return f.fma(z, z, total)

                    curvature = f.fold(n, w.constant(0.0), forward)
                    change = w.over(w.times(length, excess), curvature)
                    w.set("damping", w.larger(w.plus(damping, change), least))
                    return integer(1)

                return f.either(w.any_of(w.any_of(near, free), last), lambda: integer(0), improve)

            return f.either(f.compare("eq", good, integer(1)), judge, lambda: integer(-1))

        return f.either(f.compare("eq", going, integer(1)), solve, lambda: going)

    going = f.fold(f.add(w.get("max_corrections"), 1), integer(1), correct)
    w.put("damping", w.get("damping"))
    w.put("tried", w.get("tried"))
    f.returns(f.cast("zext", f.compare("eq", going, integer(0)), I64))
    return f


def _converged(module: Module) -> Function:
    """Whether the gradient and the next step promise little, or the value is zero: 1 or 0. See `chains.minimize.stopping`."""
    w = _Fit(module, "converged", "i64")
    f, d, slope = w.f, w.get("d"), w.get("slope")
    value, no = w.number("value"), integer(0)
    floor = w.get("floor")
    zero = w.times(floor, w.larger(w.number("size"), w.times(floor, w.number("largest"))))
    f.return_if(f.compare("ole", value, zero), lambda: integer(1))
    little = w.times(w.get("promise"), w.number("size"))
    f.return_if(f.inverse(f.compare("ole", w.number("promised"), little)), lambda: no)
    kept = {name: w.number(name) for name in ("damping", "tried")}
    solved = w.call("trial", I64)
    promised = w.whole_promise(w.total(w.get("n"), lambda i: w.times(w.at(d, i), w.at(slope, i))))
    for name, number_ in kept.items():
        w.put(name, number_)
    most = w.smaller(little, w.times(w.get("rest"), value))
    ends = w.both(f.compare("eq", solved, integer(1)), f.compare("ole", promised, most))
    f.returns(f.cast("zext", ends, I64))
    return f


def _step(module: Module) -> Function:
    """Go to a lower point; a status where there is none."""
    w = _Fit(module, "step", "i64")
    f, n = w.f, w.get("n")
    p, at, d, slope = (w.get(name) for name in ("p", "at", "d", "slope"))
    low, high, epsilon, zero = w.get("low"), w.get("high"), w.constant(EPSILON), w.constant(0.0)
    w.set("most", zero)

    def attempt() -> None:
        f.return_if(f.compare("eq", w.call("trial", I64), integer(0)), lambda: integer(SINGULAR))

        def move(i: Value, outside: Value) -> Value:
            beyond = w.plus(w.at(at, i), w.at(d, i))
            within = w.smaller(w.larger(beyond, w.at(low, i)), w.at(high, i))
            w.write(p, i, within)
            return f.add(outside, f.cast("zext", f.compare("une", within, beyond), I64))

        clipped = f.compare("ne", f.fold(n, integer(0), move), integer(0))
        damping, tried, value = w.number("damping"), w.number("tried"), w.number("value")

        def projected() -> list[Value]:
            f.each(n, lambda i: w.write(d, i, w.minus(w.at(p, i), w.at(at, i))))
            down = w.total(n, lambda i: w.times(w.at(d, i), w.at(slope, i)))
            half = w.times(w.constant(0.5), w.curvature(d))
            return [w.length(d), down, w.minus(w.negated(down), half)]

        def whole() -> list[Value]:
            down = w.total(n, lambda i: w.times(w.at(d, i), w.at(slope, i)))
            return [tried, down, w.whole_promise(down)]

        length, down, promised = f.choice(clipped, projected, whole)
        w.set("most", w.larger(promised, w.get("most")))
        enough = f.compare("ogt", promised, w.times(epsilon, value))
        here = w.times(w.constant(EPSILON**2), w.length(at))
        ended = w.any_of(f.compare("ule", length, here), f.inverse(w.any_of(clipped, enough)))

        def explain() -> Value:
            rounding = w.plus(here, w.times(w.constant(EPSILON**0.5), value))
            return f.select(f.compare("ole", w.get("most"), rounding), integer(PRECISE), integer(STUCK))

        f.return_if(ended, explain)

        def judge() -> Value:
            f.line(f"call void {w.get('run_value').text}({w.get('value_words')})")
            w.put("calls", w.plus(w.number("calls"), w.constant(1.0)))
            new = f.load(DOUBLE, w.get("trial_value"))
            fall = f.select(w.is_finite(new), w.minus(value, new), w.constant(float("-inf")))
            poor = f.compare("ole", fall, w.times(w.constant(0.25), promised))
            good = w.any_of(
                f.compare("oge", fall, w.times(w.constant(0.75), promised)), f.compare("oeq", damping, w.get("least"))
            )

            def shrunk() -> Value:
                shrink = w.over(w.times(w.constant(0.5), down), w.plus(down, fall))
                shrink = w.smaller(w.larger(shrink, w.constant(0.1)), w.constant(0.5))
                return w.times(w.times(shrink, shrink), length)

            def grown() -> Value:
                twice, before = w.times(w.constant(4.0), length), w.number("radius")
                return f.select(clipped, w.larger(before, twice), twice)

            kept = lambda: f.either(good, grown, lambda: w.number("radius"))  # noqa: E731
            w.put("radius", f.either(poor, shrunk, kept))
            return f.either(
                f.compare("oge", fall, w.times(w.constant(1e-4), promised)), lambda: accept(fall), lambda: integer(-1)
            )

        def accept(fall: Value) -> Value:
            f.each(n, lambda i: w.write(at, i, w.at(p, i)))
            good = w.call("look", I64)
            shrunk = f.compare("olt", w.number("size"), w.times(w.get("forget"), w.number("recent")))
            f.when(shrunk, lambda: _begin_again(w))
            w.put("fall", fall)
            return f.select(f.compare("eq", good, integer(1)), integer(0), integer(SINGULAR))

        def shorten() -> Value:
            w.put("radius", w.times(w.constant(0.0625), tried))
            return integer(-1)

        status = f.either(enough, judge, shorten)
        f.return_if(f.compare("sge", status, integer(0)), lambda: status)

    f.repeat(lambda _: attempt())
    return f


def _advance(module: Module) -> Function:
    """Do at most `iterations` of a member."""
    w = _Fit(module, "advance", "i64")
    f, n, zero = w.f, w.get("n"), w.constant(0.0)
    p, at, g = (w.get(name) for name in ("p", "at", "g"))
    f.each(n, lambda i: w.write(p, i, w.at(at, i)))
    f.when(f.compare("one", w.number("used"), zero), lambda: _set_sizes(w))
    good = w.call("look", I64)

    def begin() -> None:
        w.put("calls", w.constant(1.0))
        _set_radius(w)

    f.when(f.compare("oeq", w.number("calls"), zero), begin)

    def check(status: Value) -> Value:
        """CONVERGED for a member that runs and has converged."""
        runs = f.compare("eq", status, integer(RUNNING))
        done = f.either(runs, lambda: w.call("converged", I64), lambda: integer(0))
        return f.select(f.compare("eq", done, integer(1)), integer(CONVERGED), status)

    def moved() -> Value:
        w.put("iterations", w.plus(w.number("iterations"), w.constant(1.0)))
        size = w.larger(w.number("size"), w.plus(w.number("value"), w.number("fall")))
        ftol = w.get("ftol")
        little = f.compare("ole", w.number("fall"), w.times(ftol, size))
        return f.select(w.both(little, f.compare("ogt", ftol, zero)), integer(FALLS_LITTLE), integer(RUNNING))

    def further() -> Value:
        reason = w.call("step", I64)
        return check(f.either(f.compare("eq", reason, integer(0)), moved, lambda: reason))

    def iterate(_: Value, status: Value) -> Value:
        return f.either(f.compare("eq", status, integer(RUNNING)), further, lambda: status)

    first = check(f.select(f.compare("eq", good, integer(1)), integer(RUNNING), integer(INFINITE)))
    status = f.fold(w.get("iterations"), first, iterate)
    w.put("status", f.cast("sitofp", status, DOUBLE))
    found = w.get("found")
    f.each(n, lambda i: w.write(found, i, w.at(g, i)))
    f.returns(status)
    return f


def _fits(module: Module) -> Function:
    """``fits(fits, part)``: the thread with this number takes one member after another."""
    f = Function(module, "fits", [(PTR, "all"), (I64, "part")])
    fit = f.address(f.arguments[0], f.mul(f.arguments[1], FIT.size), I64)
    each_member(f, fit, FIT, lambda _, member: f.invoke("advance", I64, fit))
    return f
