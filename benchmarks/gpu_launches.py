"""What each launch of a training step takes at least on an H200, by the bytes and operations that its views name.

A launch reads and writes each element of its views once, at the memory's rate; what the second-level cache holds may come
sooner. Operations are those of products, convolutions, formulas and sums. Between two launches of a graph lies a gap that is
assumed, not measured. Loops and tiles of samples within an operation count their launches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.gpu_rates import MEMORY_RATE, RATES
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.source.commands import Command, Launch, unrolled, untiled
from chains.program.loop import Loop
from chains.program.operations import Map, Operation, Reduce
from chains.program.view import Buffer, View, concrete

GAP = 1.2e-6  # seconds between two launches of a graph: assumed


@dataclass(frozen=True)
class LaunchFloor:
    """A launch, or the launches of one operation: what it is called, how many it is, its bytes and operations."""

    name: str
    launches: int
    read: int
    written: int
    operations: int

    @property
    def seconds(self) -> float:
        """The least that it takes in float32, without gaps."""
        return max(self.operations / RATES["float32"], (self.read + self.written) / MEMORY_RATE)


def operations_of(operation: Operation, batch: int) -> int:
    """Additions, multiplications and functions: two for each multiply-add."""
    if isinstance(operation, Loop):
        return operation.steps * sum(operations_of(each, batch) for each in operation.body)
    if isinstance(operation, Map):
        computing = sum(each.operation != "const" for each in operation.formula.instructions)
        return computing * math.prod(concrete(operation.outs[0].shape, batch))
    if isinstance(operation, Reduce):
        return math.prod(concrete(operation.ins[0].shape, batch))
    return operation.flops(batch)


def launch_floors(compiled: Compiled, batch: int) -> list[LaunchFloor]:
    """The launches of a program at a batch size, in order."""
    origins = {id(command): operations for command, operations in compiled.origins}
    found, counted = [], set[int]()
    for command in compiled.commands:
        launches = sum(_is_done(step, batch) for step, _ in unrolled(untiled([command], batch)))
        if not launches:
            continue
        operations = origins[id(command)]
        first = id(operations) not in counted
        counted.add(id(operations))
        read = sum(_bytes(compiled, buffer, [v for o in operations for v in o.reads], batch) for buffer in command.reads)
        written = sum(_bytes(compiled, buffer, [v for o in operations for v in o.writes], batch) for buffer in command.writes)
        total = sum(operations_of(operation, batch) for operation in operations) if first else 0
        found.append(LaunchFloor(_name(command), launches, read, written, total))
    return found


def _is_done(step: Command, batch: int) -> bool:
    return not isinstance(step, Launch) or step.grid(batch) is not None


def _bytes(compiled: Compiled, buffer: Buffer, views: list[View], batch: int) -> int:
    """The bytes of a buffer that these views name; all of them where none does, as of scratch that a launch has for itself."""
    whole = compiled.elements(buffer, batch)
    mine = {view for view in views if compiled.real(view.buffer) is compiled.real(buffer)}
    named = sum(math.prod(n for n, step in zip(concrete(v.shape, batch), v.strides, strict=True) if step) for v in mine)
    return (min(named, whole) if mine else whole) * buffer.dtype.itemsize


def _name(command: Command) -> str:
    kind = command.kernel.name.rpartition("_")[0] if isinstance(command, Launch) else type(command).__name__.lower()
    return f"{kind}: {command.label}" if command.label else kind


def lines(compiled: Compiled, batch: int) -> Iterator[str]:
    """A line for each launch, those that are alike together, and their sum."""
    floors = launch_floors(compiled, batch)
    for floor, times in Counter(floors).items():
        count = times * floor.launches
        numbers = f"{floor.read / 1e3:11.1f}{floor.written / 1e3:11.1f}{floor.operations / 1e6:11.2f}{floor.seconds * 1e6:9.2f}"
        yield f"{count:4} x {floor.name:.58}".ljust(66) + numbers
    count, least = sum(floor.launches for floor in floors), 1e6 * sum(floor.seconds for floor in floors)
    gaps = f"us; {least + count * GAP * 1e6:.1f} with {GAP * 1e6:g} for each launch, which is assumed"
    yield f"{count:4} launches of the program".ljust(66) + f"{'':33}{least:9.2f} {gaps}"


HEAD = "launches, each".ljust(66) + f"{'kB read':>11}{'kB written':>11}{'MFLOP':>11}{'us':>9}"
