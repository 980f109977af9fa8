"""Scales of residual problems: numbers of order one for the network, users' units for formulas, points and results."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chains import Chain, Dense, ResidualProblem, Scale, Shift, Term, tanh
from chains.expr import exp, sin

rng = np.random.default_rng(0)
INSIDE = rng.uniform(0.0, 1.0, (40, 2))
EDGE = np.column_stack([np.zeros(20), np.linspace(0.0, 1.0, 20)])


def cooling(second=1.0, metre=1.0, kelvin=1.0, scales=None):
    """A plate that cools from both sides, with each quantity in a unit that is `second` seconds, `metre` metres, ... long."""
    end, length, mean, rise = 60.0 / second, 0.1 / metre, 300.0 / kelvin, 100.0 / kelvin
    diffusivity = 1.2e-5 * second / metre**2
    sides = np.column_stack([np.linspace(0.0, end, 20), np.tile([0.0, length], 10)])
    terms = [
        Term(lambda u: u.t - diffusivity * u.xx, INSIDE * [end, length]),
        Term(lambda u, x: u - mean - rise * sin(math.pi / length * x), EDGE * [end, length]),
        Term(lambda u: u - mean, sides, weight=2.0),
    ]
    return ResidualProblem(("t", "x"), ("u",), terms, scales=scales)


NET = Chain(Dense(2, 6, tanh), Dense(6, 1))


@pytest.mark.parametrize("units", [(60.0, 0.0254, 1.0), (3600.0, 1e-3, 1e-3), (1e-9, 1e3, 1e6)])
def test_no_unit_changes_the_loss(units):
    p = NET.init(seed=0, dtype=np.float64)
    here, there = cooling(scales={}), cooling(*units, scales={})
    value, gradient = NET.value_and_grad(p, here.x, here.t, here.loss)
    other, slope = NET.value_and_grad(p, there.x, there.t, there.loss)
    assert other == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose(slope, gradient, rtol=1e-9, atol=1e-10 * abs(gradient).max())


def coupled(scales=None, transform=None):
    """Two outputs with mixed derivatives up to order 4, data, and a transform."""
    data = {"f": np.linspace(1.0, 2.0, 40)}
    terms = [
        Term(lambda u, v, x, f: (u.xt * v - f * x, v.xxxx + u * v.tt), INSIDE * [2.0, 0.5], data=data),
        Term(lambda u, v, t: exp(0.1 * u) - v * t, EDGE * [2.0, 0.5]),
    ]
    return ResidualProblem(("t", "x"), ("u", "v"), terms, transform=transform, scales=scales)


@pytest.mark.parametrize("transform", [None, lambda u, v, t, x: (u * t, v * x * x + t)])
def test_a_scaled_problem_equals_scaling_layers(transform):
    given = {"t": (1.0, 0.5), "x": 0.25, "u": (3.0, 2.0), "v": (-1.0, 0.5)}
    scaled, plain = coupled(given, transform), coupled(None, transform)
    core = (Dense(2, 5, tanh), Dense(5, 2))
    inner = Chain(*core)
    outer = Chain(
        Shift(shift_init=[-1.0, 0.0]), Scale(scale_init=[2.0, 4.0]), *core,
        Scale(scale_init=[2.0, 0.5]), Shift(shift_init=[3.0, -1.0]), input_shape=(2,),
    ).with_frozen("0.*", "1.*", "4.*", "5.*")  # fmt: skip
    p, q = inner.init(seed=0, dtype=np.float64), outer.init(seed=0, dtype=np.float64)
    own = slice(4, 4 + len(p))
    q[own] = p
    # Both losses with the same sizes: those of the scaled problem are in its formula.
    sizes = replace(scaled.scales, coordinates=((0.0, 1.0),) * 2, outputs=((0.0, 1.0),) * 2)
    value, gradient = inner.value_and_grad(p, scaled.x, scaled.t, scaled.loss)
    wanted, slope = outer.value_and_grad(q, plain.x, plain.t, replace(plain.loss, scales=sizes))
    assert value == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_allclose(gradient, slope[own], rtol=1e-10, atol=1e-11 * abs(gradient).max())
    for name, values in scaled.evaluate(inner, p, INSIDE).items():
        np.testing.assert_allclose(values, plain.evaluate(outer, q, INSIDE)[name], rtol=1e-12)


def test_guesses_follow_points_and_conditions():
    scales = cooling(scales={"x": 0.1}).scales
    (t0, dt), (x0, dx) = scales.coordinates
    assert (t0 + dt, t0 - dt) == pytest.approx((60.0, 0.0), abs=1.0)
    assert (x0, dx) == (0.0, 0.1)
    ((u0, du),) = scales.outputs
    assert u0 == pytest.approx(350.0, rel=1e-2)
    assert du == pytest.approx(50.0, rel=0.1)


def test_a_source_gives_the_length_of_an_output():
    beam = ResidualProblem(
        ("x",), ("w",),
        [
            Term(lambda w: 210e9 * 8e-6 * w.xxxx - 1e4, np.linspace(0.0, 5.0, 50)[:, None]),
            Term(lambda w: (w, w.xx), np.array([[0.0], [5.0]])),
        ],
        scales={},
    )  # fmt: skip
    offset, length = beam.scales.outputs[0]
    assert offset == 0.0
    assert 0.02 < length < 2.0  # the deflection is 0.048


def test_a_part_that_is_bounded_has_no_length():
    term = Term(lambda u: sin(u) - 2.0, np.linspace(0.0, 1.0, 20)[:, None])
    assert ResidualProblem(("x",), ("u",), [term], scales={}).scales.outputs == ((0.0, 1.0),)


def test_data_without_weight_are_no_conditions():
    measured = np.array([1e3, np.nan, 3e3, np.nan])
    term = Term(lambda u, m: u - m, np.linspace(0.0, 1.0, 4)[:, None], {"m": measured}, np.array([1.0, 0.0, 1.0, 0.0]))
    problem = ResidualProblem(("x",), ("u",), [term], scales={})
    assert problem.scales.outputs[0] == (2e3, pytest.approx(1e3, rel=0.1))


def test_conditions_in_one_term_are_read_one_by_one():
    terms = [
        Term(lambda p: p.tt - 1e5 * p.xx, INSIDE),
        Term(lambda p, x: (p - 100.0 * sin(math.pi * x), p.t), EDGE),
    ]
    ((_, length),) = ResidualProblem(("t", "x"), ("p",), terms, scales={}).scales.outputs
    assert length == pytest.approx(50.0, rel=0.1)


@pytest.mark.parametrize("newton", [1.0, 1e6])
def test_equations_of_one_term_are_balanced_one_by_one(newton):
    """An orbit, whose speed alone gives the length across; equations may have any unit."""
    t = np.linspace(0.0, 4000.0, 60)[:, None]
    motion = Term(lambda x, y: (x.tt, y.tt), t)
    first = Term(lambda x, y: (x - 7e6, newton * y, x.t, y.t - 8e3), t[:1])
    offset, length = ResidualProblem(("t",), ("x", "y"), [motion, first], scales={}).scales.outputs[1]
    assert offset == 0.0
    assert 4e6 < length < 4e7


def test_exponentials_of_few_random_numbers_are_no_size():
    """A rate of reaction at temperatures about zero, which occur among random ones."""
    z = np.linspace(0.0, 5.0, 60)[:, None]
    terms = [
        Term(lambda c, T: (c.z + 2e7 * exp(-7200.0 / T) * c, T.z - 2e6 * exp(-7200.0 / T) * c), z),
        Term(lambda c, T: (c - 1000.0, T - 350.0), z[:1]),
    ]
    sizes = ResidualProblem(("z",), ("c", "T"), terms, scales={}).scales.residuals
    assert all(size < 1e9 for size in sizes[0])


def test_the_problem_shows_its_scales():
    assert "x: 0 + 0.1 * [-1, 1]" in repr(cooling(scales={"x": 0.1}))
    assert "[-1, 1]" not in repr(cooling())


def test_points_drawn_anew_are_scaled():
    problem = cooling(scales={})
    p = NET.init(seed=0, dtype=np.float64)
    drawn = problem.resampled(NET, p, [rng.uniform(0.0, 1.0, (200, 2)) * [60.0, 0.1], None, None])
    assert drawn.scales is problem.scales
    np.testing.assert_array_equal(drawn.x, problem.scales.inward(drawn.points))


@pytest.mark.parametrize(
    ("scales", "error", "text"),
    [
        (["x"], TypeError, r"`scales` \(=\['x'\]\) must be lengths"),
        ({"y": 1.0}, ValueError, "`scales` names 'y', but there are only t, x, u"),
        ({"x": 0.0}, ValueError, r'`scales\["x"\]` \(=0.0\) must be in \(0, inf\)'),
        ({"x": (1.0, -2.0)}, ValueError, r'`scales\["x"\]` \(=-2.0\) must be in \(0, inf\)'),
        ({"x": (float("nan"), 1.0)}, ValueError, r'`scales\["x"\]` \(=nan\) must be finite'),
        ({"x": (1.0, 2.0, 3.0)}, ValueError, r"must be a length, or an offset and a length"),
        ({"x": "wide"}, TypeError, r"must be a number"),
    ],
)  # fmt: skip
def test_other_scales_are_refused(scales, error, text):
    with pytest.raises(error, match=text):
        cooling(scales=scales)


def test_a_formula_may_divide_by_its_data():
    """All formulas run at all points, also at those of other terms, which have no such data."""
    x = np.linspace(0.0, 1.0, 5)[:, None]
    terms = [
        Term(lambda u: u - 1.0, x),
        Term(lambda u, c: u.x - 1.0 / c, x, data={"c": [2.0, 4.0, 2.0, 4.0, 2.0]}),
        Term(lambda u, c: u - 3.0 / c, x, data={"c": [1.0, 3.0, 1.0, 3.0, 1.0]}),
    ]
    problem = ResidualProblem(("x",), ("u",), terms)
    net = Chain(Dense(1, 1))
    value, gradient = net.value_and_grad(np.array([0.5, 0.0]), problem.x, problem.t, problem.loss)
    u = 0.5 * x[:, 0]
    wanted = (
        np.mean((u - 1.0) ** 2) + np.mean([0.0, 0.25**2, 0.0, 0.25**2, 0.0]) + np.mean((u - [3.0, 1.0, 3.0, 1.0, 3.0]) ** 2)
    )
    assert value == pytest.approx(wanted)
    assert np.isfinite(gradient).all()
