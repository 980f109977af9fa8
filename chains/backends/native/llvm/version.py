"""The version of this compiler."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

# The sources, within the package, that decide the assembly of a program.
SOURCES = ("backends/native", "backends/tiling.py", "expr", "program")


@cache
def compiler_version() -> str:
    """A hash of the sources that turn programs into assembly, so that no compiler loads code that another has kept."""
    package = Path(__file__).parents[3]
    digest = hashlib.sha256()
    paths = [path for source in SOURCES for path in _files(package / source)]
    for path in paths:
        digest.update(path.read_bytes())
    if not paths:  # the sources are in an archive, say: versions cannot be told apart
        digest.update(os.urandom(16))
    return digest.hexdigest()


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))
