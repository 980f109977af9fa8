"""Helpers of the examples: they save a picture where matplotlib is installed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def add_plot(parser: argparse.ArgumentParser, file: str) -> None:
    """The option by which a user names the file."""
    parser.add_argument("--plot", metavar="FILE", default=file, help="file of the picture (%(default)s; needs matplotlib)")


def save_picture(file: str, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Save a figure of `size` in inches that `draw` fills. Where matplotlib is missing, say how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("matplotlib is not installed, so no picture is drawn: pip install matplotlib")
        return
    figure = Figure(size, layout="constrained")
    draw(figure)
    figure.savefig(file, dpi=120)
    print(f"picture saved to {file}")
