"""Lengths of samples: every call that takes them, and what is refused. What they mean: tests/layers/test_recurrent.py."""

from __future__ import annotations

import numpy as np
import pytest

from chains import (
    GRU,
    LSTM,
    ODE,
    RNN,
    SGD,
    Attention,
    BCEWithLogitsLoss,
    Chain,
    CrossEntropyLoss,
    Dense,
    Embedding,
    Equations,
    Flatten,
    MSELoss,
    Reshape,
    Residual,
    ResidualProblem,
    SquaredLoss,
    Term,
    loss,
    minimize,
    tanh,
    train,
)
from chains.expr import log
from chains.network.network import network_of
from tests.harness import assert_close, central_difference

STEPS, LENGTHS = 6, np.array([6, 1, 3, 2])


@pytest.fixture
def net(backend_name):
    return Chain(
        GRU(2, 3, return_sequences=True),
        LSTM(3, 2, bidirectional=True),
        Dense(4, 1),
        input_shape=(STEPS, 2),
        backend=backend_name,
    )


@pytest.mark.parametrize(("whole", "steps"), [(True, STEPS), (False, 0)])
def test_the_steps_of_an_output_are_those_of_the_input(whole, steps):
    net = Chain(GRU(2, 3, return_sequences=whole), Dense(3, 1), input_shape=(STEPS, 2))
    assert network_of(net).declaration.output_steps == steps


@pytest.fixture
def problem(net):
    rng = np.random.default_rng(0)
    return rng.normal(size=net.n_params), rng.normal(size=(4, STEPS, 2)), rng.normal(size=(4, 1))


def test_a_sample_is_as_if_it_ended_at_its_length(net, problem):
    p, x, _ = problem
    y = net(x, p, lengths=LENGTHS)
    for k, length in enumerate(LENGTHS):
        own = Chain(*net.layers, input_shape=(int(length), 2))
        assert_close(y[k], own(x[k : k + 1, :length], p)[0], 1e-12)
    x[1, 1:] = 1e6
    assert_close(net(x, p, lengths=LENGTHS), y, 0.0)
    assert np.all(net.vjp(p, x, np.ones((4, 1)), lengths=LENGTHS)[1][1, 1:] == 0.0)


def test_gradient_loss_and_objective(net, problem):
    p, x, t = problem
    value, g = net.value_and_grad(p, x, t, MSELoss(), lengths=LENGTHS)
    assert net.loss(p, x, t, MSELoss(), lengths=LENGTHS) == pytest.approx(value, abs=1e-12)
    assert_close(g, central_difference(lambda p: net.loss(p, x, t, MSELoss(), lengths=LENGTHS), p), 1e-8)
    objective = net.objective(x, t, MSELoss(), lengths=LENGTHS)
    assert_close(objective(p)[1], g, 1e-12)
    for _ in range(3):  # the quick ways of calls without lengths do not take over
        assert net.value_and_grad(p, x, t, MSELoss())[0] != pytest.approx(value)
        assert net.value_and_grad(p, x, t, MSELoss(), lengths=LENGTHS)[0] == pytest.approx(value, abs=1e-12)


def test_training_fetches_the_lengths_of_its_samples(net, problem):
    p, x, t = problem
    stepwise = p.copy()
    train(net, p, x, t, MSELoss(), SGD(0.1), epochs=3, batch_size=1, shuffle=False, lengths=LENGTHS, progress=False)
    for _ in range(3):
        for k in range(4):
            here = slice(k, k + 1)
            stepwise -= 0.1 * net.value_and_grad(stepwise, x[here], t[here], MSELoss(), lengths=LENGTHS[here])[1]
    assert_close(p, stepwise, 1e-12)


