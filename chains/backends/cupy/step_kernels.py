"""The kernels of a training step before and after its program: one gathers the samples, one stores the loss and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chains.backends.cupy.binding import DeviceBinding
from chains.backends.cupy.fused_program import outside
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Launch, Pointers, Source, blocks, each_element


def fetch(source: Source, data: Mapping[str, Any], binding: DeviceBinding) -> Launch:
    """Gather the samples of a step: row i of each input is the sample with the number order[cursor * batch + i]."""
    pointers, lines, begin = Pointers(), [], 0
    cursor, order = pointers(outside("cursor", np.int64)), pointers(outside("order", np.int64))
    for name, array in data.items():
        target = binding.program.buffers[name]
        into, samples, width = pointers(target, write=True), pointers(outside(f"all {name}", array.dtype)), target.size
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


def count(source: Source, binding: DeviceBinding, cycle: int | None) -> Launch:
    """Store the loss of a step, and count the step. After `cycle` steps, if given, counting begins again."""
    buffers, pointers = binding.program.buffers, Pointers()
    loss = pointers(buffers["value"])
    losses, cursor = pointers(outside("losses", np.float64), write=True), pointers(outside("cursor", np.int64), write=True)
    lines = [f"{losses}[{cursor}[0]] = {loss}[0];", f"{cursor}[0] += 1;"]
    if cycle is not None:
        lines.append(f"if ({cursor}[0] == {cycle}) {cursor}[0] = 0;")
    if "random" in buffers:
        lines.append(f"{pointers(buffers['random'], write=True)}[1] += 1;")
    return pointers.launch(source, "count", lines, lambda batch: (1, 1), block=(1, 1))
