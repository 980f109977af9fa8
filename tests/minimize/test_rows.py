"""Many fits in one call: each row has the bits that it has alone; bounds; members that fail."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from chains import Chain, Dense, MSELoss, SquaredLoss, minimize, tanh
from chains.minimize import rows
from chains.objectives.fits import MAX_RESIDUALS
from chains.residuals.problem import ResidualProblem, Term

METHODS = ["LM", "BFGS", "SSBroyden", "L-BFGS"]
every_method = pytest.mark.parametrize("method", METHODS)
FIELDS = ("x", "fun", "jac", "success", "message", "nit", "nfev")


def problem(members=5, samples=30, own=False, backend="auto"):
    """Sines of several frequencies, shared by all members or their own."""
    net, rng = Chain(Dense(2, 4, tanh), Dense(4, 1), backend=backend), np.random.default_rng(0)
    shape = (members, samples) if own else (samples,)
    x = rng.uniform(-2.0, 2.0, (*shape, 2))
    frequency = np.linspace(0.5, 2.0, members)[:, None] if own else 1.0
    t = (np.sin(frequency * x[..., 0]) * x[..., 1] + 0.01 * rng.normal(size=shape))[..., None]
    return net, x, t, net.init_many(members, seed=0, dtype=np.float64)


def assert_rows_are(found, alone):
    for name in FIELDS:
        rows = getattr(found, name)
        for row, each in zip(rows, alone, strict=True):
            np.testing.assert_array_equal(row, getattr(each, name), err_msg=name)


@every_method
def test_rows_have_the_bits_that_they_have_alone(method):
    net, x, t, starts = problem()
    objective = net.objective(x, t, SquaredLoss())
    found = minimize(objective, starts, method, maxiter=40)
    assert_rows_are(found, [minimize(objective, row, method, maxiter=40) for row in starts])
    assert found.fun.shape == (5,)
    assert len(set(found.nfev)) > 1


@every_method
@pytest.mark.parametrize("backend", ["auto", "numpy"])
def test_rows_may_lie_in_any_order(method, backend):
    net, x, t, starts = problem(backend=backend)
    objective = net.objective(x, t, SquaredLoss())
    wanted = minimize(objective, starts, method, maxiter=3)
    reversed_starts = starts[::-1, ::-1].copy()[::-1, ::-1]
    for given in (np.asfortranarray(starts), np.repeat(starts, 2, axis=1)[:, ::2], reversed_starts):
        assert_rows_are(minimize(objective, given, method, maxiter=3), [wanted.row(k) for k in range(5)])


@every_method
def test_members_with_their_own_data(method):
    net, x, t, starts = problem(own=True)
    objective = net.objective(x, t, MSELoss())
    assert objective.members == 5
    found = minimize(objective, starts, method, maxiter=30)
    alone = [minimize(net.objective(x[k], t[k], MSELoss()), starts[k], method, maxiter=30) for k in range(5)]
    assert_rows_are(found, alone)
    np.testing.assert_array_equal(
        objective.value(found.x), [net.objective(*d, MSELoss()).value(p) for *d, p in zip(x, t, found.x, strict=True)]
    )


def test_as_many_members_with_weights_as_samples():
    net, x, t, _ = problem(samples=6)
    weights, p = np.random.default_rng(0).uniform(size=(6, 6)), net.init_many(6, dtype=np.float64)
    found = net.objective(x, t, SquaredLoss(), weights=weights).value(p)
    alone = [net.objective(x, t, SquaredLoss(), weights=w).value(row) for w, row in zip(weights, p, strict=True)]
    np.testing.assert_array_equal(found, alone)
    wide = Chain(Dense(2, 6))  # these are weights of its targets
    assert not hasattr(wide.objective(x, np.tile(t, 6), SquaredLoss(), weights=weights), "members")


@every_method
def test_convergence_in_the_last_iteration_is_said(method):
    net, x, t, starts = problem(2)
    objective = net.objective(x, t, SquaredLoss())
    whole = minimize(objective, starts, method, gtol=1e-3, ftol=0.0)
    for k in range(2):
        last = minimize(objective, starts[k : k + 1], method, gtol=1e-3, ftol=0.0, maxiter=int(whole.nit[k])).row(0)
        assert (last.success, last.message) == (True, "the gradient is below `gtol`")


@every_method
def test_own_targets_or_weights_of_shared_inputs(method):
    net, x, t, starts = problem()
    rng = np.random.default_rng(1)
    targets = t + 0.1 * rng.normal(size=(5, *t.shape))
    weights = rng.integers(0, 3, (5, len(x))).astype(float)
    for given in ({"t": targets}, {"t": t, "weights": weights}):
        objective = net.objective(x, loss=SquaredLoss(), **given)
        found = minimize(objective, starts, method, maxiter=10)
        own = [{n: a[k] if a.ndim > 2 or n == "weights" else a for n, a in given.items()} for k in range(5)]
        functions = [net.objective(x, loss=SquaredLoss(), **data) for data in own]
        assert_rows_are(found, [minimize(f, p, method, maxiter=10) for f, p in zip(functions, starts, strict=True)])


@every_method
def test_members_that_fail_leave_the_others(method):
    net, x, t, starts = problem()
    starts[1] = 1e308
    targets = np.tile(t, (5, 1, 1))
    targets[3, 4] = np.nan
    found = minimize(net.objective(x, targets, SquaredLoss()), starts, method, maxiter=20)
    assert found.message[3] == "the value or the gradient at `p` is infinite or NaN"
    assert not found.success[3]
    assert found.nit[3] == 0
    whole = net.objective(x, t, SquaredLoss())
    for k in (0, 2, 4):
        np.testing.assert_array_equal(found.x[k], minimize(whole, starts[k], method, maxiter=20).x)


def test_functions_of_vectors_have_rows_too():
    starts = np.random.default_rng(0).normal(size=(4, 3))
    found = minimize(lambda p: (float(((p - 1.0) ** 2).sum()), 2.0 * (p - 1.0)), starts)
    assert found.success.all()
    np.testing.assert_allclose(found.x, 1.0, atol=1e-6)


def test_the_best_row_and_the_print():
    net, x, t, starts = problem()
    found = minimize(net.objective(x, t, SquaredLoss()), starts, "LM", maxiter=10)
    best = int(np.argmin(found.fun))
    np.testing.assert_array_equal(found.best.x, found.x[best])
    assert found.best.fun == found.fun.min()
    assert found.best.best is found.best.best or found.best.best.fun == found.best.fun
    text = repr(found)
    assert f"of {len(starts)} rows" in text
    assert f"the lowest in row {best}" in text


def test_objectives_of_members_can_be_pickled():
    net, x, t, starts = problem(own=True)
    objective = net.objective(x, t, SquaredLoss())
    wanted = minimize(objective, starts, "LM", maxiter=3)
    found = minimize(pickle.loads(pickle.dumps(objective)), starts, "LM", maxiter=3)
    np.testing.assert_array_equal(found.x, wanted.x)


@pytest.mark.parametrize("method", ["LM", "BFGS", "SSBroyden", "L-BFGS"])
def test_rows_of_another_length_are_refused(method):
    """Before machine code reads beyond them."""
    net, x, t, starts = problem()
    for wrong in (starts[:, :3], starts[0, :3], np.zeros((2, 40))):
        with pytest.raises(ValueError, match=rf"`p` has shape {re.escape(str(wrong.shape))}, but `function` has 17 parameters"):
            minimize(net.objective(x, t, SquaredLoss()), wrong, method)


def test_no_rows_are_no_fits():
    net, x, t, starts = problem()
    found = minimize(net.objective(x, t, SquaredLoss()), starts[:0], "LM")
    assert (found.x.shape, found.fun.shape) == ((0, 17), (0,))
    assert "0 of 0 rows" in repr(found)


def test_rows_that_do_not_fit_are_refused():
    net, x, t, starts = problem(own=True)
    objective = net.objective(x, t, SquaredLoss())
    with pytest.raises(ValueError, match=r"`p` must have a row for each of the 5 members of `function`, got shape \(17,\)"):
        minimize(objective, starts[0], "LM")
    with pytest.raises(ValueError, match=r"a row for each of the 5 members of `function`, got shape \(4, 17\)"):
        minimize(objective, starts[:4], "LM")
    with pytest.raises(ValueError, match=r"wanted \(5, 17\), a row for each member"):
        objective(starts[:4])
    for given in ({"t": np.zeros((0, 30, 1))}, {"t": t[0], "weights": np.zeros((0, 30))}):
        with pytest.raises(ValueError, match="of no members"):
            net.objective(x[0], loss=SquaredLoss(), **given)
    with pytest.raises(ValueError, match="`t` must have shape"):
        net.objective(x, t[:, :7], SquaredLoss())


# Bounds


@pytest.mark.parametrize("method", ["LM", "L-BFGS"])
def test_bounds_are_kept_and_the_minimum_is_scipys(method):
    """From rows, with bounds that hold the minimum off: SciPy's trust region reflective ends at the same value from nearby."""
    optimize = pytest.importorskip("scipy.optimize")
    net, x, t, starts = problem(4)
    objective = net.objective(x, t, SquaredLoss())
    low, high = np.full(17, -1.5), 1.5
    low[3] = -1.25
    options = {"gtol": 1e-7, "ftol": 0.0, "maxiter": 3000, "bounds": (low, high)}
    found = minimize(objective, starts, method, **options)
    assert found.success.all()
    assert (found.x >= low).all()
    assert (found.x <= high).all()
    p, g = found.x, objective(found.x)[1]
    held = ((p == low) & (g > 0.0)) | ((p == high) & (g < 0.0))
    assert held.any()
    assert abs(g[~held]).max() <= 1e-7
    start = np.clip(found.x[found.fun.argmin()] + 1e-3, low + 1e-9, high - 1e-9)
    wanted = optimize.least_squares(objective.residuals, start, objective.jacobian, (low, high), xtol=1e-12, ftol=1e-12)
    assert found.fun.min() == pytest.approx(wanted.cost, rel=1e-6)
    assert_rows_are(found, [minimize(objective, p, method, **options) for p in starts])


