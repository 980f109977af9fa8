"""PyTorch as the oracle: the same outputs, the same gradient of every slice, and ten steps of every optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import chains
from chains import Chain, Conv, Dense, MaxPool, Parallel, Residual, Scale, Series, Shift, train
from chains.activations import ACTIVATIONS
from chains.losses import GaussianNLLLoss, PoissonNLLLoss, QuantileLoss
from tests.harness import BATCHES, CLIPPED, DTYPES, OPTIMIZERS, Case, assert_close, assert_same_bits, targets

torch = pytest.importorskip("torch")
F = torch.nn.functional

CLOSE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-12}
PEERS = {
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "mish": F.mish,
    "sin": torch.sin,
}
ACTIVATIONS_WITHOUT_PEER: set[str] = set()  # those that PyTorch lacks


@dataclass(frozen=True)
class Peer:
    """Layers, and what they compute in PyTorch from the input and the parameters by name."""

    name: str
    layers: tuple[Any, ...]
    function: Any
    shape: tuple[int, ...] = (3,)


def linear(p, name, x):
    y = x @ p[f"{name}.weight"]
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def conv(p, name, x, **settings):
    return F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], **settings)


NETS = [
    *(Peer(f"Dense-{name}", (Dense(3, 4, name), Dense(4, 2, name)),
           lambda x, p, f=f: f(linear(p, "1", f(linear(p, "0", x))))) for name, f in PEERS.items()),
    Peer("Dense-sequence", (Dense(3, 4, "gelu"), Dense(4, 2, bias=False)),
         lambda x, p: linear(p, "1", F.gelu(linear(p, "0", x))), (5, 3)),
    Peer("Softmax", (Dense(3, 4), chains.Softmax()), lambda x, p: torch.softmax(linear(p, "0", x), -1)),
    Peer("LogSoftmax", (Dense(3, 4), chains.LogSoftmax()), lambda x, p: torch.log_softmax(linear(p, "0", x), -1), (2, 3)),
    Peer("shapes", (chains.Flatten(), Dense(6, 4), chains.Reshape(2, 2), Dense(2, 3)),
         lambda x, p: linear(p, "3", linear(p, "1", x.flatten(1)).reshape(-1, 2, 2)), (2, 3)),
    Peer("Scale-Shift", (Scale(), Shift(), chains.Activation("tanh")),
         lambda x, p: torch.tanh(x * p["0.scale"] + p["1.shift"]), (2, 3)),
    Peer("Residual", (Residual(Dense(3, 4, "tanh"), Dense(4, 3)), Residual(Scale())),
         lambda x, p: (h := x + linear(p, "0.inner.1", torch.tanh(linear(p, "0.inner.0", x)))) + h * p["1.inner.scale"]),
    Peer("Parallel", (Parallel(Dense(3, 2, "relu"), Shift(), chains.Softmax(), axis=-1),),
         lambda x, p: torch.cat([torch.relu(linear(p, "0.0", x)), x + p["0.1.shift"], torch.softmax(x, -1)], -1), (2, 3)),
    Peer("Parallel-sum", (Parallel(Dense(3, 3), Series(Scale(), Dense(3, 3, "mish")), join="sum"),),
         lambda x, p: linear(p, "0.0", x) + F.mish(linear(p, "0.1.1", x * p["0.1.0.scale"]))),
    Peer("LeNet", (Conv(1, 3, 3, "relu", padding="same"), MaxPool(2), Conv(3, 4, 3, "relu"), MaxPool(2, stride=1),
                   chains.Flatten(), Dense(16, 5, "tanh"), Dense(5, 2)),
         lambda x, p: linear(p, "6", torch.tanh(linear(p, "5", F.max_pool2d(torch.relu(conv(
             p, "2", F.max_pool2d(torch.relu(conv(p, "0", x, padding=1)), 2))), 2, 1).flatten(1)))), (1, 10, 10)),
    Peer("convolutions", (Residual(Conv(2, 2, 3, "gelu", padding=1)),
                          Parallel(Conv(2, 2, 1), Series(Conv(2, 4, 1, "silu"), Conv(4, 4, 3, padding=1, groups=4))),
                          chains.AvgPool(2), chains.GlobalAvgPool()),
         lambda x, p: (lambda h: F.avg_pool2d(torch.cat([conv(p, "1.0", h), conv(
             p, "1.1.1", F.silu(conv(p, "1.1.0", h)), padding=1, groups=4)], 1), 2).mean((2, 3)))(
             x + F.gelu(conv(p, "0.inner", x, padding=1))), (2, 6, 5)),
]  # fmt: skip


def tensors(net, p):
    return {name: torch.tensor(view, requires_grad=True) for name, view in net.views(p).items()}


def assert_gradients(net, g, params, tolerance):
    for name, view in net.views(g).items():
        assert_close(view, params[name].grad.numpy(), tolerance, name)


def test_every_activation_has_a_peer():
    assert PEERS.keys() | ACTIVATIONS_WITHOUT_PEER == ACTIVATIONS.keys()


@pytest.mark.few(30)
@pytest.mark.parametrize("peer", NETS, ids=lambda peer: peer.name)
def test_outputs_and_every_slice_of_the_gradient(peer, dtype, batch, backend_name):
    net, rng = Chain(*peer.layers, input_shape=peer.shape, backend=backend_name), np.random.default_rng(7)
    p, x = rng.normal(size=net.n_params).astype(dtype), rng.normal(size=(batch, *peer.shape)).astype(dtype)
    dy = rng.normal(size=(batch, *net.output_shape)).astype(dtype)
    params, inputs = tensors(net, p), torch.tensor(x, requires_grad=True)
    y = peer.function(inputs, params)
    y.backward(torch.tensor(dy))
    tolerance = CLOSE[np.dtype(dtype)]
    assert_close(net(x, p), y.detach().numpy(), tolerance)
    dp, dx = net.vjp(p, x, dy)
    assert_gradients(net, dp, params, tolerance)
    assert_close(dx, inputs.grad.numpy(), tolerance, "dx")


def cross_entropy(y, t):
    classes_second = y.movedim(-1, 1)  # PyTorch wants (batch, classes, positions)
    return F.cross_entropy(classes_second, t if t.ndim < y.ndim else t.movedim(-1, 1))


def gaussian(**settings):
    def peer(y, t):
        mean, spread = y.chunk(2, dim=-1)
        return F.gaussian_nll_loss(mean, t, spread if settings.get("full") else spread.exp(), **settings)

    return peer


def several_quantiles(y, t):
    d = [t - part for part in y.chunk(2, dim=-1)]
    return torch.stack([torch.maximum(q * d, (q - 1) * d) for q, d in zip((0.1, 0.7), d, strict=True)]).mean()


LOSSES = {
    "SquaredLoss": (chains.SquaredLoss(), "real", lambda y, t: 0.5 * F.mse_loss(y, t, reduction="sum") / len(y)),
    "MSELoss": (chains.MSELoss(), "real", F.mse_loss),
    "L1Loss": (chains.L1Loss(), "real", F.l1_loss),
    "HuberLoss": (chains.HuberLoss(), "real", F.huber_loss),
    "HuberLoss-0.3": (chains.HuberLoss(0.3), "real", lambda y, t: F.huber_loss(y, t, delta=0.3)),
    "CrossEntropyLoss-labels": (chains.CrossEntropyLoss(), "labels", cross_entropy),
    "CrossEntropyLoss-probabilities": (chains.CrossEntropyLoss(), "probabilities", cross_entropy),
    "BCEWithLogitsLoss": (chains.BCEWithLogitsLoss(), "fractions", F.binary_cross_entropy_with_logits),
    "PoissonNLLLoss": (PoissonNLLLoss(), "counts", F.poisson_nll_loss),
    "PoissonNLLLoss-full": (PoissonNLLLoss(full=True), "counts", partial(F.poisson_nll_loss, full=True)),
    "GaussianNLLLoss-log_variance": (GaussianNLLLoss(log_variance=True), "halves", gaussian()),
    "QuantileLoss": (QuantileLoss(0.5), "real", lambda y, t: 0.5 * F.l1_loss(y, t)),
    "QuantileLoss-two": (QuantileLoss([0.1, 0.7]), "halves", several_quantiles),
}


def tensor(t, dtype):
    return torch.tensor(t if t.dtype.kind == "i" else t.astype(dtype))


@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
@pytest.mark.parametrize(("loss", "kind", "peer"), LOSSES.values(), ids=LOSSES)
def test_losses(loss, kind, peer, shape, dtype, batch, backend_name):
    net, rng = Chain(Dense(3, 6), input_shape=shape, backend=backend_name), np.random.default_rng(7)
    p, x = rng.normal(size=net.n_params).astype(dtype), rng.normal(size=(batch, *shape)).astype(dtype)
    t = targets(kind, rng, batch, net.output_shape)
    value, g = net.value_and_grad(p, x, t, loss)
    params = tensors(net, p)
    wanted = peer(linear(params, "0", torch.tensor(x)), tensor(t, dtype))
    wanted.backward()
    assert value == pytest.approx(wanted.item(), rel=CLOSE[np.dtype(dtype)])
    assert_gradients(net, g, params, CLOSE[np.dtype(dtype)])


POSITIVE_LOSSES = {
    "PoissonNLLLoss": (
        PoissonNLLLoss(log_input=False, full=True, eps=0.1), "counts",
        partial(F.poisson_nll_loss, log_input=False, full=True, eps=0.1),
    ),
    "GaussianNLLLoss": (GaussianNLLLoss(full=True), "halves", gaussian(full=True)),
    "GaussianNLLLoss-eps": (GaussianNLLLoss(full=True, eps=0.7), "halves", gaussian(full=True, eps=0.7)),  # about the half
}  # fmt: skip


@pytest.mark.parametrize(("loss", "kind", "peer"), POSITIVE_LOSSES.values(), ids=POSITIVE_LOSSES)
def test_losses_of_outputs_that_are_not_negative(loss, kind, peer, dtype, batch, backend_name):
    net, rng = Chain(Dense(3, 6, "softplus"), backend=backend_name), np.random.default_rng(7)
    p, x = rng.normal(size=net.n_params).astype(dtype), rng.normal(size=(batch, 3)).astype(dtype)
    t = targets(kind, rng, batch, net.output_shape)
    value, g = net.value_and_grad(p, x, t, loss)
    params = tensors(net, p)
    wanted = peer(F.softplus(linear(params, "0", torch.tensor(x))), tensor(t, dtype))
    wanted.backward()
    assert value == pytest.approx(wanted.item(), rel=CLOSE[np.dtype(dtype)])
    assert_gradients(net, g, params, CLOSE[np.dtype(dtype)])


def sgd(o, params):
    return torch.optim.SGD(params, lr=o.learning_rate, momentum=o.momentum, nesterov=o.nesterov)


# By class: PyTorch's optimiser with the settings of ours.
OPTIMIZER_PEERS = {
    "SGD": sgd,
    "SWAG": sgd,
    "Adam": lambda o, params: torch.optim.Adam(params, o.learning_rate, (o.beta1, o.beta2), o.eps),
    "AdamW": lambda o, params: torch.optim.AdamW(
        params, o.learning_rate, (o.beta1, o.beta2), o.eps, weight_decay=o.weight_decay
    ),
    "RMSProp": lambda o, params: torch.optim.RMSprop(params, o.learning_rate, o.decay, o.eps),
    "Adagrad": lambda o, params: torch.optim.Adagrad(params, o.learning_rate, eps=o.eps),
}
OPTIMIZERS_WITHOUT_PEER: set[str] = set()  # classes that PyTorch lacks
TEN_STEPS = {k: o for k, o in (OPTIMIZERS | CLIPPED).items() if type(o).__name__ in OPTIMIZER_PEERS}


def test_every_optimizer_has_a_peer():
    classes = {type(optimizer).__name__ for optimizer in OPTIMIZERS.values()}
    assert classes == OPTIMIZER_PEERS.keys() | OPTIMIZERS_WITHOUT_PEER


@pytest.mark.parametrize("name", TEN_STEPS)
@pytest.mark.parametrize("frozen", [(), ("0.bias", "1.weight")], ids=["all", "frozen"])
def test_ten_steps(name, frozen, dtype, backend_name):
    optimizer = TEN_STEPS[name]
    net, rng = Chain(Dense(3, 6, "tanh"), Dense(6, 2), backend=backend_name).with_frozen(*frozen), np.random.default_rng(7)
    p, x, t = net.init(seed=1, dtype=dtype), rng.normal(size=(8, 3)).astype(dtype), rng.normal(size=(8, 2)).astype(dtype)
    params = tensors(net, p)
    peer = OPTIMIZER_PEERS[type(optimizer).__name__](optimizer, [value for key, value in params.items() if key not in frozen])
    losses = []
    for _ in range(10):
        peer.zero_grad()
        y = linear(params, "1", torch.tanh(linear(params, "0", torch.tensor(x))))
        value = 0.5 * F.mse_loss(y, torch.tensor(t), reduction="sum") / 8
        value.backward()
        if optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_([v for k, v in params.items() if k not in frozen], optimizer.clip_norm)
        peer.step()
        losses.append(value.item())
    history = train(net, p, x, t, chains.SquaredLoss(), optimizer, epochs=10)
    tolerance = 5e-5 if dtype == np.float32 else 1e-10
    assert_close(history.loss, losses, tolerance)
    for key, view in net.views(p).items():
        assert_close(view, params[key].detach().numpy(), tolerance, key)


def test_penalty_is_weight_decay(backend_name):
    """The strength of an L2 penalty is half of PyTorch's weight_decay."""
    case = Case("", None, (Dense(3, 2),))
    problem, net = case.problem(4), case.net(backend_name)
    p, params = problem.p.copy(), tensors(net, problem.p)
    peer = torch.optim.SGD(params.values(), lr=0.1, weight_decay=0.3)
    F.mse_loss(linear(params, "0", torch.tensor(problem.x)), torch.tensor(problem.t)).backward()
    peer.step()
    train(net, p, problem.x, problem.t, chains.MSELoss(), chains.SGD(0.1), penalty=chains.L2Penalty(0.15))
    for key, view in net.views(p).items():
        assert_close(view, params[key].detach().numpy(), 1e-12)


