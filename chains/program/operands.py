"""Whether the operands of an operation fit together."""

from __future__ import annotations

from typing import Any

from chains.program.view import View
from chains.program.window import Window
from chains.support.messages import shown


def check_views(name: str, *views: Any) -> None:
    """Raise TypeError unless all of these are arrays of a program."""
    for view in views:
        if not isinstance(view, View):
            raise TypeError(
                f"{name}: `{shown(view)}` is not an array of this program: write numbers in the formula, as in "
                "ops.map(y, lambda x: 2 * x, x), and make other arrays part of the program with ops.constant(name, array)"
            )


def check_broadcast(name: str, small: View, large: View) -> None:
    """Raise unless `small` broadcasts to the shape of `large` by NumPy's rule."""
    pairs = list(zip(reversed(small.shape), reversed(large.shape), strict=False))
    if small.ndim > large.ndim or any(a not in (b, 1) for a, b in pairs):
        raise ValueError(f"{name}: {small} does not broadcast to {large}")


def check_convolution(name: str, x: View, w: View, y: View, window: Window, groups: int) -> None:
    """Raise unless images, kernels and window fit together."""
    check_views(name, x, w, y)
    fits = x.ndim == y.ndim == w.ndim == 4 and x.batched and y.batched
    if fits:
        (channels, *inputs), (outputs, *positions) = x.sample_shape, y.sample_shape
        fits = w.shape == (outputs, channels // groups, *window.size) and channels % groups == outputs % groups == 0
        fits = fits and window.outputs((inputs[0], inputs[1])) == tuple(positions)
    if not fits:
        raise ValueError(f"{name}: images {x.text} and {y.text} do not fit kernels {w.text}, window {window}, {groups} groups")


def check_pool(kind: str, x: View, y: View, window: Window) -> None:
    """Raise unless images and window fit together."""
    check_views(f"{kind} pool", x, y)
    fits = kind in ("max", "mean") and x.ndim == y.ndim == 4 and x.batched and x.shape[:2] == y.shape[:2]
    if not fits or window.outputs((x.sample_shape[1], x.sample_shape[2])) != y.sample_shape[1:]:
        raise ValueError(f"{kind} pool: images {x.text} and {y.text} do not fit the window {window}")
