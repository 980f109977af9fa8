"""Multiple shooting: its objective, its fits, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Doses, Equations, MultipleShooting, SquaredLoss, tanh
from tests.harness import BACKENDS


def decay() -> Equations:
    return Equations(lambda y, v, k: (v, -k * y), inputs=("y", "v"), parameters={"k": 2.0})


TIMES = np.linspace(0.0, 6.0, 13)
WAVE = np.stack([np.cos(TIMES), -np.sin(TIMES)], axis=1)


def problem(segments=4, observed=WAVE, rhs=None, **given):
    return MultipleShooting(ODE(decay() if rhs is None else rhs, TIMES, steps=4), observed, segments, **given)


@pytest.mark.parametrize("segments", [1, 4, 5, 12])
def test_the_loss_is_that_of_the_solutions_and_the_gaps(segments):
    """Of 12 steps in 5 segments each has 3 but for the last one."""
    shooting = problem(segments)
    q = shooting.start([1.3]) + 0.1 * np.random.default_rng(0).normal(size=shooting.net.n_params)
    starts, (k,) = q[:-1].reshape(shooting.segments, 2), q[-1:]
    scale, length = WAVE.std(axis=0), -(-12 // segments)
    total, before = 0.0, None
    for number, start in enumerate(starts):
        places = np.arange(number * length, min(12, (number + 1) * length) + 1)
        solved = Chain(ODE(decay(), TIMES[places], steps=4))(start[None], [k])[0]
        if before is not None:
            total += 3.0 * (((before - start) / scale) ** 2).sum()
        counted = solved if number == shooting.segments - 1 else solved[:-1]
        total += (((counted - WAVE[places[: len(counted)]]) / scale) ** 2).sum()
        before = solved[-1]
    value = shooting.objective(3.0)(q)[0]
    assert value == pytest.approx(0.5 * total / shooting.segments, rel=1e-12)
    assert shooting.solve(q).shape == (1, 13, 2)
    assert shooting.solve(q)[0, 0] == pytest.approx(starts[0])
    if segments == 1:
        assert shooting.largest_gap(q) == 0.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_central_differences(backend):
    network = Chain(Dense(2, 3, tanh), Dense(3, 2))
    shooting = problem(3, rhs=network, backend=backend)
    objective = shooting.objective(2.0)
    q = shooting.start(Chain(network).init(seed=0))
    value, g = objective(q)
    for k, h in enumerate(1e-6 * np.eye(len(q))):
        assert g[k] == pytest.approx((objective(q + h)[0] - objective(q - h)[0]) / 2e-6, abs=1e-7)
    matrix = objective.jacobian(q)
    np.testing.assert_allclose(matrix.T @ objective.residuals(q), g, rtol=1e-9, atol=1e-12)
    assert value == pytest.approx(0.5 * (objective.residuals(q) ** 2).sum(), rel=1e-12)


def test_a_fit_finds_what_scipy_finds():
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(1)
    observed = WAVE + 0.05 * rng.normal(size=WAVE.shape)
    fit = problem(4, observed).fit([1.3])
    assert fit.gaps == sorted(fit.gaps, reverse=True)
    assert fit.gaps[-1] < 1e-3
    single = Chain(ODE(decay(), TIMES, steps=4))
    scale = observed.std(axis=0)

    def residuals(q):
        return ((single(q[None, :2], q[2:])[0] - observed) / scale).ravel()

    found = optimize.least_squares(residuals, [1.0, 0.0, 1.0], xtol=1e-14, ftol=1e-14, gtol=1e-14).x
    np.testing.assert_allclose(np.concatenate([fit.starts[0], fit.p]), found, atol=1e-5)
    assert fit.error == pytest.approx((residuals(found) ** 2).mean(), rel=1e-6)
    np.testing.assert_allclose(fit.states[0], single(fit.starts, fit.p)[0], rtol=1e-12)
    assert "error" in repr(fit)


def test_a_fit_that_fails_as_a_whole_succeeds_in_segments():
    """From a frequency of 1.3 times the true one, a wave of sixteen cycles has many minima."""
    times = np.linspace(0.0, 100.0, 401)
    observed = np.stack([np.cos(times), -np.sin(times)], axis=1)
    errors = [
        MultipleShooting(ODE(decay(), times, method="rk4", steps=4), observed, segments).fit([1.7]).error
        for segments in (1, 50)
    ]
    assert errors[0] > 0.1
    assert errors[1] < 1e-6


def test_several_series_with_features_and_missing_numbers():
    """Two waves of other frequencies, one number of them observed at every second time."""
    rhs = Equations(lambda y, v, c, k: (v, -k * c * y), inputs=("y", "v", "c"), parameters={"k": 1.5})
    observed = np.full((2, 13, 2), np.nan)
    for k, frequency in enumerate((1.0, 1.5)):
        observed[k, ::2, 0] = np.cos(frequency * TIMES[::2])
    ode = ODE(rhs, TIMES, steps=6, given=1)
    fit = MultipleShooting(ode, observed, 3, given=[[1.0], [2.25]], starts=[0.0, 0.0]).fit([1.5])
    assert fit.p[0] == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(fit.starts, [[1.0, 0.0], [1.0, 0.0]], atol=1e-3)
    np.testing.assert_allclose(fit.states[1, :, 0], np.cos(1.5 * TIMES), atol=1e-3)


def test_one_segment_is_a_network_of_the_whole_series():
    shooting = problem(1)
    q = shooting.start([1.2])
    single = Chain(ODE(decay(), TIMES, steps=4))
    weights = np.broadcast_to(1.0 / WAVE.std(axis=0) ** 2, (1, 13, 2))
    loss = single.loss([1.2], WAVE[:1], WAVE[None], SquaredLoss(), weights=weights)
    assert shooting.objective()(q)[0] == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"observed": WAVE[:-1]}, ValueError, r"`observed` must have shape \(13, n\) or \(series, 13, n\).*got \(12, 2\)"),
        ({"observed": np.where(WAVE > 0.9, np.inf, WAVE)}, ValueError, "`observed` must be finite, or NaN"),
        ({"observed": WAVE * np.nan, "starts": [0.0, 0.0]}, ValueError, "`observed` must hold a number, but all are NaN"),
        (
            {"observed": WAVE * [1.0, 1e-160]},
            ValueError,
            "but number 1 of the state varies by .*e-160",
        ),
        ({"observed": WAVE * 1e200}, ValueError, "must vary by 1e-100 to 1e100, but number 0"),
        ({"observed": WAVE[:, :1]}, ValueError, r"`observed` has states \(n = 1\), but `ode` \(=.*\) n = 2"),
        ({"observed": "pelts"}, TypeError, "`observed`"),
        ({"observed": WAVE * [1.0, np.nan]}, ValueError, "`starts` is missing: number 1 of the state of series 0"),
        ({"observed": WAVE * [1.0, np.nan], "starts": [0.0]}, ValueError, r"`starts` must have shape \(2,\) or \(1, 13, 2\)"),
        ({"segments": 0}, ValueError, "`segments`"),
        ({"segments": 13}, ValueError, r"`segments` \(=13\) must be at most 12"),
        ({"given": [[1.0]]}, ValueError, r"`given` must have shape \(1, 0\)"),
    ],
)
def test_what_does_not_fit_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        problem(**change)


@pytest.mark.parametrize("settings", [{"steps": 2}, {"rtol": 1e-6}], ids=str)
def test_a_fit_of_solutions_that_explode_says_so(settings):
    """From k = 5 the segments are finite, and the whole solution is not."""
    rhs = Equations(lambda y, k: k * y * y, inputs=("y",), parameters={"k": 1.0})
    shooting = MultipleShooting(ODE(rhs, TIMES, **settings), np.exp(-TIMES)[:, None], 12, backend="numpy")
    fit = shooting.fit([5.0], maxiter=0)
    assert not fit.result.success
    assert "is infinite or NaN" in fit.result.message
    assert not np.isfinite(fit.error)
    assert not np.isfinite(fit.states[0, -1, 0])
    assert fit.p == [5.0]
    assert np.isnan(shooting._whole.objective().residuals(fit.result.x)).any()  # from which SciPy's least_squares steps back


def test_other_refusals():
    with pytest.raises(TypeError, match="`ode`"):
        MultipleShooting(decay(), WAVE, 3)
    with pytest.raises(ValueError, match="must have no `event`"):
        MultipleShooting(ODE(decay(), TIMES, event=Equations(lambda y, v: y, ("y", "v"))), WAVE, 3)
    with pytest.raises(ValueError, match="must have no `doses`"):
        MultipleShooting(ODE(decay(), TIMES, doses=Doses(2)), WAVE, 3)
    for call in (problem().solve, problem().largest_gap):
        with pytest.raises(ValueError, match=r"`q` must have shape \(9,\), as `start\(p\)`, got \(2, 9\)"):
            call(np.ones((2, 9)))
    with pytest.raises(ValueError, match="must have the times of the observations"):
        MultipleShooting(ODE(decay(), 13), WAVE, 3)
    with pytest.raises(ValueError, match="`continuity`"):
        problem().fit([1.0], continuity=[-1.0])
    with pytest.raises(TypeError, match=r"`continuity` \(=5.0\) must be a sequence of weights"):
        problem().fit([1.0], continuity=5.0)
    rhs = Equations(lambda y, v, c: (v, -c * y), inputs=("y", "v", "c"))
    with pytest.raises(ValueError, match="`given` must be finite"):
        MultipleShooting(ODE(rhs, TIMES, given=1), WAVE, 3, given=[[np.nan]])
    with pytest.raises(ValueError, match="`p`"):
        problem().fit([1.0, 2.0])
    assert repr(problem(5)) == "<multiple shooting: 1 series of 13 times in 4 segments>"
