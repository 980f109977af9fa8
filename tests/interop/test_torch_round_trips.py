"""Random networks in PyTorch and back: outputs and gradients in float32, to 1e-6 of their norm.

Where float32 cannot give that (the slope of tanh near 1, say), PyTorch's own distance from float64 is the measure.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

import chains
from chains import GRU, LSTM, RNN, Attention, BatchNorm, Chain, Conv, ConvTranspose, Dense, TransformerBlock
from chains.interop import from_torch, to_torch
from chains.network.network import network_of
from tests import harness

torch = pytest.importorskip("torch")
nn = torch.nn

CLOSE = 1e-6
ACTIVATIONS = (
    "relu",
    "tanh",
    "sigmoid",
    "silu",
    "mish",
    "selu",
    "softsign",
    "gelu",
    "softplus",
    "elu",
    "leaky_relu",
    "identity",
)


def distance(a, b):
    """Of two arrays, in parts of the second one's norm."""
    return np.linalg.norm(np.ravel(a - b)) / max(np.linalg.norm(np.ravel(b)), 1e-30)


def gradient(module, shape):
    """That of a module, as the network here has it: the layers are linear in their parameters' order and transposition."""
    other = copy.deepcopy(module)
    for parameter, own in zip(module.parameters(), other.parameters(), strict=True):
        own.data = parameter.grad.clone()
    for part in other.modules():
        if isinstance(part, (nn.RNN, nn.LSTM)):  # whose two biases are one here
            for name, parameter in part.named_parameters():
                if name.startswith("bias_hh"):
                    parameter.data.zero_()
    return from_torch(other, shape, backend="numpy")[1]


def check(net, rng):
    p = net.init(seed=int(rng.integers(99)))
    state = np.abs(net.init_state() + rng.normal(0, 0.3, net.n_state).astype(np.float32)) if net.n_state else None
    ids = network_of(net).id_count
    x = (
        rng.normal(size=(3, *net.input_shape)).astype(np.float32)
        if ids is None
        else rng.integers(0, ids, (3, *net.input_shape))
    )
    module = to_torch(net, p, state).eval()
    given = torch.from_numpy(x.copy())
    y = module(given if ids else given.requires_grad_())
    dy = rng.normal(size=tuple(y.shape)).astype(np.float32)
    y.backward(torch.from_numpy(dy))

    back, q, again = from_torch(module, net.input_shape, backend="numpy")
    np.testing.assert_array_equal(q, p)
    assert (again is None) == (state is None)
    theirs = y.detach().numpy(), joined(gradient(module, net.input_shape), None if ids else given.grad.numpy())
    wide = [None if array is None else array.astype(np.float64) for array in (p, x, dy, state)]
    exact = computed(net, wide[0], x if ids else wide[1], wide[2], wide[3])
    for network, parameters, statistics in ((net, p, state), (back, q, again)):
        ours = computed(network, parameters, x, dy, statistics)
        for mine, other, true in zip(ours, theirs, exact, strict=True):
            assert distance(mine, other) < max(CLOSE, 4.0 * distance(other, true))


def joined(dp, dx):
    """All gradients as one vector: that of the input may be zero but for rounding."""
    return dp if dx is None else np.concatenate([dp, dx.ravel()])


def computed(net, p, x, dy, state):
    """The outputs and the gradients."""
    dp, dx = net.vjp(p, x, dy, state=state)
    return net(x, p, state=state), joined(dp, None if network_of(net).id_count else dx)


def draw(rng, *choices):
    return choices[rng.integers(len(choices))]


def images(rng):
    shape = channels, _, _ = int(rng.integers(1, 4)), 8, 8
    layers = []
    for _ in range(int(rng.integers(1, 4))):
        outputs = 2 * int(rng.integers(1, 3))
        layers.append(Conv(channels, outputs, int(rng.integers(1, 4)), draw(rng, *ACTIVATIONS), padding=draw(rng, 0, 1)))
        channels = outputs
        layers += draw(
            rng, [BatchNorm(channels)], [chains.MaxPool(2, stride=1)], [ConvTranspose(channels, channels, 2, bias=False)],
            [chains.GroupNorm(2, channels)], [chains.AvgPool(2, stride=1, padding=1)], [chains.Upsample(2)],
            [chains.Pad(((1, 0), (0, 1)))], [chains.SpatialDropout(0.2)],
        )  # fmt: skip
    layers.append(draw(rng, chains.Flatten(), chains.GlobalAvgPool()))
    (size,) = Chain(*layers, input_shape=shape).output_shape
    return Chain(
        *layers,
        Dense(size, 5, draw(rng, *ACTIVATIONS)),
        *draw(rng, [], [chains.LogSoftmax()]),
        input_shape=shape,
        backend="numpy",
    )


