"""The width of vectors of a plan: halves, where the processor splits vectors and rows leave much of each idle."""

from itertools import pairwise

import numpy as np
import pytest

from chains import Adam, Chain, Dense, SquaredLoss, tanh
from chains.backends.native.llvm.target import Processor
from chains.backends.native.plan.passes import plan_of
from chains.layers import GRU
from tests.native.test_passes import IMAGES, verified

SPLIT = Processor("avx512", 64, 32, "znver4", "")
WHOLE = Processor("avx512", 64, 32, "sapphirerapids", "")
NARROW = Processor("avx2", 32, 16, "znver4", "")


def dense(*widths):
    *hidden, last = pairwise(widths)
    return Chain(*[Dense(*each, tanh) for each in hidden], Dense(*last))


def lanes(net, processor=SPLIT, dtype=np.float32):
    return plan_of(net.program(SquaredLoss(), Adam(0.1), dtype=dtype), processor).lanes


@pytest.mark.parametrize("widths", [(2, 8, 8, 1), (2, 16, 8, 1), (8, 8, 8, 8), (30, 8, 30)], ids=str)
def test_rows_of_half_a_vector_get_halves_where_the_processor_splits_vectors(widths):
    assert [lanes(dense(*widths), processor) for processor in (SPLIT, WHOLE, NARROW)] == [8, 16, 8]


@pytest.mark.parametrize("widths", [(4, 32, 16, 4), (2, 12, 12, 1), (784, 30, 10)], ids=str)
def test_rows_that_fill_vectors_keep_them(widths):
    assert lanes(dense(*widths)) == 16


def test_halves_are_chosen_by_the_numbers_of_the_programs_type():
    assert lanes(dense(2, 8, 8, 1), dtype=np.float64) == 8
    assert lanes(dense(2, 4, 4, 1), dtype=np.float64) == 4


def test_the_body_of_a_loop_counts():
    assert lanes(Chain(GRU(2, 8), Dense(8, 1), input_shape=(20, 2))) == 8


def test_images_keep_whole_vectors_of_samples():
    assert lanes(IMAGES) == 16


@pytest.mark.parametrize("parts", [1, 2])
def test_plans_of_halves_hold_after_every_pass(parts):
    verified(dense(2, 8, 8, 1).program(SquaredLoss(), Adam(0.1), dtype=np.float32), SPLIT, parts)
