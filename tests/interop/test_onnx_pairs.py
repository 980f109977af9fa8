"""Every layer that could be read as a part of another one, after every other: ONNX and back."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import GRU, CausalConv, Chain, Dense
from chains.activations import activation
from chains.interop import from_onnx, to_onnx

pytest.importorskip("onnx")

# From (6, 4) to (6, 4).
LAYERS = {
    "attention": lambda: chains.Attention(4, 2),
    "attention without bias": lambda: chains.Attention(4, 2, causal=True, bias=False),
    "sinusoids": lambda: chains.PositionalEncoding(),
    "learned encoding": lambda: chains.PositionalEncoding("learned"),
    "shift": lambda: chains.Shift(),
    "scale": lambda: chains.Scale(),
    "dense without bias": lambda: Dense(4, 4, bias=False),
    "norm without weight": lambda: chains.RMSNorm(4, affine=False),
    "norm of two axes without weight": lambda: chains.RMSNorm((6, 4), affine=False),
    "convolution": lambda: CausalConv(4, 4, 2, bias=False),
    "recurrent": lambda: GRU(4, 4, return_sequences=True),
    "formula": lambda: chains.Activation(activation("twice", lambda x: 2 * x)),
    "activation": lambda: chains.Activation("silu"),
    "residual of a scale": lambda: chains.Residual(chains.Scale()),
    "residual of a shift": lambda: chains.Residual(chains.Shift()),
    "residual of a norm": lambda: chains.Residual(chains.RMSNorm(4, affine=False)),
    "monotone": lambda: chains.layers.Monotone(4, (3, 4), increasing=0, decreasing=2),
    "convex": lambda: chains.layers.Convex(4, (3, 2, 4)),
    "selection": lambda: chains.Select([3, 0, 0, -2]),
    "one branch": lambda: chains.Parallel(chains.Shift(), axis=-1),
    "branches": lambda: chains.Parallel(chains.Activation("tanh"), Dense(4, 4), join="sum"),
}


@pytest.mark.parametrize("first", LAYERS)
def test_each_layer_is_read_after_each(first):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 4))
    for second in LAYERS:
        net = Chain(LAYERS[first](), LAYERS[second](), input_shape=(6, 4), backend="numpy")
        p = rng.normal(size=net.n_params)
        back, q, _ = from_onnx(to_onnx(net, p), backend="numpy")
        np.testing.assert_allclose(back(x, q), net(x, p), rtol=1e-6, atol=1e-9, err_msg=second)
