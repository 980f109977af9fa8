"""Points between others: inside regions, on lines, and none for boundaries with corners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chains import Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.residuals.problem import with_terms
from chains.solving.growth import growth
from chains.solving.second_points import LARGEST_RESIDUAL, Judge, fresh_points, held_out, only_at

NONE = np.empty((0, 2))


def drawn(points, others=NONE, seed=0):
    return fresh_points(np.asarray(points, float), others, np.random.default_rng(seed))


def _sphere(dimensions, count):
    points = np.random.default_rng(0).normal(size=(count, dimensions))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def _faces(dimensions, count):
    points = np.random.default_rng(0).uniform(size=(count, dimensions))
    points[np.arange(count), np.arange(count) % dimensions] = np.arange(count) // dimensions % 2
    return points


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
        _sphere(5, 200),
        np.column_stack([np.linspace(0.0, 1.0, 200), _sphere(5, 200)]),  # in time
        _faces(5, 200),
        np.column_stack([np.cos(np.linspace(0.0, 6.2, 60)), np.sin(np.linspace(0.0, 6.2, 60))]),  # a circle
        np.zeros((20, 2)),  # one place
        np.array([[0.0, 0.0], [1.0, 1.0]]),  # two ends
    ],
    ids=["sides", "sphere", "cylinder", "faces", "circle", "place", "ends"],
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


def two_species(scale):
    """The second species decays; the first grows tenfold in one and a half units of time from it and by itself."""
    return Term(
        lambda a, b: (scale * a.t - 1.5 * scale * a + b, 4.0 * b.t + 2.0 * b - 1e-9 * a), np.linspace(0.0, 10.0, 30)[:, None]
    )


@pytest.mark.parametrize(
    ("outputs", "equation", "wanted"),
    [
        ("n", Term(lambda n: n.t - 0.1 * n * (1.0 - 1e-6 * n), np.linspace(0.0, 200.0, 50)[:, None]), 20.0),
        ("n", Term(lambda n: 3.0 * n.t + 0.3 * n, np.linspace(0.0, 200.0, 50)[:, None]), 0.0),
        ("n", Term(lambda n: n.tt - n, np.linspace(0.0, 200.0, 50)[:, None]), 0.0),  # of second order: not said
        ("ab", two_species(1e-6), 15.0),
    ],
    ids=["logistic", "decay", "second order", "two"],
)
def test_growth_from_the_start_is_that_of_the_linear_equations(outputs, equation, wanted):
    start = (
        [Term(lambda n: n - 10.0, np.zeros((1, 1)))] if outputs == "n" else [Term(lambda a, b: (a - 10.0, b), np.zeros((1, 1)))]
    )
    measured = Term(lambda k: k - 1.0, np.full((3, 1), 5.0), data={"k": np.ones(3)})  # data of another term changes nothing
    for terms in ([equation, *start], [equation, *start, measured]):
        problem = ResidualProblem(("t",), tuple(outputs), terms, scales={})
        net = Chain(Dense(1, len(outputs)))
        p = np.zeros(net.n_params)  # the outputs are their offsets, those of the start
        assert growth(net, p, problem) == pytest.approx(wanted, rel=1e-4)


def test_a_solution_that_grows_and_is_not_right_names_the_remedy():
    terms = [
        Term(lambda n: n.t - 0.1 * n * (1.0 - 1e-6 * n), np.linspace(0.0, 200.0, 50)[:, None], name="law"),
        Term(lambda n: n - 10.0, np.zeros((1, 1)), name="start"),
    ]
    problem = ResidualProblem(("t",), ("n",), terms, scales={})
    net = Chain(Dense(1, 4, tanh), Dense(4, 1))
    found = solve(net, net.init(0, np.float64), problem, adam=10, iterations=0)
    assert not found.success
    assert "1e9 times from their start: solve for the logarithm" in found.message
    assert {"law", "start"} <= set(str(found).split("\n")[0].split())


def test_terms_have_names():
    points = np.linspace(0.0, 1.0, 20)[:, None]
    law = Term(lambda u: u.x, points, name="law")
    problem = ResidualProblem(("x",), ("u",), [law, Term(lambda u: u, points)])
    assert problem.labels == ("law", "term 1")
    net = Chain(Dense(1, 1))
    pool = Term(law.residual, np.linspace(0.0, 1.0, 40)[:, None])
    assert problem.resampled(net, np.ones(2), [pool, None]).labels == problem.labels
    with pytest.raises(ValueError, match=r"`weight` of law has shape \(3,\)"):
        ResidualProblem(("x",), ("u",), [replace(law, weight=[1.0, 2.0, 3.0])])
    with pytest.raises(ValueError, match="two terms have the name 'law'"):
        ResidualProblem(("x",), ("u",), [law, law])
    with pytest.raises(TypeError, match="`name` \\(=3\\)"):
        ResidualProblem(("x",), ("u",), [replace(law, name=3)])


def measured(count, noise=0.0):
    """u' = a and measurements of u, the second half of them of weight 0."""
    x = np.linspace(0.0, 1.0, count)[:, None]
    seen = x[:, 0] + noise * np.random.default_rng(0).normal(size=count)
    weight = np.where(np.arange(count) < count // 2, 2.0, 0.0)
    terms = [Term(lambda u, a: u.x - a, x), Term(lambda u, seen: u - seen, x, data={"seen": seen}, weight=weight)]
    return ResidualProblem(("x",), ("u", "a"), terms)


def test_a_tenth_of_many_points_with_data_is_held_out():
    problem = measured(400)
    equation, held = held_out(problem, 0, [0, 1])
    assert equation is None
    assert held.sum() == 20
    assert not held[200:].any()  # of weight 0
    for rows in (held, ~held):
        part = only_at(problem, [None, rows])
        np.testing.assert_array_equal(np.flatnonzero(part.t[400:, 1]), np.flatnonzero(rows[:200]))
        np.testing.assert_allclose(part.t[:, :2].sum(axis=0), problem.t[:, :2].sum(axis=0), rtol=1e-12)
        np.testing.assert_array_equal(part.t[:400, :2], problem.t[:400, :2])
    assert held_out(measured(198), 0, [0, 1]) == [None, None]  # 99 measurements
    assert held_out(problem, 0, [0]) == [None, None]


def test_equations_with_data_are_looked_at_where_they_were_not_trained():
    """The network fits u'' = f at the points of training, and f has a jump elsewhere."""
    x = np.linspace(0.0, 1.0, 200)[:, None]
    problem = ResidualProblem(("x",), ("u",), [Term(lambda u, f: u.x - f, x, data={"f": np.ones(200)})])
    held = held_out(problem, 0, [0])
    term = replace(problem.terms[0], data={"f": np.where(held[0], 3.0, 1.0)})
    judge = Judge(Chain(Dense(1, 1)), np.array([1.0, 0.0]), with_terms(problem, [term]), [None], 0, held)
    verdict = judge.look(np.array([1.0, 0.0]), only_at(problem, [~held[0]]))
    assert verdict.terms[0] == pytest.approx(0.0, abs=1e-12)
    assert verdict.second[0] == pytest.approx(4.0)
    assert verdict.differing == [0]
    assert not verdict.success
    assert verdict.unseen == 0.0  # no measurements


def test_unseen_measurements_have_their_own_loss():
    problem = measured(400, noise=0.1)
    net = Chain(Dense(1, 2))
    p = np.array([1.0, 0.0, 0.0, 1.0])  # u = x, a = 1
    held = held_out(problem, 0, [0, 1])
    judge = Judge(net, p, problem, [None, None], 0, held)
    squares = 0.01 * np.random.default_rng(0).normal(size=400) ** 2  # of the noise
    verdict = judge.look(p, only_at(problem, [None, ~held[1]]))
    assert verdict.unseen == pytest.approx(squares[held[1]].mean(), rel=1e-12)
    exact = Judge(net, p, measured(400), [None, None], 0, held).look(p, problem)
    assert 0.0 < exact.unseen < 1e-5  # not zero, so that small differences between small losses do not count
    assert verdict.terms[1] == pytest.approx(squares[:200][~held[1][:200]].mean(), rel=1e-12)


@pytest.mark.parametrize(("slope", "wanted"), [(0.1, [1]), (10.0, [])])
def test_conditions_that_are_left_behind_are_found(slope, wanted):
    """u' = 0 and u = 1 at a point; u is 0.3 there and has a slope."""
    terms = [Term(lambda u: u.x, np.linspace(0.0, 1.0, 50)[:, None]), Term(lambda u: u - 1.0, np.zeros((1, 1)))]
    problem = ResidualProblem(("x",), ("u",), terms)
    p = np.array([slope, 0.3])
    judge = Judge(Chain(Dense(1, 1)), p, problem, [None, None], 0)
    assert judge.behind(judge.look(p, problem)) == wanted


def test_a_coarse_equation_is_no_success():
    """The network has no residual at nine points, and between them nothing is known."""
    for count, candidates, wanted in [(9, None, False), (9, np.linspace(0.0, 1.0, 40)[:, None], True), (10, None, True)]:
        start = Term(lambda u: u, np.zeros((1, 1)))
        problem = ResidualProblem(("x",), ("u",), [Term(lambda u: u.x - 1.0, np.linspace(0.0, 1.0, count)[:, None]), start])
        p = np.array([1.0, 0.0])
        verdict = Judge(Chain(Dense(1, 1)), p, problem, [candidates, None], 0).look(p, problem)
        assert verdict.success == wanted
        assert ("too few points" in verdict.sentence()) != wanted


def test_measurements_alone_are_no_success():
    x = np.linspace(0.0, 1.0, 200)[:, None]
    problem = ResidualProblem(("x",), ("u",), [Term(lambda u, seen: u - seen, x, data={"seen": x[:, 0]})])
    p = np.array([1.0, 0.0])
    verdict = Judge(Chain(Dense(1, 1)), p, problem, [None], 0, held_out(problem, 0, [0])).look(p, problem)
    assert not verdict.success
    assert "measurements alone" in verdict.sentence()


def test_noise_is_no_want_of_points():
    """The equation is wrong; measurements are fitted at their points and not between them."""
    problem = measured(400)
    held = held_out(problem, 0, [0, 1])
    noisy = replace(problem.terms[1], data={"seen": np.where(held[1], 9.0, np.linspace(0.0, 1.0, 400))})
    p = np.array([1.0, 0.0, 0.0, 2.0])  # u = x, a = 2
    judge = Judge(Chain(Dense(1, 2)), p, with_terms(problem, [problem.terms[0], noisy]), [None, None], 0, held)
    verdict = judge.look(p, only_at(problem, [None, ~held[1]]))
    assert verdict.second[1] > 1e9 * verdict.terms[1]
    assert "of its size" in verdict.sentence()


def test_a_term_without_weight_is_looked_at_in_silence():
    term = Term(lambda u: u.x, np.linspace(0.0, 1.0, 30)[:, None])
    other = Term(lambda u: u.xx - 1.0, term.points, weight=np.zeros(30))
    problem = ResidualProblem(("x",), ("u",), [term, other])
    p = np.zeros(2)
    assert Judge(Chain(Dense(1, 1)), p, problem, [None, None], 0).look(p, problem).relative == 0.0
