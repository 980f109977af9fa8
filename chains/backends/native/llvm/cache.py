"""Machine code kept on disk between processes.

Files are kept in ``$CHAINS_CACHE`` or the user's cache folder. A file's name is a hash of the assembly, the processor, the
versions of LLVM and the passes it runs (`jit.PIPELINE`). Each file has a hash of its name and contents; a damaged file, or
one under another's name, is compiled anew. Files are written under another name and then renamed, so that no file is
incomplete. Above `LIMIT_BYTES` in total, the least recently used files are deleted. ``CHAINS_CACHE=off`` switches the cache
off; `clear` empties it.

Whoever can write a file here decides what this process executes. So the folder is made for its user alone, and only regular
files are read. A folder or file that another user owns or can write is not used; a warning says so once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import warnings
from functools import cache
from pathlib import Path

LIMIT_BYTES = 256 << 20
PARTS = 16  # of the limit: how much a process stores before it looks whether the folder is too large
SOURCES = ("backends/native", "expr", "lowering", "program")  # the package's sources that decide assembly
_MAGIC = b"chains native 2\n"
_OURS = re.compile(r"[0-9a-f]{40}(\.o|-.*\.new)")  # names of the cache's files; the folder may have others
# A FIFO must not block; a link must not lead out of the folder. Windows has neither flag.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_said: set[tuple[Path, str]] = set()
_uncounted: dict[Path, int] = {}  # by folder, the bytes that this process has stored there since it last read the folder


def folder() -> Path | None:
    """The folder of the files; None if the cache is switched off."""
    choice = os.environ.get("CHAINS_CACHE", "")
    if choice.lower() in ("off", "0", "no"):
        return None
    if choice:
        return Path(choice)
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    try:
        return (Path(base) if base else Path.home() / ".cache") / "chains" / "native"
    except RuntimeError:  # a user without a home folder
        return None


def key(*parts: str) -> str:
    """The name of the file with the code that these texts describe."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:40]


def load(name: str) -> bytes | None:
    """The code kept under this name; None if it is missing, damaged, or in a file that others can write."""
    place = folder()
    if place is None:
        return None
    path = place / f"{name}.o"
    try:
        data = _read(path) if _is_private(place, place.stat()) else b""
        with contextlib.suppress(OSError):  # the folder may be read-only
            os.utime(path)  # marks the file as used now
    except (OSError, ValueError):
        return None
    head = len(_MAGIC) + 32
    if data[: len(_MAGIC)] != _MAGIC or _digest(name, data[head:]) != data[len(_MAGIC) : head]:
        return None
    return data[head:]


def store(name: str, code: bytes) -> None:
    """Keep code under this name. If the folder is not writable, nothing is kept, without a warning."""
    place = folder()
    if place is None:
        return
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(place, place.stat()):
            return
        handle, temporary = tempfile.mkstemp(dir=place, prefix=f"{name}-", suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _digest(name, code) + code)
            os.replace(temporary, place / f"{name}.o")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _trim(place, len(code))
    except (OSError, ValueError):  # ValueError: a name no file can have
        return


def _digest(name: str, code: bytes) -> bytes:
    """The hash in a file: of its name too, so that no file runs under another's."""
    return hashlib.sha256(name.encode() + b"\0" + code).digest()


def clear() -> int:
    """Delete all files of the cache; returns how many there were."""
    place = folder()
    files = [] if place is None else _files(place)
    for path in files:
        with contextlib.suppress(OSError):
            path.unlink()
    return len(files)


def about() -> str:
    """One line with the folder, the number of files and their bytes."""
    place = folder()
    if place is None:
        return "off"
    sizes = []
    for path in _files(place):
        with contextlib.suppress(OSError):
            sizes.append(path.lstat().st_size)
    return f"{place}: {len(sizes)} files, {sum(sizes) / (1 << 20):.1f} of {LIMIT_BYTES >> 20} MiB"


def _files(place: Path) -> list[Path]:
    """The cache's files, with unfinished ones."""
    try:
        return [path for path in place.iterdir() if _OURS.fullmatch(path.name)]
    except OSError:
        return []


def _read(path: Path) -> bytes:
    """The contents of a regular file that only this user can write; empty for any other file."""
    handle = os.open(path, _READ)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not _is_private(path, status):
            return b""
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def _is_private(path: Path, status: os.stat_result) -> bool:
    """Whether this user owns the file or folder and no other can write to it; if not, a warning says so once."""
    if not hasattr(os, "geteuid"):  # Windows: the user's cache folder is private, and files have no such modes
        return True
    if status.st_uid != os.geteuid():
        reason = f"it belongs to the user number {status.st_uid}, who could have this process execute anything"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = oct(stat.S_IMODE(status.st_mode))
        reason = f"others may write to it (mode {mode}), and could have this process execute anything: `chmod go-w` it"
    else:
        return True
    if (path, reason) not in _said:
        _said.add((path, reason))
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        advice = "CHAINS_CACHE names another folder for compiled code"
        warnings.warn(f"the {kind} {path} is not used: {reason}; {advice}", RuntimeWarning, stacklevel=2)
    return False


def _trim(place: Path, stored: int) -> None:
    """Delete the files that were used least recently, down to one of `PARTS` below the limit.

    The folder is read when this process stores its first file there, and again after each of `PARTS` of the limit: to read it
    for each file would take longer the more files there are.
    """
    part = LIMIT_BYTES // PARTS
    _uncounted[place] = _uncounted.get(place, part) + stored
    if _uncounted[place] < part:
        return
    _uncounted[place] = 0
    entries = []
    for path in _files(place):
        with contextlib.suppress(OSError):
            status = path.lstat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    if total <= LIMIT_BYTES:
        return
    for _, size, path in sorted(entries, key=lambda entry: entry[0]):
        if total <= LIMIT_BYTES - part:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


@cache
def compiler_version() -> str:
    """A hash of the sources that turn programs into assembly, so that no compiler loads code that another has kept."""
    package = Path(__file__).parents[3]
    digest = hashlib.sha256()
    folders = (found for source in SOURCES for found in os.walk(package / source))  # takes two thirds of the time of `rglob`
    paths = sorted(os.path.join(folder, name) for folder, _, names in folders for name in names if name.endswith(".py"))
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    if not paths:  # the sources are in an archive, for example: versions are unknown
        digest.update(os.urandom(16))
    return digest.hexdigest()
