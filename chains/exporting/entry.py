"""A program as LLVM assembly that C can call: the works of its plan, and a function that drives them in one thread.

The function builds the table of addresses on its stack. Scratch memory is on the stack too if it is small and does not grow
with the number of samples; otherwise it is in a workspace that the caller passes. The function writes only to these and to the
caller's arrays, so any number of threads may call it simultaneously.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial

import numpy as np

from chains.backends.base import UnsupportedOperationError
from chains.backends.native.compiler import Compiler, signature_of, write_straight
from chains.backends.native.llvm.emit import I32, I64, PTR, Function, Module, Type, Value, integer, real_type
from chains.backends.native.llvm.straight import Straight
from chains.backends.native.llvm.struct import PREFETCH, ROW_POINTERS
from chains.backends.native.memory_plan import Signature
from chains.backends.native.plan.execution_plan import ExecutionPlan, Segment
from chains.backends.native.plan.passes import plan_of
from chains.backends.native.support import is_straight, unsupported
from chains.exporting.interface import DERIVATIVES, Call, Interface, ScratchBytes, c_name
from chains.exporting.targets import Target
from chains.program.scratch import ALIGNMENT
from chains.program.view import Buffer

BYTE, DOUBLE = Type("i8"), Type("double")
STRAIGHT_STACK = 16 << 10  # the least limit of a target with straight code


@dataclass(frozen=True)
class Scratch:
    """The scratch memory of a function: the part of fixed size in front, then the part that grows with the number of samples.

    `fixed` and `grown` map the number of a slot in the table of addresses to an offset in bytes. Those of `grown` are
    multiplied by the number of samples, rounded up to a multiple of `grain`.
    """

    fixed: dict[int, int]
    grown: dict[int, int]
    tile: int  # the offset of a tile's scratch memory
    rows: int  # that of the list of a tile's rows
    fixed_bytes: int
    bytes_per_sample: int
    grain: int

    @classmethod
    def of(cls, signature: Signature) -> Scratch:
        """The places of all buffers that callers do not provide."""
        fixed: dict[int, int] = {}
        grown: dict[int, int] = {}
        end = growth = 0
        for number, slot in enumerate(signature.table):
            if slot.batched and not slot.given:
                grown[number] = growth
                growth += -(-slot.nbytes // 4) * 4
            elif not slot.given:
                fixed[number] = end
                end += _rounded(slot.nbytes)
        tile, rows = end, end + _rounded(signature.tile_bytes)
        end = rows + _rounded(8 * signature.room if signature.indexed else 0)
        grain = math.lcm(ALIGNMENT // 4, signature.tile if signature.one_size else 1)
        return cls(fixed, grown, tile, rows, end, growth, grain)

    @property
    def length(self) -> ScratchBytes:
        """The length of all of it: samples are rounded up to a multiple of 16 that is no more than n + grain - 1."""
        return ScratchBytes(self.fixed_bytes + (self.grain - 1) * self.bytes_per_sample, self.bytes_per_sample)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Planned:
    """A function with its plan for a target. Raises UnsupportedOperationError if an operation has no code."""

    def __init__(self, call: Call, target: Target) -> None:
        reason = unsupported(call.program)
        if reason is not None:
            raise UnsupportedOperationError(reason)
        self.call, self.target = call, target
        self.straight = plan_of(call.program, target.processor, straight=True) if self.has_straight_code else None
        self._take(plan_of(call.program, target.processor))
        if self.wants_workspace and (target.is_microcontroller or call.name.removeprefix("stream_") in DERIVATIVES):
            # Derivatives have long arrays, with a row for each direction, and no sum depends on the size of tiles: smaller ones
            # may fit. A microcontroller has little memory, and few samples.
            free = target.stack - (self.scratch.fixed_bytes - self.plan.workspace_offset)
            self._take(plan_of(call.program, target.processor, max_scratch_bytes=free))

    @property
    def has_straight_code(self) -> bool:
        """Whether a call for one sample has separate code. It takes memory, and was tried on x86 only.

        How much of the stack it takes is known only when it is written, since registers do not suffice for all its numbers.
        """
        return self.target.processor.is_x86 and self.target.stack >= STRAIGHT_STACK and is_straight(self.call.program)

    def _take(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.signature = signature_of(plan)
        self.scratch = Scratch.of(self.signature)

    @property
    def wants_workspace(self) -> bool:
        """Whether the stack is too small."""
        return bool(self.scratch.bytes_per_sample) or self.scratch.fixed_bytes > self.target.stack

    def text(self, interface: Interface, symbol: str) -> str:
        """The assembly of the function under this name; only this name is visible from outside."""
        text = Compiler(self.plan).compiled(_Entry(self, interface, symbol).write).text
        inner = re.compile(rf"^define +(?=\S+ @(?!{symbol}\())", re.MULTILINE)
        return adapted(inner.sub("define internal ", text), self.target)


def parameters(call: Call, interface: Interface, target: Target) -> list[tuple[Type, str]]:
    """The parameters of a function, with LLVM's types."""
    names = [*(argument.name for argument in call.arguments), *(["work"] if interface.workspace else [])]
    return [(I64 if target.bits == 64 else I32, "n"), *((PTR, name) for name in names)]


