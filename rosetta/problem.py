"""What all rows share: the constants of the problems, and the batches, whose times are noted.

Rows run in environments of their own, where nothing of this project is installed: this module needs NumPy alone.

The CNN, on photographs (3, 32, 32) of numbers from 0 to 1: two convolutions of 50 channels, 3 x 3 with a border of zeros,
the first with relu; max pooling by 2, relu, dropout of a quarter; the same with 100 channels; a dense layer of 512
with relu, dropout of a half; ten logits. 3,441,592 parameters, weights Glorot-uniform, biases zero. Cross-entropy, plain
momentum, batches of 64 in a new order every epoch, a last smaller one left out.

The RNN, on reviews of 150 ids of 30,000 words: a vector of 125 numbers for each word, a GRU of 100 units in cuDNN's form (two
biases, the reset behind the recurrent product), two logits from its last step. 3,818,302 parameters. Cross-entropy, Adam,
the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

CHANNELS = (50, 100)
HIDDEN, CLASSES = 512, 10
DROPOUT = (0.25, 0.5)  # behind each pooling, and behind the dense layer
LEARNING_RATE, MOMENTUM = 0.01, 0.9
BATCH_SIZE = 64
PARAMETERS = 3_441_592
SEED = 0

WORDS, STEPS, FEATURES, UNITS, OPINIONS = 30_000, 150, 125, 100, 2
ADAM_RATE = 0.001
RNN_PARAMETERS = 3_818_302

BEGINNINGS: list[float] = []  # when each batch was asked for, in seconds


def batches(x: np.ndarray, t: np.ndarray, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The batches of an epoch, in an order that depends on its number."""
    order = np.random.default_rng((SEED, epoch)).permutation(len(x))
    for start in range(0, len(x) - BATCH_SIZE + 1, BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        BEGINNINGS.append(time.perf_counter())
        yield x[rows], t[rows]


def pieces(x: np.ndarray) -> Iterator[np.ndarray]:
    """Photographs to be recognised, a batch at a time; all pieces have the same size, as compiled functions like it."""
    for start in range(0, len(x), BATCH_SIZE):
        piece = x[start : start + BATCH_SIZE]
        yield np.concatenate([piece, np.zeros((BATCH_SIZE - len(piece), *x.shape[1:]), x.dtype)])


def channels_last(x: np.ndarray) -> np.ndarray:
    """Photographs (batch, height, width, channels) for frameworks that want them so."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))
