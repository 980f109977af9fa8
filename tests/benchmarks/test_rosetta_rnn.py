"""The recurrent network of the comparison learns as in PyTorch.

Here with few words; `python -m benchmarks rosetta_rnn --accuracy` has all of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.problems import rosetta_rnn

BATCH = 4


def problem(words: int = 200, steps: int = 8) -> rosetta_rnn.Problem:
    rng = np.random.default_rng(0)
    x = rng.integers(0, words, (steps * BATCH, rosetta_rnn.STEPS))
    p = rosetta_rnn.network("numpy", words).init(seed=0)
    return rosetta_rnn.Problem(x, rng.integers(0, 2, len(x)), p, words)


def test_the_first_losses_are_those_of_pytorch():
    pytest.importorskip("torch")
    own, theirs = rosetta_rnn.losses(problem(), BATCH)
    assert len(own) == 8
    assert own.std() > 0.01
    np.testing.assert_allclose(own, theirs, rtol=0, atol=1e-4)
