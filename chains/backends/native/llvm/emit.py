"""LLVM's assembly language, written line by line: values, loops and vectors, with no IR objects in between."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chains.backends.native.llvm.forwarding import Place, Stored
from chains.support.caching import lazy


@dataclass(frozen=True)
class Type:
    """A scalar type or a vector type, with LLVM's names."""

    name: str  # "float", "double", "i1", "i32", "i64", "ptr"
    lanes: int = 1

    @lazy
    def text(self) -> str:
        return self.name if self.lanes == 1 else f"<{self.lanes} x {self.name}>"

    def __str__(self) -> str:
        return self.text

    def of(self, name: str) -> Type:
        """The type with the same number of lanes and another scalar type."""
        return Type(name, self.lanes)

    @property
    def is_float(self) -> bool:
        return self.name in ("float", "double")

    @property
    def size(self) -> int:
        """Bytes of one lane."""
        return {"float": 4, "double": 8, "i32": 4, "i64": 8, "ptr": 8, "i1": 1, "i8": 1}[self.name]

    @property
    def mangled(self) -> str:
        """The suffix of overloaded intrinsics for this type."""
        short = {"float": "f32", "double": "f64"}.get(self.name, self.name)
        return short if self.lanes == 1 else f"v{self.lanes}{short}"