WRONG = {
    "zero": (np.array([6, 0, 3, 2]), ValueError, r"`lengths` must be from 1 to 6, the steps of a sample, but there is 0"),
    "long": (np.array([6, 7, 3, 2]), ValueError, r"must be from 1 to 6, the steps of a sample, but there is 7"),
    "fractions": (np.array([6.0, 1, 3, 2]), TypeError, r"a whole number of steps for each sample, got float64"),
    "few": (np.array([6, 1]), ValueError, r"`lengths` has shape \(2,\), but `x` is a batch of 4"),
    "matrix": (np.ones((4, 1), int), TypeError, r"`lengths` must have shape \(4,\)"),
    "flags": (np.ones(4, bool), TypeError, r"got bool"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(net, problem, name):
    lengths, kind, text = WRONG[name]
    p, x, t = problem
    g, before = np.zeros_like(p), p.copy()
    with pytest.raises(kind, match=text):
        net.value_and_grad(p, x, t, MSELoss(), lengths=lengths, out=g)
    with pytest.raises(kind, match=text):
        net(x, p, lengths=lengths)
    with pytest.raises(kind, match=text):
        train(net, p, x, t, MSELoss(), SGD(0.1), lengths=lengths, progress=False)
    assert not g.any()
    assert np.array_equal(p, before)


def test_networks_without_a_time_axis_have_no_lengths(problem):
    _, x, _ = problem
    dense = Chain(Dense(2, 1))
    with pytest.raises(ValueError, match="`lengths` must be left out: no layer of this network has a time axis"):
        dense(x[:, 0], dense.init(), lengths=LENGTHS)
    falling = Equations(lambda h: -1.0, ("h",))
    event = Chain(ODE(falling, [0.0, 1.0], event=Equations(lambda h: h, ("h",))), backend="numpy")
    with pytest.raises(ValueError, match=r"`lengths` must be left out: layer 0, ODE.*, ends solutions at its `event`"):
        event(x[:, 0, :1], np.zeros(0), lengths=LENGTHS)


@pytest.mark.parametrize("members", [None, 2])
def test_validation_has_lengths_too(net, problem, members):
    _, x, t = problem
    p = net.init() if members is None else np.stack([net.init(seed=seed) for seed in range(members)])
    seen = []

    def size(t, y):
        seen.append(y)
        return float(len(y))

    history = train(
        net, p, x, t, MSELoss(), SGD(0.1), epochs=2, lengths=LENGTHS, validation=(x, t, LENGTHS), metrics=[size], progress=False
    )
    own = np.atleast_2d(p)
    wanted = [net.loss(each, x, t, MSELoss(), lengths=LENGTHS) for each in own]
    assert_close(np.ravel(history.validation_loss[-1]), np.array(wanted), 1e-6)
    for y, each in zip(seen[-len(own) :], own, strict=True):
        assert_close(y, net(x, each, lengths=LENGTHS), 1e-6)


def test_validation_that_does_not_fit_is_refused(net, problem):
    _, x, t = problem
    p = net.init()
    before = p.copy()
    for validation, text in (
        ((x, t), r"`validation` must be \(x, t, lengths\) with `lengths`: its samples would have none"),
        ((x, t, LENGTHS[:2]), r"`validation\[2\]` has shape \(2,\), but `validation\[0\]` is a batch of 4"),
        ((x, t, 0 * LENGTHS), r"`validation\[2\]` must be from 1 to 6, the steps of a sample, but there is 0"),
    ):
        with pytest.raises(ValueError, match=text):
            train(net, p, x, t, MSELoss(), SGD(0.1), lengths=LENGTHS, validation=validation, progress=False)
    with pytest.raises(TypeError, match=r"pair of arrays \(x, t\), or \(x, t, lengths\), or \(x, t, lengths, weights\)"):
        train(net, p, x, t, MSELoss(), SGD(0.1), validation=(x, t, LENGTHS, None, t), progress=False)
    np.testing.assert_array_equal(p, before)


SEQUENCES = {
    "recurrent": lambda: (GRU(2, 3, return_sequences=True), Dense(3, 2)),
    "attention": lambda: (Dense(2, 4), Attention(4, 2), Residual(Dense(4, 4)), Dense(4, 2)),
    "words": lambda: (Embedding(5, 3), LSTM(3, 3, bidirectional=True, return_sequences=True), Dense(6, 2)),
    "trajectories": lambda: (ODE(Dense(2, 2, tanh), np.arange(6.0), rtol=1e-2, max_steps=9), Dense(2, 2)),
}
ENTRIES, ONE_HOT = 4 * STEPS * 2, np.eye(2)
CRITERIA = {  # what targets are padded with, and the loss and its derivative, by hand
    MSELoss(): (np.nan, lambda y, t: (y - t) ** 2 / ENTRIES, lambda y, t: 2 * (y - t) / ENTRIES),
    BCEWithLogitsLoss(): (
        np.nan,
        lambda y, t: (np.logaddexp(0.0, y) - y * t) / ENTRIES,
        lambda y, t: (1 / (1 + np.exp(-y)) - t) / ENTRIES,
    ),
    CrossEntropyLoss(): (
        -1,
        lambda y, t: (np.logaddexp(*np.moveaxis(y, -1, 0))[..., None] - y) * ONE_HOT[t] * 2 / ENTRIES,
        lambda y, t: (np.exp(y) / np.exp(y).sum(-1, keepdims=True) - ONE_HOT[t]) * 2 / ENTRIES,
    ),
    loss("log", lambda y, t: t * log(2.0 + y * y)): (
        np.inf,
        lambda y, t: t * np.log(2 + y * y) / 4,
        lambda y, t: t * 2 * y / (2 + y * y) / 4,
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("criterion", CRITERIA, ids=str)
@pytest.mark.parametrize("weights", [None, np.array([0.5, -1.0, 2.0, 0.0])], ids=["plain", "weights"])
@pytest.mark.parametrize("kind", SEQUENCES)
def test_losses_count_nothing_behind_a_length(kind, weights, criterion, backend_name):
    rng, shape = np.random.default_rng(1), {"words": (STEPS,), "trajectories": (2,)}.get(kind, (STEPS, 2))
    net = Chain(*SEQUENCES[kind](), input_shape=shape, backend=backend_name)
    padding, value, slope = CRITERIA[criterion]
    p, labels, behind = net.init(seed=2, dtype=np.float64), padding == -1, np.arange(STEPS) >= LENGTHS[:, None]
    x = rng.integers(0, 5, (4, *shape)) if kind == "words" else rng.normal(size=(4, *shape))
    t = rng.integers(0, 2, (4, STEPS)) if labels else rng.uniform(size=(4, STEPS, 2))
    each = np.where(behind, 0.0, (np.ones(4) if weights is None else weights)[:, None])[..., None]
    y = net(x, p, lengths=LENGTHS)
    wanted, g = np.sum(each * value(y, t)), net.vjp(p, x, each * slope(y, t), lengths=LENGTHS)[0]
    t[behind] = padding
    how = {"weights": weights, "lengths": LENGTHS}
    for found in (net.value_and_grad(p, x, t, criterion, **how, check_finite=True), net.objective(x, t, criterion, **how)(p)):
        assert found[0] == pytest.approx(wanted, abs=1e-12)
        assert_close(found[1], g, 1e-12)
    assert net.loss(p, x, t, criterion, **how) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_training_and_ensembles_take_padded_targets(own):
    net = Chain(GRU(2, 3, return_sequences=True), Dense(3, 2), input_shape=(STEPS, 2), backend="numpy")
    rng, P = np.random.default_rng(3), net.init_many(2, dtype=np.float64)
    x, t = (rng.uniform(size=(*[2] * own, 4, STEPS, 2)) for _ in range(2))
    lengths = np.stack([LENGTHS, LENGTHS[::-1]]) if own else LENGTHS
    t[np.arange(STEPS) >= lengths[..., None]] = np.nan
    values, _ = net.value_and_grad(P, x, t, BCEWithLogitsLoss(), lengths=lengths)
    history = train(
        net, P.copy(), x, t, BCEWithLogitsLoss(), SGD(0.1), epochs=2, batch_size=None, lengths=lengths,
        validation=(x, t, lengths), progress=False,
    )  # fmt: skip
    for m, (p, value) in enumerate(zip(P, values, strict=True)):
        mine = (x[m], t[m], lengths[m]) if own else (x, t, lengths)
        assert net.value_and_grad(p, *mine[:2], BCEWithLogitsLoss(), lengths=mine[2])[0] == value
        assert history[m].loss[0] == pytest.approx(value)
        alone = train(
            net, p, *mine[:2], BCEWithLogitsLoss(), SGD(0.1), epochs=2, batch_size=None, lengths=mine[2],
            validation=mine, progress=False,
        )  # fmt: skip
        assert alone.validation_loss == pytest.approx(history[m].validation_loss, abs=1e-12)


@pytest.mark.parametrize(
    "layers",
    [(GRU(2, 6), Dense(6, 6)), (GRU(2, 6), Reshape(6, 1)), (GRU(2, 6, return_sequences=True), Flatten(), Reshape(6, 6))],
    ids=["numbers", "reshaped", "mixed"],
)
def test_outputs_that_are_no_steps_count_as_a_whole(layers):
    net = Chain(*layers, input_shape=(STEPS, 2), backend="numpy")
    p, x = net.init(seed=1, dtype=np.float64), np.random.default_rng(1).normal(size=(4, STEPS, 2))
    y = net(x, p, lengths=LENGTHS)
    assert net.loss(p, x, 0 * y, MSELoss(), lengths=LENGTHS) == pytest.approx(np.mean(y * y))


def test_members_have_validation_data_without_lengths_too():
    net = Chain(GRU(2, 3), input_shape=(STEPS, 2), backend="numpy")
    rng, P = np.random.default_rng(4), net.init_many(2, dtype=np.float64)
    x, t = rng.normal(size=(2, 4, STEPS, 2)), rng.normal(size=(2, 4, 3))
    with pytest.raises(ValueError, match=r"`validation\[2\]` must have an axis of 2 members in front, got shape \(4,\)"):
        train(net, P, x, t, MSELoss(), SGD(0.1), validation=(x, t, LENGTHS), progress=False)
    history = train(net, P, x, t, MSELoss(), SGD(0.1), validation=(x, t, None), progress=False)
    for m, p in enumerate(P):
        assert history[m].validation_loss == [net.loss(p, x[m], t[m], MSELoss())]


TIMES, CUTS = np.arange(STEPS) / 3, np.array([6, 2, 3, 4])  # solutions have two times at least
SUMS = {  # the layers for a number of steps; a GRU has biases that differ in name alone
    "causal": lambda n: (LSTM(2, 2, return_sequences=True), Dense(2, 1)),
    "last": lambda n: (LSTM(2, 2), Dense(2, 1)),
    "both": lambda n: (RNN(2, 2, bidirectional=True, return_sequences=True), Dense(4, 1)),
    "ends": lambda n: (RNN(2, 2, return_sequences=True), RNN(2, 1, bidirectional=True), Dense(2, 1)),
    "trajectories": lambda n: (ODE(Dense(2, 2, tanh), TIMES[:n], "rk4", 2), Dense(2, 1)),
    "attention": lambda n: (Dense(2, 4), Attention(4, 2), Dense(4, 1)),
}


def sums(kind, backend):
    """A network, its parameters, inputs, targets that are NaN after a sample's length, and the samples cut to their lengths."""
    rng, shape = np.random.default_rng(5), (2,) if kind == "trajectories" else (STEPS, 2)
    net = Chain(*SUMS[kind](STEPS), input_shape=shape, backend=backend)
    p, x = net.init(seed=2, dtype=np.float64), rng.normal(size=(4, *shape))
    t = rng.normal(size=(4, *net.output_shape))
    if t.ndim == 3:
        t[np.arange(STEPS) >= CUTS[:, None]] = np.nan
    alone = []
    for each, target, n in zip(x, t, CUTS.tolist(), strict=True):
        one = each if kind == "trajectories" else each[:n]
        cut = Chain(*SUMS[kind](n), input_shape=one.shape, backend="numpy")
        alone.append((cut, one[None], (target[:n] if t.ndim == 3 else target)[None]))
    return net, p, x, t, alone


@pytest.mark.few(2)
@pytest.mark.parametrize("weights", [None, np.array([0.5, 1.0, 2.0, 0.0])], ids=["plain", "weights"])
@pytest.mark.parametrize("kind", SUMS)
def test_residuals_are_those_of_the_samples_cut_to_their_lengths(kind, weights, backend_name):
    net, p, x, t, alone = sums(kind, backend_name)
    how = {"weights": weights, "lengths": CUTS}
    objective = net.objective(x, t, SquaredLoss(), **how)
    value, g, matrix = objective.normal_equations(p)
    ones = [cut.objective(*data, SquaredLoss()).normal_equations(p) for cut, *data in alone]
    for found, parts in zip((np.array(value), g, matrix), zip(*ones, strict=True), strict=True):
        assert_close(found, np.average(parts, 0, weights) * (1.0 if weights is None else weights.sum() / 4), 1e-12)
    assert_close(np.array(objective(p)[0]), np.array(value), 1e-12)
    e = 1e-6 * np.eye(len(p))
    columns = [(objective.residuals(p + step) - objective.residuals(p - step)) / 2e-6 for step in e]
    assert_close(objective.jacobian(p), np.stack(columns, -1), 1e-7)
    v = np.random.default_rng(6).normal(size=len(p))
    assert_close(objective.hessp(p, v), central_difference(lambda p: objective(p)[1] @ v, p), 1e-7)
    assert_close(net.hvp(p, x, t, SquaredLoss(), v, **how), objective.hessp(p, v), 1e-12)
    assert_close(net.gauss_newton(p, x, t, SquaredLoss(), v, **how), matrix @ v, 1e-12)
    assert_close(net.sample_gradients(p, x, t, SquaredLoss(), **how).mean(0), g, 1e-12)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [*SUMS][:5])  # attention has a bias without effect, so its steps are not determined
def test_levenberg_marquardt_takes_the_steps_of_samples_cut_to_their_length(kind, backend_name):
    rng, n, shape = np.random.default_rng(8), 4, (2,) if kind == "trajectories" else (STEPS, 2)
    net, own = Chain(*SUMS[kind](STEPS), input_shape=shape, backend=backend_name), shape if kind == "trajectories" else (n, 2)
    cut = Chain(*SUMS[kind](n), input_shape=own, backend="numpy")
    p, x = net.init(seed=2, dtype=np.float64), rng.normal(size=(60, *shape))
    t = rng.normal(size=(60, *net.output_shape))
    steps = t.ndim == 3
    if steps:
        t[:, n:] = np.nan
    found = minimize(net.objective(x, t, SquaredLoss(), lengths=np.full(60, n)), p, "LM", maxiter=3)
    data = x if kind == "trajectories" else x[:, :n], t[:, :n] if steps else t
    wanted = minimize(cut.objective(*data, SquaredLoss()), p, "LM", maxiter=3)
    assert wanted.fun < cut.loss(p, *data, SquaredLoss())
    assert_close(found.x, wanted.x, 1e-8)


def test_levenberg_marquardt_finds_what_least_squares_finds(backend_name):
    least_squares = pytest.importorskip("scipy.optimize").least_squares
    net = Chain(RNN(1, 1, return_sequences=True), Dense(1, 1), input_shape=(STEPS, 1), backend=backend_name)
    rng, p = np.random.default_rng(7), net.init(seed=1, dtype=np.float64)
    x, lengths = rng.normal(size=(20, STEPS, 1)), rng.integers(1, STEPS + 1, 20)
    t = np.tanh(np.cumsum(x, 1)) + 0.1 * rng.normal(size=x.shape)
    counts = np.arange(STEPS) < lengths[:, None]
    x[~counts], t[~counts] = 1e3, np.nan

    def residuals(p):
        return (net(x, p, lengths=lengths) - t)[counts].ravel() * np.sqrt(2 / t.size)

    objective = net.objective(x, t, MSELoss(), lengths=lengths)
    found, wanted = minimize(objective, p, "LM", maxiter=200), least_squares(residuals, p, xtol=1e-12, ftol=1e-12)
    assert found.fun < 0.5 * objective(p)[0]
    assert found.fun == pytest.approx(wanted.cost, rel=1e-6)
    many = minimize(objective, np.stack([p, 0.9 * p]), "LM", maxiter=200)
    assert many.fun[0] == pytest.approx(found.fun, rel=1e-9)


def test_equations_at_points_have_no_residuals_with_lengths():
    net = Chain(Reshape(2, 1), GRU(1, 3), Dense(3, 1), input_shape=(2,), backend="numpy")
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.t - u.x, np.zeros((3, 2)))])
    objective = net.objective(problem.x, problem.t, problem.loss, lengths=np.array([1, 2, 2]))
    for call in (objective.residuals, objective.jacobian, objective.normal_equations):
        with pytest.raises(ValueError, match="are those of points, which have no steps: leave `lengths` out"):
            call(net.init(dtype=np.float64))
