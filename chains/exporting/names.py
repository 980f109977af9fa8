"""The names that leave the house: of functions, constants and files, for C, C++ and Fortran at once.

Fortran takes no notice of case, and has at most 63 characters in a name and 132 in a line. C includes a header by its name.
"""

from __future__ import annotations

import itertools
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_NAME = 63
MAX_LINE = 132
MAX_FILE = 255  # bytes of a file's name
PREFIX = "at_"  # of constants in Fortran
KINDS = ("c_float", "c_double", "c_int8_t", "c_int32_t", "c_int64_t", "c_intptr_t")  # that each module imports
MACROS = re.compile(  # of the headers that exported code includes
    r"M_(E|LOG2E|LOG10E|LN2|LN10|PI|PI_[24]|[12]_PI|2_SQRTPI|SQRT2|SQRT1_2)|FP_\w+|MATH_\w+"
    r"|(U?INT\w*|SIZE|PTRDIFF|WCHAR|WINT|SIG_ATOMIC)_(MIN|MAX|C)"
)


def check_prefix(prefix: str, ends: Iterable[str]) -> None:
    """Raise ValueError unless a network of this name can have functions whose names end like these."""
    if prefix.lower() in (*KINDS, "iso_c_binding"):
        raise ValueError(f"`name` (={prefix!r}) must be another one: the Fortran module has this name of iso_c_binding")
    longest = max((f"_{end}" for end in ends), key=len)
    room = MAX_NAME - len(longest)
    if len(prefix) > room:
        raise ValueError(
            f"`name` (={prefix!r}) must have at most {room} characters: {longest!r} follows it in the name of a function, "
            f"and Fortran takes {MAX_NAME}"
        )


def constants(prefix: str, names: Iterable[str], others: Iterable[str]) -> list[str]:
    """A constant for each of these names, in lower case: all differ from each other, and from the prefix with the `others`.

    A name keeps its letters, digits and underscores. Names that come to the same in this form get numbers, all but the first.
    """
    start = f"{prefix}_".lower()
    room = MAX_NAME - len(PREFIX) - len(start)
    plain = [re.sub(r"\W", "_", name, flags=re.ASCII).lower()[-room:] for name in names]
    taken = {start + other.lower() for other in others}
    found = [start + end if _is_free(start + end, taken) and end not in plain[:k] else "" for k, end in enumerate(plain)]
    taken.update(found)
    for k, end in enumerate(plain):
        if not found[k]:
            numbered = (f"{start}{end[: room - len(str(number)) - 1]}_{number}" for number in itertools.count(2))
            found[k] = next(name for name in numbered if _is_free(name, taken))
            taken.add(found[k])
    return found


def _is_free(name: str, taken: set[str]) -> bool:
    return name not in taken and not MACROS.fullmatch(name.upper())


def fortran_lines(text: str, comment: str = "") -> Iterator[str]:
    """A statement of Fortran, continued where it is too long, with a comment behind it, or in front of a long one."""
    indent = text[: len(text) - len(text.lstrip())]
    if comment and len(f"{text}  ! {comment}") <= MAX_LINE:
        yield f"{text}  ! {comment}"
        return
    yield from textwrap.wrap(comment, MAX_LINE, initial_indent=f"{indent}! ", subsequent_indent=f"{indent}! ")
    parts = textwrap.wrap(
        text, MAX_LINE - 2, initial_indent=indent, subsequent_indent=f"{indent}    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    yield from (f"{part} &" for part in parts[:-1])
    yield parts[-1]


def check_file_name(name: str, file: Path) -> None:
    """Raise ValueError for a name of a file that C cannot include."""
    if any(character in '"\\' or not character.isprintable() for character in file.name):
        wanted = "a file's name of printable characters, without quotes and backslashes, since C includes its header by name"
        raise ValueError(f"`{name}` (={str(file)!r}) must have {wanted}")


def check_lengths(name: str, files: Iterable[Path]) -> None:
    """Raise ValueError for a file whose name is too long."""
    for file in files:
        if len(os.fsencode(file.name)) > MAX_FILE:
            raise ValueError(
                f"`{name}` must be shorter: the file {file.name!r} would have more than {MAX_FILE} bytes in its name"
            )
