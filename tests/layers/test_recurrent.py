"""Recurrent layers against PyTorch's, over random sizes, lengths and directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chains import GRU, LSTM, RNN, Chain, Recurrent, Scale
from tests.harness import SEED, Decay, Leaky

pytestmark = pytest.mark.few(6)

torch = pytest.importorskip("torch")

KINDS = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}


def torch_twin(layer: Any, net: Chain, p: np.ndarray) -> Any:
    """PyTorch's layer with the same weights. A bias that it has twice is here once."""
    cell = layer.cell
    twin = getattr(torch.nn, type(layer).__name__)(
        cell.inputs, cell.units, batch_first=True, bidirectional=layer.bidirectional, dtype=torch.float64
    )
    views = net.views(p)
    with torch.no_grad():
        for direction, suffix in (("forward.", ""), ("backward.", "_reverse")) if layer.bidirectional else (("", ""),):
            for name, own in (("weight_ih", "weight"), ("weight_hh", "recurrent_weight")):
                getattr(twin, f"{name}_l0{suffix}").copy_(torch.from_numpy(views[f"0.{direction}{own}"].T))
            second = views.get(f"0.{direction}recurrent_bias")
            getattr(twin, f"bias_ih_l0{suffix}").copy_(torch.from_numpy(views[f"0.{direction}bias"]))
            getattr(twin, f"bias_hh_l0{suffix}").copy_(torch.zeros(1) if second is None else torch.from_numpy(second))
    return twin


def torch_gradients(twin: Any, layer: Any, net: Chain) -> dict[str, np.ndarray]:
    """What PyTorch has for each of our parameters."""
    found = {}
    for direction, suffix in (("forward.", ""), ("backward.", "_reverse")) if layer.bidirectional else (("", ""),):
        for name, own in (("weight_ih", "weight"), ("weight_hh", "recurrent_weight"), ("bias_ih", "bias")):
            found[f"0.{direction}{own}"] = getattr(twin, f"{name}_l0{suffix}").grad.numpy().T
        if f"0.{direction}recurrent_bias" in net.views(np.zeros(net.n_params)):
            found[f"0.{direction}recurrent_bias"] = getattr(twin, f"bias_hh_l0{suffix}").grad.numpy()
    return found


@pytest.mark.parametrize("draw", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_pytorch(kind, draw, backend_name):
    rng = np.random.default_rng([SEED, draw, list(KINDS).index(kind)])
    inputs, units, steps, batch = (int(rng.integers(1, most)) for most in (9, 21, 13, 8))
    settings = {"return_sequences": bool(rng.integers(2)), "bidirectional": bool(rng.integers(2))}
    layer = KINDS[kind](inputs, units, **settings)
    net = Chain(layer, input_shape=(steps, inputs), backend=backend_name)
    p, x = rng.normal(0.0, 0.5, net.n_params), rng.normal(size=(batch, steps, inputs))
    twin, tx = torch_twin(layer, net, p), torch.tensor(x, requires_grad=True)
    out, state = twin(tx)
    last = state[0] if kind == "LSTM" else state
    wanted = out if layer.return_sequences else torch.cat(tuple(last), -1)
    dy = rng.normal(size=tuple(wanted.shape))
    (wanted * torch.from_numpy(dy)).sum().backward()
    np.testing.assert_allclose(net(x, p), wanted.detach().numpy(), rtol=1e-10, atol=1e-10, err_msg=repr(layer))
    dp, dx = net.vjp(p, x, dy)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-10, atol=1e-10, err_msg=repr(layer))
    gradients = torch_gradients(twin, layer, net)
    for name, gradient in net.views(dp).items():
        np.testing.assert_allclose(gradient, gradients[name], rtol=1e-10, atol=1e-10, err_msg=f"{name} of {layer!r}")


