"""`python -m benchmarks.gpu --floors`: launches and least times of steps, against sums by hand."""

from __future__ import annotations

import pytest

from benchmarks.gpu.floors import bytes_of, compiled_for, counts, floor, launches, lines
from benchmarks.gpu.goals import goals
from benchmarks.gpu.problems import PROBLEMS, Setting
from chains import SGD, Adam, Chain, Conv, Dense, Flatten, SquaredLoss, tanh


def test_the_bytes_and_the_time_of_a_step():
    """x, t and 1 / batch are read, the parameters and moments read and written; what fits into the cache takes no time."""
    net = Chain(Dense(300, 400, tanh), Dense(400, 500))
    program = net.program(SquaredLoss(), Adam(1e-3))
    least = 4 * (64 * (300 + 500) + 2 * 3 * net.n_params)
    assert least <= bytes_of(program, 64) <= least + 4 * 100
    assert floor(program, 64, "float32") == pytest.approx(2 * 64 * (2 * 300 * 400 + 3 * 400 * 500) / 67e6)
    many = 1 << 20
    copied = bytes_of(Chain(Dense(1000, 1)).program(SquaredLoss(), SGD(0.1)), many) / 4.8e6
    assert floor(Chain(Dense(1000, 1)).program(SquaredLoss(), SGD(0.1)), many, "tf32") == pytest.approx(copied)


def test_launches_of_a_step():
    """A layer's products; with a library, each of three convolutions; small networks are one kernel."""
    found = launches(compiled_for(Chain(Dense(300, 400, tanh)).program(SquaredLoss(), Adam(1e-3)), 64), 64)
    assert (found["product: 0.Dense"], found["product: 0.Dense'"]) == (1, 1)
    net = Chain(Conv(2, 64, 3), Conv(64, 64, 3), Flatten(), Dense(64 * 144, 3), input_shape=(2, 16, 16))
    program = net.program(SquaredLoss(), SGD(0.1))
    names = [name.split(":")[0] for name in launches(compiled_for(program, 64, cudnn=True), 64).elements()]
    assert not {"convolve", "patches", "fold"} & set(names)
    assert counts(program, 64).endswith(f"{len(names)} with cuDNN")
    assert counts(Chain(Dense(4, 8)).program(SquaredLoss(), SGD(0.1)), 10).startswith("one launch for all steps; ")


def test_the_goals_of_a_problem_follow_it():
    text = "\n".join(lines(Setting(tiny=True)))
    wanted = [goal["goal"] for goal in goals([]) if goal["goal"].split(":")[0].split(",")[0] in PROBLEMS]
    assert len(wanted) > 10
    assert all(f"goal: {goal}" in text for goal in wanted)
