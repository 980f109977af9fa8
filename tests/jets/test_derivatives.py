"""Input derivatives, Hessian products and Jacobians against differences of what they are derivatives of."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import chains
from chains.network.network import network_of
from tests.harness import BACKENDS, CASES, Case, Kink, away_from_kinks

pytestmark = pytest.mark.few(12)

ALL = sorted({"numpy", "native", *BACKENDS} - {"cupy"})
REFUSED = [case for case in CASES if any(name in case.name for name in ("overlapping", "MaxPool-padded", "MaxPool-signal"))]
REFUSED = [case for case in REFUSED if any(isinstance(layer, chains.MaxPool) for layer in case.layers)]
WITHOUT_SERIES = [case for case in CASES if case.subject is chains.SteadyState]  # tests/layers/test_steady.py
# Each compiled case is three programs and more to compile: every seventh is, unless that backend alone is tested.
COMPILED = set(CASES) if BACKENDS == ("native",) else set(CASES[::7])
CHOSEN = [
    (case, name)
    for case in CASES
    for name in ALL
    if case not in REFUSED + WITHOUT_SERIES and (name == "numpy" or case in COMPILED)
]
every_case = pytest.mark.parametrize(("case", "backend"), CHOSEN, ids=str)
every_case_of_real_inputs = pytest.mark.parametrize(
    ("case", "backend"), [(case, name) for case, name in CHOSEN if network_of(case.net()).id_count is None], ids=str
)
STEP = 1e-5


def slope(function, what: str = "") -> np.ndarray:
    """The central difference of a function of a number at 0, whose error is seen from twice the step."""
    fine, coarse = ((function(h) - function(-h)) / (2 * h) for h in (STEP, 2 * STEP))
    if np.abs(fine - coarse).max(initial=0.0) > 1e-5 * (1.0 + np.abs(fine).max(initial=0.0)):
        raise Kink(what)
    return fine


def assert_near(actual: np.ndarray, wanted: np.ndarray, what: str, tolerance: float = 2e-6) -> None:
    assert actual.shape == wanted.shape, what
    size = 1.0 + np.abs(wanted).max(initial=0.0)
    assert np.abs(actual - wanted).max(initial=0.0) <= tolerance * size, what


@every_case_of_real_inputs
def test_each_input_derivative_is_the_slope_of_the_one_before(case: Case, backend: str):
    net = case.net(backend)
    order = 3

    def at(seed: int):
        problem = case.problem(2, seed)
        state = problem.state if net.n_state else None
        v = np.random.default_rng(seed).normal(size=(2, *net.input_shape))
        found = net.derivatives(problem.p, problem.x, order, v, state=state)
        lower = [
            np.stack([
                slope(lambda h, k=k, d=d: net.derivatives(problem.p, problem.x + h * v[d], order, v, state=state)[k][..., d])
                for d in range(2)
            ], axis=-1)
            for k in range(1, order)
        ]  # fmt: skip
        first = [slope(lambda h, d=d: net(problem.x + h * v[d], problem.p, state=state)) for d in range(2)]
        return found, [np.stack(first, axis=-1), *lower], net(problem.x, problem.p, state=state)

    found, wanted, outputs = away_from_kinks(at)
    assert_near(found[0], outputs, "outputs", 1e-13)
    for k in range(order):
        assert_near(found[k + 1], wanted[k], f"order {k + 1}")


@every_case
def test_a_hessian_product_is_the_slope_of_the_gradient(case: Case, backend: str):
    net = case.net(backend)

    def at(seed: int):
        problem = case.problem(3, seed)
        state = problem.state if net.n_state else None
        v, u = np.random.default_rng(seed).normal(size=(2, net.n_params))
        kwargs = {"weights": problem.w, "penalty": case.penalty, "state": state}
        for name in net.frozen:
            net.views(v)[name][...] = 0.0

        def gradient(h: float) -> np.ndarray:
            return net.value_and_grad(problem.p + h * v, problem.x, problem.t, case.loss, mode="eval", **kwargs)[1]

        hv, hu = (net.hvp(problem.p, problem.x, problem.t, case.loss, each, **kwargs) for each in (v, u))
        return hv, slope(gradient), float(u @ hv), float(v @ hu)

    hv, wanted, uhv, vhu = away_from_kinks(at)
    assert_near(hv, wanted, "Hessian product")
    assert uhv == pytest.approx(vhu, rel=1e-9, abs=1e-9)


@every_case
def test_jacobians_are_stacked_pullbacks(case: Case, backend: str):
    net = case.net(backend)
    problem = case.problem(1 if case.subject is chains.SDE else 3)  # the noise of a sample depends on its number
    state = problem.state if net.n_state else None
    p, x, outputs = problem.p, problem.x, int(np.prod(net.output_shape, dtype=int))
    j = net.jacobian(p, x, state=state).reshape(len(x), outputs, net.n_params)
    ids = network_of(net).id_count is not None
    i = np.zeros((len(x), outputs, *net.input_shape))
    i = i if ids else net.input_jacobian(p, x, state=state).reshape(i.shape)
    eye = np.eye(outputs).reshape(outputs, 1, *net.output_shape)
    for sample in range(len(x)):
        for output in range(outputs):
            dp, dx = net.vjp(p, x[sample : sample + 1], eye[output], state=state)
            assert_near(j[sample, output], dp, f"sample {sample}, output {output}", 1e-12)
            assert_near(i[sample, output], dx[0], f"inputs, sample {sample}, output {output}", 1e-12)


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_max_pools_of_overlapping_windows_are_refused(case: Case):
    net, problem = case.net(), case.problem(2)
    state = problem.state if net.n_state else None
    with pytest.raises(NotImplementedError, match="max pools are available where windows do not overlap"):
        net.derivatives(problem.p, problem.x, state=state)


def test_orders_directions_and_outputs_that_make_no_sense():
    net = chains.Chain(chains.Dense(2, 3, chains.tanh), chains.Dense(3, 1))
    p, x = net.init(dtype=np.float64), np.ones((4, 2))
    wrong = [
        (lambda: net.derivatives(p, x, 0), "`order` (=0) must be a whole number from 1 to 4"),
        (lambda: net.derivatives(p, x, 5), "`order` (=5)"),
        (lambda: net.derivatives(p, x, True), "`order` (=True)"),
        (lambda: net.derivatives(p, x, 1, full=True), "`full` is for order 2"),
        (lambda: net.derivatives(p, x, 2, np.ones((3, 3))), "`directions` has shape (3, 3): wanted (directions, 2)"),
        (lambda: net.derivatives(p, x, 2, np.ones((3, 1, 2))), "(4, directions, 2)"),
        (lambda: net.derivatives(p, x, 2, out=(np.empty((4, 1)),)), "`out` must be a tuple of 3 arrays"),
        (lambda: net.derivatives(p, np.ones((4, 3))), "`x` must have shape (batch, 2)"),
        (lambda: net.jacobian(p, x, out=np.empty((4, 1, 3))), "`out`"),
    ]
    for call, words in wrong:
        with pytest.raises((TypeError, ValueError)) as found:
            call()
        assert words in str(found.value)


def test_many_inputs_and_outputs_go_in_several_calls():
    net = chains.Chain(chains.Dense(20, 6, chains.tanh), chains.Dense(6, 19))
    p, x = net.init(dtype=np.float64), np.random.default_rng(0).normal(size=(3, 20))
    _, du, d2u = net.derivatives(p, x)
    directions = np.eye(20)
    for start in (0, 10):
        _, first, second = net.derivatives(p, x, 2, directions[start : start + 10])
        np.testing.assert_allclose(du[..., start : start + 10], first, rtol=1e-12)
        np.testing.assert_allclose(d2u[..., start : start + 10], second, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(net.laplacian(p, x), d2u.sum(-1), atol=1e-12)
    np.testing.assert_allclose(net.input_jacobian(p, x), du, atol=1e-13)
    assert net.jacobian(p, x).shape == (3, 19, net.n_params)
    hessians = net.derivatives(p, x, full=True)[2]
    np.testing.assert_allclose(hessians[..., range(20), range(20)], d2u, atol=1e-13)
    step = 1e-5 * directions[3]
    slope = (net.input_jacobian(p, x + step) - net.input_jacobian(p, x - step)) / 2e-5
    np.testing.assert_allclose(hessians[..., 3], slope, atol=1e-8)


def test_own_directions_of_each_point_and_given_outputs():
    net = chains.Chain(chains.Dense(2, 5, chains.tanh), chains.Dense(5, 2))
    p, x = net.init(dtype=np.float64), np.random.default_rng(0).normal(size=(4, 2))
    v = np.random.default_rng(1).normal(size=(4, 3, 2))
    found = net.derivatives(p, x, 3, v)
    for sample in range(4):
        for k, one in enumerate(net.derivatives(p, x[sample : sample + 1], 3, v[sample])):
            np.testing.assert_allclose(found[k][sample], one[0], rtol=1e-12)
    out = tuple(np.full(each.shape, np.nan) for each in found)
    assert net.derivatives(p, x, 3, v, out=out)[2] is out[2]
    for given, fresh in zip(out, found, strict=True):
        np.testing.assert_array_equal(given, fresh)


def test_gauss_newton_is_positive_and_exact_for_linear_networks():
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    loss = chains.MSELoss()
    linear = chains.Chain(chains.Dense(3, 2))
    p, v = rng.normal(size=(2, linear.n_params))
    np.testing.assert_allclose(linear.gauss_newton(p, x, t, loss, v), linear.hvp(p, x, t, loss, v), rtol=1e-12)
    net = chains.Chain(chains.Dense(3, 5, chains.tanh), chains.Dense(5, 2))
    p, v = rng.normal(size=(2, net.n_params))
    rows = net.jacobian(p, x).reshape(18, -1)
    np.testing.assert_allclose(net.gauss_newton(p, x, t, loss, v), rows.T @ (rows @ v) * 2 / 18, rtol=1e-10, atol=1e-12)


@every_case
def test_gradients_of_samples_add_up_to_the_gradient(case: Case, backend: str):
    net, problem = case.net(backend), case.problem(3)
    state = problem.state if net.n_state else None
    kwargs = {"weights": problem.w, "state": state}
    try:
        rows = net.sample_gradients(problem.p, problem.x, problem.t, case.loss, **kwargs)
    except NotImplementedError as error:
        assert "a sample's part" in str(error)  # noqa: PT017
        return
    assert rows.shape == (3, net.n_params)
    wanted = net.value_and_grad(problem.p, problem.x, problem.t, case.loss, mode="eval", **kwargs)[1]
    assert_near(rows.mean(axis=0), wanted, "mean", 1e-12)


def test_a_steady_product_allocates_no_array():
    net = chains.Chain(chains.Dense(4, 32, chains.tanh), chains.Dense(32, 4), backend="native")
    p = net.init(seed=0)
    x, t, v, out = np.ones((200, 4), np.float32), np.ones((200, 4), np.float32), np.ones_like(p), np.empty_like(p)
    loss = chains.MSELoss()
    for _ in range(5):
        net.hvp(p, x, t, loss, v, out=out)
    tracemalloc.start()
    for _ in range(50):
        net.hvp(p, x, t, loss, v, out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000
