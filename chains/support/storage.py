"""Files of named arrays and texts, written whole or not at all, in the layout of safetensors.

Eight bytes give the length of the header. The header is JSON: the type, shape and position of each array among the bytes that
follow, and under ``__metadata__`` the texts by name. One of them, "sha256", is the digest of the whole file, with zeros in the
place of its digits. Nothing in a file is ever executed, and reading takes no more memory than the file is long.
Source: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
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
NO_DIGEST = "0" * (2 * DIGEST_BYTES)
TEXTS = "__metadata__"
WAITS = (0.01, 0.03, 0.1, 0.3, 1.0)  # seconds between attempts to move a file on Windows
UNFINISHED = "unfinished*.part"  # the names of files during writing; a killed process leaves them


class DamagedFileError(ValueError):
    """A file that differs from the written one; the message says how."""


def write(path: Path, arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> None:
    """Write a file under a unique name in the same folder, then rename it, so that there is always a whole file.

    Raises OSError, as `open` does, with the path of the file.
    """
    contents = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    contents = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in contents.items()}
    header: dict[str, Any] = {TEXTS: {DIGEST: NO_DIGEST, **texts}}
    place = 0
    for name, array in contents.items():
        dtype = NAMES[array.dtype.newbyteorder("=")]
        header[name] = {"dtype": dtype, "shape": list(arrays[name].shape), "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    size, data = len(head).to_bytes(8, "little"), [array.reshape(-1).view(np.uint8) for array in contents.values()]
    digest = _digest(size, head, *data)
    unfinished = path.with_name(UNFINISHED.replace("*", f"-{secrets.token_hex(8)}"))
    try:
        try:
            _write(unfinished, [size, head.replace(NO_DIGEST.encode(), digest.encode(), 1), *data])
            _move(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _digest(*pieces: Any) -> str:
    summed = hashlib.sha256()
    for piece in pieces:
        summed.update(piece)
    return summed.hexdigest()


def _write(path: Path, pieces: list[Any]) -> None:
    """Write the pieces to a new file, and wait until they are on the disk."""
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _move(source: Path, target: Path) -> None:
    """Replace a file by another. Windows refuses that while a program reads it, such as a virus scanner."""
    for wait in WAITS if sys.platform == "win32" else ():
        try:
            os.replace(source, target)
            return
        except PermissionError:
            time.sleep(wait)
    os.replace(source, target)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power, if the system can."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def read(path: Path, *, digest: bool = True) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and the texts of a file. With `digest`, a file without one is refused.

    Raises DamagedFileError if its header or its digest, if it has one, shows that it has changed; OSError as `open` does.
    """
    data = memoryview(_bytes(path))
    try:
        return _parsed(data, digest)
    except DamagedFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedFileError(f"its header makes no sense: {error!r}") from error


def _bytes(path: Path) -> bytes:
    """The contents of a regular file; others, such as pipes, may have no end."""
    if path.is_dir():
        raise DamagedFileError("it is a folder")
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise DamagedFileError("it is no regular file")
        return file.read()


def _parsed(data: memoryview, digest: bool) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Raises one of several errors if the bytes make no sense."""
    if len(data) > 8 and data[8] != ord("{"):
        raise DamagedFileError("it is no file of safetensors")
    start = 8 + int.from_bytes(data[:8], "little")
    if start > len(data) or len(data) < 8:
        raise DamagedFileError(f"it is cut short: its header ends at byte {start}, the file has {len(data)}")
    head = bytes(data[8:start])
    header = json.loads(head.decode())
    texts = dict(header.pop(TEXTS, {}))
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("the metadata hold no texts")
    _check_places(header, start, len(data))
    found = texts.pop(DIGEST, "")
    if found:
        wanted = _digest(data[:8], head.replace(found.encode(), NO_DIGEST.encode(), 1), data[start:])
    else:  # checkpoints that were written before the metadata held the digest end with it
        wanted, found = (_digest(data[:-DIGEST_BYTES]), data[-DIGEST_BYTES:].hex()) if digest else ("", "")
    if found != wanted:
        raise DamagedFileError("its digest is another one: bytes of it have changed")
    arrays = {}
    for name, entry in header.items():
        dtype, shape = np.dtype(TYPES[entry["dtype"]]), entry["shape"]
        raw = np.frombuffer(data, dtype.newbyteorder("<"), math.prod(shape), start + entry["data_offsets"][0])
        arrays[name] = raw.astype(dtype).reshape(shape)
    if digest:
        arrays.pop(DIGEST, None)
    return arrays, texts


def _check_places(header: Mapping[str, Any], start: int, stop: int) -> None:
    """Raise one of several errors unless the arrays fill the bytes of the file from `start` to `stop`, one after the other."""
    places = []
    for name, entry in header.items():
        dtype, shape, (begin, end) = np.dtype(TYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError(f"{name} has the shape {shape} from {begin} to {end}")
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise ValueError(f"{name}, {dtype} {shape}, does not fill the bytes from {begin} to {end}")
        places.append((begin, end, name))
    filled = 0
    for begin, end, name in sorted(places):
        if begin != filled:
            raise ValueError(f"{name} begins at byte {begin}, but the array before it ends at {filled}")
        filled = end
    if start + filled != stop:
        short = "it is cut short: " * (start + filled > stop)
        raise DamagedFileError(f"{short}its arrays end at byte {start + filled}, the file has {stop}")
