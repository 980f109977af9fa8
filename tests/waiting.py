"""Waiting for what other threads do."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether something comes to hold. The time only guards against hanging: a busy machine may take long."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
    return holds()
