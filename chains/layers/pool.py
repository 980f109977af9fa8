"""Pools: the largest or the mean of each window of an image, channel by channel."""

from __future__ import annotations

import math
from typing import Any

from chains.layers.base import Declaration, Layer
from chains.layers.images import (
    Number,
    Padding,
    Sliding,
    as_image,
    axes_of,
    check_images,
    positions,
    setting,
    settings_text,
    window_of,
)
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_flags


class _Pooling(Sliding):
    """What pools share; `kind` is the operation's."""

    kind: str
    count_padding = True

    def __init__(self, kernel: Number, *, stride: Number | None = None, padding: Padding = 0) -> None:
        self.ndim = axes_of(kernel)
        self.window = window_of(kernel, kernel if stride is None else stride, padding)
        for size, pads in zip(self.window.size, self.window.padding, strict=True):
            if 2 * max(pads) > size:
                raise ValueError(f"`padding` (={padding!r}) must not be more than half of `kernel` (={kernel!r})")

    def declare(self, d: Declaration) -> None:
        check_images(d.input, self.ndim)
        d.output((d.input[0], *positions(self.window, d.input)))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.pool(self.kind, as_image(y), as_image(x), self.window, count_padding=self.count_padding)

    def __repr__(self) -> str:
        stride, size = self.stride, self.kernel
        moved = f", stride={setting(stride)}" if stride != size else ""
        rest = settings_text(self.window, self.ndim, stride=False)
        return f"{type(self).__name__}({setting(size)}{moved}{rest}{'' if self.count_padding else ', count_padding=False'})"


class MaxPool(_Pooling):
    """The largest entry of each window. Of several equal ones, the first, row by row, gets the gradient, as in PyTorch.

    Images (channels, height, width) or signals (channels, length) keep their channels.

    Parameters
    ----------
    kernel : int or tuple of int
        The window: a length or a pair for images, ``(length,)`` for signals.
    stride : int or tuple of int, optional
        Steps of the window; by default its size.
    padding : int, tuple or str
        As of `Conv`, at most half a kernel. Padding is never the largest entry.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    kind = "max"


class AvgPool(_Pooling):
    """The mean of each window, of images (channels, height, width) or signals (channels, length).

    Parameters
    ----------
    kernel, stride, padding
        As of `MaxPool`.
    count_padding : bool
        Whether the zeros of the padding count in a mean, as PyTorch's `count_include_pad`.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    kind = "mean"

    def __init__(
        self, kernel: Number, *, stride: Number | None = None, padding: Padding = 0, count_padding: bool = True
    ) -> None:
        super().__init__(kernel, stride=stride, padding=padding)
        check_flags(count_padding=count_padding)
        self.count_padding = count_padding


class GlobalAvgPool(Layer):
    """The mean of each channel: (channels, *positions) becomes (channels,)."""

    def declare(self, d: Declaration) -> None:
        if len(d.input) < 2:
            raise ValueError(f"the input must have channels and at least one more axis, not the sample shape {d.input}")
        d.output(d.input[:1])

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        share = 1.0 / math.prod(x.sample_shape[1:])
        ops.sum(y.reshape(*y.sample_shape, 1), x.reshape(x.sample_shape[0], math.prod(x.sample_shape[1:])))
        ops.map(y, lambda total: total * share, y)