I32, I64, PTR = Type("i32"), Type("i64"), Type("ptr")
OF_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_,
}  # fmt: skip
OF_ORDER: dict[str, Callable[[int, int], bool]] = {
    "slt": operator.lt, "sle": operator.le, "sgt": operator.gt, "sge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
FLUSH_BITS = 0x8040  # of MXCSR: results below the smallest normal number are zero (FTZ), and so are such operands (DAZ)


@dataclass(slots=True)
class Value:
    """An operand: its text and its type."""

    text: str
    type: Type

    def __str__(self) -> str:
        return f"{self.type.text} {self.text}"


class Offset(Value):
    """An integer plus a constant: addresses take the constant as it is, and the addition is written where others use it.

    Without this, LLVM would look for equal additions and products in thousands of addresses, a sixth of its time.
    """

    __slots__ = ("base", "constant", "function")

    def __init__(self, function: Function, base: Value, constant: int) -> None:
        self.function, self.base, self.constant, self.type = function, base, constant, base.type

    @property
    def text(self) -> str:  # type: ignore[override]
        return self.function._once(self.type, f"add {self.base}, {self.constant}").text


class Lane(Value):
    """A number in a lane of a vector, which is moved out only if it is used by itself."""

    __slots__ = ("function", "lane", "vector")

    def __init__(self, function: Function, vector: Value, lane: int) -> None:
        self.function, self.vector, self.lane, self.type = function, vector, lane, Type(vector.type.name)

    @property
    def text(self) -> str:  # type: ignore[override]
        return self.function._once(self.type, f"extractelement {self.vector}, i64 {self.lane}").text


TRUE, FALSE = Value("true", Type("i1")), Value("false", Type("i1"))

# The body of a loop: the number of the step and the carried values give the next carried values.
LoopBody = Callable[[Value, list[Value]], Sequence[Value] | None]


def real_type(dtype: np.dtype, lanes: int = 1) -> Type:
    return Type("float" if dtype.itemsize == 4 else "double", lanes)


def number(type: Type, value: float) -> Value:
    """A constant; in a vector type, in every lane."""
    if type.is_float:
        rounded = float(np.float32(value)) if type.name == "float" else float(value)
        text = f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    else:
        text = str(int(value))
    return Value(text if type.lanes == 1 else f"splat ({type.name} {text})", type)


def integer(value: int) -> Value:
    return Value(str(value), I64)


def known_number(value: Value) -> int | None:
    """The number that a value is, if it is known."""
    return None if isinstance(value, Offset) or not value.text.lstrip("-").isdigit() else int(value.text)


def _constant_last(a: Value, b: Value | int) -> tuple[Value, Value]:
    """Two operands in an order in which a known number comes last."""
    b = b if isinstance(b, Value) else integer(b)
    return (a, b) if known_number(a) is None else (b, a)


def _parts(value: Value) -> tuple[Value, int]:
    """A value as another one plus a constant."""
    return (value.base, value.constant) if isinstance(value, Offset) else (value, 0)


def lanes_of(mask: Value | None, lanes: int) -> int:
    """The number of lanes that a mask of `lane_mask` lets through."""
    return lanes if mask is None else mask.text.count("i1 1")


def _known_lanes(mask: Value | None, lanes: int) -> int | None:
    """The number of lanes that a mask of `first_lanes` lets through, if it is known."""
    if mask is None or mask == all_lanes(lanes):
        return lanes
    return lanes_of(mask, lanes) if mask.text.startswith("<") else None


def all_lanes(lanes: int) -> Value:
    """A mask of all lanes."""
    return Value("splat (i1 true)", Type("i1", lanes))


class Function:
    """A function being written. Methods append instructions and return their results.

    A function `waits` if few of its instructions are independent: then sums in parts and short chains of operations are faster.
    While it `folds`, what follows from known integers is computed when the code is written: it leaves no branches.
    """

    waits = False
    folds = False

    def __init__(
        self, module: Module, name: str, arguments: Sequence[tuple[Type, str]], result: str = "void", *, apart: str = ""
    ) -> None:  # fmt: skip
        self.module = module
        self.name = name
        self.arguments = [Value(f"%{label}", type) for type, label in arguments]
        self._result, self._apart = result, f"%{apart}"  # an argument whose memory no other one reaches
        self._lines: list[str] = []
        self._known: dict[str, Value] = {}  # the values of integer instructions that have run before this place, by their text
        self._count = 0
        self._block = "entry"
        self._regions: dict[str, Place] = {}  # of addresses in the regions of memory that are told apart
        self._written: Stored | None = None  # what the present block has stored there, if loads are to find it

    # Instructions

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def assign(self, type: Type, text: str) -> Value:
        self._count += 1
        self._lines.append(f"  %v{self._count} = {text}")
        return Value(f"%v{self._count}", type)

    def _once(self, type: Type, text: str) -> Value:
        """The value of an instruction without effects, which is written only if it has not run before this place."""
        if text not in self._known:
            self._known[text] = self.assign(type, text)
        return self._known[text]

    def binary(self, operation: str, a: Value, b: Value) -> Value:
        """An arithmetic instruction; multiplications and additions of floats may be contracted."""
        if operation in OF_INTEGERS and (known := self._known_pair(a, b)):
            return integer(OF_INTEGERS[operation](*known))
        flags = " contract" if operation in ("fadd", "fsub", "fmul") else ""
        result = self.assign(a.type, f"{operation}{flags} {a}, {b.text}")
        if self._written is not None and operation == "fmul":
            self._written.products.add(result.text)
        return result

    def _known_pair(self, a: Value, b: Value) -> tuple[int, int] | None:
        """Two integers, where the function `folds` and both are known."""
        x, y = (known_number(a), known_number(b)) if self.folds and a.type == I64 else (None, None)
        return None if x is None or y is None else (x, y)

    def compare(self, condition: str, a: Value, b: Value) -> Value:
        if condition in OF_ORDER and (known := self._known_pair(a, b)):
            return TRUE if OF_ORDER[condition](*known) else FALSE
        kind = "fcmp" if a.type.is_float else "icmp"
        return self.assign(a.type.of("i1"), f"{kind} {condition} {a}, {b.text}")

    def inverse(self, bit: Value) -> Value:
        return self.assign(bit.type, f"xor {bit}, true")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.assign(a.type, f"select {condition}, {a}, {b}")

    def least(self, a: Value, b: Value) -> Value:
        """The smaller of two signed integers."""
        return self.select(self.compare("slt", a, b), a, b)

    def cast(self, operation: str, a: Value, type: Type) -> Value:
        return self.assign(type, f"{operation} {a} to {type}")

    def call(self, name: str, result: Type | None, *operands: Value | str, declaration: str | None = None) -> Value:
        """Call an intrinsic or a function of the process, and declare it."""
        types = ", ".join(str(o.type) if isinstance(o, Value) else o.split()[0] for o in operands)
        self.module.declare(name, declaration or f"declare {result or 'void'} @{name}({types})")
        return self.invoke(name, result, *operands)

    def invoke(self, function: Value | str, result: Type | None, *operands: Value | str) -> Value:
        """Call a function of the module by its name, or any function by its address."""
        name = f"@{function}" if isinstance(function, str) else function.text
        text = f"call {result or 'void'} {name}({', '.join(map(str, operands))})"
        if self._written is not None and (not name.startswith("@llvm.") or name.startswith("@llvm.mem")):
            self._written.clear()
        if result is None:
            self.line(text)
            return Value("", I64)
        return self.assign(result, text)

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An intrinsic overloaded on the type of its first operand, which it returns."""
        return self.call(f"llvm.{name}.{operands[0].type.mangled}", operands[0].type, *operands)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c: one instruction where the processor has it, two otherwise."""
        return self.intrinsic("fmuladd", a, b, c)

    # Memory

    def prefetch(self, pointer: Value, to_write: bool = False) -> None:
        """Load the cache line of an address into the nearest cache."""
        self.call("llvm.prefetch.p0", None, pointer, f"i32 {to_write:d}", "i32 3", "i32 1")

    def address(self, base: Value, index: Value, type: Type) -> Value:
        """`base` advanced by `index` elements."""
        constant = known_number(index)
        if constant == 0:
            return base
        if isinstance(index, Offset):
            base, index = self.address(base, index.base, type), integer(index.constant)
            constant = known_number(index)
        result = self._once(PTR, f"getelementptr {type.name}, {base}, {index}")
        if place := self._regions.get(base.text):
            self._regions[result.text] = (
                place.after(constant * type.size) if constant is not None else place.somewhere(result.text)
            )
        return result

    def region(self, pointer: Value) -> None:
        """Tell the memory from this address on apart from all other memory that the function stores to."""
        self._regions[pointer.text] = Place(pointer.text, "", 0)

    def forwarded(self, write: Callable[[], object]) -> None:
        """Write code whose loads take from registers what the same block has stored in known regions.

        It folds, so that comparisons of known integers, and loops of one step, leave no blocks there.
        """
        before = self._written, self.folds
        self._written, self.folds = Stored(), True
        write()
        self._written, self.folds = before

    def _from_registers(self, type: Type, pointer: Value, mask: Value | None) -> Value | None:
        """What a load would find, if all of it is in one register."""
        place, used = self._regions.get(pointer.text), _known_lanes(mask, type.lanes)
        found = self._written.find(place, type, used) if self._written and place and used else None
        if found is None:
            return None
        vector, lanes = found
        if self._written and vector.text in self._written.products:  # not to be contracted with an addition of the reader
            vector = self.intrinsic("arithmetic.fence", vector)
        if type.lanes == 1:
            return vector if vector.type.lanes == 1 else Lane(self, vector, lanes[0])
        if vector.type.lanes == 1:
            return self.assign(type, f"insertelement {type} zeroinitializer, {vector}, i64 0")
        if vector.type == type and lanes == list(range(type.lanes)):
            return vector
        zeros = [vector.type.lanes] * (type.lanes - len(lanes))  # outside the mask
        text = ", ".join(f"i32 {lane}" for lane in [*lanes, *zeros])
        return self.assign(type, f"shufflevector {vector}, {vector.type} zeroinitializer, <{type.lanes} x i32> <{text}>")

    def load(self, type: Type, pointer: Value, mask: Value | None = None, *, aligned: bool = False) -> Value:
        """The value at an address, which is a multiple of its whole size if it is `aligned`."""
        if self._written is not None and (found := self._from_registers(type, pointer, mask)):
            return found
        if mask is None:
            return self.assign(type, f"load {type}, {pointer}, align {type.size * (type.lanes if aligned else 1)}")
        zero = Value("zeroinitializer", type)
        return self.call(f"llvm.masked.load.{type.mangled}.p0", type, pointer, f"i32 {type.size}", mask, zero)

    def store(self, value: Value, pointer: Value, mask: Value | None = None, *, aligned: bool = False) -> None:
        if mask is None:
            self.line(f"store {value}, {pointer}, align {value.type.size * (value.type.lanes if aligned else 1)}")
        elif self.module.splits_masks and (used := mask.text.count("i1 1")):
            self._store_first(value, pointer, used)
        else:
            self.call(f"llvm.masked.store.{value.type.mangled}.p0", None, value, pointer, f"i32 {value.type.size}", mask)
        if self._written is not None and (place := self._regions.get(pointer.text)):
            self._written.store(place, value, _known_lanes(mask, value.type.lanes))

    def _store_first(self, value: Value, pointer: Value, used: int) -> None:
        """Store the first `used` lanes in parts, whose lengths are powers of two."""
        scalar, begin = Type(value.type.name), 0
        while begin < used:
            length = 1 << (used - begin).bit_length() - 1
            lanes = ", ".join(f"i32 {k}" for k in range(begin, begin + length))
            picked = f"shufflevector {value}, {value.type} poison, <{length} x i32> <{lanes}>"
            part = self.assign(Type(value.type.name, length), picked if length > 1 else f"extractelement {value}, i64 {begin}")
            self.store(part, self.address(pointer, integer(begin), scalar))
            begin += length

    def splat(self, value: Value, lanes: int) -> Value:
        if lanes == 1:
            return value
        type = Type(value.type.name, lanes)
        if isinstance(value, Lane):
            text = ", ".join([f"i32 {value.lane}"] * lanes)
            return self.assign(type, f"shufflevector {value.vector}, {value.vector.type} poison, <{lanes} x i32> <{text}>")
        first = self.assign(type, f"insertelement {type} poison, {value}, i64 0")
        return self.assign(type, f"shufflevector {first}, {type} poison, <{lanes} x i32> zeroinitializer")

    def lane_mask(self, lanes: int, used: int) -> Value | None:
        """A constant mask of the first `used` lanes; None for all of them."""
        if used >= lanes:
            return None
        return Value("<" + ", ".join(f"i1 {int(k < used)}" for k in range(lanes)) + ">", Type("i1", lanes))

    def first_lanes(self, lanes: int, count: Value) -> Value:
        """A mask of the first `count` lanes, which may be known only when the program runs."""
        if known := self._known_pair(count, integer(lanes)):
            return self.lane_mask(lanes, known[0]) or all_lanes(lanes)
        type = Type("i64", lanes)
        iota = Value("<" + ", ".join(f"i64 {k}" for k in range(lanes)) + ">", type)
        return self.compare("ult", iota, self.splat(count, lanes))

    # Integers

    def add(self, a: Value, b: Value | int) -> Value:
        a, b = _constant_last(a, b)
        x, y = known_number(a), known_number(b)
        if y is not None:
            return self._plus(a, y) if x is None else integer(x + y)
        (base, first), (other, second) = _parts(a), _parts(b)
        if isinstance(a, Offset) or isinstance(b, Offset):
            return self._plus(self.add(base, other), first + second)
        return self._once(a.type, f"add {a}, {b.text}")

    def _plus(self, a: Value, constant: int) -> Value:
        base, before = _parts(a)
        return base if before + constant == 0 else Offset(self, base, before + constant)

    def mul(self, a: Value, b: Value | int) -> Value:
        a, b = _constant_last(a, b)
        x, y = known_number(a), known_number(b)
        if y is not None and x is not None:
            return integer(x * y)
        if y == 1:
            return a
        if y is not None and isinstance(a, Offset):
            return self._plus(self.mul(a.base, y), a.constant * y)
        return self._once(a.type, f"mul {a}, {b.text}")

    # Control

    def label(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def begin(self, label: str, known: Mapping[str, Value] | None = None) -> None:
        """Begin a block; `known` are values of blocks that always run before it."""
        self._lines.append(f"{label}:")
        self._block = label
        self._known = dict(known or {})
        if self._written is not None:
            self._written.clear()

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.line(f"br {condition}, label %{yes}, label %{no}")

    def quotient(self, a: Value, b: int) -> Value:
        """An integer divided by a factor that it has."""
        known = known_number(a)
        if b == 1:
            return a
        return integer(known // b) if known is not None else self._once(a.type, f"udiv exact {a}, {b}")

    def loop(
        self, start: Value, stop: Value, step: int | Value, body: LoopBody, carried: Sequence[Value] = ()
    ) -> tuple[Value, list[Value]]:
        """``for i in range(start, stop, step)``: `body` gets i and the carried values, and returns the next carried values.

        Returns the final i (the first value not below `stop`) and the carried values.
        """
        bounds = self._known_pair(start, stop)
        if bounds and isinstance(step, int) and bounds[1] <= bounds[0] + step:
            if bounds[1] <= bounds[0]:
                return start, list(carried)
            return integer(bounds[0] + step), list(body(start, list(carried)) or ())
        head, inside, after = self.label("head"), self.label("body"), self.label("after")
        start, stop, *carried = (Value(value.text, value.type) for value in (start, stop, *carried))
        entered, known = self._block, self._known
        self.jump(head)
        self.begin(head, known)
        position = len(self._lines)  # the phis go here, once the end of the body is known
        i = Value(f"%i{head}", start.type)
        phis = [Value(f"%c{head}_{k}", value.type) for k, value in enumerate(carried)]
        self.branch(self.compare("slt", i, stop), inside, after)
        self.begin(inside, known)
        results = body(i, phis) or ()
        following = self.binary("add", i, step if isinstance(step, Value) else integer(step))
        ended = self._block
        self.jump(head)
        lines = [f"  {i.text} = phi {i.type} [{start.text}, %{entered}], [{following.text}, %{ended}]"]
        for phi, first, later in zip(phis, carried, results, strict=True):
            lines.append(f"  {phi.text} = phi {phi.type} [{first.text}, %{entered}], [{later.text}, %{ended}]")
        self._lines[position:position] = lines
        self.begin(after, known)
        return i, phis

    def each(self, count: Value | int, body: Callable[[Value], object]) -> None:
        """Run the body for each number below `count`."""

        def run(i: Value, _: list[Value]) -> None:
            body(i)

        self.loop(integer(0), count if isinstance(count, Value) else integer(count), 1, run)

    def fold(self, count: Value, first: Value, body: Callable[[Value, Value], Value], start: Value | None = None) -> Value:
        """The last of the values that the body makes of each number below `count` and of the value before, `first` at first."""
        return self.loop(start or integer(0), count, 1, lambda i, carried: [body(i, *carried)], [first])[1][0]

    def repeat(self, body: Callable[[Value], object], until: Callable[[Value], Value] | None = None) -> Value:
        """Run the body with 0, 1, ... until a condition holds, which is tested before. Returns the number of times.

        Without a condition, the body returns from the function in the end.
        """
        head, inside, after = self.label("again"), self.label("body"), self.label("after")
        entered, known = self._block, self._known
        self.jump(head)
        self.begin(head, known)
        position, i = len(self._lines), Value(f"%i{head}", I64)
        if until is not None:
            self.branch(until(i), after, inside)
        else:
            self.jump(inside)
        self.begin(inside, known)
        body(i)
        following = self.binary("add", i, integer(1))
        self._lines.insert(position, f"  {i.text} = phi i64 [0, %{entered}], [{following.text}, %{self._block}]")
        self.jump(head)
        if until is not None:
            self.begin(after, known)
        return i

    def returns(self, value: Value) -> None:
        self.line(f"ret {value}")

    def return_if(self, condition: Value, value: Callable[[], Value] | None = None) -> None:
        yes, no, known = self.label("return"), self.label("further"), self._known
        self.branch(condition, yes, no)
        self.begin(yes, known)
        self.line(f"ret {value()}" if value else "ret void")
        self.begin(no, known)

    def when(self, condition: Value, then: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
        """Run `then` if the condition holds, else `otherwise`."""
        if self.folds and condition in (TRUE, FALSE):
            if side := then if condition == TRUE else otherwise:
                side()
            return
        yes, no, after = self.label("then"), self.label("else"), self.label("after")
        self.branch(condition, yes, no if otherwise else after)
        known = self._known
        self.begin(yes, known)
        then()
        self.jump(after)
        if otherwise:
            self.begin(no, known)
            otherwise()
            self.jump(after)
        self.begin(after, known)

    def either(self, condition: Value, yes: Callable[[], Value], no: Callable[[], Value]) -> Value:
        """The value of `yes` if the (scalar) condition holds, else the value of `no`; only one of them is computed."""
        return self.choice(condition, lambda: [yes()], lambda: [no()])[0]

    def choice(self, condition: Value, yes: Callable[[], Sequence[Value]], no: Callable[[], Sequence[Value]]) -> list[Value]:
        """The values of one of two sides, as in `either`."""
        labels = self.label("then"), self.label("else"), self.label("after")
        self.branch(condition, *labels[:2])
        known, results = self._known, []
        for label, side in zip(labels, (yes, no), strict=False):
            self.begin(label, known)
            values = side()
            results.append([(value, f"[{value.text}, %{self._block}]") for value in values])
            self.jump(labels[2])
        self.begin(labels[2], known)
        pairs = zip(*results, strict=True)
        return [self.assign(value.type, f"phi {value.type} {first}, {second}") for (value, first), (_, second) in pairs]

    def drop_unused_arguments(self) -> list[int]:
        """Remove the arguments that no line uses. Returns the positions of the others."""
        mentioned = set(re.findall(r"%[\w.]+", "\n".join(self._lines)))
        kept = [k for k, argument in enumerate(self.arguments) if argument.text in mentioned]
        self.arguments = [self.arguments[k] for k in kept]
        return kept

    def text(self, linkage: str = "") -> str:
        arguments = ", ".join(f"{a.type}{' noalias' * (a.text == self._apart)} {a.text}" for a in self.arguments)
        head = f"define {linkage} {self._result} @{self.name}({arguments}) {'noinline ' * (linkage == 'internal')}#0 {{"
        ends = self._result != "void" or (self._lines[-1:] and self._lines[-1].startswith("  br "))  # after an endless loop
        return "\n".join([head, "entry:", *self._lines, *([] if ends else ["  ret void"]), "}"])


class Module:
    """Functions and the declarations they need.

    With `splits_masks`, the first lanes of vectors are stored in parts: AVX2's masked store takes about 15 cycles on AMD's
    processors.
    """

    def __init__(self, *, splits_masks: bool = False) -> None:
        self.splits_masks = splits_masks
        self._declarations: dict[str, str] = {}
        self._functions: list[str] = []
        self._shared: dict[str, str] = {}  # the names of tables and outlined functions, by their text
        self._known: dict[Hashable, str] = {}  # the names of outlined functions, by what determines their text

    def declare(self, name: str, declaration: str) -> None:
        self._declarations[name] = declaration

    def add(self, function: Function, linkage: str = "") -> None:
        self._functions.append(function.text(linkage))

    def table(self, numbers: Sequence[int]) -> Value:
        """The address of a table of constant 64-bit numbers; equal tables are kept once."""
        text = f"private constant [{len(numbers)} x i64] [{', '.join(f'i64 {n}' for n in numbers)}], align 8"
        name = self._shared.setdefault(text, f"table{len(self._shared)}")
        self.declare(name, f"@{name} = {text}")
        return Value(f"@{name}", PTR)

    def zeros(self, count: int, type: Type) -> Value:
        """The address of `count` zeros."""
        text = f"private constant [{count} x {type}] zeroinitializer, align 64"
        name = self._shared.setdefault(text, f"table{len(self._shared)}")
        self.declare(name, f"@{name} = {text}")
        return Value(f"@{name}", PTR)

    def outline(
        self, hint: str, types: Sequence[Type], write: Callable[[Function, list[Value]], None], key: Hashable = None
    ) -> str:
        """The name of an internal function with this body; equal functions are written once.

        `key`, where there is one, has all that determines the function; then `write` is called once for it.
        """
        if key in self._known:
            return self._known[key]
        f = Function(self, "outlined", [(type, f"a{k}") for k, type in enumerate(types)])
        write(f, f.arguments)
        text = f.text("internal")
        if text not in self._shared:
            f.name = self._shared[text] = f"{hint}_{len(self._shared)}"
            self.add(f, "internal")
        if key is not None:
            self._known[key] = self._shared[text]
        return self._shared[text]

    def text(self) -> str:
        attributes = 'attributes #0 = { nounwind "no-trapping-math"="true" "frame-pointer"="none" }'
        return "\n".join([*self._declarations.values(), *self._functions, attributes, ""])


def flush_subnormals(f: Function) -> Value:
    """Begin to take subnormal numbers as zeros. Returns the address that `restore_subnormals` needs.

    A gradient that goes back through many steps vanishes, and ends in subnormal numbers. Processors of Intel and AMD take a
    hundred cycles for each: a step of training would take a fifth longer. The setting belongs to a thread, so every function
    restores it at its end.
    """
    before = f.assign(PTR, "alloca i32, align 4")
    during = f.assign(PTR, "alloca i32, align 4")
    f.call("llvm.x86.sse.stmxcsr", None, before)
    word = f.assign(I32, f"or {f.load(I32, before)}, {FLUSH_BITS}")
    f.store(word, during)
    f.call("llvm.x86.sse.ldmxcsr", None, during)
    return before


def restore_subnormals(f: Function, before: Value) -> None:
    """End what `flush_subnormals` has begun."""
    f.call("llvm.x86.sse.ldmxcsr", None, before)
