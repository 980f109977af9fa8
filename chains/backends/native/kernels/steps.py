"""The code of a step: by the kernel of its operation, and for loops by those of their bodies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from chains.backends.native.kernels.elementwise import Frame, lower_fill
from chains.backends.native.kernels.outline import lower_loop
from chains.backends.native.llvm.emit import FALSE, integer
from chains.backends.native.operations import record_of
from chains.program.loop import Loop
from chains.program.view import View


def lower(frame: Frame, step: Any) -> None:
    """Write the code of a step, a `PlanStep`."""
    operation = step.operation
    for total in operation.totals if not isinstance(operation, Loop) else ():
        frame = _of_sum(frame, total.view)
    record = record_of(operation)
    laned = record.lanes and any(view.buffer in frame.laned for view in operation.views)
    kernel = record.lanes if laned or record.of_images else record.rows
    assert kernel is not None
    kernel.write(frame, step)


def _of_sum(frame: Frame, view: View) -> Frame:
    """The frame for a sum over samples. In loops it begins with the first step of each in which its place stays."""
    f, first = frame.f, frame.first
    for depth, number in enumerate(frame.steps):
        if first is not None and not view.loop_stride(depth):
            first = f.binary("and", first, f.compare("eq", number, integer(0)))
    return replace(frame, first=first)


def lower_steps_of_loop(frame: Frame, step: Any) -> None:
    """Zeros where the loop's sums begin, then the steps of its body, repeated."""
    loop: Loop = step.operation
    for zeros in loop.zeros:
        begins, fill = _of_sum(frame, zeros.outs[0]).first, partial(lower_fill, frame, zeros)
        frame.f.when(begins, fill) if begins is not None else fill()
    if loop.from_zero and frame.first is not None:
        frame = replace(frame, first=FALSE)

    def write(frame: Frame) -> None:
        for each in step.body:
            if each.likeness and frame.call_alike:
                own = frame
                for total in each.operation.totals:
                    own = _of_sum(own, total.view)
                code = partial(lower, step=each)
                frame.call_alike(replace(own, steps=()), each.likeness, each.operation.name, code)
            else:
                lower(frame, each)

    lower_loop(frame, loop, write)
