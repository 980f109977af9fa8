"""From samples in rows to samples in lanes, and back (`plan/layout.py` describes both layouts)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.shuffles import transposed
from chains.program.operations import Operation
from chains.program.view import View


@dataclass(frozen=True)
class Relayout(Operation):
    """out = the operand in the other layout: one is laned, the other is not. Both have the axes (samples, channels, rest)."""

    to_lanes: bool


def lanes_last(view: View, lanes: int) -> View:
    """A laned view with its samples, `lanes` of them, as the last axis; a view without samples gets an axis of length 1."""
    if not view.batched:
        return view.expand(view.ndim)
    return replace(view, shape=(*view.shape[1:], lanes), strides=(*view.strides[1:], view.strides[0]))


def lower_relayout(frame: Frame, operation: Relayout, whole_tiles: bool) -> None:
    """Transpose squares of numbers in registers.

    Lanes without a sample repeat the first sample, so that they compute only ordinary numbers. Rows without a sample are
    written only if the tile has room for them (`whole_tiles`).
    """
    (out,), (source,) = operation.outs, operation.ins
    to_lanes, lanes = operation.to_lanes, frame.lanes
    rows_view, laned_view = (source, out) if to_lanes else (out, source)
    channels, size = out.sample_shape
    sample, channel = rows_view.strides[0], laned_view.strides[1]
    scalar = real_type(out.dtype)
    type = Type(scalar.name, lanes)

    def write(f: Function, arguments: list[Value]) -> None:
        target, origin, count, _ = arguments
        zero = integer(0)
        rows = [f.select(f.compare("slt", integer(s), count), integer(s), zero) for s in range(lanes)]

        def square(c: Value, e: Value, used: int) -> None:
            mask = f.lane_mask(lanes, used)
            row = f.add(f.mul(c, size), e)
            lane = f.add(f.mul(c, channel), f.mul(e, lanes))
            if to_lanes:
                vectors = [f.load(type, f.address(origin, f.add(f.mul(r, sample), row), scalar), mask) for r in rows]
                for k, vector in enumerate(transposed(f, vectors)[:used]):
                    f.store(vector, f.address(target, f.add(lane, k * lanes), scalar))
                return
            vectors = [f.load(type, f.address(origin, f.add(lane, k * lanes), scalar)) for k in range(used)]
            vectors += [number(type, 0.0)] * (lanes - used)
            for s, vector in enumerate(transposed(f, vectors)):
                f.store(vector, f.address(target, f.add(row, s * sample), scalar), mask)

        def squares() -> None:
            whole = size // lanes * lanes

            def of_channel(c: Value, _: list[Value]) -> None:
                if whole:
                    f.loop(zero, integer(whole), lanes, lambda e, _: square(c, e, lanes))
                if size > whole:
                    square(c, integer(whole), size - whole)

            f.loop(zero, integer(channels), 1, of_channel)

        def by_number() -> None:
            def element(s: Value, c: Value, e: Value) -> None:
                x = f.load(scalar, f.address(origin, f.add(f.add(f.mul(c, channel), f.mul(e, lanes)), s), scalar))
                f.store(x, f.address(target, f.add(f.add(f.mul(s, sample), f.mul(c, size)), e), scalar))

            def of_channel(s: Value, c: Value) -> None:
                f.loop(zero, integer(size), 1, lambda e, _: element(s, c, e))

            def row(s: Value, _: list[Value]) -> None:
                f.loop(zero, integer(channels), 1, lambda c, _: of_channel(s, c))

            f.loop(zero, count, 1, row)

        if to_lanes or whole_tiles:
            squares()
        else:
            f.when(f.compare("eq", count, integer(lanes)), squares, by_number)

    frame.outlined("relayout", [frame.base(out), frame.base(source)], write)
