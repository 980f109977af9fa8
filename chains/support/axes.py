"""The axes of figures."""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_LINES = 20  # that are drawn one by one


def new_axes() -> Any:
    """The axes of a new pyplot figure, which notebooks show. Raises ImportError if matplotlib is missing."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"figures need matplotlib, which cannot be imported: {error}; pip install matplotlib") from error
    return pyplot.subplots(figsize=(6, 4), layout="constrained")[1]


def draw_many(ax: Any, x: Any, rows: np.ndarray, label: str, what: str, **style: Any) -> None:
    """Draw a line for each column of few; of many, the median and a band of nine tenths of `what`, without NaN."""
    if rows.shape[1] <= MAX_LINES:
        ax.plot(x, rows, linewidth=0.8, **style)[0].set_label(label)
        return
    low, middle, high = np.nanquantile(rows, [0.05, 0.5, 0.95], axis=1)
    ax.plot(x, middle, label=f"{label}, median", **style)
    ax.fill_between(x, low, high, alpha=0.25, linewidth=0, label=f"{label}, 90 % of {what}", **style)
