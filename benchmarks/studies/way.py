"""The way of a call in Python: ``python -m benchmarks.studies.way [--list]``.

Calls of Python functions, the files that they are in, and changes from file to file: for the first call of a second network
that equals a first one, and for a repeated call. Counts do not depend on the machine. `--list` prints each call.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

import chains
from chains import Chain, Dense, SquaredLoss, tanh

HOUSE = str(Path(chains.__file__).parent)
DOOR = "<door of "  # the functions that `network/call.py` writes
BATCH = 200
METHODS = ("__call__", "value_and_grad", "loss", "vjp", "hvp", "gauss_newton")


class Way(NamedTuple):
    """The Python functions that a call enters in this package, in order: file and name."""

    entered: list[tuple[str, str]]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Calls, files, and changes from file to file."""
        files = [file for file, _ in self.entered]
        return len(files), len(set(files)), sum(a != b for a, b in pairwise(files))


def way_of(call: Callable[[], Any]) -> Way:
    """The way of one call."""
    entered = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith((HOUSE, DOOR)):
            entered.append(("network/call.py" if file.startswith(DOOR) else file[len(HOUSE) + 1 :], frame.f_code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Way(entered)


def measured() -> dict[str, Way]:
    """The ways of the first and of a repeated call, each by the name of its method."""
    x, t, loss = np.ones((BATCH, 4), np.float32), np.zeros((BATCH, 4), np.float32), SquaredLoss()
    found = {}
    for name in METHODS:
        nets = [Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)) for _ in range(2)]
        p = nets[0].init(seed=0)
        more = {"__call__": (x, p), "vjp": (p, x, t), "hvp": (p, x, t, loss, p), "gauss_newton": (p, x, t, loss, p)}
        first, second = (partial(getattr(net, name), *more.get(name, (p, x, t, loss))) for net in nets)
        first()
        found[f"{name}, first call"] = way_of(second)
        second()
        found[f"{name}, third call"] = way_of(second)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print each Python call of the first `value_and_grad`")
    options = parser.parse_args()
    found = measured()
    for name, way in found.items():
        calls, files, changes = way.counts
        print(f"{name:32} {calls:4} Python calls in {files:2} files, {changes:3} changes of file")
    if options.list:
        for file, function in found["value_and_grad, first call"].entered:
            print(f"  {file:36} {function}")


if __name__ == "__main__":
    main()
