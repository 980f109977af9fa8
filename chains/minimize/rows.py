"""Many descents in machine code: calls of a tenth of a second, between which Python shows the progress and sees Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from chains.minimize.levenberg_marquardt import INFINITE, SINGULAR, STUCK
from chains.minimize.result import Result
from chains.minimize.stopping import CONVERGED, FALLS_LITTLE, PRECISE, SUCCESSES
from chains.support.progress import Progress

CALL_SECONDS = 0.1
MAX_ITERATIONS = 64  # of a member in a call; each call computes the model at its first point again
MESSAGES = ("", CONVERGED, FALLS_LITTLE, PRECISE, STUCK, INFINITE, SINGULAR)  # by status; "" while it runs
LIMIT = "the limit of iterations was reached"


class CompiledFits(Protocol):
    """Levenberg-Marquardt from the rows of `p`, which move. Arrays have an entry or a row for each member."""

    p: np.ndarray
    value: np.ndarray
    g: np.ndarray
    status: np.ndarray  # numbers of `MESSAGES`
    iterations: np.ndarray
    calls: np.ndarray

    def advance(self, members: np.ndarray, iterations: int) -> None:
        """Do at most `iterations` iterations of each of these members."""
        ...

    def close(self) -> None:
        """Nothing is computed afterwards."""
        ...


def run_compiled(
    fits: CompiledFits, maxiter: int, callback: Callable[[Any], object] | None, bar: Progress, *, by_member: bool
) -> Result:  # fmt: skip
    """Run all members to their ends. `bar` counts those that have ended, or with one member its iterations."""
    running, done, seconds = np.arange(len(fits.p)), 0, 0.0  # the seconds of an iteration of a member
    while True:
        most = min(maxiter - done, 1 if callback else MAX_ITERATIONS)
        most = max(min(most, int(CALL_SECONDS / seconds)), min(most, 1)) if seconds else min(most, 16)
        size = max(8, int(CALL_SECONDS / (seconds * max(1, most)))) if seconds else 8
        for first in range(0, len(running), size):
            members, begun = running[first : first + size], time.perf_counter()
            before = int(fits.iterations[members].sum())
            fits.advance(members, most)
            new = int(fits.iterations[members].sum()) - before
            seconds = (time.perf_counter() - begun) / max(1, new)
            ended = int((fits.status[members] != 0).sum())
            bar.update(ended if by_member else new)
            if bar.due():
                lowest = float(fits.value.min()) if done else float("nan")
                bar.show({"lowest value": f"{lowest:.6g}"} if by_member else {"value": f"{fits.value[0]:.6g}"})
            if callback is not None and new:
                callback(fits.p[0].copy())
        done += most
        running = running[fits.status[running] == 0]
        if not len(running) or done >= maxiter:
            break
    message = np.array([MESSAGES[status] or LIMIT for status in fits.status], object)
    success = np.array([each in SUCCESSES for each in message])
    if by_member:
        bar.update(len(running))
    return Result(fits.p, fits.value, fits.g, success, message, fits.iterations, fits.calls)
