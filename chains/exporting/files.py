"""The files of an exported network, all of them made before the first one is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chains.exporting.c_source import CSource
from chains.exporting.fortran import fortran_text
from chains.exporting.header import header_text
from chains.exporting.interface import Interface
from chains.exporting.libraries import archive, linked
from chains.exporting.objects import Objects
from chains.exporting.targets import Target, targets_of


def write_files(interface: Interface, path: Path, target: str | Sequence[str], *, header: bool, fortran: bool) -> list[Path]:
    """Write the code, and what else is wanted, beside each other. Returns the paths."""
    contents: dict[Path, bytes] = {}
    if path.suffix == ".c":
        source = CSource(interface)
        interface, built_for = source.interface, "compilers of C99"
        contents[path] = source.text(path.with_suffix(".h").name if header else None).encode()
    else:
        interface, built_for = _compiled(interface, path, targets_of(target), contents)
    if header:
        contents[path.with_suffix(".h")] = header_text(interface, built_for).encode()
    if fortran:
        contents[path.with_suffix(".f90")] = fortran_text(interface).encode()
    for place, content in contents.items():
        place.write_bytes(content)
    return list(contents)


def _compiled(
    interface: Interface, path: Path, targets: Sequence[Target], contents: dict[Path, bytes]
) -> tuple[Interface, str]:
    """Add the files of all families of targets. Returns the interface, as they have it, and what they are for in words."""
    objects = Objects(interface, targets)
    families = objects.families
    for family, members in families.items():
        place = path if len(families) == 1 else path.with_name(f"{path.stem}-{family}{path.suffix}")
        contents[place] = _code(objects, members, path.suffix)
    return objects.interface, ", ".join(each.name for each in targets)


def _code(objects: Objects, targets: Sequence[Target], suffix: str) -> bytes:
    """The contents of a file of this kind."""
    code = objects.code(targets)
    if suffix == ".a":
        return archive(objects.interface.name, code, objects.symbols)
    return code if suffix == ".o" else linked(code, objects.symbols, targets[0], suffix)
