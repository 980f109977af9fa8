"""Ctrl-C: answered between steps and within users' functions, never within a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_thread = threading.local()  # `.stop` is the event that ends training there


def stop_by(event: threading.Event) -> None:
    """Let an event end training in this thread, as Ctrl-C does in the main thread. Other threads get no signals."""
    _thread.stop = event


class Interrupts:
    """While entered, SIGINT is answered only at `check` and within ``with interrupts.allowed:``, by the previous handler.

    Python's default handler raises KeyboardInterrupt. Without a Python handler, nothing changes. Other threads than the main
    one get no signals; there, only the event of `stop_by` raises KeyboardInterrupt at `check`.
    """

    def __init__(self) -> None:
        self.allowed = _Allowed(self)
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._held = True
        self._pending = False
        self._stop: threading.Event | None = getattr(_thread, "stop", None)

    def check(self) -> None:
        """Answer a signal that came since the last check."""
        if self._pending:
            self._answer(None)
        if self._stop is not None and self._stop.is_set():
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handler = signal.signal(signal.SIGINT, self._on_signal)
            if callable(handler):
                self._handler = handler
            else:
                signal.signal(signal.SIGINT, handler)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            last = signal.signal(signal.SIGINT, self._handler)
            if last != self._on_signal:  # a user's function has set another handler
                signal.signal(signal.SIGINT, last)
            self.check()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = True
        else:
            self._answer(frame)

    def _answer(self, frame: FrameType | None) -> None:
        before, self._held, self._pending = self._held, True, False  # the handler itself is not interrupted
        assert self._handler is not None
        self._handler(signal.SIGINT, frame)
        self._held = before


class _Allowed:
    """A context in which signals are answered immediately; `failed` is true after an error within it."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.failed = False

    def __enter__(self) -> None:
        self._interrupts._held = False
        self._interrupts.check()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._interrupts._held = True
        self.failed = kind is not None