# Tensors as data


def test_tensors_come_in_without_a_copy(dtype):
    x = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
    assert np.shares_memory(chains.support.arrays.as_numpy("x", x), x.numpy())


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "uint8", "int64", "bool"])
def test_tensors_are_data(kind, backend_name):
    net = Chain(Dense(3, 2), backend=backend_name)
    p, x = net.init(dtype=np.float64), torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=getattr(torch, kind))
    assert_same_bits({"y": net(x, p)}, {"y": net(x.numpy(), p)})
    assert_same_bits({"y": net(x, torch.tensor(p))}, {"y": net(x.numpy(), p)})
    value, _ = net.value_and_grad(p, x, torch.zeros(2, 2), chains.SquaredLoss(), weights=torch.ones(2))
    assert value == net.value_and_grad(p, x.numpy(), np.zeros((2, 2)), chains.SquaredLoss())[0]


def test_transposed_tensors():
    net = Chain(Dense(3, 2))
    p, x = net.init(dtype=np.float64), torch.arange(12.0, dtype=torch.float64).reshape(3, 4).T
    assert_close(net(x, p), net(x.numpy().copy(), p), 1e-15)


def test_a_tensor_can_be_trained():
    """It shares its memory, so it is what moves."""
    net = Chain(Dense(3, 2))
    p = torch.tensor(net.init())
    before = p.clone()
    train(net, p, np.ones((4, 3)), np.ones((4, 2)), chains.SquaredLoss(), chains.SGD(0.1))
    assert not torch.equal(p, before)


def test_tensors_elsewhere_are_refused():
    net = Chain(Dense(3, 2))
    with pytest.raises(TypeError, match=r"`x`.*meta"):
        net(torch.ones(4, 3, device="meta"), net.init())
    with pytest.raises(TypeError, match="`x`"):
        net(torch.ones(4, 3, dtype=torch.bfloat16), net.init())


def test_the_suite_covers_both_types():
    assert {np.dtype(kind) for kind in DTYPES} == set(CLOSE)
    assert 1 in BATCHES
