"""Losses with a model of the noise: settings, shapes of targets, lengths, second derivatives, and what their minima are."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chains import GRU, Chain, Dense, L1Loss, Scale, minimize
from chains.losses import GaussianNLLLoss, PoissonNLLLoss, QuantileLoss
from tests.harness import assert_close, targets

LOSSES = [
    (PoissonNLLLoss(full=True), "counts"),
    (GaussianNLLLoss(log_variance=True), "halves"),
    (QuantileLoss([0.1, 0.7]), "halves"),
    (QuantileLoss(0.8), "real"),
]
every_loss = pytest.mark.parametrize(("loss", "kind"), LOSSES, ids=str)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: PoissonNLLLoss(log_input=1), TypeError, "`log_input` (=1)"),
        (lambda: PoissonNLLLoss(full="yes"), TypeError, "`full` (='yes')"),
        (lambda: PoissonNLLLoss(eps=0.0), ValueError, "`eps` (=0.0)"),
        (lambda: GaussianNLLLoss(full=None), TypeError, "`full` (=None)"),
        (lambda: GaussianNLLLoss(eps=-1.0), ValueError, "`eps` (=-1.0)"),
        (lambda: GaussianNLLLoss(log_variance="no"), TypeError, "`log_variance` (='no')"),
        (lambda: QuantileLoss(1.0), ValueError, "`q` (=1.0) must be in (0, 1)"),
        (lambda: QuantileLoss("median"), TypeError, "`q` (='median')"),
        (lambda: QuantileLoss([0.5, np.nan]), ValueError, "`q` (=nan) must be in (0, 1)"),
        (lambda: QuantileLoss([]), ValueError, "`q` (=()) must have a quantile"),
    ],
)
def test_settings_that_do_not_fit(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_equal_settings_are_equal_losses():
    assert PoissonNLLLoss(full=True) == PoissonNLLLoss(full=True) != PoissonNLLLoss(eps=1e-3)
    assert PoissonNLLLoss(log_input=False) != PoissonNLLLoss(log_input=False, eps=1e-3)
    assert GaussianNLLLoss(eps=1e-3) == GaussianNLLLoss(eps=1e-3) != GaussianNLLLoss()
    assert QuantileLoss([0.1, 0.5]) == QuantileLoss(np.array([0.1, 0.5])) != QuantileLoss([0.5, 0.1])
    assert repr(QuantileLoss(np.array([0.1, 0.5]))) == "QuantileLoss(q=(0.1, 0.5))"


@pytest.mark.parametrize(
    ("loss", "output", "target", "message"),
    [
        (
            GaussianNLLLoss(),
            (4,),
            (4,),
            "with means and variances along the last axis, must have the sample shape (2,), got (4,)",
        ),
        (GaussianNLLLoss(), (3, 2), (1,), "must have the sample shape (3, 1), got (1,)"),
        (
            GaussianNLLLoss(),
            (3,),
            (1,),
            "outputs must have means and variances along their last axis, got the sample shape (3,)",
        ),
        (
            QuantileLoss([0.1, 0.5, 0.9]),
            (4,),
            (),
            "outputs must have 3 quantiles along their last axis, got the sample shape (4,)",
        ),
        (QuantileLoss([0.1, 0.9]), (4,), (), "must have the sample shape (2,), got ()"),
        (QuantileLoss(0.5), (4,), (2,), "targets must have the sample shape of the outputs, (4,), got (2,)"),
    ],
    ids=str,
)
def test_targets_of_another_shape_are_refused(loss, output, target, message):
    net = Chain(input_shape=output)
    with pytest.raises(ValueError, match=re.escape(message)):
        net.loss(np.zeros(0), np.ones((5, *output)), np.ones((5, *target)), loss)


@pytest.mark.parametrize(("low", "text"), [(-1.0, "-1.0"), (np.nan, "nan")])
def test_counts_are_not_negative(low, text):
    net = Chain(input_shape=(2,))
    with pytest.raises(ValueError, match=f"`t`: counts must not be negative, got {text}"):
        net.loss(np.zeros(0), np.ones((2, 2)), [[1.0, 0.0], [low, 2.0]], PoissonNLLLoss())


@pytest.mark.parametrize("loss", [GaussianNLLLoss(), QuantileLoss([0.1, 0.9]), QuantileLoss([0.5])], ids=str)
def test_one_target_needs_no_axis(loss, backend_name):
    outputs = len(loss.q) if isinstance(loss, QuantileLoss) else 2
    rng = np.random.default_rng(0)
    for shape in ((), (3,)):
        net = Chain(Scale(), input_shape=(*shape, outputs), backend=backend_name)
        x, t, w = rng.uniform(0.5, 1.5, (4, *shape, outputs)), rng.normal(size=(4, *shape)), rng.uniform(size=(4, *shape))
        p = net.init(dtype=np.float64)
        found, wanted = (net.value_and_grad(p, x, t[at], loss, weights=w[at]) for at in (..., (..., None)))
        assert found[0] == wanted[0]
        assert found[1].tobytes() == wanted[1].tobytes()


@pytest.mark.parametrize("q", [0.5, (0.5,)], ids=str)
def test_the_median_has_half_the_absolute_loss(q, backend_name):
    net = Chain(Scale(), input_shape=() if q == 0.5 else (2,), backend=backend_name)
    x = np.random.default_rng(0).normal(size=(5, *net.input_shape))
    x.flat[0] = 0.0  # where the slope is 0
    found, wanted = (net.value_and_grad(net.init(), x, 0 * x, loss) for loss in (QuantileLoss(q), L1Loss()))
    assert_close(2 * found[0], wanted[0], 1e-6)
    assert_close(2 * found[1], wanted[1], 1e-6)


@every_loss
def test_entries_after_a_samples_length_count_nothing(loss, kind, backend_name):
    net = Chain(GRU(3, 5, return_sequences=True), Dense(5, 4), input_shape=(6, 3), backend=backend_name)
    rng = np.random.default_rng(0)
    p, x, lengths = net.init(seed=1, dtype=np.float64), rng.normal(size=(4, 6, 3)), np.array([6, 2, 1, 4])
    t = targets(kind, rng, 4, net.output_shape)
    w = np.broadcast_to((np.arange(6) < lengths[:, None])[..., None], t.shape).astype(float)
    wanted = net.value_and_grad(p, x, t, loss, weights=w)
    found = net.value_and_grad(p, x, np.where(w == 0, np.pi, t), loss, lengths=lengths)
    each = [net.value_and_grad(p, x[k : k + 1], t[k : k + 1], loss, lengths=lengths[k : k + 1]) for k in range(4)]
    for k in range(2):
        assert_close(found[k], np.mean([one[k] for one in each], axis=0), 1e-12)
        assert_close(found[k], wanted[k], 1e-12)


@every_loss
def test_second_derivatives(loss, kind, backend_name):
    net, rng = Chain(Dense(3, 5, "tanh"), Dense(5, 4), backend=backend_name), np.random.default_rng(0)
    p, x = net.init(seed=1, dtype=np.float64), rng.normal(size=(6, 3))
    t, w, v = targets(kind, rng, 6, (4,)), rng.uniform(0.5, 2.0, 6), rng.normal(size=net.n_params)

    def gradient(p):
        return net.value_and_grad(p, x, t, loss, weights=w)[1]

    wanted = (gradient(p + 1e-5 * v) - gradient(p - 1e-5 * v)) / 2e-5
    assert_close(net.hvp(p, x, t, loss, v, weights=w), wanted, 1e-8)
    assert_close(np.mean(net.sample_gradients(p, x, t, loss, weights=w), axis=0), gradient(p), 1e-12)
    outputs, J = Chain(Dense(6, 4, bias=False)), net.jacobian(p, x)  # with the unit matrix, parameters are the outputs
    product = outputs.hvp(net(x, p).ravel(), np.eye(6), t, loss, (J @ v).ravel(), weights=w)
    assert_close(net.gauss_newton(p, x, t, loss, v, weights=w), np.einsum("bop,bo->p", J, product.reshape(6, 4)), 1e-12)


def test_the_minimum_of_the_gaussian_loss_is_the_mean_and_the_variance(backend_name):
    rng = np.random.default_rng(0)
    t, x = rng.normal([1.0, -2.0], [0.5, 3.0], (200, 2)), np.zeros((200, 1))
    net = Chain(Dense(1, 4), backend=backend_name)
    objective = net.objective(x, t, GaussianNLLLoss(full=True, log_variance=True))
    p = minimize(objective, net.init(dtype=np.float64), "L-BFGS", gtol=1e-10, maxiter=500).x
    mean, logarithm = np.split(net.views(p)["0.bias"], 2)
    np.testing.assert_allclose(mean, t.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(np.exp(logarithm), t.var(axis=0), rtol=1e-5)
    nll = np.mean((np.log(2 * np.pi * t.var(axis=0)) + 1) / 2)
    assert objective(p)[0] == pytest.approx(nll, rel=1e-9)


def test_the_minimum_of_the_quantile_loss_is_the_quantile(backend_name):
    t, q = np.random.default_rng(0).normal(size=(101, 2)), (0.1, 0.5, 0.9)
    net = Chain(Dense(1, 6), backend=backend_name)
    p, x = np.zeros(net.n_params), np.zeros((101, 1))
    bias = net.views(p)["0.bias"]
    bias[:] = np.quantile(t, q, axis=0).ravel()
    least = net.loss(p, x, t, QuantileLoss(q))
    for k in range(6):
        for by in (-0.1, 0.1):
            bias[k] += by
            assert net.loss(p, x, t, QuantileLoss(q)) > least
            bias[k] -= by
