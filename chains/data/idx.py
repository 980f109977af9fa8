"""The IDX format, in which MNIST is distributed: an array with its type and shape before it."""

from __future__ import annotations

import math
import struct
from os import PathLike

import numpy as np

from chains.data.reader import Reader

# The third byte of a file, and the type of its elements; all are big endian.
ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_DIMENSIONS = 64  # NumPy's own limit


def read_idx(path: str | PathLike[str]) -> np.ndarray:
    """The array in an IDX file, gzipped or plain (told by its first bytes, not by its name).

    No more is read than the file's first bytes promise, whatever it would unpack to. Source: "The IDX file format", at the foot
    of LeCun, Cortes and Burges, "The MNIST database of handwritten digits".

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    array
        Fresh, of the shape that the file states, in the machine's byte order: uint8, int8, int16, int32, float32 or float64.

    Raises
    ------
    OSError
        Where there is no such file, or a directory or a pipe in its place.
    ValueError
        For a file that is cut short, too long, damaged or not an IDX file, with the sizes expected and found.
    """
    with Reader(path) as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in ELEMENT_TYPES or start[3] > MAX_DIMENSIONS:
            raise ValueError(
                f"{path} is not an IDX file: it must begin with two zeros, a type from {min(ELEMENT_TYPES):02x} to "
                f"{max(ELEMENT_TYPES):02x} and a number of dimensions, got the bytes {start.hex(' ') or '(none)'}{file.damage}"
            )
        dtype, dimensions = np.dtype(ELEMENT_TYPES[start[2]]), start[3]
        lengths = file.read(4 * dimensions)
        if len(lengths) < 4 * dimensions:
            file.check_end(4 + 4 * dimensions, "the type and the shape")
        shape = struct.unpack(f">{dimensions}I", lengths)
        size = dtype.itemsize * math.prod(shape)
        content = file.read(size)
        file.check_end(4 + 4 * dimensions + size, f"a header and {dtype.name} values of shape {shape}")
    try:
        array = np.frombuffer(content, dtype).reshape(shape)
    except ValueError as error:  # a length of zero beside absurd ones
        raise ValueError(f"{path} is damaged: no array has its shape, {shape} ({error})") from error
    return array.astype(dtype.newbyteorder("="), copy=False)
