"""Data files, gzipped or plain, read as far as their reader asks and no further."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from os import PathLike
from types import TracebackType
from typing import BinaryIO, Self, cast

GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20


class Reader:
    """A data file opened for reading; its first bytes tell whether it is gzipped, not its name.

    Memory grows with what is read, never with what a damaged or hostile file would unpack to. Raises OSError where the file
    cannot be opened or is a directory, a pipe or a device.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.position = 0  # bytes read so far
        self.damage = ""  # what went wrong while unpacking, for the end of a message
        mode = os.stat(self.path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{self.path} is a directory, not a data file")
        if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
            raise OSError(f"{self.path} is a pipe or a device, not a data file: copy its content into a file first")
        self._file = open(self.path, "rb")  # noqa: SIM115 - closed by __exit__
        packed = self._file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        self._file.seek(0)
        self._content = cast(BinaryIO, gzip.GzipFile(fileobj=self._file)) if packed else self._file

    def read(self, size: int) -> bytearray:
        """The next `size` bytes; fewer where the file ends before, or is damaged."""
        content = bytearray()
        try:
            while len(content) < size and (chunk := self._content.read(min(size - len(content), CHUNK_BYTES))):
                content += chunk
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self.damage = f" (unpacking it failed: {error})"
        self.position += len(content)
        return content

    def check_end(self, expected: int, what: str) -> None:
        """Raise ValueError unless the file ends here, undamaged, after `expected` bytes; `what` says what they are."""
        found = self.position
        more = bool(not self.damage and self.read(1))
        if found != expected or more or self.damage:
            fault = "is cut short" if found < expected else "is too long" if more else "is damaged"
            raise ValueError(
                f"{self.path} {fault}: {what} take {expected:,} bytes, but {'more' if more else f'{found:,}'} were found"
                f"{self.damage}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