def result_of(call: Call) -> str:
    """LLVM's type of a function's result."""
    return "void" if call.value is None else str(real_type(call.value.dtype))


def baked_symbol(interface: Interface, name: str) -> str:
    """The name of a vector that is part of the code."""
    return f"{interface.name}_baked_{name}"


def adapted(text: str, target: Target) -> str:
    """The assembly with LLVM's description of the target; addresses of 32 bits are aligned to four bytes."""
    if target.bits == 32:
        text = re.sub(r"((?:load ptr|store ptr [^,]+), ptr [^,]+, align) 8", r"\1 4", text)
    return f'target datalayout = "{target.machine().target_data}"\ntarget triple = "{target.triple}"\n{text}'


class _Entry:
    """Writes the function that C calls."""

    f: Function

    def __init__(self, planned: Planned, interface: Interface, symbol: str) -> None:
        self.call, self.target, self.scratch, self.straight = planned.call, planned.target, planned.scratch, planned.straight
        self.signature, self.interface, self.symbol = planned.signature, interface, symbol

    def write(self, module: Module, plan: ExecutionPlan) -> None:
        """Add it to a module that has, for every segment, the functions that `Compiler` writes."""
        if self.straight is None:
            self._write(module, plan, self.symbol)
            return
        symbol = f"{self.symbol}_many"
        self._write(module, plan, symbol)
        f = Straight(module, self.symbol, parameters(self.call, self.interface, self.target))
        self.f, self.given = f, {argument.text[1:]: argument for argument in f.arguments}
        n, straight = self.given["n"], self.straight
        one = f.compare("eq", n, Value("1", n.type))
        f.when(one, lambda: write_straight(f, straight, self._given), lambda: f.invoke(symbol, None, *f.arguments))
        module.add(f)

    def _write(self, module: Module, plan: ExecutionPlan, symbol: str) -> None:
        """Add it under this name, for any number of samples."""
        call = self.call
        self.f = f = Function(module, symbol, parameters(call, self.interface, self.target), result_of(call))
        self.given = {argument.text[1:]: argument for argument in f.arguments}
        n = self.given["n"]
        self.n = n if n.type == I64 else f.cast("sext", n, I64)
        memory = self._memory()
        table = self._table(memory)
        self.memory = f"{table}, {f.address(memory, integer(self.scratch.tile), BYTE)}"
        for k, segment in enumerate(plan.segments):
            self._segment(k, segment, plan)
        if call.value:
            f.returns(f.load(self.value.type, self.value_place))
        module.add(f)

    # Memory

    def _memory(self) -> Value:
        """The address of scratch memory."""
        f = self.f
        if not self.interface.workspace:
            return f.assign(PTR, f"alloca [{max(1, self.scratch.fixed_bytes)} x i8], align {ALIGNMENT}")
        work = self.given["work"]
        to_line = f.binary("and", f.binary("sub", integer(0), f.cast("ptrtoint", work, I64)), integer(ALIGNMENT - 1))
        return f.address(work, to_line, BYTE)

    def _table(self, memory: Value) -> Value:
        """The table of addresses, filled."""
        f, signature, scratch = self.f, self.signature, self.scratch
        samples = f.binary("and", f.add(self.n, scratch.grain - 1), integer(-16)) if scratch.grown else integer(0)

        def place(number: int) -> Value:
            slot = signature.table[number]
            if slot.given:
                return self._given(self.call.program.buffers[slot.name])
            if number in scratch.fixed:
                return f.address(memory, integer(scratch.fixed[number]), BYTE)
            return f.address(memory, f.add(f.mul(samples, scratch.grown[number]), scratch.fixed_bytes), BYTE)

        places = [place(number) for number in range(len(signature.table))]
        places += [places[number] for number in signature.sums]
        places += [f.module.zeros(PREFETCH.size, I64), f.module.zeros(ROW_POINTERS.size, I64)]  # nothing ahead; rows in order
        places += [f.address(memory, integer(scratch.rows), BYTE)]
        table = f.assign(PTR, f"alloca [{len(places)} x ptr], align 16")
        for position, address in enumerate(places):
            f.store(address, f.address(table, integer(position), PTR))
        return table

    def _given(self, buffer: Buffer) -> Value:
        """The address of a buffer that is not scratch memory."""
        f, name = self.f, buffer.name
        if name in self.interface.baked:
            symbol = baked_symbol(self.interface, name)
            f.module.declare(symbol, f"@{symbol} = external hidden constant i8, align {ALIGNMENT}")
            return Value(f"@{symbol}", PTR)
        if buffer.data is not None:
            data = buffer.data.tobytes()
            return f.module.table(np.frombuffer(data + bytes(-len(data) % 8), np.int64).tolist())
        if name not in ("inverse_batch", "value"):
            return self.given[c_name(buffer)]
        type = real_type(buffer.dtype)
        place = f.assign(PTR, f"alloca {type}, align 8")
        if name == "value":
            self.value_place, self.value = place, Value("", type)
        else:
            inverse = f.binary("fdiv", Value("1.0", DOUBLE), f.cast("sitofp", self.n, DOUBLE))
            f.store(inverse if type == DOUBLE else f.cast("fptrunc", inverse, type), place)
        return place

    # Segments

    def _segment(self, k: int, segment: Segment, plan: ExecutionPlan) -> None:
        """Call the work of a segment, on one thread. Its sums are the results, so nothing is added up."""
        f = self.f
        if segment.early:
            self._do(f"early_{k}")
        if segment.product:
            self._do(f"product_{k}", ", i64 0, i64 1")
        elif segment.tiled:
            for packer in segment.packers:
                self._do(f"prepare_{k}_{packer}")
            self._tiles(k, segment, plan)
        for position in range(len(segment.once)):
            once, rest = partial(self._do, f"once_{k}_{position}", ", i64 0, i64 1"), partial(self._do, f"rest_{k}")
            update = segment.fused_update
            if update and update.work == position:
                f.when(f.compare("sle", self.n, integer(1 if update.alone else plan.tile)), rest, once)
            else:
                once()

    def _do(self, name: str, more: str = "") -> None:
        """Call a function of the whole batch."""
        self.f.line(f"call void @{name}({self.memory}, i64 0, {self.n}, i64 1{more})")

    def _tiles(self, k: int, segment: Segment, plan: ExecutionPlan) -> None:
        f, n, tile = self.f, self.n, plan.tile
        whole = f.cast("zext", f.compare("sle", n, integer(tile)), I64)

        def step(start: Value, carried: list[Value]) -> list[Value]:
            span = f"{self.memory}, {start}, {f.least(f.binary('sub', n, start), integer(tile))}, {carried[0]}"
            if plan.lists_rows(segment):
                f.line(f"call void @list_{k}({span})")
            for part in range(len(segment.tiled)):
                f.line(f"call void @tile_{k}_{part}({span}, {whole})")
            return [integer(0)]

        f.loop(integer(0), n, tile, step, [integer(1)])
