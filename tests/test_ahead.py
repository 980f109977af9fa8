"""The samples of the next step are asked for while this one is computed."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Chain, Dense, SquaredLoss, σ

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import ahead
from chains.backends.native.backend import NativeBackend


@pytest.mark.parametrize(("width", "batch"), [(784, 10), (130, 3), (1000, 24)])
def test_a_step_goes_through_all_the_lines_of_the_next_rows(width, batch):
    program = Chain(Dense(width, 30, σ), Dense(30, 4)).program(SquaredLoss(), SGD(0.1))
    binding = NativeBackend(threads=1).bind(program, batch, {})
    for array in binding.arrays.values():
        array[...] = 0
    data, numbers = np.zeros((50, width), np.float32), np.array([7, 49, 0, 3] * 6)[:batch]
    lines = -(-width * 4 // ahead.LINE)
    words = {ahead.ROWS: batch, ahead.NUMBERS: numbers.ctypes.data, ahead.DATA: data.ctypes.data}
    words |= {ahead.BYTES: 4 * width, ahead.LINES: lines}
    for position, word in words.items():
        binding.ahead[position] = word
    runs = 0
    while binding.ahead[ahead.ROWS] or binding.ahead[ahead.LEFT] > 0:
        binding.run()
        runs += 1
        assert runs < 5
    assert runs == 1 or width != 784  # mnist's rows are fetched by the blocks of one step
    assert binding.ahead[ahead.NUMBERS] == numbers.ctypes.data + numbers.nbytes
    last = data[numbers[-1]].ctypes.data
    assert last + 4 * width <= binding.ahead[ahead.NEXT] < last + 4 * width + ahead.LINE * (ahead.AT_ONCE + 1)


def test_nothing_is_asked_for_where_samples_are_small():
    backend = NativeBackend(threads=1)
    code = [backend.compile(Chain(Dense(n, 8)).program(SquaredLoss(), SGD(0.1))).code.text for n in (100, 200)]
    assert ["llvm.prefetch" in text for text in code] == [False, True]
