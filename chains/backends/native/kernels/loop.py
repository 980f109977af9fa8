"""A loop: the code of its steps is written once, with addresses that advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import Value, integer, real_type
from chains.program.operations import Loop
from chains.program.view import View


def lower_loop(frame: Frame, loop: Loop, write: Callable[[Frame], None]) -> None:
    """Repeat the code that `write` writes into the frame of a step."""
    f = frame.f

    def repeat(number: Value, _: list[Value]) -> None:
        def base(view: View) -> Value:
            move = view.move(loop.depth)
            return f.address(frame.base(view), f.mul(number, move), real_type(view.dtype)) if move else frame.base(view)

        write(replace(frame, base=base, steps=(*frame.steps, number)))

    f.loop(integer(0), integer(loop.steps), 1, repeat)
