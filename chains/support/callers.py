"""Where a warning points: the first code outside the package."""

from __future__ import annotations

import sys


def levels_outside() -> int:
    """The number of calls between the caller of this function and the first code outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("chains."):
        level, frame = level + 1, frame.f_back
    return level
