"""MNIST, 70,000 handwritten digits, and IDX, the format in which it is distributed: an array after its type and shape."""

from __future__ import annotations

import math
import struct
from os import PathLike

import numpy as np

from chains.data.files import DataFile, Reader, find

Examples = tuple[np.ndarray, np.ndarray]

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
# The hashes are those of the gzip files as first published; both mirrors serve these.
FILES = (
    DataFile("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    DataFile("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    DataFile("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    DataFile("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
# The third byte of a file, and the type of its elements; all are big endian.
ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_DIMENSIONS = 64  # NumPy's own limit


def read_idx(path: str | PathLike[str]) -> np.ndarray:
    """The array in an IDX file, gzipped or plain (by its first bytes, not by its name).

    Only as many bytes are read as the header promises, even if the file would unpack to more. Source: "The IDX file format", at
    the foot of LeCun, Cortes and Burges, "The MNIST database of handwritten digits".

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
        If there is no such file, or it is a directory or a pipe.
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
    except ValueError as error:  # a length of zero next to absurd ones
        raise ValueError(f"{path} is damaged: no array has its shape, {shape} ({error})") from error
    return array.astype(dtype.newbyteorder("="), copy=False)


def load_mnist(folder: str | PathLike[str] | None = None) -> tuple[Examples, Examples]:
    """The digits as ``((x_train, t_train), (x_test, t_test))``: 60,000 to train on and 10,000 to test on.

    The images are uint8, shape (n, 28, 28), from 0 for the paper to 255 for ink; the labels int64, shape (n,), from 0 to 9.
    Source: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998.

    Parameters
    ----------
    folder : str or path, optional
        The folder of the four IDX files, gzipped or not. By default ``$CHAINS_DATA/mnist``, then the user's cache; if they are
        not there, they are downloaded (11 MB).

    Raises
    ------
    FileNotFoundError, ConnectionError
        If the files can neither be found nor downloaded; the message has the place to put them.
    ValueError
        If a file is damaged or holds something else; the message names it.
    """
    train_images, train_labels, test_images, test_labels = find("mnist", FILES, MIRRORS, folder)
    return _examples(train_images, train_labels), _examples(test_images, test_labels)


def _examples(images: PathLike[str], labels: PathLike[str]) -> Examples:
    x, t = read_idx(images), read_idx(labels)
    if x.dtype != np.uint8 or x.shape[1:] != (28, 28):
        raise ValueError(f"{images} must hold uint8 images of shape (n, 28, 28), got {x.dtype} of shape {x.shape}")
    if t.dtype != np.uint8 or t.shape != x.shape[:1]:
        raise ValueError(f"{labels} must hold {len(x)} uint8 labels, got {t.dtype} of shape {t.shape}")
    if t.size and t.max() > 9:
        raise ValueError(f"{labels} must hold digits from 0 to 9, got {t.max()}")
    return x, t.astype(np.int64)
