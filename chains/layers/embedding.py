"""Embedding: a learned vector for each of the ids that an input may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.initializers import Initializer, InitializerLike, initializer
from chains.layers.base import Declaration, Layer
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count


class Embedding(Layer):
    """``y[..., :] = weight[x[...]]``: the row of a table for each id, a whole number from 0 up to `count`, exclusive.

    It is the first layer of a network; the inputs are then arrays of int32 or int64, of any shape. As in PyTorch.

    Parameters
    ----------
    count : int
        How many ids there are.
    features : int
        The length of a row: samples of shape (*input,) become (*input, features).
    padding : int, optional
        The id of missing entries. Its row begins as zeros, and its gradient is zero.
    weight_init : initializer
        Of the table, the parameter `weight` of shape (count, features).

    Raises
    ------
    TypeError, ValueError
        For lengths that are not positive, a `padding` that is not an id, and an unknown initializer or one that does not fit.
    """

    def __init__(
        self, count: int, features: int, padding: int | None = None, *, weight_init: InitializerLike = "normal"
    ) -> None:
        self.count = check_count("count", count)
        self.features = check_count("features", features)
        self.padding = None if padding is None else check_count("padding", padding, 0, ", or None")
        if self.padding is not None and self.padding >= self.count:
            raise ValueError(f"`padding` (={padding}) must be one of the {self.count} ids, from 0 to {self.count - 1}")
        self.weight_init = initializer(weight_init, "weight_init", shape=(self.count, self.features))

    def declare(self, d: Declaration) -> None:
        d.takes_ids(self.count)
        init = self.weight_init if self.padding is None else _WithoutRow(self.weight_init, self.padding)
        d.param("weight", (self.count, self.features), init)
        d.output((*d.input, self.features))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.gather(y, p.weight, x)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        ops.fill(g.weight, 0.0)
        ops.scatter_add(g.weight, x, dy)
        if self.padding is not None:
            ops.fill(g.weight.slice(0, self.padding, self.padding + 1), 0.0)
        ops.fill(dx, 0.0)  # there are no derivatives with respect to ids


@dataclass(frozen=True)
class _WithoutRow:
    """An initializer whose array has zeros in one row."""

    init: Initializer
    row: int

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        values = np.array(self.init(rng, shape), np.float64)
        values[self.row] = 0.0
        return values
