"""Points between others: inside regions, on lines, and none for boundaries with corners."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Chain, Dense, ResidualProblem, Term, tanh
from chains.solving.second_points import LARGEST_RESIDUAL, Judge, fresh_points

NONE = np.empty((0, 2))


def drawn(points, others=NONE, seed=0):
    return fresh_points(np.asarray(points, float), others, np.random.default_rng(seed))


def test_a_region_gets_points_in_it_and_beside_its_boundary():
    rng = np.random.default_rng(0)
    inside = rng.uniform([2.0, 0.1], [3.0, 0.9], (500, 2)) * [1e-9, 1e6]
    edge = np.column_stack([rng.uniform(2.0, 3.0, 50), np.repeat([0.0, 1.0], 25)]) * [1e-9, 1e6]
    found = drawn(inside, edge)
    assert found.shape == inside.shape
    assert (found >= [2e-9, 0.0]).all()
    assert (found <= [3e-9, 1e6]).all()
    assert ((found[:, 1] < 0.1e6) | (found[:, 1] > 0.9e6)).sum() > 20
    assert len(np.unique(found, axis=0)) == len(found)


def test_a_line_keeps_its_points_on_it():
    start = np.column_stack([np.zeros(30), np.linspace(-1.0, 1.0, 30)])
    found = drawn(start, np.random.default_rng(0).uniform(0.0, 1.0, (40, 2)))
    np.testing.assert_array_equal(found[:, 0], 0.0)
    assert (abs(found[:, 1]) <= 1.0).all()


def test_a_grid_is_a_region():
    t, x = np.meshgrid(np.linspace(0.0, 1.0, 60) ** 3, np.linspace(0.0, 1.0, 9))
    assert drawn(np.column_stack([t.ravel(), x.ravel()])) is not None


@pytest.mark.parametrize(
    "points",
    [
        np.column_stack([np.linspace(0.0, 1.0, 40), np.tile([0.0, 1.0], 20)]),  # two sides
        np.column_stack([np.cos(np.linspace(0.0, 6.2, 60)), np.sin(np.linspace(0.0, 6.2, 60))]),  # a circle
        np.zeros((20, 2)),  # one place
        np.array([[0.0, 0.0], [1.0, 1.0]]),  # two ends
    ],
    ids=["sides", "circle", "place", "ends"],
)  # fmt: skip
def test_boundaries_keep_their_points(points):
    assert drawn(points) is None


def test_a_jump_between_the_second_points_is_found_at_further_ones():
    net = Chain(Dense(1, 1, tanh), Dense(1, 1))
    problem = ResidualProblem(("x",), ("u",), [Term(lambda u: u.x, np.linspace(0.0, 1.0, 50)[:, None])])
    judge = Judge(net, np.array([1.0, 0.0, 1.0, 0.0]), problem, [None], 0)
    x = np.sort(judge.second.points[:, 0])
    at = np.argmax(np.diff(x))
    slope = 60.0 / (x[at + 1] - x[at])
    p = net.init(0, np.float64)
    p[:] = [slope, -slope * (x[at] + x[at + 1]) / 2.0, 1.0, 0.0]
    verdict = judge.look(p, problem)
    assert np.sqrt(verdict.second / judge.unit) < LARGEST_RESIDUAL
    assert not verdict.success
    assert "between its points" in verdict.sentence()


def test_residuals_of_an_output_that_stays_near_zero_are_not_small():
    """A residual of a ten-thousandth of its size is all of the output there is."""
    net = Chain(Dense(1, 1))
    decay = [Term(lambda n: n.t - 0.1 * n, np.linspace(0.0, 100.0, 50)[:, None])]
    problem = ResidualProblem(("t",), ("n",), decay, scales={"n": 1000.0})
    judge = Judge(net, np.array([0.0, 1.0]), problem, [None], 0)
    assert judge.look(np.array([0.0, 1e-4]), problem).relative > 0.03
    assert judge.look(np.array([0.0, 1e-8]), problem).relative < LARGEST_RESIDUAL  # zero is a solution
