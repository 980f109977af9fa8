"""IMDB: movie reviews as ids of words, half of them positive."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from chains.data.files import DataFile, find
from chains.data.sequences import pad
from chains.support.checks import check_count

Examples = tuple[np.ndarray, np.ndarray]

FILES = (DataFile("imdb_train.npz"), DataFile("imdb_test.npz"))
UNKNOWN = 2  # the id of words that are not among the most frequent


def load_imdb(
    folder: str | PathLike[str] | None = None, *, count: int = 30_000, length: int = 150
) -> tuple[Examples, Examples]:
    """The reviews as ``((x_train, t_train), (x_test, t_test))``: 25,000 to train on and 25,000 to test on.

    Ids are 0 for padding, 1 for the start of a review, 2 for an unknown word, then the words, the most frequent ones first. The
    files are in `folder` or in ``$CHAINS_DATA/imdb``; they are not downloaded. Each holds the arrays `tokens`, all reviews in a
    row, `offsets`, their beginnings and ends, and `labels`.

    Parameters
    ----------
    folder : path, optional
        The folder of the files.
    count : int
        The number of different ids: rarer words become 2.
    length : int
        The number of last ids of each review that are kept; shorter reviews end with zeros.

    Returns
    -------
    tuple
        Ids, int64, shape (25000, length), and labels, int64, 1 for a positive review; to train on, and to test on.

    Raises
    ------
    FileNotFoundError
        If the files are missing; the message has the place to put them.
    ValueError
        If a file holds something else; the message names it.

    Source: Maas, Daly, Pham, Huang, Ng and Potts, "Learning word vectors for sentiment analysis", 2011.
    """
    count, length = check_count("count", count, 3), check_count("length", length)
    train, test = (_examples(path, count, length) for path in find("imdb", FILES, (), folder))
    return train, test


def _examples(path: Path, count: int, length: int) -> Examples:
    with np.load(path) as file:
        missing = {"tokens", "offsets", "labels"} - set(file.files)
        if missing:
            raise ValueError(f"{path} must hold the arrays tokens, offsets and labels, but lacks {', '.join(sorted(missing))}")
        tokens, offsets, labels = file["tokens"], file["offsets"], file["labels"]
    ordered = len(offsets) == len(labels) + 1 and (np.diff(offsets) >= 0).all()
    if tokens.dtype.kind not in "iu" or not ordered or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise ValueError(f"{path} must hold whole numbers, `offsets` one more than labels, from 0 to the {len(tokens)} tokens")
    reviews = np.split(np.where(tokens < count, tokens, UNKNOWN), offsets[1:-1])
    return pad(reviews, length)[0], labels.astype(np.int64)
