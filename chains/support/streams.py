"""Where all random numbers come from: how streams are named, and why no two of them meet.

Philox4x64-10 maps a key of two words and a counter of four words to four numbers. Under one key the map is one-to-one in the
counter; different keys give unrelated maps. So a stream is named by words, and its blocks of numbers are counted:

- the key is (seed, purpose), with a number of `PURPOSES`;
- the counter is (block, *numbers), with numbers such as that of the epoch.

Two streams differ in a word of the key, or in a word of the counter other than the first: no block belongs to both. NumPy's
``default_rng`` is another generator, PCG64, so no stream is that of data which a user draws with the same seed.

The members of an ensemble have seeds of their own, `member_seeds`, each of which stands for all of a member's streams. They are
2**63 or more, and so differ from the seeds that people write. Layers have no streams: they take their starting values one after
the other from one stream, and their numbers in a program are counted by draws (`chains.program.operations.Random`).

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from chains.support import arguments
from chains.support.checks import check_count

# The purposes, with the numbers that follow the block in the counter. Their numbers never change: they decide results.
PURPOSES = {
    "program": 0,  # (draw, step): dropout, noise of paths and of optimisers; machine code draws them
    "init": 1,  # starting values
    "state": 2,  # initial states
    "members": 3,  # the seeds of members
    "order": 4,  # (epoch): the order of samples in `train`
    "batches": 5,  # (pass): order and augmentation of a `Batches`
    "sample": 6,  # the momenta and the decisions of a sampler
    "posterior": 7,  # draws from an approximate posterior
    "points": 8,  # the choice among candidates
    "population": 9,  # effects and errors of simulated subjects
    "scales": 10,  # (term): the numbers at which the size of a residual is taken
}
MEMBER = 1 << 63  # a bit that seeds of members have


class Streams:
    """The streams of one of `PURPOSES`: a call moves one generator to a stream, which takes less time than to make another."""

    def __init__(self, purpose: str) -> None:
        self._bits = np.random.Philox(key=np.array([0, PURPOSES[purpose]], np.uint64))
        self._generator, self._state = np.random.Generator(self._bits), self._bits.state

    def __call__(self, seed: int, *numbers: int) -> np.random.Generator:
        """The generator at the stream of a checked seed and the numbers of the purpose, always as many."""
        words: Any = self._state["state"]
        words["key"][0] = seed
        words["counter"][1 : 1 + len(numbers)] = numbers
        self._bits.state = self._state
        return self._generator


def generator(purpose: str, seed: int, *numbers: int) -> np.random.Generator:
    """A generator of one stream alone; arguments as of `Streams`."""
    return Streams(purpose)(seed, *numbers)


def member_seeds(n: int, seed: int = 0) -> list[int]:
    """The seeds of the members of an ensemble that has this seed: each member is as it would be alone with its seed.

    ``net.init_many(n, seed)[k]`` equals ``net.init(member_seeds(n, seed)[k])``. ``train(net, P, ..., seed=seed)`` trains member
    k with the bits of ``train(net, P[k], ..., seed=member_seeds(n, seed)[k])``, and calls with random numbers do the same. For
    members that share their random numbers, pass one seed to each: ``seed=[0] * n``.

    Parameters
    ----------
    n : int
        How many. A larger `n` adds seeds and keeps the others.
    seed : int
        The seed of the ensemble, from 0 up to 2**64, exclusive.

    Returns
    -------
    list of int
        Numbers from 2**63 up to 2**64, exclusive.

    Raises
    ------
    TypeError, ValueError
        For other numbers.
    """
    return list(_member_seeds(check_count("n", n), arguments.check_seed(seed)))


@lru_cache(8)
def _member_seeds(n: int, seed: int) -> tuple[int, ...]:
    words = generator("members", seed).bit_generator.random_raw(n)
    return tuple((words | np.uint64(MEMBER)).tolist())
