"""A network as one file of C99, for compilers that LLVM does not support, and for people who read the code.

Each function follows the order of its program. Operations on samples run tile by tile, so that their intermediate results stay
in the cache and need no workspace if they are small.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chains.exporting.c_operations import PHILOX, PRELUDE, Context, indented, lines_of, literal
from chains.exporting.header import ctype, declaration
from chains.exporting.interface import ABOUT, Call, Interface, ScratchBytes, c_name, comment
from chains.lowering.tiling import Tiles, is_large, only_continues
from chains.program.alias import conflict
from chains.program.loop import all_operations
from chains.program.operations import Map, Operation, Random
from chains.program.rows import UpdateRows
from chains.program.scratch import ALIGNMENT
from chains.program.view import Buffer
from chains.version import __version__

TILE_BYTES = (
    1 << 10
)  # scratch of a tile with more than one sample: 16 KiB gain a fifth for many samples, but stacks may be small
LEAST_TILE = 3  # samples: two fill no vector, and GCC unrolls their loops and warns of memory that no sample fills
STACK_BYTES = 4 << 10
NUMBERS_IN_LINE = 6
OPTIONS = """\
#if defined(__GNUC__) && !defined(__clang__)
/* With AVX2 GCC makes no vectors of comparisons that may raise exceptions. Results are the same. */
#pragma GCC optimize("no-trapping-math")
#endif
"""


class CSource:
    """An interface as C source."""

    def __init__(self, interface: Interface) -> None:
        self._functions = [_Function(call) for call in interface.calls]
        workspace = any(each.nbytes > STACK_BYTES or each.whole for each in self._functions)
        scratch = {each.call.name: each.scratch for each in self._functions}
        self.interface = replace(interface, workspace=workspace, scratch=scratch)

    def text(self, header: str | None) -> str:
        """The source, which includes the header of this name if there is one."""
        return "\n".join(self._lines(header)) + "\n"

    def _lines(self, header: str | None) -> Iterator[str]:
        interface, name = self.interface, self.interface.name
        yield f"/* {interface.network}, {interface.dtype}. Written by chains {__version__}; C99. */"
        yield "#include <math.h>\n#include <stddef.h>\n#include <stdint.h>"
        yield f'#include "{header}"\n' if header else ""
        yield OPTIONS
        yield PRELUDE
        if any(
            isinstance(operation, Random) for call in interface.calls for operation in all_operations(call.program.operations)
        ):
            yield PHILOX
        for vector, array in interface.baked.items():
            if array.size:  # an unused constant is a warning of compilers
                yield from _numbers(vector, array, interface.dtype)
        for function in self._functions:
            yield from function.lines(interface)
        for end, count in interface.sizes.items():
            yield f"ptrdiff_t {name}_{end}(void) {{ return {count}; }}"
        for end, length in interface.work_bytes.items():
            body = f"return {length.fixed} + n * {length.growth};" if length.growth else f"(void)n; return {length.fixed};"
            yield f"ptrdiff_t {name}_{end}(ptrdiff_t n) {{ {body} }}"
        yield f'const char *{name}_version(void) {{ return "chains {__version__}, C99"; }}'


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
    """The C code of an operation."""
    return operation.in_parts() if isinstance(operation, UpdateRows) else [operation]


@dataclass
class _Segment(Tiles):
    """Operations on samples, `tiled`, then those done once. `continued` are those that add to a sum begun by an earlier one.

    In a `large` segment, the first operation is a large product, whose arrays of samples hold the whole batch.
    """

    large: bool = False
    tiled: list[Operation] = field(default_factory=list)
    continued: list[Operation] = field(default_factory=list)

    def add(self, operation: Operation) -> None:
        """Add an operation on samples."""
        self.tiled.append(operation)
        if not self.large:
            self.continued += [operation] if only_continues(self.sums, operation) else []
            self.take(operation)

    def accepts(self, operation: Operation) -> bool:
        """Whether an operation on samples can be done for each tile after these. After a large product, only maps on it can."""
        if not self.large:
            return not self.refuses(operation)
        out = self.tiled[0].outs[0]
        follows = isinstance(operation, Map) and out.batched and operation.outs[0].shape == out.shape
        return follows and not self.refuses(operation)

    def once(self) -> tuple[list[Operation], list[Operation]]:
        """The operations done once that can be done before the tiles, and those after the tiles."""
        early: list[Operation] = []
        late: list[Operation] = []
        for operation in self.done_once:
            waits = any(conflict(other, operation) for other in (*self.tiled, *late))
            (late if waits else early).append(operation)
        return early, late


def _segments(operations: Sequence[Operation]) -> list[_Segment]:
    """As few segments as the order of the operations allows."""
    segments = [_Segment()]
    for operation in operations:
        if not operation.batched:
            segments[-1].done_once.append(operation)
            continue
        large = is_large(operation)
        if large or not segments[-1].accepts(operation):
            segments.append(_Segment(large=large))
        segments[-1].add(operation)
    return segments


def _crossing(segments: Sequence[_Segment]) -> set[Buffer]:
    """The batched scratch buffers that hold the whole batch: large products or several segments use them."""
    used = [{view.buffer for operation in segment.tiled for view in operation.views} for segment in segments]
    segments_with = Counter(buffer for buffers in used for buffer in buffers)
    large = {buffer for buffers, segment in zip(used, segments, strict=True) if segment.large for buffer in buffers}
    several = {buffer for buffer, number in segments_with.items() if number > 1}
    return {buffer for buffer in large | several if buffer.role == "scratch" and buffer.batched}


class _Function:
    """A function of an interface."""

    def __init__(self, call: Call) -> None:
        self.call = call
        operations = [part for each in call.program.operations for part in _parts(each)]
        self._segments = _segments(operations)
        views = [view for operation in operations for view in operation.views]
        scratch = [buffer for buffer in dict.fromkeys(view.buffer for view in views) if buffer.role == "scratch"]
        whole = _crossing(self._segments)
        self.whole = [buffer for buffer in scratch if buffer in whole]
        self.of_tile = [buffer for buffer in scratch if buffer.batched and buffer not in whole]
        self.fixed = [buffer for buffer in scratch if not buffer.batched]
        per_sample = sum(buffer.nbytes for buffer in self.of_tile)
        fitting = TILE_BYTES // max(1, per_sample)
        self.tile = fitting if fitting >= LEAST_TILE else 1
        self._names: dict[Buffer, str] = {}

    @property
    def nbytes(self) -> int:
        """The size of scratch memory that does not grow with the number of samples."""
        sizes = [buffer.nbytes * (self.tile if buffer.batched else 1) for buffer in (*self.of_tile, *self.fixed)]
        return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)

    @property
    def scratch(self) -> ScratchBytes:
        """The length of scratch memory."""
        growth = sum(buffer.nbytes for buffer in self.whole)
        return ScratchBytes(self.nbytes + len(self.whole) * ALIGNMENT, growth)

    def lines(self, interface: Interface) -> Iterator[str]:
        """The function, after the constants that it reads."""
        program = self.call.program
        for buffer in program.buffers.values():
            if buffer.data is not None:
                yield from _numbers(f"{self.call.name}_{self._clean(buffer.name)}", buffer.data, buffer.dtype)
                self._names[buffer] = f"{self.call.name}_{self._clean(buffer.name)}"
        head = declaration(interface, self.call).replace("*", "*restrict ").replace("void *restrict work", "void *work")
        yield from indented(list(self._body(interface)), f"\n/* {self.call.about} */\n{head}\n".rstrip())

    def _body(self, interface: Interface) -> Iterator[str]:
        arguments = {argument.name for argument in self.call.arguments}
        operations = [each for segment in self._segments for each in (*segment.tiled, *segment.done_once)]
        used = {c_name(view.buffer) for operation in operations for view in operation.views}
        counts = interface.workspace or any(segment.tiled for segment in self._segments)
        yield from (f"(void){name};" for name in sorted(arguments - used | (set() if counts else {"n"})))
        yield from self._memory(interface)
        for segment in self._segments:
            early, late = segment.once()
            yield from self._done_once(early)
            if segment.tiled:
                yield from self._tiles(segment)
            yield from self._done_once(late)
        if self.call.value is not None:
            yield "return value[0];"

    # Memory

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
        """The variable for a buffer: its name, with a number if the name is in use and the buffer is not the caller's."""
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

    def _done_once(self, operations: Sequence[Operation]) -> Iterator[str]:
        for operation in operations:
            yield from self._titled(operation, lines_of(operation, Context(self._name)))

    def _tiles(self, segment: _Segment) -> Iterator[str]:
        """Operations on samples, tile by tile."""
        # GCC does not see that `count` is positive, and warns of scratch memory that no sample fills.
        count = f"n - start < {self.tile} ? n - start : {self.tile}" if self.tile > 1 else "1"
        lines = [f"const ptrdiff_t count = {count};"]
        moved: dict[Buffer, str] = {}
        views = [view for operation in segment.tiled for view in operation.views]
        written = {view.buffer for operation in segment.tiled for view in operation.outs}
        for buffer in dict.fromkeys(view.buffer for view in views):
            if buffer.batched and buffer not in self.of_tile:
                name = self._name(buffer)
                moved[buffer] = f"{name}_here"
                const = "" if buffer in written else "const "
                lines.append(f"{const}{ctype(buffer.dtype)} *{name}_here = {name} + start * {buffer.size};")
        for operation in segment.tiled:
            continued = any(operation is other for other in segment.continued)
            context = Context(lambda buffer: moved.get(buffer) or self._name(buffer), True, continued)
            lines += self._titled(operation, lines_of(operation, context))
        yield from indented(lines, f"for (ptrdiff_t start = 0; start < n; start += {self.tile})")

    @staticmethod
    def _titled(operation: Operation, lines: Iterator[str]) -> Iterator[str]:
        """The statements of an operation, after a comment that names it."""
        label = f"{operation.label}: " if operation.label else ""
        yield f"/* {comment(f'{label}{operation}')} */"
        yield from lines


_TAKEN = {*ABOUT, "n", "work", "value", "start", "count", "place", "i", "j", "k"}  # variables of other meanings
