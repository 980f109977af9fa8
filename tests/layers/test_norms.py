"""Normalisations and spatial dropout: PyTorch as the oracle over many shapes, statistics in plain NumPy, bad settings."""

from __future__ import annotations

import re

import numpy as np
import pytest

import chains
from chains import SGD, BatchNorm, Chain, Dense, GroupNorm, LayerNorm, RMSNorm, SpatialDropout, SquaredLoss, train
from tests.harness import assert_close
from tests.layers.test_layers import uniform

CLOSE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-10}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def random(*shape, seed=0, dtype=np.float64, mean=0.3, scale=1.5):
    return np.random.default_rng(seed).normal(mean, scale, shape).astype(dtype)


def assert_like(torch, net, peer, x, dtype, mode="eval", state=None):
    """Outputs, dx and every slice of dp equal those of the PyTorch module, whose parameters are set to those of `net`."""
    p, dy = random(net.n_params, seed=1, dtype=dtype), random(*x.shape, seed=2, dtype=dtype)
    views, peer = net.views(p), peer.to(torch.tensor(x).dtype)
    params = dict(peer.named_parameters())
    assert {f"0.{name}" for name in params} == set(views)
    for name, value in params.items():
        value.data[...] = torch.tensor(views[f"0.{name}"])
    inputs = torch.tensor(x, requires_grad=True)
    wanted = peer.train(mode == "train")(inputs)
    wanted.backward(torch.tensor(dy))
    tolerance = CLOSE[np.dtype(dtype)]
    dp, dx = net.vjp(p, x, dy, mode=mode, state=state)  # which leaves the state as it is, unlike the next call
    assert_close(net(x, p, mode=mode, state=state), wanted.detach().numpy(), tolerance)
    assert_close(dx, inputs.grad.numpy(), tolerance, "dx")
    for name, value in params.items():
        assert_close(net.views(dp)[f"0.{name}"], value.grad.numpy(), tolerance, name)


# Within a sample


TRAILING = [
    ((1,), None), ((2,), None), ((5,), 5), ((64,), (64,)), ((33,), None), ((3, 4), None), ((3, 4), (3, 4)), ((7, 16), 16),
    ((2, 3, 5), (5,)), ((2, 3, 5), (3, 5)), ((2, 3, 5), (2, 3, 5)), ((4, 1, 6), (1, 6)), ((2, 2, 2, 3), (2, 3)),
]  # fmt: skip


