"""The functions of CasADi's external interface around those of a network: values, derivatives, and their descriptions.

CasADi finds a function and its derivatives in a shared library by their names: `F`, `fwd1_F`, `adj1_F`, `jac_F`, `jac_fwd1_F`,
`jac_adj1_F`, `jac_jac_F`. Each has the signature
``int F(const double **arg, double **res, long long *iw, double *w, int mem)``; further functions, `F_n_in` and so on, describe
its arguments. Matrices are in Fortran's order. Derivatives of several samples are sparse, since a sample's outputs depend on
its inputs alone. An argument that is NULL means zeros, and a result that is NULL is not filled. Scratch memory is `w`, so
nothing is allocated and any number of threads may call simultaneously.

Source: CasADi's documentation, "Generating C-code" and "User-defined function objects" (external functions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import llvmlite.binding as llvm
import numpy as np

from chains.backends.native.llvm.emit import I32, I64, PTR, Function, Module, Type, Value, integer, number
from chains.backends.native.llvm.jit import optimised
from chains.chain import Chain
from chains.exporting.entry import adapted, parameters
from chains.exporting.interface import DERIVATIVES, Interface, Request, interface_of
from chains.exporting.libraries import linked
from chains.exporting.objects import ATTRIBUTES, Objects, characters
from chains.exporting.targets import Target, targets_of

DOUBLE, NULL = Type("double"), Value("null", PTR)
CORE = "network"  # the functions of the network itself, which are not seen from outside
SIGNATURE = "const double **arg, double **res, long long *iw, double *w, int mem"
Pattern = tuple[int, ...]  # rows, columns, then 1 if all entries are stored, else where columns begin and the rows of entries


@dataclass(frozen=True)
class Group:
    """An argument of the function: some of a sample's features, from `start` on; or the parameters."""

    name: str
    size: int
    start: int = 0
    features: bool = True


@dataclass(frozen=True)
class Symbol:
    """A function of the library: names and patterns of its arguments and results, and the writer of its body."""

    name: str
    inputs: Sequence[tuple[str, Pattern]]
    outputs: Sequence[tuple[str, Pattern]]
    write: Callable[[_Body], None]


def dense(rows: int, columns: int) -> Pattern:
    return rows, columns, 1


def empty(rows: int, columns: int) -> Pattern:
    return rows, columns, *[0] * (columns + 1)


def by_columns(rows: int, entries: Sequence[Sequence[int]]) -> Pattern:
    """The pattern with these rows in each column."""
    starts = [0]
    for column in entries:
        starts.append(starts[-1] + len(column))
    return rows, len(entries), *starts, *(row for column in entries for row in column)


def diagonal(blocks: int, rows: int, columns: int) -> Pattern:
    """Blocks of the same shape along the diagonal, full."""
    if blocks == 1:
        return dense(rows, columns)
    return by_columns(rows * blocks, [range(s * rows, (s + 1) * rows) for s in range(blocks) for _ in range(columns)])


def casadi_library(
    net: Chain, baked: Mapping[str, np.ndarray], name: str, samples: int, given: int, target: str
) -> tuple[bytes, str]:  # fmt: skip
    """The shared library of a network, and its header. Raises ValueError for several systems, or without a linker."""
    gradient = "inputs" if "p" in baked else "both"
    interface = interface_of(Request(net, np.dtype(np.float64), gradient, derivatives=tuple(DERIVATIVES)), CORE, baked)
    interface = replace(interface, calls=tuple(call for call in interface.calls if not call.name.startswith("stream")))
    targets = targets_of(target)
    objects = CasadiObjects(interface, targets, name, samples, given)
    if len(objects.families) > 1:
        raise ValueError(f"`target` (={target!r}) must be of one system, such as levels of x86-64")
    code = linked(objects.code(targets), objects.symbols, targets[0], ".so")
    return code, objects.header(", ".join(each.name for each in targets))


