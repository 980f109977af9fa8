"""A folder of checkpoints is written by one training at a time.

The operating system locks a file of the folder, so the lock ends with its process, whatever happens. The file holds the number
of the process, for the error of another training.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = "training.lock"
LOCKED_BYTE = 1 << 30  # on Windows, where locked bytes cannot be read: one after the text
TAKEN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOSPC)  # file systems without locks, or without room


class FolderLock:
    """The lock of a folder, as a context, which makes the folder.

    Raises ValueError, with the number of the other process, if another training has the lock. A folder that the context has
    made is removed at its end if nothing was written to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / NAME
        self._made: list[Path] = []
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self._folder.exists() and not self._folder.is_dir():
            raise ValueError(f"`checkpoint` must be a folder, got the file {str(self._folder)!r}")
        self._made = [each for each in (self._folder, *self._folder.parents) if not each.exists()]
        try:
            while self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # another training removes it at its end
                    self._file = self._taken()
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            warnings.warn(f"other trainings are not kept from writing to {str(self._folder)!r}: {error}", stacklevel=5)
        _HELD.append(self)
        return self

    def _taken(self) -> BinaryIO | None:
        """The file with its lock; None if the file was removed meanwhile."""
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(self._path, "a+b", buffering=0))
            try:
                _lock(file)
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                file.seek(0)
                process = file.read(200).decode(errors="replace") or "a process that has not given its number"
                raise ValueError(
                    f"`checkpoint` (={str(self._folder)!r}) is being written by another training, {process}: wait for its end, "
                    "or pass another folder"
                ) from None
            if not os.path.samestat(os.fstat(file.fileno()), self._path.stat()):
                return None
            with contextlib.suppress(OSError):  # the lock holds on a full disk too
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}".encode())
            opened.pop_all()
            return file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self in _HELD:
            _HELD.remove(self)
            with contextlib.suppress(OSError):
                if self._file is not None:
                    self._path.unlink()  # Windows keeps it, as it is open
            self.close()
            with contextlib.suppress(OSError):  # the first one that is not empty
                for folder in self._made:
                    folder.rmdir()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _lock(file: Any) -> None:
    """Lock a file. Raises OSError with a number of `TAKEN` if another process has locked it."""
    if sys.platform == "win32":
        file.seek(LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_HELD: list[FolderLock] = []


def _forget() -> None:
    """Leave the locks to the parent: a child that outlives it must not keep them."""
    for lock in _HELD:
        lock.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
