"""A loop: the code of its steps is written once, with addresses that advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chains.backends.native.kernels.elementwise import AxisLoop, Frame, loops_over
from chains.backends.native.llvm.emit import Type, Value, integer, number, real_type
from chains.program.loop import Loop
from chains.program.view import View

FALSE = Value("false", Type("i1"))


def lower_loop(frame: Frame, loop: Loop, write: Callable[[Frame], None]) -> None:
    """Repeat the code that `write` writes into the frame of a step, unless the step is left out."""
    f = frame.f

    def repeat(number: Value, _: list[Value]) -> None:
        def base(view: View) -> Value:
            move = view.loop_stride(loop.depth)
            return f.address(frame.base(view), f.mul(number, move), real_type(view.dtype)) if move else frame.base(view)

        step = replace(frame, base=base, steps=(*frame.steps, number))
        if loop.skip_where_zero is None:
            write(step)
        else:
            f.when(_some(step, loop.skip_where_zero), lambda: write(step))

    f.loop(integer(0), integer(loop.steps), 1, repeat)


def _some(frame: Frame, view: View) -> Value:
    """Whether some element of a view is not 0 (i1); NaN is not."""
    f, scalar = frame.f, real_type(view.dtype)

    def found(loops: list[AxisLoop], pointer: Value, before: Value) -> Value:
        if not loops:
            return f.binary("or", before, f.compare("une", f.load(scalar, pointer), number(scalar, 0.0)))
        loop, rest = loops[0], loops[1:]

        def element(i: Value, carried: list[Value]) -> list[Value]:
            return [found(rest, f.address(pointer, f.mul(i, loop.strides[0]), scalar), carried[0])]

        return f.loop(integer(0), frame.extent(loop.extent), 1, element, [before])[1][0]

    return found(loops_over(view.shape, (view,)), frame.base(view), FALSE)
