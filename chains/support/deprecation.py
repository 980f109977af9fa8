"""Names that changed: the old one keeps working, with a warning, until the next major version."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from chains.support.callers import levels_outside

P = ParamSpec("P")
T = TypeVar("T")


class Renamed(NamedTuple):
    """An argument whose name changed: the function that takes it, both names, and the version in which the old one goes."""

    function: str
    old: str
    new: str
    end: str


RENAMED: list[Renamed] = []  # all of them, as their modules are loaded


def renamed_argument(old: str, new: str, end: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: the argument `new` may still be called `old`, with a DeprecationWarning, until the version `end`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = function.__qualname__
        place = function.__code__.co_varnames.index(new)
        RENAMED.append(Renamed(name, old, new, end))

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            if old in keywords:
                if new in keywords or len(args) > place:
                    raise TypeError(f"{name}() takes `{new}`, whose old name is `{old}`: pass one of them")
                _replace(name, keywords)
            return function(*args, **keywords)

        return call

    def _replace(name: str, keywords: dict[str, Any]) -> None:
        text = f"the argument `{old}` of {name}() is now called `{new}`; version {end} no longer takes `{old}`"
        warnings.warn(text, DeprecationWarning, stacklevel=levels_outside())
        keywords[new] = keywords.pop(old)

    return decorate
