"""Files of named arrays and texts, written whole or not at all, in the layout of safetensors.

Eight bytes say how long the header is; the header is JSON: each array's type, shape and place among the bytes behind it, and
under ``__metadata__`` the texts by name. With a digest, the last array, "sha256", is that of all bytes before it.
Nothing in a file is ever executed, and reading takes no more memory than the file is long.
Source: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
NAMES = {np.dtype(dtype): name for name, dtype in TYPES.items()}
DIGEST = "sha256"
DIGEST_BYTES = 32
TEXTS = "__metadata__"
WAITS = (0.01, 0.03, 0.1, 0.3, 1.0)  # seconds between attempts to move a file on Windows
UNFINISHED = "unfinished.part"  # one name for all, so that runs that are killed leave one of them at most


class DamagedFileError(ValueError):
    """A file that is not what was written; the message says how."""


def write(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    texts: Mapping[str, str],
    *,
    digest: bool = True,
    unfinished: str = UNFINISHED,
) -> None:
    """Write a file: beside it first, under the name `unfinished`, then in its place, so that there is always a whole one.

    Raises OSError, as `open` does.
    """
    contents = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    contents = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in contents.items()}
    header: dict[str, Any] = {TEXTS: dict(texts)}
    place = 0
    for name, dtype, shape, nbytes in [
        *((name, NAMES[array.dtype.newbyteorder("=")], arrays[name].shape, array.nbytes) for name, array in contents.items()),
        *([(DIGEST, "U8", (DIGEST_BYTES,), DIGEST_BYTES)] if digest else []),
    ]:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + nbytes]}
        place += nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    pieces = [len(head).to_bytes(8, "little"), head, *(array.reshape(-1).view(np.uint8) for array in contents.values())]
    beside = path.with_name(unfinished)
    try:
        _write(beside, pieces, digest)
        _move(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _write(path: Path, pieces: list[Any], digest: bool) -> None:
    """Write the pieces, and their digest if there is to be one, and wait until they are on the disk."""
    summed = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            summed.update(piece)
            file.write(piece)
        if digest:
            file.write(summed.digest())
        file.flush()
        os.fsync(file.fileno())


def _move(source: Path, target: Path) -> None:
    """Put a file in the place of another. Windows refuses that while somebody reads the other, as searches for viruses do."""
    for wait in WAITS if sys.platform == "win32" else ():
        try:
            os.replace(source, target)
            return
        except PermissionError:
            time.sleep(wait)
    os.replace(source, target)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power, where the system can."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def read(path: Path, *, digest: bool = True) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and the texts of a file.

    Raises DamagedFileError where it is not as it was written, as far as its header or, where it has one, its `digest` tells;
    OSError as `open` does.
    """
    data = _bytes(path)
    if digest and hashlib.sha256(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise DamagedFileError("its digest is another one: it is cut short, or bytes of it have changed")
    try:
        arrays, texts = _parsed(data)
        if digest:
            del arrays[DIGEST]
        return arrays, texts
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedFileError(f"its header makes no sense: {error!r}") from error


def _bytes(path: Path) -> bytes:
    """What a regular file holds; others, such as pipes, may have no end."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise DamagedFileError("it is no regular file")
        return file.read()


def _parsed(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Raises one of several errors where the bytes make no sense."""
    start = 8 + int.from_bytes(data[:8], "little")
    if start > len(data):
        raise ValueError(f"it is {start - 8} bytes long, the file {len(data)}")
    header = json.loads(data[8:start].decode())
    texts = dict(header.pop(TEXTS, {}))
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("the metadata hold no texts")
    arrays = {}
    for name, entry in header.items():
        dtype, shape, (begin, end) = np.dtype(TYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError(f"{name} has the shape {shape} from {begin} to {end}")
        if not begin <= end <= len(data) - start or math.prod(shape) * dtype.itemsize != end - begin:
            raise ValueError(f"{name}, {dtype} {shape}, does not fill the bytes from {begin} to {end}")
        raw = np.frombuffer(data, dtype.newbyteorder("<"), math.prod(shape), start + begin)
        arrays[name] = raw.astype(dtype).reshape(shape)
    return arrays, texts
