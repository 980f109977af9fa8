"""What backends share that carry operations out by calls without arguments: loops, and the drawing of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chains.program.loop import Loop
from chains.program.operations import Operation, Random
from chains.program.view import View

Call = Callable[[], Any]


def loop_calls(
    loop: Loop, lower: Callable[[Operation], list[Call]], is_needed: Callable[[View], Callable[[], Any]]
) -> list[Call]:
    """The calls of all steps of a loop.

    `lower` makes the calls of an operation; `is_needed` a function that says whether a view has entries other than 0.
    """

    def step(number: int) -> list[Call]:
        calls = [call for each in loop.at(number) for call in lower(each)]
        if loop.skip_where_zero is None:
            return calls
        return [_unless_zero(is_needed(loop.skip_where_zero.at(loop.depth, number)), calls)]

    first = [call for each in loop.zeros for call in lower(each)]
    if not loop.advances:  # all steps are the same calls
        return [*first, *step(0) * loop.steps]
    return [*first, *(call for number in range(loop.steps) for call in step(number))]


def _unless_zero(needed: Callable[[], Any], calls: list[Call]) -> Call:
    """One call for those of a step that may be left out."""

    def step() -> None:
        if needed():
            for call in calls:
                call()

    return step


def uniform(operation: Random) -> Callable[..., np.ndarray]:
    """``draw(numbers, key, first=0)`` fills a float32 array with the numbers of an operation, by NumPy's generator; returns it.

    `key` has the seed and the step, `first` is the number of the first sample.
    """
    bits = np.random.Philox(key=[0, 0])
    generator, state, size = np.random.Generator(bits), bits.state, operation.outs[0].sample_size
    counter, philox_key = state["state"]["counter"], state["state"]["key"]
    counter[1] = operation.draw

    def draw(numbers: np.ndarray, key: np.ndarray, first: Any = 0) -> np.ndarray:
        philox_key[0], counter[2] = key[0], key[1]
        counter[0], skipped = divmod(int(first) * size, 8)
        bits.state = state
        if skipped:
            generator.random(skipped, dtype=np.float32)
        return generator.random(dtype=np.float32, out=numbers)

    return draw
