"""PyTorch as the oracle for layers of sequences: its weights copied over, the same outputs and gradients in float64."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Attention, CausalConv, Chain, Embedding, TransformerBlock
from tests.harness import BACKENDS, SEED, assert_close

pytestmark = pytest.mark.few(4)

torch = pytest.importorskip("torch")

every_backend = pytest.mark.parametrize("name", BACKENDS)
CLOSE = 1e-10
SIZES = [np.random.default_rng([SEED, k]) for k in range(4)]


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array, dtype=torch.float64)


def check(net: Chain, weights: dict[str, np.ndarray], x: np.ndarray, peer, gradients) -> None:
    """The outputs and the gradients for a random cotangent are those of `peer`; `gradients` gives PyTorch's by our names."""
    p = np.zeros(net.n_params)
    views = net.views(p)
    assert views.keys() == weights.keys()
    for name, array in weights.items():
        views[name][...] = array
    real = x.dtype.kind == "f"
    given = tensor(x).requires_grad_() if real else torch.tensor(x)
    wanted = peer(given)
    dy = np.random.default_rng(1).normal(size=wanted.shape)
    wanted.backward(tensor(dy))
    assert_close(net(x, p), wanted.detach().numpy(), CLOSE, "outputs")
    g, dx = net.vjp(p, x, dy)
    for name, gradient in gradients().items():
        assert_close(net.views(g)[name], gradient.numpy(), CLOSE, name)
    if real:
        assert_close(dx, given.grad.numpy(), CLOSE, "inputs")


@every_backend
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("rng", SIZES, ids=range(4))
def test_embedding(name, padding, rng):
    rng = np.random.default_rng(rng.bit_generator.seed_seq)
    count, features, time = rng.integers(3, 20), rng.integers(1, 9), rng.integers(1, 9)
    peer = torch.nn.Embedding(int(count), int(features), padding_idx=padding, dtype=torch.float64)
    net = Chain(Embedding(count, features, padding=padding), input_shape=(int(time),), backend=name)
    weights = {"0.weight": peer.weight.detach().numpy()}
    check(net, weights, rng.integers(0, count, (5, time)), peer, lambda: {"0.weight": peer.weight.grad})


def turned(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.mT if parameter.ndim == 2 else parameter


def attention_weights(peer, prefix: str) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.in_weight": peer.in_proj_weight, f"{prefix}.in_bias": peer.in_proj_bias,
        f"{prefix}.out_weight": peer.out_proj.weight, f"{prefix}.out_bias": peer.out_proj.bias,
    }  # fmt: skip


def ours(parameters: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: turned(parameter).detach().numpy() for name, parameter in parameters.items()}


def gradients(parameters: dict[str, torch.Tensor]):
    return lambda: {name: turned(parameter.grad) for name, parameter in parameters.items()}


@every_backend
@pytest.mark.few(4)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rng", SIZES, ids=range(4))
def test_attention(name, causal, rng):
    rng = np.random.default_rng(rng.bit_generator.seed_seq)
    heads, time = int(rng.integers(1, 5)), int(rng.choice([1, 2, 7, 19]))
    features = heads * int(rng.integers(1, 9))
    peer = torch.nn.MultiheadAttention(features, heads, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(peer.in_proj_bias)
    torch.nn.init.normal_(peer.out_proj.bias)
    mask = torch.triu(torch.ones(time, time, dtype=torch.bool), 1) if causal else None
    parameters = attention_weights(peer, "0")
    net = Chain(Attention(features, heads, causal=causal), input_shape=(time, features), backend=name)
    x = rng.normal(size=(5, time, features))
    check(net, ours(parameters), x, lambda x: peer(x, x, x, need_weights=False, attn_mask=mask)[0], gradients(parameters))


@pytest.mark.few(1)
@every_backend
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_samples_with_lengths(name, causal):
    rng, time = np.random.default_rng(SEED), 7
    peer = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
    net = Chain(Attention(6, 2, causal=causal), input_shape=(time, 6), backend=name)
    p, lengths, parameters = np.zeros(net.n_params), np.array([7, 1, 3, 5]), attention_weights(peer, "0")
    for entry, array in ours(parameters).items():
        net.views(p)[entry][...] = array
    x, dy = rng.normal(size=(2, 4, time, 6))
    given, padded = tensor(x).requires_grad_(), torch.tensor(np.arange(time) >= lengths[:, None])
    mask = torch.triu(torch.ones(time, time, dtype=torch.bool), 1) if causal else None
    wanted = peer(given, given, given, key_padding_mask=padded, attn_mask=mask, need_weights=False)[0]
    wanted.backward(tensor(dy))
    assert_close(net(x, p, lengths=lengths), wanted.detach().numpy(), CLOSE)
    g, dx = net.vjp(p, x, dy, lengths=lengths)
    assert_close(dx, given.grad.numpy(), CLOSE, "inputs")
    for entry, gradient in gradients(parameters)().items():
        assert_close(net.views(g)[entry], gradient.numpy(), CLOSE, entry)
    behind = np.where((np.arange(time) >= lengths[:, None])[..., None], 1e3, x)
    inside = np.arange(time) < lengths[:, None]
    np.testing.assert_array_equal(net(behind, p, lengths=lengths)[inside], net(x, p, lengths=lengths)[inside])


@every_backend
@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("rng", SIZES[:2], ids=range(2))
def test_transformer_block(name, causal, activation, rng):
    rng = np.random.default_rng(rng.bit_generator.seed_seq)
    heads, time, hidden = int(rng.integers(1, 5)), int(rng.choice([1, 2, 7, 19])), int(rng.integers(1, 20))
    features = heads * int(rng.integers(1, 9))
    peer = torch.nn.TransformerEncoderLayer(
        features, heads, hidden, dropout=0.0, activation=activation, batch_first=True, norm_first=True, dtype=torch.float64
    )
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, 0.3, 0.5)
    parts = {"0.0.inner.0": peer.norm1, "0.1.inner.0": peer.norm2, "0.1.inner.1": peer.linear1, "0.1.inner.2": peer.linear2}
    parameters = {f"{ours}.{kind}": getattr(part, kind) for ours, part in parts.items() for kind in ("weight", "bias")}
    parameters |= attention_weights(peer.self_attn, "0.0.inner.1")
    mask = torch.triu(torch.ones(time, time, dtype=torch.bool), 1) if causal else None
    block = TransformerBlock(features, heads, hidden, activation=activation, causal=causal)
    net = Chain(block, input_shape=(time, features), backend=name)
    x = rng.normal(size=(5, time, features))
    check(net, ours(parameters), x, lambda x: peer(x, src_mask=mask), gradients(parameters))


