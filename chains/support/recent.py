"""What was asked for last, kept by key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """The `most` things that were asked for last. Any number of threads may ask at once.

    There is no lock, which a forked process could find taken: two threads may both make a thing, of which one is kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, T] = {}  # the last one asked for comes last

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is known under this key, made the first time."""
        found = self._known.pop(key, None)
        if found is None:
            found = make()
            for oldest in list(self._known)[: max(0, len(self._known) - self._most + 1)]:
                self._known.pop(oldest, None)
        self._known[key] = found
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)
