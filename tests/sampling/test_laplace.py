"""Laplace's approximation: exact for linear models, and PyTorch's derivatives in the formulas for others."""

from __future__ import annotations

import math

import numpy as np
import pytest

import chains
from chains import BCEWithLogitsLoss, Chain, CrossEntropyLoss, Dense, L2Penalty, Laplace, MSELoss, SquaredLoss, tanh
from tests.bad_input.support import assert_refused

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
T = X @ [[1.0], [-0.5], [0.0]] + 0.3 + 0.2 * RNG.normal(size=(40, 1))
LINE = Chain(Dense(3, 1))
COLUMNS = np.column_stack([X, np.ones(40)])
NET = Chain(Dense(3, 5, tanh), Dense(5, 2))
P = 0.7 * NET.init(seed=1, dtype=np.float64)


def posterior(noise, precision):
    """Bayesian linear regression in closed form: mean and covariance of the weights."""
    covariance = np.linalg.inv(COLUMNS.T @ COLUMNS / noise**2 + precision * np.eye(4))
    return covariance @ COLUMNS.T @ T[:, 0] / noise**2, covariance


@pytest.mark.parametrize("loss", [SquaredLoss(), MSELoss()])
def test_linear_regression_is_exact(loss):
    noise, precision = 0.25, 2.0
    mean, covariance = posterior(noise, precision)
    found = Laplace(LINE, mean, X, T, loss, noise=noise, prior_precision=precision)
    new = RNG.normal(size=(6, 3))
    columns = np.column_stack([new, np.ones(6)])
    y, variance = found.predict(new)
    np.testing.assert_allclose(y[:, 0], columns @ mean, rtol=1e-10)
    np.testing.assert_allclose(variance[:, 0], noise**2 + np.einsum("bi,ij,bj->b", columns, covariance, columns), rtol=1e-10)
    np.testing.assert_allclose(found.predict(new, with_noise=False)[1], variance - noise**2, rtol=1e-8)
    marginal = noise**2 * np.eye(40) + COLUMNS @ COLUMNS.T / precision  # the covariance of all targets
    _, log_det = np.linalg.slogdet(marginal)
    evidence = -0.5 * (log_det + T[:, 0] @ np.linalg.solve(marginal, T[:, 0]) + 40 * math.log(2 * math.pi))
    assert found.log_evidence == pytest.approx(evidence, rel=1e-10)
    draws = found.draw(20000, seed=1)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.01)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.05 * covariance.max())


def test_noise_and_prior_precision_maximise_the_evidence():
    mean, _ = posterior(0.2, 1.0)
    best = Laplace(LINE, mean, X, T)
    for noise, precision in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.02), (1.0, 0.98)):
        other = Laplace(LINE, mean, X, T, noise=noise * best.noise, prior_precision=precision * best.prior_precision)
        assert other.log_evidence < best.log_evidence
    assert best.noise == pytest.approx(0.2, rel=0.2)
    assert 3.0 < best.effective_parameters < 4.0
    held = Laplace(LINE, mean, X, T, noise=0.5)
    assert held.noise == 0.5
    assert held.prior_precision == pytest.approx(held.effective_parameters / (mean @ mean))


def torch_outputs(torch, p, x):
    """The network NET in PyTorch."""
    w1, b1, w2, b2 = torch.split(p, [15, 5, 10, 2])
    return torch.tanh(x @ w1.reshape(3, 5) + b1) @ w2.reshape(5, 2) + b2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within PyTorch
