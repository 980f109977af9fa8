"""Values that are computed when first needed, and kept: attributes, and the last few values by key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - used like a function
    """``@lazy`` instead of ``@functools.cached_property``, whose lock (before Python 3.12) another thread may hold when a
    process is forked. Two threads may both compute it.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        value: T = self._compute(instance)
        vars(instance)[self._name] = value
        return value


class Recent(Generic[T]):
    """The `most` values that were requested last, for any number of threads.

    There is no lock, which a forked process could find locked: two threads may both make a value, and one is kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, T] = {}  # the last one requested comes last

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key, made the first time."""
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
