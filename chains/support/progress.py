"""The progress of work: a bar on terminals and in notebooks, plain lines elsewhere, a notice of long work."""

from __future__ import annotations

import math
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from chains.support.messages import counted, plural

LINE_SECONDS = 10.0  # seconds between two lines without a terminal
NOTICE_SECONDS = 1.0  # seconds


def on_terminal() -> bool:
    """Whether the standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


class Progress:
    """The number of finished units, of `total` (None: unknown), shown on the standard error.

    `wanted` None: a bar on terminals and in notebooks, nothing elsewhere. True: in addition, elsewhere a line every ten seconds
    and one at the end. `begun` says whether anything is shown.
    """

    def __init__(self, wanted: bool | None, total: int | None, unit: str, delay: float = 0.0) -> None:
        self._bar: Any = None
        self._shown = -math.inf
        if wanted is False or sys.stderr is None:
            return
        if on_terminal() or "ipykernel" in sys.modules:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # without widgets, tqdm.auto warns and falls back on text
                from tqdm.auto import tqdm
            self._bar = tqdm(total=total, unit=unit, dynamic_ncols=True, delay=delay)
        elif wanted:
            self._bar = _Lines(total, unit)

    @property
    def begun(self) -> bool:
        return self._bar is not None

    def update(self, done: int = 1) -> None:
        """Count further units as done."""
        if self._bar is not None:
            self._bar.update(done)

    def due(self) -> bool:
        """Whether newer numbers are worth showing: at most ten times a second."""
        if self._bar is None or time.perf_counter() - self._shown < 0.1:
            return False
        self._shown = time.perf_counter()
        return True

    def show(self, numbers: Mapping[str, str]) -> None:
        """Show the newest numbers next to the count."""
        if self._bar is not None:
            self._bar.set_postfix(numbers, refresh=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Lines:
    """The part of tqdm's bar that `Progress` uses, as lines of text."""

    def __init__(self, total: int | None, unit: str) -> None:
        self._total, self._unit = total, unit
        self._done, self._numbers = 0, ""
        self._start = self._written = time.perf_counter()

    def update(self, done: int) -> None:
        self._done += done
        if time.perf_counter() - self._written > LINE_SECONDS:
            self._write()

    def set_postfix(self, numbers: Mapping[str, str], refresh: bool) -> None:
        self._numbers = "".join(f", {name}={number}" for name, number in numbers.items())

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        self._written = time.perf_counter()
        done = counted(self._done, self._unit) if self._total is None else f"{self._done}/{self._total} {plural(self._unit)}"
        print(f"{done}, {self._written - self._start:.0f} s{self._numbers}", file=sys.stderr)


@contextmanager
def notice(text: str) -> Iterator[None]:
    """Show a text while the work inside takes longer than a second; on terminals only."""
    if not on_terminal():
        yield
        return
    shown = threading.Event()

    def show() -> None:
        shown.set()
        print(f"{text} ...", end="", file=sys.stderr, flush=True)

    timer = threading.Timer(NOTICE_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # which is showing it, perhaps
        if shown.is_set():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