@pytest.mark.parametrize(("parameters", "columns"), [("*", slice(0, 32)), ("1.*", slice(20, 32)), ("1.bias", slice(30, 32))])
@pytest.mark.parametrize("kind", ["squared", "binary", "classes"])
def test_the_formulas_with_derivatives_of_pytorch(kind, parameters, columns):
    torch = pytest.importorskip("torch")
    q, x = torch.tensor(P), torch.tensor(X)
    jacobian = torch.func.jacrev(lambda p: torch_outputs(torch, p, x))(q)[..., columns]
    y = torch_outputs(torch, q, x)
    labels = (X[:, 0] > 0).astype(int)
    noise = 0.3 if kind == "squared" else 1.0
    targets, loss, likelihood = {
        "squared": (np.tile(T, 2), SquaredLoss(),
                    lambda y, t: torch.distributions.Normal(y, noise).log_prob(t).sum()),
        "binary": (np.stack([labels, 1 - labels], 1).astype(float), BCEWithLogitsLoss(),
                   lambda y, t: torch.distributions.Bernoulli(logits=y).log_prob(t).sum()),
        "classes": (labels, CrossEntropyLoss(), lambda y, t: torch.distributions.Categorical(logits=y).log_prob(t).sum()),
    }[kind]  # fmt: skip
    t = torch.tensor(targets)
    second = torch.func.vmap(torch.func.hessian(lambda y, t: -likelihood(y, t)))(y, t)
    matrix = torch.einsum("bop,boc,bcq->pq", jacobian, second, jacobian)
    given = {"noise": noise} if kind == "squared" else {}
    found = Laplace(NET, P, X, targets, loss, parameters=parameters, prior_precision=1.5, **given)
    precision = matrix + 1.5 * torch.eye(len(matrix), dtype=torch.float64)
    variance = torch.einsum("bop,pq,boq->bo", jacobian, torch.linalg.inv(precision), jacobian).numpy()
    mean, found_variance = found.predict(X, with_noise=False)
    np.testing.assert_allclose(found_variance, variance, rtol=1e-9)
    shrunk = y / torch.sqrt(1.0 + math.pi / 8.0 * torch.tensor(variance))
    wanted = {"squared": y, "binary": torch.sigmoid(shrunk), "classes": torch.softmax(shrunk, 1)}[kind]
    np.testing.assert_allclose(mean, wanted.numpy(), rtol=1e-9)
    evidence = likelihood(y, t) - 0.5 * (torch.logdet(precision) - len(matrix) * math.log(1.5) + 1.5 * (q[columns] ** 2).sum())
    assert found.log_evidence == pytest.approx(float(evidence), rel=1e-10)
    draws = found.draw(3, seed=2)
    outside = np.ones(32, bool)
    outside[columns] = False
    assert np.array_equal(draws[:, outside], np.tile(P[outside], (3, 1)))
    assert not np.isclose(draws[:, columns], P[columns]).any()


def slopes(net, x):
    """The derivatives of the outputs by the parameters at P, (samples, outputs, n_params), by central differences."""
    steps = 1e-6 * np.eye(P.size)
    return np.stack([(net(x, P + step) - net(x, P - step)) / 2e-6 for step in steps], axis=-1)


@pytest.mark.parametrize("loss", [SquaredLoss(), BCEWithLogitsLoss()])
def test_another_network_of_the_same_parameters_has_its_own_band(loss):
    noise = 0.2 if isinstance(loss, SquaredLoss) else None
    t = np.tile(T > 0.0, 2).astype(float)
    found = Laplace(NET, P, X, t, loss, parameters="1.*", noise=noise, prior_precision=1.5)
    y, j = NET(X, P), slopes(NET, X)[..., 20:]
    second = np.full_like(y, 1.0 / 0.2**2) if noise else 0.25 / np.cosh(0.5 * y) ** 2  # s (1 - s) of the sigmoid s
    covariance = np.linalg.inv(np.einsum("bop,bo,boq->pq", j, second, j) + 1.5 * np.eye(12))
    new, other = X[:6], Chain(Dense(3, 5, chains.sigmoid), Dense(5, 2, tanh), chains.Select([1]))
    j = slopes(other, new)[..., 20:]
    for with_noise in (False, True):  # the noise is that of the targets, and these are outputs of another network
        mean, variance = found.predict(new, net=other, with_noise=with_noise)
        np.testing.assert_allclose(mean, other(new, P), rtol=1e-12)
        np.testing.assert_allclose(variance, np.einsum("bop,pq,boq->bo", j, covariance, j), rtol=1e-6)
    assert not found.predict(new, net=other.with_frozen("1.*"))[1].any()
    assert_refused(
        lambda: found.predict(new, net=LINE), "`net` must have arrays of the shapes of the fitted network's, [(3, 5)"
    )
    assert_refused(lambda: found.predict(new, net=P), "`net` (=an array", "must be a network")


def test_samples_are_taken_a_part_at_a_time(monkeypatch):
    whole = Laplace(NET, P, X, np.tile(T, 2))
    monkeypatch.setattr(chains.sampling.laplace, "NUMBERS_AT_ONCE", 7 * 64)
    parts = Laplace(NET, P, X, np.tile(T, 2))
    assert parts.log_evidence == pytest.approx(whole.log_evidence, rel=1e-10)
    np.testing.assert_allclose(parts.predict(X)[1], whole.predict(X)[1], rtol=1e-9)


def test_error_bars_grow_outside_the_data():
    net = Chain(Dense(1, 8, tanh), Dense(8, 1))
    x = np.concatenate([RNG.uniform(-2, -0.7, 30), RNG.uniform(0.7, 2, 30)])[:, None]
    t = np.sin(2 * x) + 0.1 * RNG.normal(size=x.shape)
    objective = net.objective(x, t, SquaredLoss(), L2Penalty(0.1**2 / len(x) / 2))
    p = chains.minimize(objective, net.init(seed=0, dtype=np.float64), "BFGS", maxiter=500).x
    found = Laplace(net, p, x, t)
    assert found.noise == pytest.approx(0.1, rel=0.3)
    spread = np.sqrt(found.predict([[0.0], [1.3], [4.0]], with_noise=False)[1][:, 0])
    assert spread[0] > 2 * spread[1]
    assert spread[2] > 4 * spread[1]
    assert "Laplace approximation of 25 parameters" in str(found)


