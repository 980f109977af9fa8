"""Residual losses: exact against JAX and against differences, every piece by its name, wrong problems refused."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

import chains
from chains import ODE, Adam, Append, BatchNorm, Chain, Dense, Equations, Flatten, ResidualProblem, Select, Term, tanh, train
from chains.expr import cos, sin, sqrt
from chains.layers import Fourier, Layer, Periodic
from chains.program.recorder import Recorder
from tests.harness import BACKENDS

EVERY_BACKEND = sorted({"numpy", "native", *BACKENDS} - {"cupy"})
every_backend = pytest.mark.parametrize("backend", EVERY_BACKEND)
POINTS = np.random.default_rng(0).uniform(-1.0, 1.0, (30, 2))
EDGE = np.random.default_rng(1).uniform(-1.0, 1.0, (7, 2))


def small(backend: str = "numpy", outputs: int = 1) -> Chain:
    return Chain(Dense(2, 6, tanh), Dense(6, 5, "gelu"), Dense(5, outputs), backend=backend)


def pieces(net: Chain, p: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
    """The first output and its derivatives, by other calls."""
    u, du, d2u = net.derivatives(p, x, full=True)
    third = net.derivatives(p, x, 3)[3]
    first, second = du[:, 0].T, np.moveaxis(d2u[:, 0], 0, -1)
    return {
        "u": u[:, 0],
        "t": first[0],
        "x": first[1],
        "tt": second[0, 0],
        "tx": second[0, 1],
        "xx": second[1, 1],
        "xxx": third[:, 0, 1],
    }


@every_backend
def test_every_piece_is_the_derivative_of_its_name(backend):
    net = small(backend)
    p = net.init(seed=0, dtype=np.float64)
    found = pieces(net, p, POINTS)
    for name in ("t", "x", "tt", "tx", "xx", "xxx"):
        problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u, name=name: getattr(u, name) + 0.3 * u, POINTS)])
        wanted = np.mean((found[name] + 0.3 * found["u"]) ** 2)
        assert net.loss(p, problem.x, problem.t, problem.loss) == pytest.approx(wanted, rel=1e-11)
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.d("x", "t"), POINTS)])
    assert net.loss(p, problem.x, problem.t, problem.loss) == pytest.approx(np.mean(found["tx"] ** 2), rel=1e-11)


@every_backend
def test_terms_weights_data_and_coordinates(backend):
    net = small(backend)
    p = net.init(seed=1, dtype=np.float64)
    f, g = np.arange(30.0), np.linspace(0.0, 1.0, 7)
    problem = ResidualProblem(
        ("t", "x"), ("u",), [Term(lambda u, t, f: u.t - f * t, POINTS, {"f": f}), Term(lambda u, g: u - g, EDGE, {"g": g}, 3.0)]
    )
    inside, edge = pieces(net, p, POINTS), pieces(net, p, EDGE)
    wanted = np.mean((inside["t"] - f * POINTS[:, 0]) ** 2) + 3.0 * np.mean((edge["u"] - g) ** 2)
    assert net.loss(p, problem.x, problem.t, problem.loss) == pytest.approx(wanted, rel=1e-12)
    assert len(problem.x) == len(problem.t) == 37


@every_backend
def test_coupled_equations_of_several_outputs_and_a_transform(backend):
    net = small(backend, outputs=2)
    p = net.init(seed=2, dtype=np.float64)
    problem = ResidualProblem(
        ("t", "x"), ("u", "v"), [Term(lambda u, v: (u.t - v.x, u.xx + v), POINTS)],
        transform=lambda u, v, x: (x * x * u, v + x),
    )  # fmt: skip
    u, du, d2u = net.derivatives(p, POINTS, full=True)
    x = POINTS[:, 1]
    u_t, v_x, v = x * x * du[:, 0, 0], du[:, 1, 1] + 1.0, u[:, 1] + x
    u_xx = 2.0 * u[:, 0] + 4.0 * x * du[:, 0, 1] + x * x * d2u[:, 0, 1, 1]
    wanted = np.mean((u_t - v_x) ** 2 + (u_xx + v) ** 2)
    assert net.loss(p, problem.x, problem.t, problem.loss) == pytest.approx(wanted, rel=1e-11)
    found = problem.evaluate(net, p, POINTS)
    np.testing.assert_allclose(found["u"], x * x * u[:, 0], rtol=1e-12)
    np.testing.assert_allclose(found["v"], v, rtol=1e-12)


def test_burgers_as_in_jax(jax64):
    jax, jnp = jax64, jax64.numpy
    layers = Dense(2, 8, tanh), Dense(8, 8, tanh), Dense(8, 1)
    p = Chain(*layers).init(seed=3, dtype=np.float64)
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.t + u * u.x - 0.01 / math.pi * u.xx, POINTS)])

    def network(p, z):
        h, start = z, 0
        for layer, (inputs, outputs) in enumerate(((2, 8), (8, 8), (8, 1))):
            weight = p[start : start + inputs * outputs].reshape(inputs, outputs)
            bias = p[start + inputs * outputs : start + inputs * outputs + outputs]
            start += (inputs + 1) * outputs
            h = h @ weight + bias
            h = jnp.tanh(h) if layer < 2 else h
        return h[0]

    def residual(p, z):
        gradient = jax.grad(network, 1)
        second = jax.hessian(network, 1)(p, z)[1, 1]
        return gradient(p, z)[0] + network(p, z) * gradient(p, z)[1] - 0.01 / math.pi * second

    value, g = jax.jit(jax.value_and_grad(lambda p: jnp.mean(jax.vmap(lambda z: residual(p, z))(POINTS) ** 2)))(p)
    for backend in EVERY_BACKEND:
        found, gradient = Chain(*layers, backend=backend).value_and_grad(p, problem.x, problem.t, problem.loss)
        assert found == pytest.approx(float(value), rel=1e-12)
        np.testing.assert_allclose(gradient, g, rtol=1e-9, atol=1e-12 * float(np.abs(g).max()))


MIXED = ["xxy", "xyz", "xxxy", "xxyy", "xyyz"]


@every_backend
@pytest.mark.parametrize("name", MIXED)
def test_mixed_derivatives_of_waves(name, backend):
    """The output is a sum of v sin(w z + b). Derivatives multiply by entries of w, and move the sine by pi / 2."""
    sine = chains.activations.activation("sine", np.sin)
    net = Chain(Dense(3, 5, sine), Dense(5, 1), backend=backend)
    rng = np.random.default_rng(7)
    p, z = rng.normal(size=net.n_params), rng.uniform(-1, 1, (20, 3))
    weight, bias, last, _ = net.views(p).values()
    factors = np.prod([weight["xyz".index(axis)] for axis in name], 0)
    wanted = (factors * np.sin(z @ weight + bias + 0.5 * math.pi * len(name))) @ last[:, 0]
    term = Term(lambda u, seen: u.d(*name) - seen, z, {"seen": wanted + 1.0})
    problem = ResidualProblem(("x", "y", "z"), ("u",), [term])
    residuals = net.objective(problem.x, problem.t, problem.loss).residuals(p)
    np.testing.assert_allclose(residuals / residuals.mean(), 1.0, rtol=1e-10)
    assert net.loss(p, problem.x, problem.t, problem.loss) == pytest.approx(1.0, rel=1e-10)


@every_backend
def test_gradients_of_mixed_derivatives_as_differences(backend):
    net = small(backend)
    p = net.init(seed=4, dtype=np.float64)
    term = Term(lambda u: u.d("x", "x", "t", "t") + u * u.xxt - u.tttx + u.xx, POINTS)
    problem = ResidualProblem(("t", "x"), ("u",), [term], transform=lambda u, t, x: t * t * x * x * u)
    value, g = net.value_and_grad(p, problem.x, problem.t, problem.loss)
    v = np.random.default_rng(0).normal(size=p.size)
    ahead, back = (net.loss(p + step * v, problem.x, problem.t, problem.loss) for step in (1e-5, -1e-5))
    assert g @ v == pytest.approx((ahead - back) / 2e-5, rel=1e-6)
    assert value > 0.0


@pytest.mark.parametrize("kind", ["a feature that only a network takes", "constants of an ODE", "steps"])
def test_gradients_through_cotangents_that_are_zero_in_part(kind):
    if kind != "a feature that only a network takes":
        how = {"steps": 2} if kind == "constants of an ODE" else {"rtol": 1e-2, "max_steps": 12}
        rhs = Equations(
            lambda a, x, rate: -rate * a - x * x, ("a", "x"), networks={"rate": (Chain(Dense(1, 3, tanh), Dense(3, 1)), ("a",))}
        )
        net = Chain(ODE(rhs, [0.0, 0.5], given=1, **how), Flatten(), Select([1]), input_shape=(2,))
    else:
        rate = (Chain(Dense(1, 3, tanh), Dense(3, 1)), ("x",))
        net = Chain(Equations(lambda t, x, rate: rate * t, ("t", "x"), networks={"rate": rate}))
    p = net.init(seed=4, dtype=np.float64)
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.t + u * u.x + u.xx, POINTS)])
    g = net.value_and_grad(p, problem.x, problem.t, problem.loss)[1]
    v = np.random.default_rng(0).normal(size=p.size)
    ahead, back = (net.loss(p + step * v, problem.x, problem.t, problem.loss) for step in (1e-5, -1e-5))
    assert g @ v == pytest.approx((ahead - back) / 2e-5, rel=1e-6)


def test_the_bilaplacian_as_in_jax(jax64):
    jax, jnp = jax64, jax64.numpy
    net = Chain(Dense(2, 8, tanh), Dense(8, 1))
    p = net.init(seed=3, dtype=np.float64)
    problem = ResidualProblem(("x", "y"), ("u",), [Term(lambda u: u.xxxx + 2.0 * u.xxyy + u.yyyy, POINTS)])

    def network(p, z):
        return jnp.tanh(z @ p[:16].reshape(2, 8) + p[16:24]) @ p[24:32] + p[32]

    def twice(function, axis):
        first = lambda p, z: jax.jvp(lambda z: function(p, z), (z,), (jnp.eye(2)[axis],))[1]  # noqa: E731
        return lambda p, z: jax.jvp(lambda z: first(p, z), (z,), (jnp.eye(2)[axis],))[1]

    def bilaplacian(p, z):
        xx, yy = twice(network, 0), twice(network, 1)
        return twice(xx, 0)(p, z) + 2.0 * twice(xx, 1)(p, z) + twice(yy, 1)(p, z)

    mean = jax.jit(jax.value_and_grad(lambda p: jnp.mean(jax.vmap(lambda z: bilaplacian(p, z))(POINTS) ** 2)))
    value, g = mean(p)
    found, gradient = net.value_and_grad(p, problem.x, problem.t, problem.loss)
    assert found == pytest.approx(float(value), rel=1e-10)
    np.testing.assert_allclose(gradient, g, rtol=1e-9, atol=1e-11 * float(np.abs(g).max()))


def test_a_clamped_plate_is_solved():
    """The biharmonic equation with the solution sin(pi x)^2 sin(pi y)^2: zero at the edge, and so are its slopes."""
    rng, k = np.random.default_rng(0), 2.0 * math.pi

    def plate(u, x, y):
        a, b = cos(k * x), cos(k * y)  # the solution is (1 - a) (1 - b) / 4
        load = k**4 * (4.0 * a * b - a - b) / 4.0
        return (u.xxxx + 2.0 * u.d("x", "x", "y", "y") + u.yyyy - load) / k**4

    problem = ResidualProblem(
        ("x", "y"), ("u",), [Term(plate, rng.uniform(0, 1, (200, 2)))],
        transform=lambda u, x, y: (16.0 * x * (1 - x) * y * (1 - y)) ** 2 * u,
    )  # fmt: skip
    net = Chain(Dense(2, 10, tanh), Dense(10, 1))
    start = net.init(seed=0, dtype=np.float64)
    result = net.objective(problem.x, problem.t, problem.loss).minimize(start, options={"maxiter": 200})
    x, y = (points := rng.uniform(0, 1, (500, 2))).T
    wanted = np.sin(math.pi * x) ** 2 * np.sin(math.pi * y) ** 2
    error = problem.evaluate(net, result.x, points)["u"] - wanted
    assert np.linalg.norm(error) < 1e-2 * np.linalg.norm(wanted)


def test_an_unknown_coefficient_is_found():
    """u = exp(-k t) with k = 0.7 from its values: k is trained along as an output."""
    t = np.linspace(0.0, 2.0, 40)[:, None]
    net = Chain(Dense(1, 8, tanh), Dense(8, 1), Append(k=0.1))
    terms = [Term(lambda u, k: u.t + k * u, t), Term(lambda u, seen: u - seen, t, {"seen": np.exp(-0.7 * t[:, 0])})]
    problem = ResidualProblem(("t",), ("u", "k"), terms)
    result = net.objective(problem.x, problem.t, problem.loss).minimize(net.init(seed=0, dtype=np.float64), tol=1e-9)
    assert net.views(result.x)["2.k"][0] == pytest.approx(0.7, abs=5e-3)


def test_training_lowers_the_residual_and_equal_problems_share_programs():
    net = small("native")
    p = net.init(seed=0, dtype=np.float64)
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u, x: u.xx + sin(x), POINTS)])
    before = net.loss(p, problem.x, problem.t, problem.loss)
    train(net, p, problem.x, problem.t, problem.loss, Adam(1e-2), epochs=200, batch_size=None)
    assert net.loss(p, problem.x, problem.t, problem.loss) < 0.1 * before
    again = ResidualProblem(("t", "x"), ("u",), [Term(lambda u, x: u.xx + sin(x), EDGE)])
    assert again.loss == problem.loss
    assert hash(again.loss) == hash(problem.loss)
    for twin in (pickle.loads(pickle.dumps(problem.loss)), copy.deepcopy(problem.loss)):
        assert twin == problem.loss


# Features for residuals


def slope_along(net: Chain, problem: ResidualProblem, p: np.ndarray, v: np.ndarray, step: float = 1e-5) -> float:
    """The central difference of the loss along v."""
    above, below = (net.loss(p + sign * step * v, problem.x, problem.t, problem.loss) for sign in (1.0, -1.0))
    return (above - below) / (2.0 * step)


TOP = Term(lambda u: u.xxxx + u * u.t - u.d("t", "x") + u.xx, POINTS)  # derivatives up to the highest order


@every_backend
@pytest.mark.parametrize("trained", [False, True])
def test_residuals_of_fourier_features_are_those_of_their_waves(trained, backend):
    net = Chain(Fourier(2, 3, 0.4, trained=trained), Dense(6, 1), backend=backend)
    p = net.init(seed=5, dtype=np.float64)
    frequencies, weight, bias = net.views(p).values()
    t, x = 2.0 * math.pi * frequencies
    angles = POINTS @ np.array([t, x])

    def along(order, factors):
        turned = angles + 0.5 * math.pi * order
        return (factors * np.sin(turned)) @ weight[:3, 0] + (factors * np.cos(turned)) @ weight[3:, 0]

    u = along(0, 1.0) + bias
    residual = along(4, x**4) + u * along(1, t) - along(2, t * x) + along(2, x * x)
    problem = ResidualProblem(("t", "x"), ("u",), [TOP])
    value, g = net.value_and_grad(p, problem.x, problem.t, problem.loss)
    assert value == pytest.approx(np.mean(residual**2), rel=1e-10)
    v = np.random.default_rng(6).normal(size=p.shape)
    v[: frequencies.size] *= trained
    assert g @ v == pytest.approx(slope_along(net, problem, p, v), rel=1e-6)
    for method in ("BFGS", "LM"):
        found = chains.minimize(net.objective(problem.x, problem.t, problem.loss), p, method, maxiter=5)
        assert found.fun < 0.9 * value
        assert np.array_equal(found.x[: frequencies.size], frequencies.ravel()) != trained


@every_backend
def test_periodic_inputs_give_periodic_derivatives(backend):
    net = Chain(Periodic((None, 2.0), 2), Dense(5, 6, tanh), Dense(6, 1), backend=backend)
    p = net.init(seed=5, dtype=np.float64)
    problem, later = (
        ResidualProblem(("t", "x"), ("u",), [replace(TOP, points=POINTS + np.array([0.0, shift]))]) for shift in (0.0, 2.0)
    )
    here, there = (net.objective(each.x, each.t, each.loss) for each in (problem, later))
    np.testing.assert_allclose(here.residuals(p), there.residuals(p), rtol=1e-9, atol=1e-9 * np.abs(here.residuals(p)).max())
    v = np.random.default_rng(6).normal(size=p.shape)
    assert here.gradient(p) @ v == pytest.approx(slope_along(net, problem, p, v), rel=1e-6)
    # A linear layer behind sines: the fourth derivative is known.
    line = Chain(Periodic(2.0, 1), Dense(2, 1, bias=False), backend=backend)
    x = POINTS[:, :1]
    wave = ResidualProblem(("x",), ("u",), [Term(lambda u: u.xxxx - math.pi**4 * u, x)])
    q = np.array([0.7, -0.4])
    assert line.loss(q, wave.x, wave.t, wave.loss) < 1e-22
    np.testing.assert_allclose(line(x, q), 0.7 * np.sin(math.pi * x) - 0.4 * np.cos(math.pi * x), atol=1e-14)


# Points drawn by the residual


def drawn_from(coordinates: list[float], **settings) -> np.ndarray:
    """How often each candidate is drawn alone, of 1,000 draws; its residual is its coordinate."""
    net = Chain(Dense(1, 1))
    p = net.init(dtype=np.float64)
    problem = ResidualProblem(("x",), ("u",), [Term(lambda u, x: 0.0 * u + x, [[0.5]])])
    candidates = np.array(coordinates)[:, None]
    picks = [problem.resampled(net, p, candidates, seed, **settings).x[0, 0] for seed in range(1000)]
    return np.array([np.mean(np.equal(picks, each)) for each in coordinates])


@pytest.mark.parametrize(("k", "c"), [(1.0, 1.0), (2.0, 0.0), (0.5, 2.0), (0.0, 0.0)])
def test_candidates_are_drawn_by_the_power_of_the_residual(k, c):
    r = np.array([0.0, 1.0, -2.0, 4.0])
    powers = np.abs(r) ** k
    wanted = powers / powers.mean() + c
    wanted /= wanted.sum()
    settings = {} if (k, c) == (1.0, 1.0) else {"k": k, "c": c}
    assert (np.abs(drawn_from([*r], **settings) - wanted) <= 4.0 * np.sqrt(wanted * (1.0 - wanted) / 1000)).all()


@every_backend
def test_problems_drawn_anew_run_the_same_programs(backend, monkeypatch):
    net = small(backend)
    p = net.init(seed=0, dtype=np.float64)
    problem = ResidualProblem(
        ("t", "x"), ("u",), [Term(lambda u, x: u.xx + sin(9.0 * x), POINTS), Term(lambda u: u, EDGE, weight=3.0)],
        transform=lambda u, t: t * u,
    )  # fmt: skip
    candidates = np.random.default_rng(2).uniform(-1.0, 1.0, (200, 2))

    def use(problem: ResidualProblem, seed: int = 0) -> tuple[ResidualProblem, float]:
        train(net, p, problem.x, problem.t, problem.loss, Adam(1e-3), epochs=2, batch_size=None)
        value, _ = net.objective(problem.x, problem.t, problem.loss)(p)
        return problem.resampled(net, p, [candidates, None], seed), value

    following, _ = use(problem)
    recorded, finish = [], Recorder.finish
    monkeypatch.setattr(Recorder, "finish", lambda ops: recorded.append(ops.name) or finish(ops))
    first, programs = following, len(chains.network.network.network_of(net).programs)
    for seed in range(1, 4):
        following, _ = use(following, seed)
    assert recorded == []
    assert len(chains.network.network.network_of(net).programs) == programs
    for each in (first, following):
        assert each.loss is problem.loss
        assert each.x.shape == problem.x.shape
        inside = {tuple(row) for row in each.x[:30]}
        assert len(inside) == 30  # each once
        assert inside <= {tuple(row) for row in candidates}
        np.testing.assert_array_equal(each.x[30:], EDGE)
        np.testing.assert_array_equal(each.t, problem.t)
    assert not np.array_equal(first.x, following.x)
    assert ResidualProblem(("t", "x"), ("u",), first.terms).x.tobytes() == first.x.tobytes()


def test_data_and_weights_are_drawn_with_their_points():
    net = small()
    p = net.init(seed=0, dtype=np.float64)
    term = Term(lambda u, f, g: u.x - f * g, EDGE, {"f": EDGE[:, 0], "g": 2.0}, np.arange(7.0))
    problem = ResidualProblem(("t", "x"), ("u",), [term])
    drawn = problem.resampled(
        net, p, replace(term, points=POINTS, data={"f": POINTS[:, 0], "g": 2.0}, weight=POINTS[:, 1] ** 2)
    )
    np.testing.assert_array_equal(drawn.t[:, 1], drawn.x[:, 0])
    np.testing.assert_array_equal(drawn.t[:, 2], 2.0)
    np.testing.assert_allclose(drawn.t[:, 0], drawn.x[:, 1] ** 2, rtol=1e-15)
    again = problem.resampled(net, p, [drawn.terms[0]], seed=3, c=0.5)  # all of them, in another order
    assert {tuple(row) for row in again.x} == {tuple(row) for row in drawn.x}
    assert problem.terms == (term,)


def test_steep_places_get_more_points():
    """The candidates near a steep front are drawn more often than others."""
    net = Chain(Dense(1, 1))
    problem = ResidualProblem(("x",), ("u",), [Term(lambda u, x: 0.0 * u + 1.0 / (1e-3 + x * x), np.zeros((50, 1)))])
    candidates = np.linspace(-1.0, 1.0, 1001)[:, None]
    near = [np.mean(np.abs(problem.resampled(net, net.init(), candidates, k=k, c=0.0).x) < 0.1) for k in (0.0, 1.0, 2.0)]
    assert near[0] < 0.25 < near[1] < near[2]


WRONG = [
    (lambda: ResidualProblem("t", ("u",), []), TypeError, "`coordinates` (='t')"),
    (lambda: ResidualProblem(("t", "t"), ("u",), []), ValueError, "names one twice"),
    (lambda: ResidualProblem(("t",), ("t",), [Term(lambda t: t, EDGE[:, :1])]), ValueError, "`t` is the name of a coordinate"),
    (lambda: ResidualProblem(("t", "x"), ("u",), []), TypeError, "`terms` (=[])"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u, EDGE[:, :1])]), ValueError, "wanted (n, 2)"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u, EDGE[:0])]), ValueError, "at least one point"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda w: w, EDGE)]), ValueError, "takes `w`"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.z, EDGE)]), ValueError, "`z` is not made of"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.xxxxx, EDGE)]), ValueError, "up to order 4"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.xxttt, EDGE)]), ValueError, "up to order 4"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term("u", EDGE)]), TypeError, "must be a formula"),
    (lambda: ResidualProblem(("t", "x"), ("u",), Term(lambda u: u, EDGE)), TypeError, "must be a list of Term"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(EDGE, lambda u: u)]), TypeError, "are a function: write Term("),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u, EDGE, np.ones(7))]), TypeError, "must be arrays by name"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.d(1), EDGE)]), TypeError, "`d` takes the names"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.d(), EDGE)]), TypeError, "`d` takes the names"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.x.x, EDGE)]), TypeError, "a second derivative is `u.tt`"),
    (
        lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u, EDGE)], transform=lambda u: None),
        TypeError,
        "`transform`: a formula is made of",
    ),
    (
        lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u, EDGE)], transform=lambda u: u.x),
        TypeError,
        "`transform`: a formula has no `x`",
    ),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u, f: u, EDGE, {"f": np.ones(3)})]), ValueError, "7 points"),
    (lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u, EDGE, weight=-1.0)]), ValueError, "`weight` (=-1.0)"),
    (
        lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u, EDGE)], transform=lambda u: (u, u)),
        ValueError,
        "gives 2 numbers for 1 outputs",
    ),
    (
        lambda: ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.x, POINTS), Term(lambda u: math.sin(u), POINTS)]),
        TypeError,
        "the residual of term 1: cannot convert",
    ),
]


@pytest.mark.parametrize(("make", "error", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_problems_that_make_no_sense(make, error, words):
    with pytest.raises(error) as found:
        make()
    assert words in str(found.value)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_candidates_that_make_no_sense():
    net = small()
    p = net.init(dtype=np.float64)
    root = Term(lambda u, x: 0.0 * u + sqrt(x), np.abs(EDGE))
    data = Term(lambda u, f: u - f, EDGE, {"f": 1.0}, 2.0)
    weighted = Term(lambda u: u, EDGE, weight=np.ones(7))
    problem = ResidualProblem(("t", "x"), ("u",), [root, data, weighted])
    inside = np.abs(POINTS)
    wrong = [
        ([inside], {}, TypeError, "must be a list of 3: an array of points, or None, for each term"),
        (inside, {}, TypeError, "`candidates` (=an array of float64, shape (30, 2)) must be a list of 3"),
        ([inside[:, :1], None, None], {}, ValueError, "the `points` of term 0 have shape (30, 1)"),
        ([inside[:5], None, None], {}, ValueError, "term 0 has 7 points, but 5 candidates"),
        (
            [np.eye(30)[:, :2], None, None], {"c": 0.0}, ValueError,
            "term 0 has 7 points, but 30 candidates, of which 29 have a residual of 0: pass c=1",
        ),
        ([-inside, None, None], {}, ValueError, "the residual of term 0 is nan at candidate 0"),
        ([replace(root, residual=abs), None, None], {}, ValueError, "the candidates of term 0 have another residual"),
        ([None, EDGE, None], {}, ValueError, "term 1 has data, and its candidates have none: pass dataclasses.replace(term"),
        ([None, replace(data, data=None), None], {}, ValueError, "of term 1 have the data [], and the term ['f']"),
        ([None, replace(data, weight=1.0), None], {}, ValueError, "of term 1 have the weight 1.0, and the term 2.0"),
        ([None, None, EDGE], {}, ValueError, "term 2 has a weight for each point, and its candidates have none"),
        ([inside, None, None], {"k": -1.0}, ValueError, "`k` (=-1.0)"),
        ([inside, None, None], {"c": "1"}, TypeError, "`c` (='1')"),
        ([inside, None, None], {"seed": -1}, ValueError, "`seed` (=-1)"),
    ]  # fmt: skip
    for candidates, settings, error, words in wrong:
        with pytest.raises(error) as found:
            problem.resampled(net, p, candidates, **settings)
        assert words in str(found.value)
    problem.resampled(net, p, [0.0 * inside, None, None], c=0.0)  # residuals of 0 everywhere: all have the same probability


def test_a_loss_is_printed_with_its_equations():
    terms = [Term(lambda u, v, f: (u.t - f * u.xx, v.d("x", "t")), EDGE, {"f": 1.0})]
    problem = ResidualProblem(("t", "x"), ("u", "v"), terms, transform=lambda u, v, x: (x * u, v))
    assert repr(problem.loss) == "ResidualLoss(u.t - (f * u.xx), v.tx; transform=x * u, v)"


@pytest.mark.parametrize("f", ["relu", "leaky_relu", chains.activation("hat", lambda x: abs(x - 1.0))], ids=str)
def test_piecewise_linear_networks_are_refused_for_second_derivatives(f):
    def value(net, residual):
        problem = ResidualProblem(("t", "x"), ("u",), [Term(residual, POINTS)])
        return net.loss(net.init(dtype=np.float64), problem.x, problem.t, problem.loss)

    net = Chain(Dense(2, 4, f), Dense(4, 1), backend="numpy")
    with pytest.raises(ValueError, match=f"order 2, which are zero everywhere for this network, since its activation {f} is"):
        value(net, lambda u: u.t - u.xx)
    assert value(net, lambda u: u.t - u.x) > 0.0
    assert value(Chain(Dense(2, 4, tanh), Dense(4, 4, f), Dense(4, 1), backend="numpy"), lambda u: u.t - u.xx) > 0.0
    assert value(Chain(Dense(2, 1), backend="numpy"), lambda u: 1.0 + u.xx) == 1.0


class Bent(Layer):
    """y = x * x with a wrong pullback: `formula` of the cotangent and x is not linear in the cotangent."""

    def __init__(self, formula):
        self.formula = formula

    def declare(self, d):
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda x: x * x, x)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.map(dx, self.formula, dy, x)


@pytest.mark.parametrize(("formula", "words"), [
    (lambda dy, x: dy + x, "a cotangent plus another number"), (lambda dy, x: x - dy, "a cotangent plus another number"),
    (lambda dy, x: dy * dy, "`mul` of a cotangent"), (lambda dy, x: x / dy, "`div` of a cotangent"),
])  # fmt: skip
def test_a_pullback_that_is_not_linear_is_named(formula, words):
    net = Chain(Dense(2, 2), Bent(formula), Dense(2, 1), backend="numpy")
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.x, POINTS)])
    with pytest.raises(NotImplementedError, match=f"{words} is not linear, as a pullback must be"):
        net.value_and_grad(net.init(dtype=np.float64), problem.x, problem.t, problem.loss)


def test_data_of_another_problem_and_batch_statistics_are_refused():
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.x, POINTS)])
    net = small()
    p = net.init(dtype=np.float64)
    with pytest.raises(ValueError, match=r"pass `problem\.t`"):
        net.value_and_grad(p, problem.x, np.ones((30, 2)), problem.loss)
    wide = small(outputs=2)
    with pytest.raises(ValueError, match="do not go with the outputs u"):
        wide.value_and_grad(wide.init(dtype=np.float64), problem.x, problem.t, problem.loss)
    net = Chain(Dense(2, 4), BatchNorm(4), Dense(4, 1))
    with pytest.raises(ValueError, match="batch statistics"):
        net.value_and_grad(net.init(dtype=np.float64), problem.x, problem.t, problem.loss, state=net.init_state(np.float64))


def test_printed_problem():
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.x, POINTS), Term(lambda u: u, EDGE)])
    assert repr(problem) == "<residual problem of u in t, x: 2 terms, 37 points>"
    assert repr(problem.terms[1]) == "<term: <lambda> at an array of float64, shape (7, 2), weight 1.0>"
    assert repr(Term(math.sin, [[0.5]], {"f": [1.0]}, 2)) == "<term: sin at [[0.5]], data f, weight 2>"
    assert chains.Term is Term
