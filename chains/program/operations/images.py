"""Windows of images: convolutions, pools, and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from chains.program.operations.base import Operation, check_views
from chains.program.view import View, concrete
from chains.support.caching import lazy
from chains.support.checks import whole
from chains.support.messages import shown

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """The size of a window and how it moves, each a pair: for rows and for columns.

    Entry `k` of the window at output position `o` is at input position ``o * stride + k * dilation - padding[0]``; positions
    outside the input are padding, `padding[0]` of them before the input and `padding[1]` after it.
    """

    size: Pair
    stride: Pair = (1, 1)
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        for name in ("size", "stride", "dilation"):
            value = getattr(self, name)
            if not _is_pair(value, 1):
                raise ValueError(
                    f"`{name}` (={shown(value)}) of a Window must be a pair of whole numbers from 1, for rows and for columns"
                )
        padding = self.padding
        if not isinstance(padding, tuple) or len(padding) != 2 or not all(_is_pair(each, 0) for each in padding):
            raise ValueError(
                f"`padding` (={shown(padding)}) of a Window must be a pair of pairs, for rows and for columns: the entries "
                "before and after the input, such as ((1, 1), (1, 1))"
            )

    def outputs(self, inputs: Pair) -> Pair:
        """The number of window positions over an input of this height and width; not positive if the window is too large."""
        rows, columns = ((inputs[k] + sum(self.padding[k]) - self.span[k]) // self.stride[k] + 1 for k in range(2))
        return rows, columns

    @lazy
    def span(self) -> Pair:
        """The extent of the window, from its first entry to its last, both included."""
        rows, columns = ((self.size[k] - 1) * self.dilation[k] + 1 for k in range(2))
        return rows, columns

    @property
    def area(self) -> int:
        """Entries of the window."""
        return self.size[0] * self.size[1]

    @property
    def padded(self) -> bool:
        return self.padding != ((0, 0), (0, 0))

    def __str__(self) -> str:
        parts = [f"{self.size[0]}x{self.size[1]}"]
        parts += [f"stride {_pair(self.stride)}"] if self.stride != (1, 1) else []
        if self.padded:
            even = all(before == after for before, after in self.padding)
            parts.append(f"padding {_pair((self.padding[0][0], self.padding[1][0])) if even else self.padding}")
        parts += [f"dilation {_pair(self.dilation)}"] if self.dilation != (1, 1) else []
        return ", ".join(parts)


def _is_pair(value: Any, least: int) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(whole(each, least) is not None for each in value)


def _pair(pair: Pair) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"


@dataclass(frozen=True)
class _Convolution(Operation):
    """The common part of the convolution and its two gradients. Images are (batch, channels, height, width), kernels
    (outputs, channels / groups, *window.size). Kernels are not flipped, as usual in networks. An output channel reads only
    the input channels of its group.
    """

    linear_in = (0, 1)

    window: Window
    groups: int = 1

    @property
    def _images(self) -> tuple[View, View]:
        """The views of the input and of the output image, or of their gradients."""
        raise NotImplementedError

    @property
    def _kernels(self) -> View:
        return self.ins[1]

    def check(self) -> None:
        super().check()
        (x, y), w, window, groups = self._images, self._kernels, self.window, self.groups
        fits = x.ndim == y.ndim == w.ndim == 4 and x.batched and y.batched
        if fits:
            (channels, *inputs), (outputs, *positions) = x.sample_shape, y.sample_shape
            fits = w.shape == (outputs, channels // groups, *window.size) and channels % groups == outputs % groups == 0
            fits = fits and window.outputs((inputs[0], inputs[1])) == tuple(positions)
        if not fits:
            raise ValueError(
                f"{self.name}: images {x.text} and {y.text} do not fit kernels {w.text}, window {window}, {groups} groups"
            )

    @property
    def _settings(self) -> dict[str, Any]:
        return {"window": self.window, "groups": self.groups}

    def flops(self, batch: int) -> int:
        (_, channels, *_), (_, *output) = (concrete(view.shape, 1) for view in self._images)
        return 2 * batch * math.prod(output) * channels // self.groups * self.window.area

    def __str__(self) -> str:
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return f"{self._left} = {self.name}({', '.join(map(str, self.ins))}; {self.window}{groups})"


class Convolve(_Convolution):
    """y = the convolution of x with the kernels w, for the operands (x, w)."""

    @property
    def _images(self) -> tuple[View, View]:
        return self.ins[0], self.outs[0]

    def transpose(self, t: Any) -> None:
        (y,), (x, w) = self.outs, self.ins
        d = t.take(y)
        if t.is_active(w):
            t.fill(w, lambda dw: t.ops.convolve_weight(dw, t.value(x), d, **self._settings))
        if t.is_active(x):
            t.fill(x, lambda dx: t.ops.convolve_input(dx, d, t.value(w), **self._settings))


class ConvolveInput(_Convolution):
    """dx = the gradient of `Convolve` with respect to x, for the operands (dy, w): the transposed convolution of dy."""

    @property
    def name(self) -> str:
        return "convolve_input"

    @property
    def _images(self) -> tuple[View, View]:
        return self.outs[0], self.ins[0]

    def transpose(self, t: Any) -> None:
        (x,), (y, w) = self.outs, self.ins
        d = t.take(x)
        if t.is_active(w):
            t.fill(w, lambda dw: t.ops.convolve_weight(dw, d, t.value(y), **self._settings))
        if t.is_active(y):
            t.fill(y, lambda dy: t.ops.convolve(dy, d, t.value(w), **self._settings))


class ConvolveWeight(_Convolution):
    """dw = the gradient of `Convolve` with respect to w, summed over the samples, for the operands (x, dy)."""

    @property
    def name(self) -> str:
        return "convolve_weight"

    @property
    def _images(self) -> tuple[View, View]:
        return self.ins[0], self.ins[1]

    @property
    def _kernels(self) -> View:
        return self.outs[0]

    def transpose(self, t: Any) -> None:
        (w,), (x, y) = self.outs, self.ins
        d = t.take(w)
        if t.is_active(y):
            t.fill(y, lambda dy: t.ops.convolve(dy, t.value(x), d, **self._settings))
        if t.is_active(x):
            t.fill(x, lambda dx: t.ops.convolve_input(dx, t.value(y), d, **self._settings))


@dataclass(frozen=True)
class Pool(Operation):
    """y = the "max" or the "mean" of each window of the operand x, channel by channel.

    Padding is never the largest entry. A mean divides by the size of the window or, without `count_padding`, by the
    number of its entries outside the padding.
    """

    kind: str
    window: Window
    count_padding: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind}_pool"

    @property
    def linear_in(self) -> tuple[int, ...] | None:  # type: ignore[override]
        return (0,) if self.kind == "mean" else None

    @property
    def _images(self) -> tuple[View, View]:
        """The views of the input and of the output image, or of their gradients."""
        return self.ins[0], self.outs[0]

    def check(self) -> None:
        name = f"{self.kind} pool"
        check_views(name, *self.views)
        (x, y), window = self._images, self.window
        fits = self.kind in ("max", "mean") and x.ndim == y.ndim == 4 and x.batched and x.shape[:2] == y.shape[:2]
        if not fits or window.outputs((x.sample_shape[1], x.sample_shape[2])) != y.sample_shape[1:]:
            raise ValueError(f"{name}: images {x.text} and {y.text} do not fit the window {window}")

    def transpose(self, t: Any) -> None:
        (y,), (x,) = self.outs, self.ins
        d, largest = t.take(y), self.kind == "max"
        values = (t.value(x), t.value(y, after=True)) if largest else (x, y)
        t.fill(x, lambda dx: t.ops.pool_input(self.kind, dx, d, *values, self.window, count_padding=self.count_padding))

    def __str__(self) -> str:
        return f"{self._left} = {self.name}({', '.join(map(str, self.ins))}; {self.window})"


class PoolInput(Pool):
    """dx = the gradient of `Pool` with respect to x, for the operands (dy, x, y) of "max" and (dy,) of "mean".

    If a window has several largest entries, the first one, row by row, gets the gradient, as in PyTorch. A window without
    an entry equal to y passes no gradient on.
    """

    linear_in = (0,)

    @property
    def name(self) -> str:
        return f"{self.kind}_pool_input"

    @property
    def _images(self) -> tuple[View, View]:
        return self.outs[0], self.ins[0]

    def transpose(self, t: Any) -> None:
        if self.kind == "max":
            Operation.transpose(self, t)
        d = t.take(self.outs[0])
        t.fill(self.ins[0], lambda dy: t.ops.pool("mean", dy, d, self.window, count_padding=self.count_padding))
