"""Weights of single targets: those of weight 0 may be NaN, in every call that takes weights."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import chains
from chains import (
    GRU,
    SGD,
    Adam,
    BCEWithLogitsLoss,
    Chain,
    CrossEntropyLoss,
    Dense,
    HuberLoss,
    L1Loss,
    MSELoss,
    SquaredLoss,
    sample,
    tanh,
    train,
)
from chains.expr import exp, log
from chains.losses import GaussianNLLLoss, PoissonNLLLoss, QuantileLoss
from tests.harness import ROUNDING, assert_close, targets

POISSON = chains.loss("poisson", lambda y, t: exp(y) - t * y + t * log(t))  # not finite for targets of 0 or NaN
LOSSES = [
    (SquaredLoss(), "real"),
    (MSELoss(), "real"),
    (L1Loss(), "real"),
    (HuberLoss(0.5), "real"),
    (BCEWithLogitsLoss(), "fractions"),
    (CrossEntropyLoss(), "labels"),
    (CrossEntropyLoss(), "probabilities"),
    (POISSON, "fractions"),
    (PoissonNLLLoss(full=True), "counts"),
    (GaussianNLLLoss(log_variance=True), "halves"),
    (QuantileLoss(0.8), "real"),
    (QuantileLoss([0.1, 0.7]), "halves"),
]
every_loss = pytest.mark.parametrize(("loss", "kind"), LOSSES, ids=str)


class Data:
    """A network, with targets some of which are not there."""

    def __init__(self, kind, backend, shape=(2, 3), members=0):
        rng = np.random.default_rng(3)
        self.net = Chain(Dense(3, 5, tanh), Dense(5, 4), input_shape=shape, backend=backend)
        self.p = self.net.init(seed=1, dtype=np.float64)
        self.x = rng.normal(size=(6, *shape))
        self.whole = targets(kind, rng, 6, self.net.output_shape)
        more = (members,) if members else ()
        self.w = rng.uniform(0.5, 2.0, (*more, *self.whole.shape)) * (rng.uniform(size=(*more, *self.whole.shape)) > 0.4)
        self.t = np.where(self.w == 0, np.nan, self.whole)

    def filled(self, t):
        """The targets of weight 0 in place of which there is a number."""
        return np.where(self.w == 0, np.flip(self.whole, 0), t)


def same(a, b):
    return all(np.array_equal(one, other) and np.isfinite(one).all() for one, other in zip(a, b, strict=True))


@every_loss
@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
def test_targets_of_weight_zero_count_nothing(loss, kind, shape, dtype, backend_name):
    data = Data(kind, backend_name, shape)
    net, p, x, w = data.net, data.p.astype(dtype), data.x, data.w

    def results(t):
        yield from net.value_and_grad(p, x, t, loss, weights=w, check_finite=True)
        yield net.loss(p, x, t, loss, weights=w)
        yield from net.objective(x, t, loss, weights=w)(p)
        yield net.hvp(p, x, t, loss, p, weights=w)
        yield net.gauss_newton(p, x, t, loss, p, weights=w)
        yield net.sample_gradients(p, x, t, loss, weights=w)

    found = [*results(data.t)]
    assert same(found, results(data.filled(data.t)))
    assert_close(np.mean(found[-1], axis=0), found[1], ROUNDING[np.dtype(dtype)])


@every_loss
def test_samples_of_weight_zero_may_have_no_targets(loss, kind, backend_name):
    data, w = Data(kind, backend_name), np.array([1.0, 0.0, 2.0, 0.5, 0.0, 1.0])
    t = data.whole.astype(float)
    t[w == 0] = np.nan
    found = data.net.value_and_grad(data.p, data.x, t, loss, weights=w, check_finite=True)
    assert same(found, data.net.value_and_grad(data.p, data.x, data.whole, loss, weights=w))
    column = w.reshape(-1, *[1] * (t.ndim - 1))
    for k, each in enumerate(data.net.value_and_grad(data.p, data.x, t, loss, weights=column)):
        assert_close(each, found[k], 1e-13)
    nothing = data.net.value_and_grad(data.p, data.x, np.full(t.shape, np.nan), loss, weights=np.zeros(t.shape))
    assert nothing[0] == 0
    assert not nothing[1].any()


def test_what_has_as_many_axes_as_targets_broadcasts(backend_name):
    data, loss = Data("real", backend_name), MSELoss()
    for shape in ((6, 1, 1), (1, 2, 1), (1, 1, 4), (6, 1, 4), (1, 1, 1)):
        w = np.random.default_rng(0).uniform(size=shape)
        found = data.net.value_and_grad(data.p, data.x, data.whole, loss, weights=w)
        assert same(found, data.net.value_and_grad(data.p, data.x, data.whole, loss, weights=np.broadcast_to(w, (6, 2, 4))))


def test_one_axis_is_a_factor_a_sample():
    """Also where there are as many samples as outputs, or one output."""

    def of(t, weights):
        net = Chain(input_shape=t.shape[1:] or (1,))
        return net.loss(np.zeros(0), t.reshape(3, -1), 0 * t, SquaredLoss(), weights=weights) * 6

    square = np.arange(9.0).reshape(3, 3)
    assert of(square, [0, 1, 0]) == pytest.approx(9 + 16 + 25)
    assert of(square[:, 0], [0, 1, 0]) == pytest.approx(9)
    assert of(square, [[0, 1, 0]]) == pytest.approx(1 + 16 + 49)
    assert of(square, square > 6) == pytest.approx(49 + 64)


@every_loss
@pytest.mark.parametrize("settings", [{"batch_size": 4}, {"batch_size": None}, {"batch_size": 2, "shuffle": False}], ids=str)
def test_training(loss, kind, settings, backend_name):
    data = Data(kind, backend_name)
    settings = {"weights": data.w, "epochs": 3, "progress": False, "seed": 2, **settings}

    def trained(t):
        p = data.p.copy()
        history = train(data.net, p, data.x, t, loss, Adam(0.05), validation=(data.x, t, None, data.w), **settings)
        return p, history.loss, history.validation_loss

    found = trained(data.t)
    assert same(found, trained(data.filled(data.t)))
    assert found[2][-1] == pytest.approx(data.net.loss(found[0], data.x, data.t, loss, weights=data.w))


def test_training_from_a_source(backend_name):
    data, loss = Data("real", backend_name), MSELoss()
    wanted, p = data.p.copy(), data.p.copy()
    settings = {"epochs": 2, "progress": False}
    train(data.net, wanted, data.x, data.t, loss, SGD(0.1), weights=data.w, batch_size=3, shuffle=False, **settings)
    batches = chains.data.Batches(data.x, data.t, data.w, batch_size=3, shuffle=False)
    train(data.net, p, batches, None, loss, SGD(0.1), **settings)
    assert np.array_equal(p, wanted)
    with pytest.raises(ValueError, match="must be finite, got nan"):
        train(data.net, p, chains.data.Batches(data.x, data.t, 1 + data.w, batch_size=3), None, loss, SGD(0.1), **settings)


@every_loss
@pytest.mark.parametrize("own", [("t", "w"), ("w",), ()], ids=str)
def test_members_have_the_bits_that_they_would_have_alone(loss, kind, own, backend_name):
    data = Data(kind, backend_name, members=3)
    w = data.w if "w" in own else data.w[0]
    t = np.where(w == 0, np.nan, data.whole) if "t" in own or not own else np.where((w == 0).all(0), np.nan, data.whole)
    P = data.net.init_many(3, seed=0, dtype=np.float64)
    settings = {"epochs": 2, "batch_size": 4, "progress": False}
    values, g = data.net.value_and_grad(P, data.x, t, loss, weights=w, check_finite=True)
    trained = P.copy()
    history = train(
        data.net, trained, data.x, t, loss, Adam(0.02), weights=w, seed=range(3),
        validation=(data.x, data.whole, None, data.w[0]), **settings,
    )  # fmt: skip
    for m, p in enumerate(P):
        mine = (t[m] if "t" in own else t), loss
        weights = w[m] if "w" in own else w
        assert same((values[m], g[m]), data.net.value_and_grad(p, data.x, *mine, weights=weights))
        alone = train(
            data.net, p, data.x, *mine, Adam(0.02), weights=weights, seed=m, validation=(data.x, data.whole, None, data.w[0]),
            **settings,
        )  # fmt: skip
        assert same((p, alone.loss, alone.validation_loss), (trained[m], history[m].loss, history[m].validation_loss))


def test_weights_of_members_broadcast_as_those_of_one_network():
    data, loss = Data("real", "numpy"), MSELoss()
    P = data.net.init_many(3, dtype=np.float64)
    for shape in ((3, 1, 2, 4), (3, 6, 1, 1), (3, 1, 1, 4)):
        w = np.random.default_rng(0).uniform(size=shape)
        found = data.net.value_and_grad(P, data.x, data.whole, loss, weights=w)
        assert same(found, data.net.value_and_grad(P, data.x, data.whole, loss, weights=np.broadcast_to(w, (3, 6, 2, 4))))
    for shape, words in (
        ((3, 6, 2, 5), r"`weights\[0\]` must have shape \(6,\), one number a sample, or \(6, 2, 4\), .* got \(6, 2, 5\)"),
        ((2, 6, 2, 4), r"`weights` must have shape \(3, 6, ...\), a row a member, got \(2, 6, 2, 4\)"),
    ):
        with pytest.raises(ValueError, match=words):
            data.net.value_and_grad(P, data.x, data.whole, loss, weights=np.ones(shape))


def test_a_target_counts_that_does_for_one_member():
    """Also where the weight is the number of 8 bits that has no absolute value."""
    net, t = Chain(input_shape=(1,)), np.array([[0.0], [np.nan]])
    w = np.array([[0, -128], [0, 0]], np.int8)
    with pytest.raises(ValueError, match="`t` must be finite, got nan"):
        net.value_and_grad(np.zeros((2, 0)), np.zeros((2, 1)), t, MSELoss(), weights=w, check_finite=True)


def test_weights_of_members_and_samples_come_first():
    """A square of targets, weights and members could be either."""
    net = Chain(input_shape=(2,))
    x, w = np.arange(4.0).reshape(2, 2), np.array([[1.0, 0.0], [0.0, 0.0]])
    values, _ = net.value_and_grad(np.zeros((2, 0)), x, 0 * x, SquaredLoss(), weights=w)
    np.testing.assert_array_equal(values, [0.25, 0.0])
    values, _ = net.value_and_grad(np.zeros((3, 0)), x, 0 * x, SquaredLoss(), weights=[[0, 0], [1, 0]])
    np.testing.assert_array_equal(values, [1.0] * 3)


@pytest.mark.parametrize("loss", [SquaredLoss(), MSELoss()], ids=str)
def test_least_squares(loss, backend_name):
    data = Data("real", backend_name)
    objective = data.net.objective(data.x, np.where(data.w == 0, np.inf, data.t), loss, weights=data.w)
    value, g = objective(data.p)
    r, jacobian = objective.residuals(data.p), objective.jacobian(data.p)
    assert 0.5 * r @ r == pytest.approx(value, abs=1e-14)
    assert_close(r @ jacobian, g, 1e-13)
    for found, wanted in zip(objective.normal_equations(data.p), (value, g, jacobian.T @ jacobian), strict=True):
        assert_close(found, wanted, 1e-13)
    assert chains.minimize(objective, data.p, "LM", maxiter=20).fun < 0.1 * value


def test_objectives_keep_weights_and_lengths_when_copied():
    net = Chain(GRU(2, 3, return_sequences=True), Dense(3, 2), input_shape=(4, 2), backend="numpy")
    rng, p, lengths = np.random.default_rng(0), net.init(dtype=np.float64), np.array([4, 2, 1])
    x, t, w = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4, 2)), rng.uniform(size=(3, 4, 2)) > 0.3
    objective = net.objective(x, np.where(w, t, np.nan), MSELoss(), weights=w, lengths=lengths)
    assert same(objective(p), pickle.loads(pickle.dumps(objective))(p))


@pytest.mark.parametrize(("loss", "kind"), [(MSELoss(), "real"), (CrossEntropyLoss(), "labels")], ids=str)
def test_weights_beside_lengths(loss, kind, backend_name):
    net = Chain(GRU(2, 3, return_sequences=True), Dense(3, 4), input_shape=(5, 2), backend=backend_name)
    rng, p, lengths = np.random.default_rng(0), net.init(dtype=np.float64), np.array([5, 2, 1])
    x, t = rng.normal(size=(3, 5, 2)), targets(kind, rng, 3, (5, 4))
    w = rng.uniform(0.5, 2.0, t.shape) * (rng.uniform(size=t.shape) > 0.4)
    w[:, 0] = 0.0  # the first step is none that could stand in for others
    behind = np.arange(5) >= lengths[:, None]
    within = np.where(behind.reshape(3, 5, *[1] * (t.ndim - 2)), 0.0, w)
    gone = np.where(within == 0, np.nan, t)
    found = net.value_and_grad(p, x, gone, loss, weights=w, lengths=lengths, check_finite=True)
    y = net(x, p, lengths=lengths)
    one = Chain(input_shape=(5, 4))
    assert found[0] == pytest.approx(one.loss(np.zeros(0), y, t, loss, weights=within))
    assert same(found, net.value_and_grad(p, x, t, loss, weights=within, lengths=lengths))


def test_points_of_residuals_may_be_left_out(backend_name):
    points = np.linspace(-1.0, 1.0, 5)[:, None]
    problem = chains.ResidualProblem(("x",), ("u",), [chains.Term(lambda u, d: u.xx - d, points, {"d": np.ones(5)})])
    net = Chain(Dense(1, 4, tanh), Dense(4, 1), backend=backend_name)
    p, w, t = net.init(dtype=np.float64), np.array([1.0, 0.0, 2.0, 1.0, 0.0]), problem.t.copy()
    t[w == 0, 1] = np.nan
    found = net.value_and_grad(p, problem.x, t, problem.loss, weights=w)
    assert same(found, net.value_and_grad(p, problem.x, problem.t, problem.loss, weights=w))
    objective = net.objective(problem.x, t, problem.loss, weights=w)
    r, jacobian = objective.residuals(p), objective.jacobian(p)
    assert 0.5 * r @ r == pytest.approx(found[0])
    assert_close(r @ jacobian, found[1], 1e-13)
    with pytest.raises(
        ValueError, match=r"must have shape \(5,\), one number a sample, got \(5, 2\), since ResidualLoss.* alone"
    ):
        net.value_and_grad(p, problem.x, problem.t, problem.loss, weights=np.ones((5, 2)))


def test_points_of_a_term_may_have_no_data(backend_name):
    """Two states, each known at times of its own."""
    times, known = np.linspace(0.0, 1.0, 6)[:, None], np.arange(6) % 2 == 0
    states = {"u": np.where(known, 1.0, np.nan), "v": np.where(known, np.nan, 2.0)}
    net = Chain(Dense(1, 4, tanh), Dense(4, 2), backend=backend_name)
    p = net.init(dtype=np.float64)

    def value(*terms):
        problem = chains.ResidualProblem(("t",), ("u", "v"), terms)
        assert np.isfinite(problem.t).all()
        return net.value_and_grad(p, problem.x, problem.t, problem.loss)

    error = lambda u, known_u: u - known_u  # noqa: E731
    other = lambda v, known_v: v - known_v  # noqa: E731
    all_points = value(
        chains.Term(error, times, {"known_u": states["u"]}, 3.0 * known),
        chains.Term(other, times, {"known_v": states["v"]}, 5.0 * ~known),
    )
    known_points = value(
        chains.Term(error, times[known], {"known_u": 1.0}, 1.5),
        chains.Term(other, times[~known], {"known_v": 2.0}, 2.5),
    )
    for found, wanted in zip(all_points, known_points, strict=True):
        assert_close(found, wanted, 1e-13)
    for weight, words in (
        (np.ones(5), r"`weight` of term 0 has shape \(5,\), but there are 6 points"),
        (np.full(6, -1.0), "`weight` of term 0 must be zero or positive, and finite, at each point, got -1.0"),
        (np.full(6, np.nan), "`weight` of term 0 must be zero or positive, and finite, at each point, got nan"),
    ):
        with pytest.raises(ValueError, match=words):
            value(chains.Term(error, times, {"known_u": 1.0}, weight))
    nothing = value(chains.Term(error, times, {"known_u": np.full(6, np.nan)}, np.zeros(6)))
    assert nothing[0] == 0


def test_sampling_and_queues():
    data = Data("real", "native")
    drawn = [
        sample(
            data.net, data.p, data.x, t, SquaredLoss(), chains.HMC(0.01, leapfrog_steps=3), draws=4, warmup=5, weights=data.w
        ).p
        for t in (data.t, data.whole)
    ]
    assert same(*drawn)
    with chains.Queue() as q:
        found = q.value_and_grad(data.net, data.p, data.x, data.t, MSELoss(), weights=data.w).wait()
    assert same(found, data.net.value_and_grad(data.p, data.x, data.t, MSELoss(), weights=data.w))


def test_only_targets_of_weight_zero_are_left_out_of_checks(backend_name):
    data = Data("fractions", backend_name)
    net, p, x, loss = data.net, data.p, data.x, BCEWithLogitsLoss()
    w = data.w.copy()
    w[:2] = 0.0
    at = 2, 1, 3  # the first target that counts
    w[2, 0], w[2, 1], w[at], data.t[at] = 0.0, 0.0, 1.0, np.nan
    where = ", ".join(map(str, at))
    for call in (net.value_and_grad, net.loss):
        with pytest.raises(ValueError, match="`t`: targets must be from 0 to 1, got nan"):
            call(p, x, data.t, loss, weights=w)
    missing = "; a missing target has the weight 0 in"
    with pytest.raises(ValueError, match=rf"`t` must be finite, got nan at index \({where}\){missing} `weights`$"):
        net.value_and_grad(p, x, data.t, MSELoss(), weights=w, check_finite=True)
    with pytest.raises(ValueError, match=rf"`validation\[1\]` must be finite, got nan .*{missing} `validation\[3\]`, of "):
        train(net, p, x, data.whole, MSELoss(), SGD(0.1), validation=(x, data.t, None, w), progress=False)
    with pytest.raises(ValueError, match=r"`validation\[3\]` must have shape \(6,\).* or \(6, 2, 4\), .*got \(6, 4\)"):
        train(net, p, x, data.whole, MSELoss(), SGD(0.1), validation=(x, data.t, None, w[:, 0]), progress=False)
    with pytest.raises(ValueError, match=r"`weights` must be finite, got nan"):
        net.value_and_grad(p, x, data.whole, MSELoss(), weights=np.where(w == 0, np.nan, w), check_finite=True)