@pytest.mark.parametrize("low", [[-1, -1, -1], None])
def test_a_bounded_bowl(low):
    found = minimize(
        lambda p: (float((p - 2.0) @ (p - 2.0)), 2.0 * (p - 2.0)), np.zeros(3), "L-BFGS", bounds=(low, [1, 3, np.inf])
    )
    np.testing.assert_allclose(found.x, [1.0, 2.0, 2.0], atol=1e-5)
    assert found.success


# In machine code


def reference(objective):
    """The same objective without machine code."""
    objective.compiled_fits = lambda *_: None
    return objective


@pytest.mark.parametrize("bounds", [None, (-1.0, 1.2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_machine_code_is_numpys_method(outputs, weighted, bounds):
    """The same decisions, and the same points to rounding."""
    net, rng = Chain(Dense(2, 5, tanh), Dense(5, outputs)), np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (100, 2))
    t = np.concatenate([np.sin(x[:, :1]), x[:, 1:] ** 2, x[:, :1] * x[:, 1:]], 1)[:, :outputs]
    weights = rng.integers(0, 3, 100).astype(float) if weighted else None
    if weighted:
        t[weights == 0.0] = np.nan
    start = net.init(seed=0, dtype=np.float64)
    makers = (lambda: net.objective(x, t, MSELoss(), weights=weights)), (lambda: net.objective(x, t, SquaredLoss()))
    for make in makers[: 1 if weighted else 2]:
        for steps in (0, 1, 4):
            options = {"maxiter": steps, "gtol": 0.0, "bounds": bounds}
            found = minimize(make(), start, "LM", **options)
            wanted = minimize(reference(make()), start, "LM", **options)
            assert (found.nit, found.nfev, found.message, found.success) == (
                wanted.nit, wanted.nfev, wanted.message, wanted.success,
            )  # fmt: skip
            np.testing.assert_allclose(found.x, wanted.x, rtol=1e-4, atol=1e-4)
            assert found.fun == pytest.approx(wanted.fun, rel=1e-5)
            np.testing.assert_allclose(found.jac, wanted.jac, rtol=1e-3, atol=1e-5)


def test_many_outputs_are_left_to_numpy():
    """Each output is a pullback in the program: those of a solution at many times would be compiled for half a minute."""
    x = np.linspace(-1.0, 1.0, 20)[:, None]
    for outputs in (MAX_RESIDUALS, MAX_RESIDUALS + 1):
        net = Chain(Dense(1, 3, tanh), Dense(3, outputs))
        objective, start = net.objective(x, np.sin(x * np.arange(outputs)), SquaredLoss()), net.init_many(2, seed=0)
        bounds = (np.full(start.shape, sign * np.inf) for sign in (-1.0, 1.0))
        fits = objective.compiled_fits(start.astype(np.float64), *bounds, 0.0, 0.0)
        assert (fits is None) == (outputs > MAX_RESIDUALS)
        assert (minimize(objective, start, "LM", maxiter=5).fun < objective(start)[0]).all()


def test_residual_problems_in_machine_code():
    points = np.linspace(0.0, 1.0, 30)[:, None]
    terms = [Term(lambda u: u.xx + u, points), Term(lambda u: u - 1.0, np.zeros((1, 1)), weight=3.0)]
    problem = ResidualProblem(("x",), ("u",), terms)
    net = Chain(Dense(1, 3, tanh), Dense(3, 1))
    start = net.init(seed=0, dtype=np.float64)
    for steps, tolerance in ((0, 1e-12), (1, 1e-2)):
        objectives = [net.objective(problem.x, problem.t, problem.loss) for _ in range(2)]
        options = {"maxiter": steps, "gtol": 0.0}
        found, wanted = (minimize(each, start, "LM", **options) for each in (objectives[0], reference(objectives[1])))
        assert found.nfev == wanted.nfev
        assert found.fun == pytest.approx(wanted.fun, rel=tolerance)
        if not steps:
            np.testing.assert_allclose(found.jac, wanted.jac, rtol=1e-10, atol=1e-12)


def test_frozen_parameters_stay():
    net, x, t, starts = problem()
    found = minimize(net.with_frozen("0.*").objective(x, t, SquaredLoss()), starts, "LM", maxiter=5)
    np.testing.assert_array_equal(found.x[:, :12], starts[:, :12])
    assert (found.x[:, 12:] != starts[:, 12:]).all()


def test_frozen_parameters_do_not_change_the_path_of_the_others():
    net, x, t, starts = problem()
    objective = net.with_frozen("0.*").objective(x, t, SquaredLoss())
    found, free = minimize(objective, starts, "LM", maxiter=2), objective.free
    for row, start in zip(found.x, starts, strict=True):
        alone = minimize(free, free.restrict(start), "LM", maxiter=2)
        np.testing.assert_allclose(free.select(row), alone.x, rtol=1e-9)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 31, 64])
