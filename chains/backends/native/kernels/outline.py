"""Code that a program needs many times is written once: as a function of the operands' addresses, or as the body of a loop.

Pieces of code are equal if they do the same operation with the same settings, on views with the same shapes and the same layout
in buffers of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from typing import Any

from chains.backends.native.kernels.elementwise import Frame, RowPointers
from chains.backends.native.kernels.products import FusedProduct
from chains.backends.native.llvm.emit import FALSE, Function, Value, integer, number, real_type
from chains.lowering.axes import Axis, loops_over
from chains.program.loop import Loop
from chains.program.operations import Operation
from chains.program.view import Buffer, View


class Likeness:
    """All that a piece of code depends on, except the places of its operands. Pieces with equal `key`s share a function.

    `parts` are the operations, kernels, views and settings that determine the code. `known` returns the facts about a buffer
    that determine it too, besides role, type and shape. `first` has the first view of each buffer, in the order of the parts.
    """

    def __init__(self, known: Callable[[Buffer], Hashable], *parts: Any) -> None:
        self._known = known
        self.first: dict[Hashable, View] = {}
        self.key = self._of(parts)

    def _of(self, part: Any) -> Hashable:
        if isinstance(part, View):
            return self._of_view(part)
        if isinstance(part, tuple):
            return tuple(map(self._of, part))
        if isinstance(part, (Operation, FusedProduct)):
            return type(part), *(self._of(getattr(part, field.name)) for field in fields(part) if field.name != "label")
        return repr(part)  # `repr` distinguishes 0.0 and -0.0

    def _of_view(self, view: View) -> Hashable:
        buffer, place = view.buffer, _place(view)
        kind = () if place in self.first else (buffer.role, buffer.dtype, buffer.shape, self._known(buffer))
        first = self.first.setdefault(place, view)
        return list(self.first).index(place), kind, view.shape, view.strides, view.offset - first.offset


def _place(view: View) -> Hashable:
    """What views share whose addresses differ by a known number: the buffer, and how they advance with the steps of loops."""
    return view.buffer, view.loop_strides


@dataclass(frozen=True)
class _Outlined:
    """A function, the positions of the arguments that it takes, and the likeness that it was first written for."""

    name: str
    taken: list[int]
    prototype: Likeness


class Outlines:
    """The functions of a module for code that occurs several times."""

    def __init__(self) -> None:
        self._functions: dict[Hashable, _Outlined] = {}

    def call(self, frame: Frame, likeness: Likeness, hint: str, write: Callable[[Frame], None]) -> None:
        """Call the function for this code; on first use, `write` fills it."""
        key = frame.first is None, likeness.key
        if key not in self._functions:
            self._functions[key] = _outlined(frame, likeness, f"{hint}_alike_{len(self._functions)}", write)
        function = self._functions[key]
        arguments = _arguments(frame, likeness, function.prototype)
        frame.f.invoke(function.name, None, *(arguments[k] for k in function.taken))


def _outlined(frame: Frame, likeness: Likeness, name: str, write: Callable[[Frame], None]) -> _Outlined:
    types = [argument.type for argument in _arguments(frame, likeness, likeness)]
    f = Function(frame.f.module, name, [(type, f"a{k}") for k, type in enumerate(types)])
    write(_inside(frame, f, likeness))
    taken = f.drop_unused_arguments()
    f.module.add(f, "internal")
    return _Outlined(name, taken, likeness)


def _arguments(frame: Frame, likeness: Likeness, prototype: Likeness) -> list[Value]:
    """The arguments of a call: the addresses of the buffers, and the frame's facts about the samples.

    Samples found by pointers also have an offset from their pointers. The argument is its difference from the prototype's.
    """
    samples = (frame.count, frame.start, frame.first, frame.whole, frame.prefetch)
    values = [*map(frame.base, likeness.first.values()), *(value for value in samples if value is not None)]
    if frame.rows is not None:
        pairs = zip(likeness.first.values(), prototype.first.values(), strict=True)
        moved = sum(own.offset - other.offset for own, other in pairs if own.buffer is frame.rows.buffer)
        values += [frame.rows.pointers, frame.f.add(frame.rows.offset, moved)]
    return values


def _inside(frame: Frame, f: Function, likeness: Likeness) -> Frame:
    """The frame inside the function, whose values are the function's arguments."""
    arguments = iter(f.arguments)
    bases = {place: next(arguments) for place in likeness.first}

    def base(view: View) -> Value:
        place = _place(view)
        offset = view.offset - likeness.first[place].offset
        return f.address(bases[place], integer(offset), real_type(view.dtype))

    def own(value: Value | None) -> Value | None:
        return None if value is None else next(arguments)

    count, start = next(arguments), next(arguments)
    first, whole, prefetch = own(frame.first), own(frame.whole), own(frame.prefetch)
    rows = frame.rows and RowPointers(frame.rows.buffer, next(arguments), next(arguments))
    return replace(frame, f=f, base=base, count=count, start=start, first=first, whole=whole, prefetch=prefetch, rows=rows)


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

    def found(loops: list[Axis], pointer: Value, before: Value) -> Value:
        if not loops:
            return f.binary("or", before, f.compare("une", f.load(scalar, pointer), number(scalar, 0.0)))
        loop, rest = loops[0], loops[1:]

        def element(i: Value, carried: list[Value]) -> list[Value]:
            return [found(rest, f.address(pointer, f.mul(i, loop.strides[0]), scalar), carried[0])]

        return f.loop(integer(0), frame.extent(loop.extent), 1, element, [before])[1][0]

    return found(loops_over(view.shape, (view,)), frame.base(view), FALSE)