class CasadiObjects(Objects):
    """An interface with the name `CORE`, compiled, whose functions are called by those that CasADi looks for."""

    def __init__(self, interface: Interface, targets: Sequence[Target], name: str, samples: int, given: int) -> None:
        super().__init__(interface, targets)
        self.name, self.samples = name, samples
        self.workspace_numbers = -(-self.interface.work_bytes["work_bytes"].of(samples) // 64) * 8
        calls = {call.name: {each.name: each for each in call.arguments} for call in interface.calls}
        self.features = math.prod(calls["forward"]["x"].shape)
        self.outputs = math.prod(calls["forward"]["y"].shape)
        self.groups = [Group("x", self.features - given)]
        if given:
            self.groups.append(Group("given", given, self.features - given))
        if "p" in calls["forward"]:
            self.groups.append(Group("p", interface.sizes["n_params"], features=False))

    @property
    def symbols(self) -> list[str]:
        """The names of all functions that callers see."""
        ends = ("", *_INTEGERS, *_TEXTS, *_PATTERNS, *_COUNTS, "_work")
        return [f"{each.name}{end}" for each in self.functions() for end in ends]

    def linked_in(self, targets: Sequence[Target]) -> Iterator[llvm.ModuleRef]:
        """The code around the functions of the network."""
        yield from super().linked_in(targets)
        base, module = targets[0], Module()
        constants: list[str] = []
        for symbol in self.functions():
            body = _Body(self, module, symbol, base)
            symbol.write(body)
            body.done()
            constants.extend(_constants(symbol, body.length))
        text = module.text().replace(ATTRIBUTES, "\n".join([*constants, ATTRIBUTES]))
        yield optimised(adapted(text, base), base.machine(), vectorize=False)

    def header(self, built_for: str) -> str:
        """The declarations for C, with the shapes of all arguments and results."""
        name = self.name
        lines = [
            f"/* {self.interface.network}",
            f"   Functions for CasADi's external interface, for {built_for}. They allocate nothing and keep nothing. */",
            f'#ifndef {name.upper()}_H\n#define {name.upper()}_H\n#ifdef __cplusplus\nextern "C" {{\n#endif',
        ]
        for symbol in self.functions():
            for what, values in (("arg", symbol.inputs), ("res", symbol.outputs)):
                shapes = ", ".join(f"{each} ({pattern[0]} x {pattern[1]})" for each, pattern in values)
                lines.append(f"/* {what}: {shapes} */")
            lines.append(f"int {symbol.name}({SIGNATURE});")
            lines.append(f"int {symbol.name}_work(long long *sz_arg, long long *sz_res, long long *sz_iw, long long *sz_w);")
            lines += [f"long long {symbol.name}{end}(void);" for end in _INTEGERS]
            lines += [f"const char *{symbol.name}{end}(long long i);" for end in _TEXTS]
            lines += [f"const long long *{symbol.name}{end}(long long i);" for end in _PATTERNS]
            kinds = {"_checkout": "int", "_release": "void", "_incref": "void", "_decref": "void"}
            lines += [f"{kinds[end]} {symbol.name}{end}({'int mem' if end == '_release' else 'void'});" for end in _COUNTS]
        return "\n".join([*lines, "#ifdef __cplusplus\n}\n#endif\n#endif", ""])

    def functions(self) -> list[Symbol]:
        """The functions that CasADi looks for. Derivatives of `jac_F` and `fwd1_F` exist if parameters are part of the code."""
        name, m, samples, groups = self.name, self.outputs, self.samples, self.groups
        inputs = [(group.name, self._argument(group)) for group in groups]
        y, none = dense(m, samples), empty(m, samples)
        seeds = [(f"fwd_{group.name}", self._argument(group)) for group in groups]
        adjoints = [(f"adj_{group.name}", self._argument(group)) for group in groups]
        jacobians = [(f"jac_y_{group.name}", self._jacobian(group)) for group in groups]
        known = [(f"out_{each}", empty(*pattern[:2])) for each, pattern in adjoints]
        found = [
            Symbol(name, inputs, [("y", y)], _Body.forward),
            Symbol(f"fwd1_{name}", [*inputs, ("out_y", none), *seeds], [("fwd_y", y)], _Body.fwd),
            Symbol(f"adj1_{name}", [*inputs, ("out_y", none), ("adj_y", y)], adjoints, _Body.adj),
            Symbol(f"jac_{name}", [*inputs, ("out_y", none)], jacobians, _Body.jac),
            Symbol(
                f"jac_adj1_{name}", [*inputs, ("out_y", none), ("adj_y", y), *known],
                [each for group in groups for each in self._hessians(group)], _Body.jac_adj,
            ),
        ]  # fmt: skip
        if all(group.features for group in groups):
            outs = [(f"out_{each}", empty(*pattern[:2])) for each, pattern in jacobians]
            second = [each for group in groups for each in self._second(group)]
            found.append(Symbol(f"jac_jac_{name}", [*inputs, ("out_y", none), *outs], second, _Body.jac_jac))
            along = [("out_y", none), *seeds, ("out_fwd_y", none)]
            blocks = [(f"jac_fwd_y_{kind}{group.name}", self._jacobian(group)) for kind in ("", "fwd_") for group in groups]
            blocks.insert(len(groups), ("jac_fwd_y_out_y", empty(m * samples, m * samples)))
            found.append(Symbol(f"jac_fwd1_{name}", [*inputs, *along], blocks, _Body.jac_fwd))
        return found

    def _argument(self, group: Group) -> Pattern:
        return dense(group.size, self.samples if group.features else 1)

    def _jacobian(self, group: Group) -> Pattern:
        m, samples = self.outputs, self.samples
        return diagonal(samples, m, group.size) if group.features else dense(m * samples, group.size)

    def _hessians(self, row: Group) -> Iterator[tuple[str, Pattern]]:
        """The blocks of the derivative of ``adj1_F`` in the rows of an argument."""
        m, samples = self.outputs, self.samples
        total = row.size * (samples if row.features else 1)
        for column in self.groups:
            blocks = row.features and column.features
            columns = column.size * (samples if column.features else 1)
            pattern = diagonal(samples, row.size, column.size) if blocks else dense(total, columns)
            yield f"jac_adj_{row.name}_{column.name}", pattern
        yield f"jac_adj_{row.name}_out_y", empty(total, m * samples)
        yield f"jac_adj_{row.name}_adj_y", diagonal(samples, row.size, m) if row.features else dense(total, m * samples)

    def _second(self, row: Group) -> Iterator[tuple[str, Pattern]]:
        """The derivatives of a block of the Jacobian: each of its entries, in Fortran's order, with respect to the inputs."""
        m, samples = self.outputs, self.samples
        rows = m * samples * row.size * samples
        for column in self.groups:
            entries = [
                [(s * row.size + i) * m * samples + s * m + o for i in range(row.size) for o in range(m)]
                for s in range(samples) for _ in range(column.size)
            ]  # fmt: skip
            yield f"jac_jac_y_{row.name}_{column.name}", by_columns(rows, entries)
        yield f"jac_jac_y_{row.name}_out_y", empty(rows, m * samples)


class _Body:
    """Writes one function. `w` has the network's workspace, then arrays in fixed places."""

    def __init__(self, objects: CasadiObjects, module: Module, symbol: Symbol, target: Target) -> None:
        self.objects, self.symbol, self.target = objects, symbol, target
        self.m, self.n, self.samples, self.groups = objects.outputs, objects.features, objects.samples, objects.groups
        self.free = next((group for group in self.groups if not group.features), None)
        self.f = Function(module, symbol.name, [(PTR, "arg"), (PTR, "res"), (PTR, "iw"), (PTR, "w"), (I32, "mem")], "i32")
        self.arguments, self.results, _, self.w, _ = self.f.arguments
        self.length = objects.workspace_numbers  # of the used part of `w`

    def done(self) -> None:
        """End the function."""
        self.f.line("ret i32 0")
        self.f.module.add(self.f)

    # Arrays

    def array(self, length: int) -> Value:
        place = self.f.address(self.w, integer(self.length), DOUBLE)
        self.length += -(-length // 8) * 8
        return place

    def given(self, k: int, length: int) -> Value:
        """The address of an argument, or of zeros."""
        f = self.f
        address = f.load(PTR, f.address(self.arguments, integer(k), PTR))
        return f.select(f.compare("ne", address, NULL), address, f.module.zeros(length, DOUBLE))

    def result(self, k: int) -> tuple[Value, Value]:
        """The address of a result, and whether it is requested."""
        f = self.f
        address = f.load(PTR, f.address(self.results, integer(k), PTR))
        return address, f.compare("ne", address, NULL)

    def joined(self, first: int = 0) -> Value:
        """The features of all samples, from arguments that begin with number `first`."""
        parts = [group for group in self.groups if group.features]
        if len(parts) == 1:
            return self.given(first, self.n * self.samples)
        whole = self.array(self.n * self.samples)
        for k, group in enumerate(parts, first):
            source = self.given(k, group.size * self.samples)
            self.copy(self.at(whole, group.start), source, (self.samples, self.n, group.size), (group.size, 1, 1))
        return whole

    def at(self, address: Value, offset: int | Value) -> Value:
        return self.f.address(address, offset if isinstance(offset, Value) else integer(offset), DOUBLE)

    def copy(self, to: Value, source: Value, *loops: tuple[int, int, int]) -> None:
        """Copy numbers; each loop has its extent, and the strides of both sides."""

        def inner(k: int, to: Value, source: Value) -> None:
            f = self.f
            if k == len(loops):
                f.store(f.load(DOUBLE, source), to)
                return
            extent, a, b = loops[k]
            f.loop(
                integer(0), integer(extent), 1,
                lambda i, _: inner(k + 1, self.at(to, f.mul(i, a)), self.at(source, f.mul(i, b))),
            )  # fmt: skip

        inner(0, to, source)

    def clear(self, array: Value, length: int) -> None:
        self.f.loop(integer(0), integer(length), 1, lambda i, _: self.f.store(number(DOUBLE, 0), self.at(array, i)))

    def call(self, name: str, samples: int, **arrays: Value) -> None:
        """Call a function of the network."""
        interface = self.objects.interface
        call = next(each for each in interface.calls if each.name == name)
        arrays["n"] = integer(samples)
        if interface.workspace:
            arrays["work"] = self.w
        types = parameters(call, interface, self.target)
        self.f.call(f"{CORE}_{name}", None, *(arrays[each] for _, each in types))

    @property
    def p(self) -> dict[str, Value]:
        """The parameters, if they are an argument."""
        return {} if self.free is None else {"p": self.given(len(self.groups) - 1, self.free.size)}

    # Functions

    def forward(self) -> None:
        y, requested = self.result(0)
        self.f.when(requested, lambda: self.call("forward", self.samples, x=self.joined(), y=y, **self.p))

    def fwd(self) -> None:
        y, requested = self.result(0)

        def compute() -> None:
            p, x, dx = self.p, self.joined(), self.joined(len(self.groups) + 1)
            self.call("jvp", self.samples, x=x, dx=dx, dy=y, **p)
            if self.free is not None:
                self._along_parameters(y, x, p)

        self.f.when(requested, compute)

    def _along_parameters(self, y: Value, x: Value, p: dict[str, Value]) -> None:
        """Add the derivatives along a direction of the parameters, unless it is zero."""
        f, m, size = self.f, self.m, self.groups[-1].size
        direction = self.given(2 * len(self.groups), size)

        def found(i: Value, carried: list[Value]) -> list[Value]:
            moves = f.compare("une", f.load(DOUBLE, self.at(direction, i)), number(DOUBLE, 0))
            return [f.select(moves, integer(1), carried[0])]

        _, (moves,) = f.loop(integer(0), integer(size), 1, found, [integer(0)])

        def add(g: Value, s: Value, o: Value) -> None:
            def term(i: Value, carried: list[Value]) -> list[Value]:
                return [f.fma(f.load(DOUBLE, self.at(g, i)), f.load(DOUBLE, self.at(direction, i)), carried[0])]

            place = self.at(y, f.add(f.mul(s, m), o))
            _, (total,) = f.loop(integer(0), integer(size), 1, term, [f.load(DOUBLE, place)])
            f.store(total, place)

        f.when(f.compare("ne", moves, integer(0)), lambda: self._rows(x, p, lambda s, o: self.array(size), add))

    def _rows(
        self, x: Value, p: dict[str, Value], place: Callable[[Value, Value], Value], then: Callable[[Value, Value, Value], None]
    ) -> None:
        """The gradients of each output of each sample by the parameters, written to `place`; `then` gets each of them."""
        f, m = self.f, self.m
        dy, dx = self.array(m), self.array(self.n)

        def of_output(s: Value, o: Value) -> None:
            self.clear(dy, m)
            f.store(number(DOUBLE, 1), self.at(dy, o))
            g = place(s, o)
            self.call("vjp", 1, x=self.at(x, f.mul(s, self.n)), dy=dy, g=g, dx=dx, **p)
            then(g, s, o)

        def of_sample(s: Value, _: list[Value]) -> None:
            f.loop(integer(0), integer(m), 1, lambda o, _: of_output(s, o))

        f.loop(integer(0), integer(self.samples), 1, of_sample)

    def adj(self) -> None:
        x, dy = self.joined(), self.given(len(self.groups) + 1, self.m * self.samples)
        dx, arrays = self.array(self.n * self.samples), self.p
        if self.free is not None:
            place, requested = self.result(len(self.groups) - 1)
            arrays["g"] = self.f.select(requested, place, self.array(self.free.size))
        self.call("vjp", self.samples, x=x, dy=dy, dx=dx, **arrays)
        for k, group in enumerate(group for group in self.groups if group.features):
            self._put(k, self.at(dx, group.start), (self.samples, group.size, self.n), (group.size, 1, 1))

    def _put(self, k: int, source: Value, *loops: tuple[int, int, int]) -> None:
        """Fill a result if it is requested."""
        place, requested = self.result(k)
        self.f.when(requested, lambda: self.copy(place, source, *loops))

    def _any(self, numbers: Sequence[int], then: Callable[[], None]) -> None:
        """Run `then` if one of these results is requested."""
        f = self.f
        requested = [self.result(k)[1] for k in numbers]
        either = requested[0]
        for each in requested[1:]:
            either = f.binary("or", either, each)
        f.when(either, then)

    def jac(self) -> None:
        f, m, samples = self.f, self.m, self.samples
        x, p = self.joined(), self.p
        parts = [group for group in self.groups if group.features]
        self._jacobians(x, p, 0)
        if self.free is not None:
            size, (place, requested) = self.free.size, self.result(len(parts))

            def store(g: Value, s: Value, o: Value) -> None:
                self.copy(self.at(place, f.add(f.mul(s, m), o)), g, (size, m * samples, 1))

            g = self.array(size)
            f.when(requested, lambda: self._rows(x, p, lambda s, o: g, store))

    def _jacobians(self, x: Value, p: dict[str, Value], first: int) -> None:
        """Fill the results from this number on with the Jacobians by the groups of features."""
        m, n, samples = self.m, self.n, self.samples
        parts = [group for group in self.groups if group.features]

        def compute() -> None:
            J = self.array(m * n * samples)
            self.call("jacobian", samples, x=x, J=J, **p)
            for k, group in enumerate(parts, first):
                size = group.size
                self._put(k, self.at(J, group.start), (samples, size * m, m * n), (size, m, 1), (m, 1, n))

        self._any(range(first, first + len(parts)), compute)

    def jac_fwd(self) -> None:
        """The derivatives of ``J dx``: by the features, the products of the Hessians with dx; by dx, the Jacobian itself."""
        f, m, n, samples, count = self.f, self.m, self.n, self.samples, len(self.groups)
        x, dx = self.joined(), self.joined(count + 1)

        def along(o: Value, H: Value, whole: Value) -> None:
            def of_feature(i: Value) -> None:  # of sample i // n
                seeds = self.at(dx, f.mul(f.binary("sdiv", i, integer(n)), n))
                row = self.at(H, f.mul(i, n))

                def term(k: Value, carried: list[Value]) -> list[Value]:
                    return [f.fma(f.load(DOUBLE, self.at(row, k)), f.load(DOUBLE, self.at(seeds, k)), carried[0])]

                _, (total,) = f.loop(integer(0), integer(n), 1, term, [number(DOUBLE, 0)])
                f.store(total, self.at(whole, f.add(f.mul(i, m), o)))

            f.loop(integer(0), integer(samples * n), 1, lambda i, _: of_feature(i))

        def compute() -> None:
            whole = self.array(m * n * samples)  # by samples, features, outputs
            self._of_outputs(x, lambda o, H: along(o, H, whole))
            for k, group in enumerate(self.groups):
                size = group.size * m
                self._put(k, self.at(whole, group.start * m), (samples, size, n * m), (size, 1, 1))

        self._any(range(count), compute)
        self._jacobians(x, {}, count + 1)

    def _of_outputs(self, x: Value, then: Callable[[Value, Value], None]) -> None:
        """The Hessians of each output for all samples; `then` gets the number of the output and their place."""
        f, m, samples = self.f, self.m, self.samples
        v, H = self.array(m * samples), self.array(self.n * self.n * samples)

        def of_output(o: Value, _: list[Value]) -> None:
            self.clear(v, m * samples)
            f.loop(integer(0), integer(samples), 1, lambda s, _: f.store(number(DOUBLE, 1), self.at(v, f.add(f.mul(s, m), o))))
            self.call("hessian", samples, x=x, v=v, H=H)
            then(o, H)

        f.loop(integer(0), integer(m), 1, of_output)

    def jac_adj(self) -> None:
        f, m, n, samples = self.f, self.m, self.n, self.samples
        x, p, v = self.joined(), self.p, self.given(len(self.groups) + 1, m * samples)
        parts = [group for group in self.groups if group.features]
        width = len(self.groups) + 2  # results for each argument

        def hessian() -> None:
            H = self.array(n * n * samples)
            self.call("hessian", samples, x=x, v=v, H=H, **p)
            for r, row in enumerate(parts):
                for c, column in enumerate(parts):
                    a, b = row.size, column.size
                    block = self.at(H, column.start * n + row.start)
                    self._put(r * width + c, block, (samples, a * b, n * n), (b, a, n), (a, 1, 1))

        def jacobian() -> None:
            J = self.array(m * n * samples)
            self.call("jacobian", samples, x=x, J=J, **p)
            for r, row in enumerate(parts):
                a = row.size
                self._put((r + 1) * width - 1, self.at(J, row.start), (samples, a * m, m * n), (m, a, n), (a, 1, 1))

        self._any([r * width + c for r in range(len(parts)) for c in range(len(parts))], hessian)
        self._any([(r + 1) * width - 1 for r in range(len(parts))], jacobian)
        if self.free is not None:
            k, size = len(parts), self.free.size
            place, requested = self.result((k + 1) * width - 1)
            rows = lambda s, o: self.at(place, f.mul(f.add(f.mul(s, m), o), size))  # noqa: E731
            f.when(requested, lambda: self._rows(x, p, rows, lambda g, s, o: None))
            self._any([*(r * width + k for r in range(k)), *(k * width + c for c in range(k + 1))], self._refuse)

    def _refuse(self) -> None:
        """Print that there are no second derivatives with respect to the parameters, and fail: CasADi raises an error."""
        name = self.symbol.name.removeprefix("jac_adj1_")
        text = f"{name} has no second derivatives with respect to its parameters p: pass p to to_casadi\n"
        self.f.module.declare("refusal", f"@refusal = private constant [{len(text)} x i8] {characters(text.encode())}")
        self.f.call("write", I64, Value("2", I32), Value("@refusal", PTR), integer(len(text)))
        self.f.line("ret i32 1")
        self.f.begin(self.f.label("never"))

    def jac_jac(self) -> None:
        m, n, samples, width = self.m, self.n, self.samples, len(self.groups) + 1

        def put(o: Value, H: Value) -> None:
            for r, row in enumerate(self.groups):
                for c, column in enumerate(self.groups):
                    a, b = row.size, column.size
                    place, requested = self.result(r * width + c)
                    block = self.at(H, column.start * n + row.start)
                    loops = (samples, a * b * m, n * n), (b, a * m, n), (a, m, 1)
                    self.f.when(requested, partial(self.copy, self.at(place, o), block, *loops))

        self._of_outputs(self.joined(), put)


# The other functions for each function: numbers, texts, patterns, and the counting of users, which is not needed.
_INTEGERS, _TEXTS = ("_n_in", "_n_out"), ("_name_in", "_name_out")
_PATTERNS, _COUNTS = ("_sparsity_in", "_sparsity_out"), ("_checkout", "_release", "_incref", "_decref")


def _constants(symbol: Symbol, length: int) -> Iterator[str]:
    """The assembly of the functions that describe another one."""
    name = symbol.name
    for end, values in (("in", symbol.inputs), ("out", symbol.outputs)):
        yield f"define i64 @{name}_n_{end}() #0 {{\n  ret i64 {len(values)}\n}}"
        for k, (text, pattern) in enumerate(values):
            data = text.encode() + bytes(1)
            yield f"@{name}_{end}_{k} = private constant [{len(data)} x i8] {characters(data)}"
            numbers = ", ".join(f"i64 {each}" for each in pattern)
            yield f"@{name}_{end}_pattern_{k} = private constant [{len(pattern)} x i64] [{numbers}], align 8"
        for what, part in (("name", ""), ("sparsity", "pattern_")):
            places = ", ".join(f"ptr @{name}_{end}_{part}{k}" for k in range(len(values)))
            table = f"@{name}_{what}_{end}_table"
            yield f"{table} = private constant [{len(values)} x ptr] [{places}], align 8"
            yield f"""define ptr @{name}_{what}_{end}(i64 %i) #0 {{
  %is = icmp ult i64 %i, {len(values)}
  br i1 %is, label %yes, label %no
yes:
  %place = getelementptr ptr, ptr {table}, i64 %i
  %found = load ptr, ptr %place, align 8
  ret ptr %found
no:
  ret ptr null
}}"""
    yield f"""define i32 @{name}_work(ptr %arg, ptr %res, ptr %iw, ptr %w) #0 {{
  store i64 {len(symbol.inputs)}, ptr %arg, align 8
  store i64 {len(symbol.outputs)}, ptr %res, align 8
  store i64 0, ptr %iw, align 8
  store i64 {length}, ptr %w, align 8
  ret i32 0
}}"""
    yield f"define i32 @{name}_checkout() #0 {{\n  ret i32 0\n}}"
    yield f"define void @{name}_release(i32 %mem) #0 {{\n  ret void\n}}"
    yield f"define void @{name}_incref() #0 {{\n  ret void\n}}"
    yield f"define void @{name}_decref() #0 {{\n  ret void\n}}"
