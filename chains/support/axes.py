"""The axes of figures."""

from __future__ import annotations

from typing import Any


def new_axes() -> Any:
    """The axes of a new pyplot figure, which notebooks show. Raises ImportError if matplotlib is missing."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"figures need matplotlib, which cannot be imported: {error}; pip install matplotlib") from error
    return pyplot.subplots(figsize=(6, 4), layout="constrained")[1]