@pytest.mark.few(10)
@pytest.mark.parametrize(("shape", "trailing"), TRAILING, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize("batch", [1, 3, 50])
def test_layer_norm_is_torchs(torch, shape, trailing, affine, eps, batch, backend_name):
    own = shape[-1:] if trailing is None else (trailing,) if isinstance(trailing, int) else trailing
    net = Chain(LayerNorm(trailing, eps=eps, affine=affine), input_shape=shape, backend=backend_name)
    peer = torch.nn.LayerNorm(own, eps, affine)
    assert_like(torch, net, peer, random(batch, *shape), np.float64)


@pytest.mark.few(10)
@pytest.mark.parametrize(("shape", "trailing"), TRAILING, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize("batch", [1, 3, 50])
def test_rms_norm_is_torchs(torch, shape, trailing, affine, eps, batch, backend_name):
    own = shape[-1:] if trailing is None else (trailing,) if isinstance(trailing, int) else trailing
    net = Chain(RMSNorm(trailing, eps=eps, affine=affine), input_shape=shape, backend=backend_name)
    peer = torch.nn.RMSNorm(own, eps, affine)
    assert_like(torch, net, peer, random(batch, *shape), np.float64)


@pytest.mark.few(10)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", [(6,), (12,), (6, 1), (6, 5), (6, 3, 4), (12, 2, 2), (6, 2, 3, 2)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 50])
def test_group_norm_is_torchs(torch, groups, shape, affine, batch, backend_name):
    if shape in ((6,), (6, 1)) and groups == 6 and batch == 1:
        pytest.skip("a group of one number is its mean")  # which PyTorch refuses
    net = Chain(GroupNorm(groups, shape[0], eps=0.01, affine=affine), input_shape=shape, backend=backend_name)
    peer = torch.nn.GroupNorm(groups, shape[0], 0.01, affine)
    assert_like(torch, net, peer, random(batch, *shape), np.float64)


@pytest.mark.parametrize("layer", [LayerNorm(), LayerNorm((3, 4)), RMSNorm(4), GroupNorm(3, 3), BatchNorm(3)], ids=str)
def test_float32(torch, layer, backend_name):
    peers = {
        "LayerNorm()": lambda: torch.nn.LayerNorm(4), "LayerNorm((3, 4))": lambda: torch.nn.LayerNorm((3, 4)),
        "RMSNorm(4)": lambda: torch.nn.RMSNorm(4, 1e-5), "GroupNorm(3, 3)": lambda: torch.nn.GroupNorm(3, 3),
        "BatchNorm(3)": lambda: torch.nn.BatchNorm1d(3),
    }  # fmt: skip
    net = Chain(layer, input_shape=(3, 4), backend=backend_name)
    peer, x = peers[repr(layer)](), random(20, 3, 4, dtype=np.float32)
    assert_like(torch, net, peer, x, np.float32, "train", net.init_state())


@pytest.mark.parametrize("layer", [LayerNorm((2, 500)), GroupNorm(1, 2), BatchNorm(2)], ids=str)
def test_a_large_mean_does_not_drown_the_variance(layer, dtype, backend_name):
    """The variance is that of the centred numbers, not a difference of large squares."""
    net = Chain(layer, input_shape=(2, 500), backend=backend_name)
    x = random(4, 2, 500, mean=1000.0, scale=1.0, dtype=dtype)
    y = net(x, net.init(dtype=dtype), mode="train", state=net.init_state(dtype))
    axes = (0, 2) if isinstance(layer, BatchNorm) else (1, 2)
    exact = x.astype(np.float64)
    wanted = (exact - exact.mean(axes, keepdims=True)) / np.sqrt(exact.var(axes, keepdims=True) + 1e-5)
    assert_close(y, wanted, 2e-4 if dtype == np.float32 else 1e-10)


def test_constant_numbers(backend_name):
    """A variance of zero is no division by zero."""
    for layer in (LayerNorm(), RMSNorm(), GroupNorm(1, 4), BatchNorm(4)):
        net, x = Chain(layer, input_shape=(4,), backend=backend_name), np.zeros((3, 4))
        p, state = net.init(dtype=np.float64), net.init_state(np.float64)
        np.testing.assert_array_equal(net(x, p, state=state, mode="train"), x)
        assert np.isfinite(net.vjp(p, x, x + 1.0, state=state, mode="train")[1]).all()


@pytest.mark.parametrize("layer", [LayerNorm(5), GroupNorm(1, 5), BatchNorm(5), RMSNorm(5)], ids=str)
def test_squares_that_overflow_give_the_same_on_every_backend(layer, dtype, backend_name):
    """NaN, and for RMSNorm, which has no mean to take away, 0; never one number here and another there."""
    largest = float(np.finfo(dtype).max)
    net, peer = (Chain(layer, input_shape=(5,), backend=name) for name in (backend_name, "numpy"))
    rng, p = np.random.default_rng(0), net.init(dtype=dtype)
    for batch in (2, 3, 9, 33):
        x = (rng.choice([0.3, -0.3, 0.9, -0.9, 0.5], (batch, 5)) * largest).astype(dtype)
        y, wanted = (each(x, p, mode="train", state=each.init_state(dtype)) for each in (net, peer))
        np.testing.assert_array_equal(y, wanted)
        assert (wanted == 0).all() if isinstance(layer, RMSNorm) else np.isnan(wanted).all()
    fine = np.ldexp(rng.normal(size=(4, 5)), np.finfo(dtype).maxexp // 2 - 4).astype(dtype)  # their squares do not overflow
    assert np.isfinite(net(fine, p, mode="train", state=net.init_state(dtype))).all()


def test_shapes_are_found_from_the_settings():
    assert Chain(LayerNorm(7)).input_shape == (7,)
    assert Chain(RMSNorm((3, 7))).input_shape == (3, 7)
    assert Chain(LayerNorm([3, 7])).layout["0.weight"].shape == (3, 7)
    with pytest.raises(ValueError, match="`input_shape` is needed"):
        Chain(BatchNorm(3)).n_params  # noqa: B018


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LayerNorm(0), "`shape` (=0)"),
        (lambda: LayerNorm(()), "`shape` (=())"),
        (lambda: LayerNorm(2.5), "`shape` (=2.5)"),
        (lambda: LayerNorm(eps=0.0), "`eps` (=0.0)"),
        (lambda: RMSNorm(3, eps=-1.0), "`eps` (=-1.0)"),
        (lambda: LayerNorm(eps=float("nan")), "`eps` (=nan)"),
        (lambda: GroupNorm(4, 6), "`channels` (=6) must be divisible by `groups` (=4)"),
        (lambda: GroupNorm(0, 6), "`groups` (=0)"),
        (lambda: GroupNorm(2, -6), "`channels` (=-6)"),
        (lambda: BatchNorm(0), "`channels` (=0)"),
        (lambda: BatchNorm(3, momentum=1.5), "`momentum` (=1.5)"),
        (lambda: BatchNorm(3, momentum=-0.1), "`momentum` (=-0.1)"),
        (lambda: BatchNorm(3, eps=0.0), "`eps` (=0.0)"),
        (lambda: SpatialDropout(1.0), "`rate` (=1.0)"),
        (
            lambda: Chain(LayerNorm(4), input_shape=(4, 3)),
            "`shape` (=(4,)) must be the last lengths of the input's shape (4, 3)",
        ),
        (lambda: Chain(LayerNorm((2, 3)), input_shape=(3,)), "`shape` (=(2, 3)) must be the last lengths"),
        (lambda: Chain(LayerNorm(), input_shape=()), "LayerNorm() needs samples with at least one axis"),
        (lambda: Chain(SpatialDropout(0.5), input_shape=()), "SpatialDropout(0.5) needs samples with at least one axis"),
        (
            lambda: Chain(GroupNorm(2, 4), input_shape=(8, 4)),
            "first length of the input's shape (8, 4); the channels are the first",
        ),
        (
            lambda: Chain(BatchNorm(3), input_shape=(8, 8, 3)),
            "`channels` (=3) must be the first length of the input's shape (8, 8, 3)",
        ),
        (lambda: Chain(BatchNorm(3), input_shape=()), "`channels` (=3) must be the first length of the input's shape ()"),
        (lambda: Chain(Dense(3, 4), BatchNorm(3)), "layer 1, BatchNorm(3), does not take the output of layer 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_settings(make, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        make()


# Over the batch


IMAGES = [(1,), (3,), (40,), (3, 1), (3, 7), (17, 4), (2, 3, 4), (5, 1, 1), (1, 6, 6), (2, 2, 3, 2)]


def batch_norm_peer(torch, shape, **settings):
    kinds = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d, 4: torch.nn.BatchNorm3d}
    return kinds[len(shape)](shape[0], **settings).double()


@pytest.mark.few(10)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("batch", [2, 5, 100])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_norm_is_torchs(torch, shape, affine, batch, mode, backend_name):
    net = Chain(BatchNorm(shape[0], affine=affine, momentum=0.3, eps=0.01), input_shape=shape, backend=backend_name)
    peer = batch_norm_peer(torch, shape, affine=affine, momentum=0.3, eps=0.01)
    state = np.random.default_rng(3).uniform(0.5, 2.0, net.n_state)
    views = net.state_views(state)
    for name, view in views.items():
        peer.get_buffer(name.removeprefix("0."))[...] = torch.tensor(view)
    before = state.tobytes()
    assert_like(torch, net, peer, random(batch, *shape), np.float64, mode, state)
    assert (state.tobytes() == before) == (mode == "eval")
    for name, view in views.items():
        assert_close(view, peer.get_buffer(name.removeprefix("0.")).numpy(), 1e-10, name)


@pytest.mark.parametrize("momentum", [0.1, 1.0, 0.0])
def test_running_statistics_after_several_steps(torch, momentum, backend_name):
    """Two batch normalisations in a network, trained by `train` in uneven batches; then evaluated."""
    net = Chain(
        Dense(3, 6, "tanh"), BatchNorm(6, momentum=momentum), Dense(6, 4), BatchNorm(4, momentum=momentum), backend=backend_name
    )
    peer = torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.BatchNorm1d(6, momentum=momentum), torch.nn.Linear(6, 4),
        torch.nn.BatchNorm1d(4, momentum=momentum),
    ).double()  # fmt: skip
    p, state = net.init(seed=5, dtype=np.float64), net.init_state(np.float64)
    modules = {"0": peer[0], "1": peer[2], "2": peer[3], "3": peer[4]}

    def peers(key, kind):
        layer, name = key.split(".")
        value = dict(getattr(modules[layer], kind)())[name]
        return value.data.T if value.ndim == 2 else value.data

    for key, view in net.views(p).items():
        peers(key, "named_parameters")[...] = torch.tensor(view)
    x, t = random(11, 3), random(11, 4, seed=1)
    optimizer = torch.optim.SGD(peer.parameters(), 0.05)
    peer.train()
    for _ in range(3):
        for start in (0, 4, 8):
            optimizer.zero_grad()
            y = peer(torch.tensor(x[start : start + 4]))
            (0.5 * ((y - torch.tensor(t[start : start + 4])) ** 2).sum() / len(y)).backward()
            optimizer.step()
    train(net, p, x, t, SquaredLoss(), SGD(0.05), epochs=3, batch_size=4, shuffle=False, state=state)
    for key, view in net.views(p).items():
        assert_close(view, peers(key, "named_parameters").numpy(), 1e-9, key)
    for key, view in net.state_views(state).items():
        assert_close(view, peers(key, "named_buffers").numpy(), 1e-9, key)
    assert_close(net(x, p, state=state), peer.eval()(torch.tensor(x)).detach().numpy(), 1e-9)


def test_statistics_of_a_batch(dtype, backend_name):
    net = Chain(BatchNorm(3, momentum=0.25), input_shape=(3, 4), backend=backend_name)
    x, p, state = random(7, 3, 4), net.init(dtype=dtype), net.init_state(dtype)
    y = net(x, p, state=state, mode="train")
    tolerance = CLOSE[np.dtype(dtype)]
    assert_close(y.mean((0, 2)), np.zeros(3), tolerance)
    assert_close(y.var((0, 2)), np.ones(3), 2e-5)  # but for eps
    views = net.state_views(state)
    assert_close(views["0.running_mean"], 0.25 * x.mean((0, 2)), tolerance)
    assert_close(views["0.running_var"], 0.75 + 0.25 * x.var((0, 2), ddof=1), tolerance)


# Spatial dropout


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 7), (3, 2, 4), (2, 3, 2, 2)], ids=str)
def test_spatial_dropout_drops_whole_channels(shape, dtype, backend_name):
    net = Chain(SpatialDropout(0.3), input_shape=shape, backend=backend_name)
    x = random(4, *shape, dtype=dtype)
    kept = uniform(4 * shape[0], 41, 0, 0).reshape(4, shape[0], *(1 for _ in shape[1:])) >= np.float32(0.3)
    y = net(x, np.empty(0, dtype), mode="train", seed=41)
    np.testing.assert_allclose(y, np.where(kept, x / 0.7, 0.0), rtol=1e-6)
    np.testing.assert_array_equal(net(x, np.empty(0, dtype)), x)
    _, dx = net.vjp(np.empty(0, dtype), x, np.ones_like(x), mode="train", seed=41)
    np.testing.assert_allclose(dx, np.broadcast_to(np.where(kept, 1 / 0.7, 0.0), x.shape), rtol=1e-6)


def test_spatial_dropout_of_vectors_is_dropout(backend_name):
    x, p = random(6, 9), np.empty(0)
    nets = (Chain(layer, input_shape=(9,), backend=backend_name) for layer in (SpatialDropout(0.4), chains.Dropout(0.4)))
    a, b = (net(x, p, mode="train", seed=3) for net in nets)
    assert a.tobytes() == b.tobytes()