def test_a_matrix_larger_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr(chains.sampling.laplace, "memory_of_machine", lambda: 24 * 10**9)
    wide = Chain(Dense(3, 200, tanh), Dense(200, 200, tanh), Dense(200, 1))
    p = wide.init(seed=0, dtype=np.float64)
    assert_refused(lambda: Laplace(wide, p, X, T), "the matrix of 41,201 parameters needs 13.6 GB", 'parameters="2.*"')
    monkeypatch.setattr(chains.sampling.laplace, "memory_of_machine", lambda: 5 * 8 * 32**2 - 1)
    assert_refused(lambda: Laplace(NET, P, X, np.tile(T, 2)), "the matrix of 32 parameters")
    assert Laplace(NET, P, X, np.tile(T, 2), parameters="1.*").effective_parameters < 12.0


def test_the_memory_of_the_machine(monkeypatch):
    memory_of_machine = chains.sampling.laplace.memory_of_machine
    assert 2**28 < memory_of_machine() < 2**48
    monkeypatch.delattr("os.sysconf", raising=False)
    assert memory_of_machine() == 2**33


def test_frozen_parameters_are_certain():
    frozen = NET.with_frozen("0.*")
    last = Laplace(NET, P, X, np.tile(T, 2), parameters="1.*", noise=0.2, prior_precision=1.0)
    found = Laplace(frozen, P, X, np.tile(T, 2), noise=0.2, prior_precision=1.0)
    np.testing.assert_allclose(found.predict(X)[1], last.predict(X)[1], rtol=1e-12)


