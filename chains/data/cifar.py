"""CIFAR-10: 60,000 photographs of ten kinds of things, and the binary format in which it is distributed."""

from __future__ import annotations

import sys
from os import PathLike

import numpy as np

from chains.data.files import Archive, DataFile, Reader, find
from chains.support.checks import check_count

Examples = tuple[np.ndarray, np.ndarray]

IMAGE = (3, 32, 32)  # channels (red, green, blue), rows, columns
RECORD_BYTES = 1 + 3 * 32 * 32  # the label, then the image
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORDS = 10_000  # in each file of the data set
MAX_RECORDS = 60_000  # in the whole data set
FILES = tuple(DataFile(f"{name}.bin.gz") for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"])
# The MD5 is the one on the data set's page.
ARCHIVE = Archive("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530")
MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)


def read_cifar10(path: str | PathLike[str], records: int | None = None) -> Examples:
    """The images and labels in a file of CIFAR-10's binary format, gzipped or plain (by its first bytes).

    A record is one byte with the label, from 0 to 9, and 3,072 with the pixels, by channel, row and column. Source: Krizhevsky,
    "Learning multiple layers of features from tiny images", 2009, and the data set's page.

    Parameters
    ----------
    path : str or path
        The file.
    records : int, optional
        Their number in the file; None for any from 1 to 60,000, the number of the whole data set.

    Returns
    -------
    images : array of uint8, shape (records, 3, 32, 32)
        From 0 to 255.
    labels : array of int64, shape (records,)
        From 0 to 9.

    Raises
    ------
    OSError
        If there is no such file, or it is a directory or a pipe.
    TypeError, ValueError
        For a file that is cut short, too long or damaged (with the sizes expected and found), another label (with its record,
        from 0), and a number of records that is not positive.
    """
    if records is not None:
        records = check_count("records", records, also=", or None for any number up to 60,000")
    with Reader(path) as file:
        content = file.read((records or MAX_RECORDS) * RECORD_BYTES)
        records = records or max(1, -(-len(content) // RECORD_BYTES))
        file.check_end(records * RECORD_BYTES, f"{records:,} records of {RECORD_BYTES:,} bytes")
    table = np.frombuffer(content, np.uint8).reshape(records, RECORD_BYTES)
    labels = table[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        record = int(np.argmax(labels >= len(CLASSES)))
        raise ValueError(f"{path} must hold labels from 0 to 9, got {labels[record]} in record {record}")
    return table[:, 1:].reshape(records, *IMAGE).copy(), labels


def load_cifar10(folder: str | PathLike[str] | None = None) -> tuple[Examples, Examples]:
    """The photographs as ``((x_train, t_train), (x_test, t_test))``: 50,000 to train on and 10,000 to test on.

    The images are uint8, from 0 to 255, shape (n, 3, 32, 32): red, green and blue, then rows and columns; `scale=1 / 255` of
    `Batches` makes them 0 to 1. The labels are int64, shape (n,), from 0 to 9; `chains.data.cifar.CLASSES` says what they mean.
    Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

    Parameters
    ----------
    folder : str or path, optional
        The folder of the six files ``data_batch_1.bin`` to ``_5.bin`` and ``test_batch.bin``, gzipped or not. By default
        ``$CHAINS_DATA/cifar10``, then the user's cache; if they are not there, their archive (170 MB) is downloaded and
        unpacked.

    Raises
    ------
    FileNotFoundError, ConnectionError
        If the files can neither be found nor downloaded; the message has the place to put them.
    ValueError
        If a file is damaged or holds something else; the message names it.
    """
    from tqdm import tqdm

    paths = find("cifar10", FILES, MIRRORS, folder, ARCHIVE)
    x, t = np.empty((len(paths) * RECORDS, *IMAGE), np.uint8), np.empty(len(paths) * RECORDS, np.int64)
    shown = sys.stderr is not None and sys.stderr.isatty()
    for k, path in enumerate(tqdm(paths, "CIFAR-10", unit="file", leave=False, delay=0.5, disable=not shown)):
        part = slice(k * RECORDS, (k + 1) * RECORDS)
        x[part], t[part] = read_cifar10(path, RECORDS)
    train = len(x) - RECORDS
    return (x[:train], t[:train]), (x[train:], t[train:])
