"""The bytes of a file, gzipped or plain."""

from __future__ import annotations

import gzip
import zlib
from os import PathLike
from pathlib import Path


def unpack(path: str | PathLike[str]) -> tuple[bytearray, str]:
    """The bytes of a file, unpacked as far as possible, and a remark on what went wrong meanwhile.

    Whether it is gzipped is told by its first bytes, not by its name. Raises OSError where it cannot be read.
    """
    with Path(path).open("rb") as file:
        if file.read(2) != b"\x1f\x8b":  # gzip's own magic number
            file.seek(0)
            return bytearray(file.read()), ""
        file.seek(0)
        content = bytearray()
        try:
            with gzip.open(file) as unpacked:
                while chunk := unpacked.read1(1 << 20):
                    content += chunk
        except (EOFError, OSError, zlib.error) as error:
            return content, f" (unpacking it failed: {error})"
        return content, ""