@pytest.mark.parametrize(("change", "message"), [
    ({"loss": chains.L1Loss()}, "`loss` (=L1Loss()) must be"),
    ({"noise": 0.0}, "`noise` (=0.0)"),
    ({"prior_precision": -1.0}, "`prior_precision` (=-1.0)"),
    ({"parameters": "2.*"}, "no parameter matches '2.*'"),
    ({"t": np.zeros((40, 3))}, "targets"),
    ({"t": np.where(np.tile(T, 2) > 0.0, np.nan, 0.0)}, "`t` must be finite, got nan"),
    ({"p": P[:-1]}, "`p`"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(change, message):
    given = {"p": P, "x": X, "t": np.tile(T, 2)} | change
    assert_refused(lambda: Laplace(NET, **given), message)
    with pytest.raises(ValueError, match="Jacobian of `net` at `p` and `x` is infinite or NaN"):
        Laplace(NET, P, np.nan * X, np.tile(T, 2))
    for loss in (BCEWithLogitsLoss(), CrossEntropyLoss()):
        with pytest.raises(ValueError, match=r"`noise` \(=0\.3\) must be None with"):
            Laplace(NET, P, X, np.tile([0.0, 1.0], (40, 1)), loss, noise=0.3)
    with pytest.raises(ValueError, match=r"`t` must have rows of probabilities that sum to one, got a sum of 1\.8"):
        Laplace(NET, P, X, np.full((40, 2), 0.9), CrossEntropyLoss())
    for target, given in (
        (1e200 * np.tile(T, 2), {}),
        (np.tile(T, 2), {"noise": 1e-200}),
        (np.tile(T, 2), {"prior_precision": 5e-324}),
    ):
        with pytest.raises(ValueError, match=r"the log evidence is .* choose other units of `t`"):
            Laplace(NET, P, X, target, **given)
    with pytest.raises(ValueError, match="`noise` \\(=None\\) must be given"):
        Laplace(NET, P, X, NET(X, P))
    with pytest.raises(ValueError, match="`prior_precision` \\(=None\\) must be given"):
        Laplace(NET, 0.0 * P, X, np.tile(T, 2))
    with pytest.raises(ValueError, match="must name a parameter that is not frozen"):
        Laplace(NET.with_frozen("1.*"), P, X, np.tile(T, 2), parameters="1.*")


# Weights, and the joint distribution of several outputs

EACH = {
    "squared": (SquaredLoss(), np.column_stack([T[:, 0], -T[:, 0]])),
    "mean": (MSELoss(), np.column_stack([T[:, 0], -T[:, 0]])),
    "binary": (BCEWithLogitsLoss(), (X[:, :2] > 0).astype(float)),
    "labels": (CrossEntropyLoss(), (X[:, 0] > 0).astype(int)),
    "probabilities": (CrossEntropyLoss(), np.eye(2)[(X[:, 0] > 0).astype(int)] * 0.8 + 0.1),
}
numbers = ("noise", "prior_precision", "log_evidence", "effective_parameters")


@pytest.mark.parametrize("kind", EACH)
def test_samples_of_weight_zero_are_as_if_they_were_not_there(kind):
    loss, t = EACH[kind]
    weights = (np.arange(40) % 3 > 0).astype(float)
    holes = np.where(weights.reshape(-1, *[1] * (t.ndim - 1)) > 0, t, np.nan if t.dtype.kind == "f" else 0)
    kept = weights > 0
    found, wanted = Laplace(NET, P, X, holes, loss, weights=weights), Laplace(NET, P, X[kept], t[kept], loss)
    for name in numbers:
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(found.predict(X[:4]), wanted.predict(X[:4]), rtol=1e-9)


@pytest.mark.parametrize("kind", ["binary", "labels", "probabilities"])
def test_classes_of_weight_two_count_twice(kind):
    loss, t = EACH[kind]
    weights = 1.0 + (np.arange(40) % 3 > 0)
    twice = np.repeat(np.arange(40), weights.astype(int))
    found, wanted = Laplace(NET, P, X, t, loss, weights=weights), Laplace(NET, P, X[twice], t[twice], loss)
    for name in numbers:
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-9, err_msg=name)


def test_missing_targets_of_linear_regression_are_exact():
    """Weights of the shape of the targets, of any size: the noise of a target is that of weight one over its root."""
    net = Chain(Dense(3, 2))
    w = np.random.default_rng(1).uniform(0.5, 2.0, (40, 2)) * (np.arange(80).reshape(40, 2) % 3 > 0)
    both = np.column_stack([T[:, 0], -2.0 * T[:, 0]])
    noise, precision = 0.25, 2.0
    means, marginals = [], []
    for k in range(2):
        kept = w[:, k] > 0
        columns, t = COLUMNS[kept], both[kept, k]
        inverse = np.diag(w[kept, k]) / noise**2
        means.append(np.linalg.solve(columns.T @ inverse @ columns + precision * np.eye(4), columns.T @ inverse @ t))
        marginal = np.linalg.inv(inverse) + columns @ columns.T / precision
        marginals.append(-0.5 * (np.linalg.slogdet(2 * math.pi * marginal)[1] + t @ np.linalg.solve(marginal, t)))
    p = np.concatenate([np.stack([m[:3] for m in means], 1).reshape(-1), [m[3] for m in means]])
    holes = np.where(w > 0, both, np.nan)
    found = Laplace(net, p, X, holes, noise=noise, prior_precision=precision, weights=w)
    assert found.log_evidence == pytest.approx(sum(marginals), rel=1e-9)
    best = Laplace(net, p, X, holes, weights=w)
    for factors in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.02), (1.0, 0.98)):
        settings = {"noise": factors[0] * best.noise, "prior_precision": factors[1] * best.prior_precision}
        assert Laplace(net, p, X, holes, weights=w, **settings).log_evidence < best.log_evidence


def test_weights_that_are_none_are_refused():
    for weights, reason in ((-np.ones(40), "zero or positive"), (np.zeros(40), "zero or positive"), (np.ones(3), "shape")):
        with pytest.raises(ValueError, match=rf"`weights` .*{reason}|`weights` has shape"):
            Laplace(LINE, np.ones(4), X, T, weights=weights)


@pytest.mark.parametrize("with_noise", [True, False])
def test_the_joint_covariance_is_that_of_linear_regression(with_noise):
    mean, covariance = posterior(0.25, 2.0)
    found = Laplace(LINE, mean, X, T, noise=0.25, prior_precision=2.0)
    y, joint = found.predict(X[:5], joint=True, with_noise=with_noise)
    wanted = COLUMNS[:5] @ covariance @ COLUMNS[:5].T + 0.25**2 * with_noise * np.eye(5)
    assert joint.shape == (5, 1, 5, 1)
    np.testing.assert_allclose(joint[:, 0, :, 0], wanted, rtol=1e-9)
    np.testing.assert_array_equal(y, found.predict(X[:5])[0])


@pytest.mark.parametrize("kind", EACH)
def test_the_joint_covariance_has_the_variances_on_its_diagonal(kind):
    loss, t = EACH[kind]
    found = Laplace(NET, P, X, t, loss)
    y, joint = found.predict(X[:3], joint=True)
    alone, variance = found.predict(X[:3])
    np.testing.assert_array_equal(y, alone)
    np.testing.assert_allclose(np.diag(joint.reshape(6, 6)), variance.reshape(-1), rtol=1e-12)
    np.testing.assert_allclose(joint, joint.transpose(2, 3, 0, 1), rtol=1e-12)
