"""Checks of settings: numbers, flags, shapes, functions. Others are refused, with name and value."""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from chains.support.messages import listed, meant, shown

P = ParamSpec("P")
T = TypeVar("T")


def is_real(value: Any) -> bool:
    """Whether this is a real number, Python's or NumPy's, but not True or False."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


RANGES: dict[str, Callable[[float], bool]] = {
    "finite": math.isfinite,
    "in (0, inf)": lambda value: 0 < value < math.inf,
    "in [0, inf)": lambda value: 0 <= value < math.inf,
    "in (0, 1)": lambda value: 0 < value < 1,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "in [0, 1]": lambda value: 0 <= value <= 1,
}


def check_number(name: str, value: Any, wanted: str, also: str = "") -> None:
    """Raise TypeError unless `value` is a real number, ValueError outside of the range `wanted`; `also` names other values."""
    if not is_real(value):
        raise TypeError(f"`{name}` (={shown(value)}) must be a number, {wanted}{also}")
    try:
        fits = RANGES[wanted](float(value))
    except OverflowError:  # an int beyond the range of floats
        fits = False
    if not fits:
        raise ValueError(f"`{name}` (={shown(value)}) must be {wanted}{also}")


def whole(value: Any, least: float) -> int | None:
    """`value` as a whole number of at least `least`, else None; True and False are not numbers."""
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return None if isinstance(value, bool) or number < least else number


def check_count(name: str, value: Any, least: int = 1, also: str = "") -> int:
    """`value` as a whole number. Raises TypeError unless it is one, ValueError below `least`; `also` names other values."""
    number = whole(value, least)
    if number is None:
        wanted = "a positive whole number" if least == 1 else f"a whole number, {least} or more"
        kind = TypeError if whole(value, -math.inf) is None else ValueError
        raise kind(f"`{name}` (={shown(value)}) must be {wanted}{also}")
    return number


def check_counts(name: str, value: Any) -> tuple[int, ...]:
    """`value` as positive whole numbers. Raises TypeError unless it is a list or tuple of them, at least one."""
    counts = _counts(value)
    if not counts:
        raise TypeError(f"`{name}` (={shown(value)}) must be a tuple of positive whole numbers, such as (3, 4)")
    return counts


def _counts(value: Any) -> tuple[int, ...] | None:
    """`value` as positive whole numbers; None unless it is a list or tuple of them."""
    counts = [whole(count, 1) or 0 for count in value] if isinstance(value, (list, tuple)) else [0]
    return tuple(counts) if all(counts) else None


def check_flags(**flags: Any) -> None:
    """Raise TypeError, naming it, unless each is True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(f"`{name}` (={shown(flag)}) must be True or False")