def test_equations_of_every_size(n):
    """A linear fit is done in one step, at the solution of its normal equations."""
    rng = np.random.default_rng(n)
    net = Chain(Dense(n, 1, bias=False))
    x = rng.normal(size=(3 * n + 5, n))
    t = x @ rng.normal(size=(n, 1)) + 0.1 * rng.normal(size=(len(x), 1))
    found = minimize(net.objective(x, t, SquaredLoss()), 10.0 * np.ones(n), "LM", gtol=1e-10)
    np.testing.assert_allclose(found.x, np.linalg.lstsq(x, t, rcond=None)[0].ravel(), rtol=1e-9, atol=1e-9)


def test_long_runs_are_those_of_several_calls(monkeypatch):
    """Calls of a few iterations go on with the same bits."""
    net, x, t, starts = problem()
    objective = net.objective(x, t, SquaredLoss())
    wanted = minimize(objective, starts, "LM", maxiter=30)
    monkeypatch.setattr(rows, "MAX_ITERATIONS", 1)
    monkeypatch.setattr(rows, "CALL_SECONDS", 1e-9)
    assert_rows_are(minimize(objective, starts, "LM", maxiter=30), [wanted.row(k) for k in range(5)])
    seen = []
    alone = minimize(objective, starts[2], "LM", maxiter=30, callback=lambda p: seen.append(p))
    np.testing.assert_array_equal(alone.x, wanted.x[2])
    assert len(seen) == alone.nit