@every_backend
@pytest.mark.parametrize("rng", SIZES, ids=range(4))
def test_causal_convolution(name, rng):
    rng = np.random.default_rng(rng.bit_generator.seed_seq)
    inputs, outputs, kernel, dilation = (int(n) for n in rng.integers(1, 5, 4))
    time = int(rng.choice([1, 2, 7, 19]))
    peer = torch.nn.Conv1d(inputs, outputs, kernel, dilation=dilation, dtype=torch.float64)
    net = Chain(CausalConv(inputs, outputs, kernel, dilation=dilation), input_shape=(time, inputs), backend=name)

    def weight(array: torch.Tensor) -> torch.Tensor:
        return array.permute(2, 1, 0).reshape(kernel * inputs, outputs)

    weights = {"0.1.weight": weight(peer.weight).detach().numpy(), "0.1.bias": peer.bias.detach().numpy()}

    def forward(x: torch.Tensor) -> torch.Tensor:
        before = torch.nn.functional.pad(x.transpose(1, 2), ((kernel - 1) * dilation, 0))
        return peer(before).transpose(1, 2)

    x = rng.normal(size=(5, time, inputs))
    check(net, weights, x, forward, lambda: {"0.1.weight": weight(peer.weight.grad), "0.1.bias": peer.bias.grad})


@every_backend
def test_a_small_language_model_learns_as_in_pytorch(name):
    """Ten steps of Adam on the next token, through every layer of an encoder, from the same weights."""
    rng, count, time, features = np.random.default_rng(0), 11, 6, 8
    ids = rng.integers(0, count, (16, time + 1))
    net = Chain(
        Embedding(count, features), chains.PositionalEncoding("learned"), TransformerBlock(features, 2, 12, causal=True),
        chains.LayerNorm(features), chains.Dense(features, count), input_shape=(time,), backend=name,
    )  # fmt: skip
    p = net.init(seed=1, dtype=np.float64)
    theirs = {entry: tensor(array).clone().requires_grad_() for entry, array in net.views(p).items()}
    block = torch.nn.TransformerEncoderLayer(
        features, 2, 12, dropout=0.0, batch_first=True, norm_first=True, dtype=torch.float64
    )
    mask = torch.triu(torch.ones(time, time, dtype=torch.bool), 1)
    parts = {"norm1": "2.0.inner.0", "norm2": "2.1.inner.0", "linear1": "2.1.inner.1", "linear2": "2.1.inner.2"}
    names = {f"{part}.{kind}": f"{own}.{kind}" for part, own in parts.items() for kind in ("weight", "bias")}
    for part, own in {"in_proj_": "in_", "out_proj.": "out_"}.items():
        names |= {f"self_attn.{part}{kind}": f"2.0.inner.1.{own}{kind}" for kind in ("weight", "bias")}
    optimizer = torch.optim.Adam(theirs.values(), 0.01)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        x = theirs["0.weight"][torch.tensor(ids[:, :-1])] + theirs["1.encoding"]
        x = torch.func.functional_call(
            block, {peer: turned(theirs[own]) for peer, own in names.items()}, (x,), {"src_mask": mask}
        )
        x = torch.nn.functional.layer_norm(x, (features,), theirs["3.weight"], theirs["3.bias"])
        logits = x @ theirs["4.weight"] + theirs["4.bias"]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, count), torch.tensor(ids[:, 1:]).reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    history = chains.train(net, p, ids[:, :-1], ids[:, 1:], chains.CrossEntropyLoss(), chains.Adam(0.01), epochs=10)
    assert_close(history.loss, losses, 1e-9)
    for entry, array in net.views(p).items():
        assert_close(array, theirs[entry].detach().numpy(), 1e-7, entry)