@pytest.mark.parametrize("draw", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_those_of_packed_sequences(kind, draw, backend_name):
    rng = np.random.default_rng([SEED, draw, list(KINDS).index(kind), 1])
    inputs, units, steps, batch = 3, int(rng.integers(1, 21)), int(rng.integers(1, 9)), int(rng.integers(1, 8))
    layer = KINDS[kind](inputs, units, return_sequences=bool(draw % 2), bidirectional=bool(draw // 2))
    net = Chain(layer, input_shape=(steps, inputs), backend=backend_name)
    p, x = rng.normal(0.0, 0.5, net.n_params), rng.normal(size=(batch, steps, inputs))
    lengths = rng.integers(1, steps + 1, batch)
    twin, tx = torch_twin(layer, net, p), torch.tensor(x, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(tx, torch.from_numpy(lengths), batch_first=True, enforce_sorted=False)
    out, state = twin(packed)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=steps)
    wanted = out if layer.return_sequences else torch.cat(tuple(state[0] if kind == "LSTM" else state), -1)
    dy = rng.normal(size=tuple(wanted.shape))
    (wanted * torch.from_numpy(dy)).sum().backward()
    np.testing.assert_allclose(net(x, p, lengths=lengths), wanted.detach().numpy(), rtol=1e-10, atol=1e-10)
    dp, dx = net.vjp(p, x, dy, lengths=lengths)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-10, atol=1e-10)
    gradients = torch_gradients(twin, layer, net)
    for name, gradient in net.views(dp).items():
        np.testing.assert_allclose(gradient, gradients[name], rtol=1e-10, atol=1e-10, err_msg=f"{name} of {layer!r}")


@pytest.mark.parametrize("sequences", [False, True])
def test_lengths_of_samples_with_several_axes(sequences, backend_name):
    """A cell that carries matrices: each sample has the outputs and gradients of a sequence of its own length."""
    rng, steps, lengths = np.random.default_rng(SEED), 4, np.array([3, 1, 4])
    cell = {"return_sequences": sequences, "bidirectional": True, "initial_state": "parameter"}

    def net(length):
        return Chain(Recurrent(Decay(), **cell), input_shape=(length, 2, 3), backend=backend_name)

    whole, x = net(steps), rng.normal(size=(3, steps, 2, 3))
    p, shape = rng.normal(0.0, 0.5, whole.n_params), whole.output_shape
    dy = rng.normal(size=(3, *shape))
    y, (g, dx) = whole(x, p, lengths=lengths), whole.vjp(p, x, dy, lengths=lengths)
    total = np.zeros_like(g)
    for k, length in enumerate(lengths.tolist()):
        one, own, kept = net(length), x[k : k + 1, :length], slice(length if sequences else None)
        g_one, dx_one = one.vjp(p, own, dy[k : k + 1, kept])
        total += g_one
        np.testing.assert_allclose(y[k, kept], one(own, p)[0], rtol=1e-12)
        np.testing.assert_allclose(dx[k, :length], dx_one[0], rtol=1e-12, atol=1e-13)
        assert not dx[k, length:].any()
        assert not (sequences and y[k, length:].any())
    np.testing.assert_allclose(g, total, rtol=1e-12)


def test_a_derived_pullback_with_checkpoints_is_machine_code():
    """The gradient of a weight is a product of all steps, after their loop: no step overwrites what it reads."""
    pytest.importorskip("llvmlite")
    layers = Scale(), Recurrent(Leaky(), checkpoint_every=2)
    nets = [Chain(*layers, input_shape=(3, 3), backend=backend) for backend in ("native", "numpy")]
    rng = np.random.default_rng(SEED)
    p, x, dy = rng.normal(size=nets[0].n_params), rng.normal(size=(3, 3, 3)), rng.normal(size=(3, 2))
    found, wanted = (net.vjp(p, x, dy) for net in nets)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("layer", [RNN, LSTM, GRU])
def test_a_setting_that_is_none_is_named_with_the_layer(layer):
    with pytest.raises(TypeError, match=rf"^{layer.__name__}: got an unexpected keyword argument 'lengths'"):
        layer(3, 4, lengths=True)
