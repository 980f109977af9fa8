"""The files of an exported network, all of them made before the first one is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chains.exporting.fortran import fortran_text
from chains.exporting.header import header_text
from chains.exporting.interface import Interface
from chains.exporting.libraries import archive, linked
from chains.exporting.objects import Objects
from chains.exporting.targets import Target, targets_of


def write_files(interface: Interface, path: Path, target: str | Sequence[str], *, header: bool, fortran: bool) -> list[Path]:
    """Write the code, and what else is wanted, beside each other. Returns the paths."""
    contents: dict[Path, bytes] = {}
    targets = targets_of(target)
    objects = Objects(interface, targets)
    families = objects.families
    for family, members in families.items():
        place = path if len(families) == 1 else path.with_name(f"{path.stem}-{family}{path.suffix}")
        contents[place] = _code(objects, members, path.suffix)
    built_for = ", ".join(each.name for each in targets)
    if header:
        contents[path.with_suffix(".h")] = header_text(objects.interface, built_for).encode()
    if fortran:
        contents[path.with_suffix(".f90")] = fortran_text(objects.interface).encode()
    for place, content in contents.items():
        place.write_bytes(content)
    return list(contents)


def _code(objects: Objects, targets: Sequence[Target], suffix: str) -> bytes:
    """The contents of a file of this kind."""
    code = objects.code(targets)
    if suffix == ".a":
        return archive(objects.interface.name, code, objects.symbols)
    return code if suffix == ".o" else linked(code, objects.symbols, targets[0], suffix)
