"""The IDX format, in which MNIST is distributed: an array with its type and shape before it."""

from __future__ import annotations

import math
import struct
from os import PathLike
from pathlib import Path

import numpy as np

from chains.data.unpack import unpack

# The third byte of a file, and the type of its elements; all are big endian.
ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_DIMENSIONS = 64  # NumPy's own limit


def read_idx(path: str | PathLike[str]) -> np.ndarray:
    """The array in an IDX file, gzipped or plain (told by its first bytes, not by its name).

    Returns a fresh array of the shape that the file states, in the machine's byte order: uint8, int8, int16,
    int32, float32 or float64. Raises FileNotFoundError where there is no such file, and ValueError, naming the
    file with the sizes expected and found, where it is cut short, too long, damaged or not an IDX file.
    Source: "The IDX file format", at the foot of LeCun, Cortes and Burges, "The MNIST database of handwritten digits".
    """
    path = Path(path)
    content, damage = unpack(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in ELEMENT_TYPES or content[3] > MOST_DIMENSIONS:
        raise ValueError(
            f"{path} is not an IDX file: it begins with the bytes {content[:4].hex(' ') or '(none)'}, but two zeros, "
            f"a type from {min(ELEMENT_TYPES):02x} to {max(ELEMENT_TYPES):02x} and a number of dimensions are wanted{damage}"
        )
    dtype, dimensions = np.dtype(ELEMENT_TYPES[content[2]]), content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise ValueError(f"{path} is cut short: its header takes {header} bytes, but {len(content)} were found{damage}")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    expected = header + dtype.itemsize * math.prod(shape)
    if len(content) != expected or damage:
        fault = "is cut short" if len(content) < expected else "is too long" if len(content) > expected else "is damaged"
        raise ValueError(
            f"{path} {fault}: a header and {dtype.name} values of shape {shape} take {expected} bytes, "
            f"but {len(content)} were found{damage}"
        )
    try:
        array = np.frombuffer(content, dtype, offset=header).reshape(shape)
    except ValueError as error:  # a length of zero beside absurd ones
        raise ValueError(f"{path} is damaged: its shape {shape} is no shape of an array ({error})") from error
    return array.astype(dtype.newbyteorder("="), copy=False)
