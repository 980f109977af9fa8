"""MNIST: 70,000 handwritten digits."""

from __future__ import annotations

from os import PathLike

import numpy as np

from chains.data.files import DataFile, find
from chains.data.idx import read_idx

Examples = tuple[np.ndarray, np.ndarray]

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
# The hashes are those of the gzip files as first published; both mirrors serve these.
FILES = (
    DataFile("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    DataFile("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    DataFile("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    DataFile("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)


def load_mnist(folder: str | PathLike[str] | None = None) -> tuple[Examples, Examples]:
    """The digits as ``((x_train, t_train), (x_test, t_test))``: 60,000 to train on and 10,000 to test on.

    The images are uint8, shape (n, 28, 28), from 0 for the paper to 255 for ink; the labels int64, shape (n,), from 0 to 9.
    Source: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998.

    Parameters
    ----------
    folder : str or path, optional
        Where the four IDX files are, gzipped or not. By default ``$CHAINS_DATA/mnist``, then the user's cache, into which they
        are downloaded (11 MB) at need.

    Raises
    ------
    FileNotFoundError, ConnectionError
        Where the files can neither be found nor downloaded, with the place to put them.
    ValueError
        Where a file is damaged or holds something else, by name.
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
