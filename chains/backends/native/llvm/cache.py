"""Machine code kept on disk between processes.

Files lie in ``$CHAINS_CACHE`` or the user's cache folder, named by a hash of the assembly, the processor, the
versions of LLVM and what is done with it (`machine.PIPELINE`). Each carries a hash of its own contents, so that a damaged
one is compiled anew. They are written under another name and then renamed, so that two processes do not disturb each
other. Past `LIMIT` bytes in all, those that were not used for longest go. ``CHAINS_CACHE=off`` switches it off; `clear`
empties it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

LIMIT = 256 << 20  # bytes
_MAGIC = b"chains native 1\n"


def folder() -> Path | None:
    """Where the files lie; None where the cache is switched off."""
    choice = os.environ.get("CHAINS_CACHE", "")
    if choice.lower() in ("off", "0", "no"):
        return None
    if choice:
        return Path(choice)
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    try:
        return (Path(base) if base else Path.home() / ".cache") / "chains" / "native"
    except RuntimeError:  # a user without a home
        return None


def key(*parts: str) -> str:
    """The name under which code made from all these texts is kept."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:40]


def load(name: str) -> bytes | None:
    """The code kept under this name; None where there is none, or a damaged one."""
    place = folder()
    if place is None:
        return None
    path = place / f"{name}.o"
    try:
        data = path.read_bytes()
        with contextlib.suppress(OSError):  # a folder that may only be read
            os.utime(path)  # used now
    except (OSError, ValueError):
        return None
    head = len(_MAGIC) + 32
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(data[head:]).digest() != data[len(_MAGIC) : head]:
        return None
    return data[head:]


def store(name: str, code: bytes) -> None:
    """Keep code under this name. Where the folder cannot be written to, nothing is kept, and nothing is said."""
    place = folder()
    if place is None:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(code).digest() + code)
            os.replace(temporary, place / f"{name}.o")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _trim(place)
    except (OSError, ValueError):  # ValueError: a name no file can have
        return


def clear() -> int:
    """Delete all files of the cache; returns how many there were."""
    place = folder()
    files = [*place.glob("*.o"), *place.glob("*.new")] if place is not None and place.is_dir() else []
    for path in files:
        with contextlib.suppress(OSError):
            path.unlink()
    return len(files)


def _trim(place: Path) -> None:
    entries = []
    for path in place.glob("*.o"):
        with contextlib.suppress(OSError):
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries, key=lambda entry: entry[0]):
        if total <= LIMIT:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