def sequences(rng):
    time, size = int(rng.integers(2, 7)), 4
    layers = [draw(rng, chains.Embedding(9, size), Dense(size, size, draw(rng, *ACTIVATIONS)))]
    shape = (time,) if isinstance(layers[0], chains.Embedding) else (time, size)
    for _ in range(int(rng.integers(1, 4))):
        settings = {"bidirectional": draw(rng, True, False), "initial_state": draw(rng, "zeros", "parameter")}
        units = draw(rng, 2, 4, 6)
        layers.append(
            draw(
                rng, RNN(size, units, draw(rng, "relu", "tanh"), return_sequences=True, **settings),
                LSTM(size, units, return_sequences=True, **settings), GRU(size, units, return_sequences=True, **settings),
                Attention(size, 2, causal=draw(rng, True, False), bias=draw(rng, True, False)),
                TransformerBlock(size, 2, 5, activation=draw(rng, *ACTIVATIONS), causal=draw(rng, True, False), dropout=0.1),
                chains.LayerNorm(size), chains.RMSNorm(size), chains.Dropout(0.3), Dense(size, 6, "softsign", bias=False),
            )
        )  # fmt: skip
        size = Chain(*layers, input_shape=shape).output_shape[-1]
    last = draw(rng, GRU(size, 3), LSTM(size, 3, bidirectional=True), chains.Flatten())
    return Chain(*layers, last, input_shape=shape, backend="numpy")


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("kind", [images, sequences])
def test_random_networks(kind, number):
    rng = np.random.default_rng([harness.SEED, number])
    check(kind(rng), rng)


def test_modules_of_pytorch_itself():
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    for module in (
        nn.GRU(4, 3, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2),
        nn.LSTM(4, 3, batch_first=True, bias=False),
        nn.RNN(4, 3, batch_first=True, nonlinearity="relu"),
    ):
        net, p, _ = from_torch(module, (5, 4), backend="numpy")
        assert distance(net(x, p), module.eval()(x)[0].detach().numpy()) < CLOSE
    block = nn.TransformerEncoderLayer(4, 2, 7, activation="gelu", batch_first=True, norm_first=True)
    module = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(4), enable_nested_tensor=False)
    net, p, _ = from_torch(module, (5, 4), backend="numpy")
    assert distance(net(x, p), module.eval()(x).detach().numpy()) < CLOSE
    module = nn.MultiheadAttention(4, 2, batch_first=True)
    net, p, _ = from_torch(module, (5, 4), backend="numpy")
    assert distance(net(x, p), module(x, x, x)[0].detach().numpy()) < CLOSE


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.GRU(4, 3), "`batch_first` of GRU must be True"),
        (nn.LSTM(4, 3, batch_first=True, proj_size=2), "`proj_size` 0"),
        (nn.MultiheadAttention(4, 2, batch_first=True, kdim=3), "`kdim`"),
        (nn.TransformerEncoderLayer(4, 2, 7, batch_first=True), "`norm_first` and `bias`"),
        (nn.TransformerEncoderLayer(4, 2, 7, batch_first=True, norm_first=True, activation=torch.cos), "`activation`"),
    ],
)
def test_other_settings_are_refused(module, reason):
    with pytest.raises(ValueError, match=reason):
        from_torch(module, (5, 4), backend="numpy")


@pytest.mark.parametrize("layer", [RNN(2, 2, "gelu"), GRU(2, 2, reset_after=False), chains.CausalConv(2, 2, 2)], ids=repr)
def test_what_pytorch_does_not_have_is_refused(layer):
    net = Chain(layer, input_shape=(3, 2))
    with pytest.raises(TypeError, match=r"as_torch\(net\)"):
        to_torch(net, net.init())
