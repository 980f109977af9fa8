"""The settings and shapes that all layers of images share.

Images are channels first, (channels, height, width). A signal, (channels, length), is an image of height one. A setting of each
axis is one number for all of them, or a tuple with an entry for each.
"""

from __future__ import annotations

from typing import Any

from chains.layers.base import Layer, SampleShape
from chains.program.operations import Pair, Window
from chains.program.view import View
from chains.support.checks import whole
from chains.support.messages import shown

Number = int | tuple[int, ...]
Padding = int | tuple[int | tuple[int, int], ...] | str
AXES = {1: "(channels, length)", 2: "(channels, height, width)"}


def _of_window(name: str) -> Any:
    """A setting of a window for each of the layer's axes."""
    return property(lambda layer: getattr(layer.window, name)[-layer.ndim :])


class Sliding(Layer):
    """A layer with a `window` that slides over the last `ndim` axes. Its settings are those of the constructor."""

    ndim: int
    window: Window
    kernel, stride, padding, dilation = map(_of_window, ("size", "stride", "padding", "dilation"))


def per_axis(name: str, value: Any, ndim: int, least: int = 1) -> tuple[int, ...]:
    """A setting as `ndim` whole numbers, each at least `least`. Raises ValueError, naming it, for any other setting."""
    entries = value if isinstance(value, tuple) else (value,) * ndim
    numbers = tuple(count for entry in entries if (count := whole(entry, least)) is not None)
    if len(entries) != ndim or len(numbers) != ndim:
        number = "a positive whole number" if least else "a whole number, 0 or more"
        raise ValueError(f"`{name}` (={shown(value)}) must be {number}, or a tuple of {ndim} of them, one for each axis")
    return numbers


def axes_of(kernel: Any) -> int:
    """Over how many axes a kernel moves: 1 for a tuple of one length, otherwise 2. Raises ValueError for other tuples."""
    if isinstance(kernel, tuple) and len(kernel) not in AXES:
        raise ValueError(f"`kernel` (={kernel!r}) must be a number or a pair for images, or (length,) for signals")
    return len(kernel) if isinstance(kernel, tuple) else 2


def sides(value: Any, ndim: int) -> tuple[Pair, ...]:
    """Padding as (before, after) for each axis: of a number, a tuple of numbers, or a tuple of pairs."""
    if isinstance(value, tuple) and len(value) == ndim and any(isinstance(entry, tuple) for entry in value):
        pairs = [per_axis("padding", entry, 2, least=0) for entry in value]
    else:
        pairs = [(entry, entry) for entry in per_axis("padding", value, ndim, least=0)]
    return tuple((before, after) for before, after in pairs)


def window_of(kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Window:
    """The window that a layer's settings describe; that of a signal has height one.

    `padding` may also be "valid" (none) or "same" (the output is as long as the input; if both sides cannot be equal, the end
    gets one more, as in PyTorch). Raises ValueError, naming the setting.
    """
    ndim = axes_of(kernel)
    size, steps = per_axis("kernel", kernel, ndim), per_axis("stride", stride, ndim)
    spread = per_axis("dilation", dilation, ndim)
    if padding == "same":
        if set(steps) != {1}:
            raise ValueError(
                f'`padding` (="same") needs `stride` 1, not {stride!r}: with a larger one the output is shorter than the input'
            )
        totals = [d * (k - 1) for k, d in zip(size, spread, strict=True)]
        edges: tuple[Pair, ...] = tuple((total // 2, total - total // 2) for total in totals)
    elif isinstance(padding, str) and padding != "valid":
        raise ValueError(f'`padding` (={padding!r}) must be "same", "valid", a number, or a tuple with one for each axis')
    else:
        edges = sides(0 if padding == "valid" else padding, ndim)
    if ndim == 1:
        size, steps, spread, edges = (1, *size), (1, *steps), (1, *spread), ((0, 0), *edges)
    return Window((size[0], size[1]), (steps[0], steps[1]), (edges[0], edges[1]), (spread[0], spread[1]))


def check_images(shape: SampleShape, ndim: int, channels: int | None = None) -> None:
    """Raise ValueError unless `shape` is that of channels-first images or signals, with this many channels if given."""
    if len(shape) != ndim + 1:
        hint = f"; a channel axis goes in front, {(1, *shape)}" if len(shape) == ndim else ""
        if hint and ndim == 2:
            hint += f"; for signals, {AXES[1]}, the kernel is a tuple of one number, such as (3,)"
        raise ValueError(f"the input must have the sample shape {AXES[ndim]}, but it has {shape}{hint}")
    if channels is not None and shape[0] != channels:
        hint = ""
        if shape[-1] == channels:
            hint = f"; the last axis, of length {channels}, seems to be the channels: np.moveaxis(x, -1, 1) puts them first"
        raise ValueError(f"`inputs` (={channels}) must be the channels, the first length of the input's shape {shape}{hint}")


def check_channels_first(shape: Any) -> None:
    """Raise ValueError unless `shape` is that of images, with no sign that the channels come last."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"`input_shape` (={shape!r}) must be {AXES[2]}, such as (3, 224, 224)")
    height, width, channels = shape
    if channels in (1, 3, 4) and min(height, width) > 4:
        raise ValueError(
            f"`input_shape` (={shape!r}) must be {AXES[2]}, but its last length seems to be the channels: "
            f"pass {(channels, height, width)}, and images as np.moveaxis(x, -1, 1)"
        )


def positions(window: Window, shape: SampleShape) -> tuple[int, ...]:
    """The output's height and width, or length, over samples of this shape. Raises ValueError for too large a kernel."""
    ndim = len(shape) - 1
    inputs = (shape[-2] if ndim == 2 else 1, shape[-1])
    outputs = window.outputs(inputs)
    if min(outputs) < 1:
        padded = tuple(length + sum(pads) for length, pads in zip(inputs, window.padding, strict=True))
        spans = f", which spans {window.span[-ndim:]} by its dilation," if window.dilation != (1, 1) else ""
        raise ValueError(
            f"`kernel` (={window.size[-ndim:]}){spans} must not be larger than the padded input, {padded[-ndim:]}; "
            f"the input has shape {shape}"
        )
    return outputs[-ndim:]


def as_image(view: View) -> View:
    """Images and their kernels as they are; signals and theirs with a height of one."""
    *front, length = view.sample_shape
    return view if view.ndim == 4 else view.reshape(*front, 1, length)


def setting(values: tuple[int, ...]) -> str:
    """The text of numbers for each axis: one number if all are equal."""
    return str(values[0]) if len(set(values)) == 1 and len(values) == 2 else str(values)


def settings_text(window: Window, ndim: int, *, stride: bool = True) -> str:
    """The settings of a window that are not the default, as arguments."""
    parts = [f"stride={setting(window.stride[-ndim:])}"] if stride and window.stride != (1, 1) else []
    if window.padded:
        edges = window.padding[-ndim:]
        even = all(before == after for before, after in edges)
        parts.append(f"padding={setting(tuple(before for before, _ in edges)) if even else edges}")
    parts += [f"dilation={setting(window.dilation[-ndim:])}"] if window.dilation != (1, 1) else []
    return "".join(f", {part}" for part in parts)
