"""What `python -m benchmarks.gpu --floors` says of steps, against sums done by hand."""

from __future__ import annotations

import pytest

from benchmarks import gpu_floors
from benchmarks.gpu_floors import Floor, compiled_for, floor_of
from benchmarks.gpu_goals import goals
from benchmarks.gpu_launches import launch_floors, operations_of
from benchmarks.gpu_problems import PROBLEMS, Setting
from chains import SGD, Adam, Chain, Conv, Dense, Flatten, SquaredLoss, tanh
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.source.commands import Launch


def test_operations_and_bytes_of_products():
    """Three products for the second layer, two for the first; x, t and 1 / batch read, the parameters and moments changed."""
    net = Chain(Dense(300, 400, tanh), Dense(400, 500))
    floor = floor_of(net.program(SquaredLoss(), Adam(1e-3)), 64)
    assert floor.operations == 2 * 64 * (2 * 300 * 400 + 3 * 400 * 500)
    least = 4 * (64 * (300 + 500) + 2 * 3 * net.n_params)
    assert least <= floor.nbytes <= least + 4 * 100
    assert floor.commands >= 5


def test_operations_of_convolutions():
    """Forward and the gradient of the kernels, and for the second layer that of its images; groups see some channels each."""
    layers = Conv(2, 4, 3, tanh), Conv(4, 6, (3, 2), groups=2), Flatten(), Dense(6 * 4 * 5, 3)
    net = Chain(*layers, input_shape=(2, 8, 8))
    floor = floor_of(net.program(SquaredLoss(), SGD(0.1)), 10)
    first, second, last = (4 * 6 * 6) * (2 * 9), (6 * 4 * 5) * (2 * 6), 120 * 3
    assert floor.operations == 2 * 10 * (2 * first + 3 * second + 3 * last)


def test_what_bounds_a_step():
    assert Floor(1, 67e9, 10e6).seconds("float32") == pytest.approx(1e-3)  # what fits into the cache need not travel
    assert Floor(1, 67e9, 48e9).seconds("float32") == pytest.approx(1e-2)


def test_bytes_and_operations_of_launches():
    """Of a dense layer with Adam, kernel by kernel, by hand: its product, its bias with tanh, the sums, the optimiser."""
    net, batch = Chain(Dense(300, 400, tanh)), 64
    compiled = Compiled(net.program(SquaredLoss(), Adam(1e-3)))
    floors = launch_floors(compiled, batch)
    products = [floor for floor in floors if floor.name == "product: 0.Dense"]
    assert [(floor.read, floor.written) for floor in products] == [(4 * (64 * 300 + 300 * 400), 4 * 64 * 400)]
    assert products[0].operations == 2 * 64 * 300 * 400
    assert products[0].seconds == pytest.approx(2 * 64 * 300 * 400 / 67e12)
    adam = max((floor for floor in floors if floor.name == "map: Adam"), key=lambda floor: floor.read)
    assert 0 <= adam.read - 4 * 4 * net.n_params <= 100  # gradient, parameters, moments; and some numbers for all of them
    assert adam.written == 4 * 3 * net.n_params
    assert adam.seconds == pytest.approx((adam.read + adam.written) / 4.8e12)


@pytest.mark.parametrize("whole", [False, True])
def test_launches_add_up_to_their_step(whole):
    """All launches of the graph, and all operations of products once, whoever does them."""
    net, batch = Chain(Dense(30, 40, tanh), Dense(40, 5)), 64
    program = net.program(SquaredLoss(), Adam(1e-3))
    compiled = compiled_for(program, batch) if whole else Compiled(program)
    floors, floor = launch_floors(compiled, batch), floor_of(program, batch)
    assert sum(each.launches for each in floors) == len([*compiled.at(batch)]) - sum(
        step.grid(batch) is None for step, _ in compiled.at(batch) if isinstance(step, Launch)
    )
    rest = sum(operations_of(o, batch) - o.flops(batch) for o in program.operations)
    assert sum(each.operations for each in floors) == pytest.approx(floor.operations + rest, rel=0.02)
    assert sum(each.read + each.written for each in floors) >= floor.nbytes


def test_every_goal_of_a_problem_stands_beneath_it():
    text = "\n".join(gpu_floors.lines(Setting(tiny=True)))
    wanted = [goal["goal"] for goal in goals([]) if goal["goal"].split(":")[0].split(",")[0] in PROBLEMS]
    assert len(wanted) > 10
    assert all(f"goal: {goal}" in text for goal in wanted)
