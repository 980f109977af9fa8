"""Taps: the entries of a kernel that reach each position, along rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from chains.backends.native.llvm.emit import Function, Value, integer
from chains.program.operations import Window
from chains.program.view import View


@dataclass(frozen=True)
class Taps:
    """A class of positions along one axis, and the kernel entries that reach them.

    Position ``first + step * m`` for m < count takes the entries ``tap + tap_step * k`` for k < taps, from the sources
    ``source + along * m + across * k``. A source exists if it is in [0, length).
    """

    first: int
    step: int
    count: int
    tap: int
    tap_step: int
    taps: int
    source: int
    along: int
    across: int
    length: int

    def reached(self, m: int) -> range:
        """The k whose source exists for position m."""
        inside = [k for k in range(self.taps) if 0 <= self.source + self.along * m + self.across * k < self.length]
        return range(inside[0], inside[-1] + 1) if inside else range(0)

    @property
    def whole(self) -> range:
        """The positions for which all sources exist."""
        inside = [m for m in range(self.count) if len(self.reached(m)) == self.taps]
        return range(inside[0], inside[-1] + 1) if inside else range(0)


def output_taps(window: Window, axis: int, inputs: int, outputs: int) -> list[Taps]:
    """The taps by which each output position of a convolution collects its inputs."""
    return [
        Taps(
            0, 1, outputs, 0, 1, window.size[axis], -window.padding[axis][0], window.stride[axis], window.dilation[axis], inputs
        )
    ]


def input_taps(window: Window, axis: int, inputs: int, outputs: int) -> list[Taps]:
    """The taps by which each input position collects the outputs that read it, for the gradient."""
    size, stride, dilation, before = (
        window.size[axis], window.stride[axis], window.dilation[axis], window.padding[axis][0]
    )  # fmt: skip
    classes = []
    step = stride // gcd(stride, dilation)
    for remainder in range(stride):
        first = (remainder - before) % stride
        count = len(range(first, inputs, stride))
        taps = [t for t in reversed(range(size)) if t * dilation % stride == remainder]  # reversed, so that sources ascend
        start = taps[0] if taps else 0
        source = (first + before - start * dilation) // stride
        if count:
            classes.append(Taps(first, stride, count, start, -step, len(taps), source, 1, step * dilation // stride, outputs))
    return classes


@dataclass(frozen=True)
class Images:
    """Strides of an image buffer, in elements."""

    channel: int
    row: int
    column: int

    @staticmethod
    def of(view: View) -> Images:
        return Images(*view.strides[1:])


def column_blocks(f: Function, columns: Taps, width: int, body: Callable[[Value, int | None, int], None]) -> None:
    """Call `body` for blocks of positions. If some sources do not exist, it also gets the first position as a number."""
    whole, position = columns.whole, 0

    def static(stop: int) -> None:
        nonlocal position
        while position < stop:
            size = min(width, columns.count - position)
            body(integer(position), position, size)
            position += size

    static(whole.start if whole else columns.count)
    stop = position + max(0, whole.stop - position) // width * width
    if stop - position > width:
        f.loop(integer(position), integer(stop), width, lambda m, _: body(m, None, width))
        position = stop
    static(columns.count)
