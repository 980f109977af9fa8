"""A network as one file of C99, for compilers that LLVM does not reach and for people who want to read what is computed.

Each function goes through its program in the order in which it was recorded. Operations on samples are done for a tile of
samples after another, so that what lies between them stays in the cache and needs no workspace where it is small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep
from chains.backends.native.plan.segments import cut_into_segments
from chains.exporting.c_formulas import PHILOX, PRELUDE, literal
from chains.exporting.c_operations import Place, indented, lines_of
from chains.exporting.header import ctype, declaration
from chains.exporting.interface import ABOUT, Call, Interface, c_name
from chains.exporting.targets import TARGETS
from chains.program.loop import all_operations
from chains.program.operations import Operation, Random
from chains.program.rows import UpdateRows
from chains.program.scratch import ALIGNMENT
from chains.program.view import Buffer
from chains.version import __version__

TILE_BYTES = 16 << 10  # scratch of a tile, where it has more than one sample
MAX_SAMPLES = 64
STACK_BYTES = 32 << 10
NUMBERS_IN_LINE = 6


class CSource:
    """What an interface becomes in C."""

    def __init__(self, interface: Interface) -> None:
        self._functions = [_Function(call) for call in interface.calls]
        self.interface = replace(interface, workspace=any(each.nbytes > STACK_BYTES or each.whole for each in self._functions))

    def text(self, header: str | None) -> str:
        """The source, which includes the header of this name where there is one."""
        return "\n".join(self._lines(header)) + "\n"

    def _lines(self, header: str | None) -> Iterator[str]:
        interface, name = self.interface, self.interface.name
        yield f"/* {interface.network.replace('*/', '* /')}, {interface.dtype}. Written by chains {__version__}; C99. */"
        yield "#include <math.h>\n#include <stddef.h>\n#include <stdint.h>"
        yield f'#include "{header}"\n' if header else ""
        yield PRELUDE
        if any(
            isinstance(operation, Random) for call in interface.calls for operation in all_operations(call.program.operations)
        ):
            yield PHILOX
        for vector, array in interface.baked.items():
            yield from _numbers(vector, array, interface.dtype)
        for function in self._functions:
            yield from function.lines(interface)
        for end, count in interface.sizes.items():
            yield f"ptrdiff_t {name}_{end}(void) {{ return {count}; }}"
        yield f"ptrdiff_t {name}_work_bytes(ptrdiff_t n) {{ {self._work_bytes()} }}"
        yield f'const char *{name}_version(void) {{ return "chains {__version__}, C99"; }}'

    def _work_bytes(self) -> str:
        if not self.interface.workspace:
            return "(void)n; return 0;"
        fixed = max(function.nbytes for function in self._functions) + ALIGNMENT
        growth = max(sum(buffer.nbytes for buffer in function.whole) for function in self._functions)
        lines = sum(len(function.whole) for function in self._functions) * ALIGNMENT
        return f"return {fixed + lines} + n * {growth};"


def _numbers(name: str, array: np.ndarray, dtype: np.dtype) -> Iterator[str]:
    """A constant array."""
    kind = ctype(dtype)
    integral = dtype.kind in "iu"
    texts = [str(int(x)) if integral else literal(float(x), kind) for x in array.reshape(-1)] or ["0"]
    rows = [", ".join(texts[start : start + NUMBERS_IN_LINE]) for start in range(0, len(texts), NUMBERS_IN_LINE)]
    yield f"static const {kind} {name}[{len(texts)}] = {{"
    yield from (f"    {row}," for row in rows)
    yield "};"


def _parts(operation: Operation) -> list[Operation]:
    """What stands for an operation in C."""
    return operation.in_parts() if isinstance(operation, UpdateRows) else [operation]


class _Function:
    """A function of an interface."""

    def __init__(self, call: Call) -> None:
        self.call = call
        parts = [part for each in call.program.operations for part in _parts(each)]
        program = replace(call.program, operations=tuple(parts))
        self.plan = cut_into_segments(ExecutionPlan.of(program, TARGETS["x86-64-v2"].processor))
        views = [view for step in self.plan.steps for view in step.operation.views]
        scratch = [buffer for buffer in dict.fromkeys(view.buffer for view in views) if buffer.role == "scratch"]
        self.whole = [buffer for buffer in scratch if buffer in self.plan.whole]
        self.of_tile = [buffer for buffer in scratch if buffer.batched and buffer not in self.plan.whole]
        self.fixed = [buffer for buffer in scratch if not buffer.batched]
        per_sample = sum(buffer.nbytes for buffer in self.of_tile)
        self.tile = max(1, min(MAX_SAMPLES, TILE_BYTES // max(1, per_sample)))
        self._names: dict[Buffer, str] = {}

    @property
    def nbytes(self) -> int:
        """Of scratch memory that does not grow with the number of samples."""
        sizes = [buffer.nbytes * (self.tile if buffer.batched else 1) for buffer in (*self.of_tile, *self.fixed)]
        return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)

    def lines(self, interface: Interface) -> Iterator[str]:
        """The function, behind the constants that it reads."""
        program = self.call.program
        for buffer in program.buffers.values():
            if buffer.data is not None:
                yield from _numbers(f"{self.call.name}_{self._clean(buffer.name)}", buffer.data, buffer.dtype)
                self._names[buffer] = f"{self.call.name}_{self._clean(buffer.name)}"
        head = declaration(interface, self.call).replace("*", "*restrict ").replace("void *restrict work", "void *work")
        yield from indented(list(self._body(interface)), f"\n/* {self.call.about.replace('*/', '* /')} */\n{head}\n".rstrip())

    def _body(self, interface: Interface) -> Iterator[str]:
        arguments = {argument.name for argument in self.call.arguments}
        used = {c_name(view.buffer) for step in self.plan.steps for view in step.operation.views}
        counts = interface.workspace or any(step.batched for step in self.plan.steps)
        yield from (f"(void){name};" for name in sorted(arguments - used | (set() if counts else {"n"})))
        yield from self._memory(interface)
        for segment in self.plan.segments:
            yield from self._steps(segment.early)
            tiled = (*segment.tiled_steps, *([segment.product] if segment.product else []))
            if tiled:
                yield from self._tiles(tiled)
            yield from self._steps([step for work in segment.once for step in work.steps])
        if self.call.value is not None:
            yield "return value[0];"

    # Place

    def _memory(self, interface: Interface) -> Iterator[str]:
        for buffer in self.call.program.buffers.values():
            if buffer.name == "inverse_batch":
                yield f"const {ctype(buffer.dtype)} inverse_batch[1] = {{({ctype(buffer.dtype)})(1.0 / (double)n)}};"
            elif buffer.name == "value":
                yield f"{ctype(buffer.dtype)} value[1] = {{0}};"
        if interface.workspace:
            yield f"char *place = (char *)work + (-(uintptr_t)work & {ALIGNMENT - 1});"
        sums = {view.buffer for op in self.call.program.operations if op.sums_over_batch for view in op.outs}
        for buffer in (*self.fixed, *self.of_tile, *self.whole):
            kind, name = ctype(buffer.dtype), self._name(buffer)
            size = max(1, buffer.size) * (self.tile if buffer in self.of_tile else 1)
            if not interface.workspace:
                yield f"{kind} {name}[{size}]{' = {0}' if buffer in sums else ''};"  # for no samples at all
                continue
            length = f"(size_t)n * {buffer.nbytes}" if buffer in self.whole else str(size * buffer.dtype.itemsize)
            yield f"{kind} *restrict {name} = ({kind} *)(void *)place;"
            yield f"place += ({length} + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT};"
        if interface.workspace:
            yield "(void)place;"

    def _name(self, buffer: Buffer) -> str:
        """The variable for a buffer: that of the caller's by its name, others by theirs with a number where it is taken."""
        if buffer not in self._names:
            if buffer.role != "scratch":
                return c_name(buffer)
            name, number, taken = self._clean(buffer.name), 1, set(self._names.values()) | _TAKEN
            while (name if number == 1 else f"{name}_{number}") in taken:
                number += 1
            self._names[buffer] = name if number == 1 else f"{name}_{number}"
        return self._names[buffer]

    @staticmethod
    def _clean(name: str) -> str:
        return re.sub(r"\W+", "_", f"layer{name}" if name[:1].isdigit() else name).strip("_").lower()

    # Operations

    def _steps(self, steps: Sequence[PlanStep]) -> Iterator[str]:
        for step in steps:
            for operation in step.operations:
                yield from self._titled(operation, lines_of(operation, Place(self._name)))

    def _tiles(self, steps: Sequence[PlanStep]) -> Iterator[str]:
        """Steps on samples, tile by tile."""
        lines = [f"const ptrdiff_t count = n - start < {self.tile} ? n - start : {self.tile};"]
        moved: dict[Buffer, str] = {}
        views = [view for step in steps for operation in step.operations for view in operation.views]
        written = {view.buffer for step in steps for operation in step.operations for view in operation.outs}
        for buffer in dict.fromkeys(view.buffer for view in views):
            if buffer.batched and buffer not in self.of_tile:
                name = self._name(buffer)
                moved[buffer] = f"{name}_here"
                const = "" if buffer in written else "const "
                lines.append(f"{const}{ctype(buffer.dtype)} *{name}_here = {name} + start * {buffer.size};")
        for step in steps:
            for number, operation in enumerate(step.operations):
                place = Place(lambda b: moved.get(b) or self._name(b), True, step.continued and number == 0)
                lines += self._titled(operation, lines_of(operation, place))
        yield from indented(lines, f"for (ptrdiff_t start = 0; start < n; start += {self.tile})")

    @staticmethod
    def _titled(operation: Operation, lines: Iterator[str]) -> Iterator[str]:
        """The statements of an operation, under what it is in words."""
        label = f"{operation.label}: " if operation.label else ""
        yield f"/* {label}{operation} */".replace("*/ ", "* / ")
        yield from lines


_TAKEN = {*ABOUT, "n", "work", "value", "start", "count", "place", "i", "j", "k"}  # variables of other meanings
