"""What a training step on a GPU has beside its program: the samples are fetched, the loss is noted, the step is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chains.backends.cupy.binding import DeviceBinding
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Command, Launch, Pointers, Source, blocks, each_element, indented
from chains.program.view import Buffer

FIRST_THREAD = "threadIdx.x == 0 && threadIdx.y == 0"


def fetch(source: Source, data: Mapping[str, Any], binding: DeviceBinding) -> Launch:
    """Gather the samples of a step: row i of each input is the sample with the number order[cursor * batch + i]."""
    pointers, lines, begin = Pointers(), [], 0
    cursor, order = pointers(_buffer("cursor", np.int64)), pointers(_buffer("order", np.int64))
    for name, array in data.items():
        target = binding.program.buffers[name]
        into, samples, width = pointers(target, write=True), pointers(_buffer(f"all {name}", array.dtype)), target.size
        lines += [
            f"{'else ' if begin else ''}if (i < batch * {begin + width}) {{",
            f"    const Index e = i - batch * {begin};",
            f"    const int64 sample = {order}[{cursor}[0] * batch + e / {width}];",
            f"    {into}[e] = ({ctype(target.dtype)}){samples}[sample * {width} + e % {width}];",
            "}",
        ]
        begin += width
    body = each_element(f"batch * {begin}", lines)
    return pointers.launch(source, "fetch", body, lambda batch: (blocks(batch * begin), 1))


def noting(source: Source, binding: DeviceBinding, cycle: int | None) -> tuple[int, Launch]:
    """What notes the loss and counts the step, in place of the work with this number; behind all work where that is its end.

    It is the last kernel of the program that may do it along with its own work: when the loss is known, and when nothing reads
    the counter of random numbers any more.
    """
    buffers, pointers = binding.program.buffers, Pointers()
    pointers.named(buffers["value"], "step_loss")
    pointers.named(_buffer("losses", np.float64), "losses", write=True)
    pointers.named(_buffer("cursor", np.int64), "cursor", write=True)
    lines = ["losses[cursor[0]] = step_loss[0];", "cursor[0] += 1;"]
    if cycle is not None:
        lines.append(f"if (cursor[0] == {cycle}) cursor[0] = 0;")
    if "random" in buffers:
        lines.append(f"{pointers.named(buffers['random'], 'drawn', write=True)}[1] += 1;")
    place = _place(binding)
    if place is None:
        return len(binding.work), pointers.launch(source, "count", lines, lambda batch: (1, 1), block=(1, 1))
    step, _ = binding.commands[place]
    assert isinstance(step, Launch)
    if step.one_block:
        noted = ["__syncthreads();", f"if ({FIRST_THREAD}) {{", *indented(lines), "}"]
    else:
        noted = [f"if (blockIdx.x == 0 && blockIdx.y == 0 && {FIRST_THREAD}) {{", *indented(lines), "}"]
    return place, binding.compiled.source.longer(step, pointers, noted, source)


def _place(binding: DeviceBinding) -> int | None:
    """The number of the last kernel that can note the loss, None where there is none."""
    compiled, buffers = binding.compiled, binding.program.buffers
    noted = {buffers["value"]}
    drawn = {buffers["random"]} if "random" in buffers else set()

    def settles(step: Command) -> bool:
        """Whether a command has something to do with what is noted."""
        writes, reads = ({*map(compiled.real, touched)} for touched in (step.writes, step.reads))
        return bool(writes & (noted | drawn) or reads & drawn)

    for place, (step, loops) in reversed([*enumerate(binding.commands)]):
        if isinstance(step, Launch) and not loops and (step.one_block or not settles(step)):
            return place
        if settles(step):
            return None
    return None


def _buffer(name: str, dtype: Any) -> Buffer:
    return Buffer(name, "state", np.dtype(dtype), ())