def check_is(name: str, value: Any, kind: type, example: str) -> None:
    """Raise TypeError unless `value` is of this kind."""
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` (={shown(value)}) must be {example}")


def check_text(name: str, value: Any) -> None:
    """Raise TypeError unless `value` is a string, and not an empty one."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"`{name}` (={shown(value)}) must be a string")


C_WORDS = frozenset(
    """
    auto break case char const continue default do double else enum extern float for goto if inline int long register restrict
    return short signed sizeof static struct switch typedef union unsigned void volatile while
    """.split()  # noqa: SIM905
)


def check_c_name(name: str, value: Any) -> None:
    """Raise TypeError or ValueError unless `value` is a name in C."""
    check_text(name, value)
    if not re.fullmatch(r"[A-Za-z]\w*", value, re.ASCII) or value in C_WORDS:
        wanted = "a name in C, and no keyword of it: a letter, then letters, digits and underscores"
        raise ValueError(f"`{name}` (={value!r}) must be {wanted}")


def check_word(name: str, value: Any, *words: str) -> None:
    """Raise ValueError unless `value` is one of the words."""
    if not isinstance(value, str) or value not in words:
        *most, last = map(repr, words)
        hint = meant(value, words) if isinstance(value, str) else ""
        raise ValueError(f"`{name}` (={shown(value)}) must be {', '.join(most)} or {last}{hint}")


def check_path(name: str, value: Any, such_as: str = "") -> Path:
    """`value` as a path. Raises TypeError, perhaps with an example, unless it is one, and ValueError for an empty text."""
    if not isinstance(value, (str, os.PathLike)) or os.fspath(value) == "":
        kind = ValueError if isinstance(value, (str, os.PathLike)) else TypeError
        raise kind(f"`{name}` must be a path{such_as and f' such as {such_as!r}'}, got {shown(value)}")
    return Path(os.fspath(value))


def check_shape(name: str, shape: Any, of: str = "") -> tuple[int, ...]:
    """`shape` as a sample's shape. Raises ValueError unless it is a tuple of positive whole numbers."""
    lengths = _counts(shape)
    if lengths is None:
        raise ValueError(f"`{name}` (={shown(shape)}){of} must be a tuple of positive whole numbers, such as (3,)")
    return lengths


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether the function takes `count` arguments; True if its signature is unknown."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # of some functions in C
    return True


signature = lru_cache(inspect.signature)  # which takes longer than making an optimiser


def check_settings(made: type, init: Callable[..., None], args: tuple[Any, ...], settings: dict[str, Any]) -> None:
    """Raise TypeError, which names the settings of the class `made`, unless its constructor takes these."""
    try:
        signature(init).bind(None, *args, **settings)
    except TypeError as error:
        names = [p.name for p in signature(init).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)][1:]
        hint = "".join(meant(name, names) for name in settings if name not in names)
        raise TypeError(f"{made.__name__}: {error}; its settings are {listed(names)}{hint}") from None


def with_hints(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with errors about unknown arguments by keyword that name the argument which was probably meant, and with
    errors about too many arguments by position that list those which need their names.
    """
    code = function.__code__
    most, known = code.co_argcount, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = frozenset(known)

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        if len(args) > most:
            first = ", ".join(f"`{name}`" for name in known[:most] if name != "self")
            others = ", ".join(f"{name}=" for name in known[most:])
            raise TypeError(f"{code.co_name}() takes {first} by position: name what {shown(args[most])} is, one of {others}")
        if not names.issuperset(keywords):
            unknown = next(name for name in keywords if name not in names)
            hint = meant(unknown, known) or f"; its arguments are {', '.join(known)}"
            raise TypeError(f"{code.co_name}() got an unexpected keyword argument {unknown!r}{hint}")
        return function(*args, **keywords)

    return call


def is_masked_array(value: Any) -> bool:
    """Whether `value` is one of NumPy's masked arrays. Their module, which is slow to import, is not loaded for this."""
    kind = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return kind is not None and isinstance(value, kind)


def as_unmasked(name: str, value: Any) -> np.ndarray:
    """`value` as an array. Raises TypeError for masked entries, which would lose their mask."""
    if is_masked_array(value) and value.mask.any():
        raise TypeError(f"`{name}` has masked entries, whose mask would be lost: pass {name}.filled(...), or leave them out")
    return np.asarray(value)


def check_numbers(name: str, value: Any, of: str = "", wanted: str = "must be a number or an array of numbers") -> None:
    """Raise TypeError unless `value` is a real number or an array of them, ValueError unless all are finite."""
    try:
        array = as_unmasked(name, value)
    except ValueError:  # lists of several lengths
        array = None
    if array is None or array.dtype.kind not in "fiu":
        raise TypeError(f"`{name}` (={shown(value)}){of} {wanted}")
    if not np.isfinite(array).all():
        raise ValueError(f"`{name}` (={shown(value)}){of} must be finite")


def check_labels(labels: Any, classes: int, what: str) -> None:
    """Raise ValueError, showing the first that is wrong, unless all are whole numbers from 0 to `classes` - 1."""
    if labels.dtype.kind == "i" and isinstance(labels, np.ndarray):  # one pass: negative ones are very large without a sign
        inside = not labels.size or labels.view(labels.dtype.str.replace("i", "u")).max() < classes
    else:
        inside = not labels.size or (labels.min() >= 0 and labels.max() < classes)
    if inside and not (labels.dtype.kind == "f" and (labels != np.floor(labels)).any()):
        return
    wrong = ~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))
    index = tuple(int(positions[0]) for positions in wrong.nonzero())
    raise ValueError(f"{what} must be whole numbers from 0 to {classes - 1}, got {labels[index]} at index {index}")
