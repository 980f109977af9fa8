"""Settings and inputs that layers of sequences refuse."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Attention, CausalConv, Chain, PositionalEncoding, TransformerBlock
from chains.program.recorder import Recorder
from tests.bad_input.support import assert_refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Attention(0), ("`features` (=0)",)),
        (lambda: Attention(4, 3), ("`heads` (=3)", "`features` (=4)")),
        (lambda: Attention(4, 2, causal=1), ("`causal` (=1)",)),
        (lambda: Attention(4, 2, weight_init="none"), ("`weight_init`", "none")),
        (lambda: TransformerBlock(4, 3), ("`heads` (=3)",)),
        (lambda: TransformerBlock(4, 2, 0), ("`hidden` (=0)",)),
        (lambda: TransformerBlock(4, 2, dropout=1.0), ("`dropout` (=1.0)",)),
        (lambda: TransformerBlock(4, 2, activation="none"), ("none",)),
        (lambda: PositionalEncoding("rotary"), ("`kind` (='rotary')", "'sinusoidal' or 'learned'")),
        (lambda: CausalConv(2, 3, 0), ("`kernel` (=0)",)),
        (lambda: CausalConv(2, 3, 2, dilation=0), ("`dilation` (=0)",)),
        (lambda: CausalConv(2, 3, (2,)), ("`kernel`",)),
    ],
)
def test_wrong_settings(make, words):
    assert_refused(make, *words)


@pytest.mark.parametrize("layer", [Attention(4), TransformerBlock(4), PositionalEncoding(), CausalConv(4, 2, 2)], ids=str)
def test_wrong_samples(layer):
    assert_refused(lambda: Chain(layer, input_shape=(4,)), "(4,)")
    if not isinstance(layer, PositionalEncoding):
        assert_refused(lambda: Chain(layer, input_shape=(5, 3)), "(=4", "(5, 3)")


def test_products_of_stacks_that_do_not_fit():
    ops = Recorder("stacks", np.float64)
    out, a, b = (ops.scratch(name, shape) for name, shape in (("out", (3, 4)), ("a", (3, 5)), ("b", (5, 4))))
    ops.matmul(out, a, b)
    for wrong in (b.swap(-1, -2), b.index(1, 0), b.slice(1, 0, 1), b.slice(2, 0, 3)):
        assert_refused(lambda wrong=wrong: ops.matmul(out, a, wrong), "matmul", "does not fit")
    assert_refused(lambda: b.swap(0, 1), "batch")
    assert_refused(lambda: b.split(2, 3), "axis 2", "3 equal parts")
    assert_refused(lambda: b.split(0, 1), "axis 0")
