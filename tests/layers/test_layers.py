"""What each layer computes, against plain NumPy; dropout's masks against a Philox written here."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import chains
from chains import Chain, Dense, Dropout, Flatten, Parallel, Reshape, Residual, Scale, Series, Shift, tanh
from tests.harness import ACTIVATION_CASES, ACTIVATION_FORMULAS, BACKENDS, LAYERS, LOSSES, OWN_LAYERS, assert_close
from tests.own import Boost, Decay, Double, DyUser, Outer, Repeat


def run(layers, x, seed=0, **rest):
    """The output, and the parameters by name, for random parameters."""
    layers = layers if isinstance(layers, tuple) else (layers,)
    net = Chain(*layers, input_shape=np.shape(x)[1:])
    p = np.random.default_rng(seed).normal(size=net.n_params)
    return net(x, p, **rest), net.views(p)


@pytest.fixture(params=[(3,), (2, 3)], ids=str)
def x(request):
    return np.random.default_rng(1).normal(size=(5, *request.param))


def test_dense(x):
    y, p = run(Dense(3, 4, tanh), x)
    assert_close(y, np.tanh(x @ p["0.weight"] + p["0.bias"]), 1e-14)


def each_state(cell, x, h):
    """The states of a cell after each step, whose arrays are updated by ``cell(x, *arrays)``."""
    states = []
    for t in range(x.shape[1]):
        h = cell(x[:, t], *h)
        states.append(h[0])
    return np.stack(states, axis=1)


def logistic(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture
def sequence():
    return np.random.default_rng(2).normal(size=(5, 6, 3))


@pytest.mark.parametrize("reset_after", [True, False])
def test_gru(sequence, reset_after):
    y, p = run(chains.GRU(3, 4, reset_after=reset_after, return_sequences=True), sequence)
    w, u, b = (p[f"0.{name}"] for name in ("weight", "recurrent_weight", "bias"))
    c = p.get("0.recurrent_bias", np.zeros(12))

    def cell(x, h):
        a, q = x @ w + b, h @ u + c
        r, z = (logistic(a[:, k : k + 4] + q[:, k : k + 4]) for k in (0, 4))
        n = np.tanh(a[:, 8:] + (r * q[:, 8:] if reset_after else (r * h) @ u[:, 8:]))
        return ((1 - z) * n + z * h,)

    assert_close(y, each_state(cell, sequence, (np.zeros((5, 4)),)), 1e-14)


def test_lstm_and_its_last_step(sequence):
    y, p = run(chains.LSTM(3, 4), sequence)

    def cell(x, h, c):
        i, f, g, o = np.split(x @ p["0.weight"] + h @ p["0.recurrent_weight"] + p["0.bias"], 4, axis=1)
        c = logistic(f) * c + logistic(i) * np.tanh(g)
        return logistic(o) * np.tanh(c), c

    assert_close(y, each_state(cell, sequence, (np.zeros((5, 4)), np.zeros((5, 4))))[:, -1], 1e-14)


def test_rnn_both_ways_from_a_trained_state(sequence):
    y, p = run(chains.RNN(3, 4, "relu", bidirectional=True, return_sequences=True, initial_state="parameter"), sequence)

    def way(name, x):
        w, u, b = (p[f"0.{name}.{each}"] for each in ("weight", "recurrent_weight", "bias"))
        start = np.tile(p[f"0.{name}_initial_h"], (5, 1))
        return each_state(lambda x, h: (np.maximum(x @ w + h @ u + b, 0),), x, (start,))

    backward = way("backward", sequence[:, ::-1])[:, ::-1]
    assert_close(y, np.concatenate([way("forward", sequence), backward], axis=2), 1e-14)


def test_recurrent_repeats_any_cell(sequence):
    y, p = run(chains.Recurrent(Decay(), return_sequences=True), sequence)
    assert isinstance(Decay(), chains.layers.Cell)
    assert_close(y, each_state(lambda x, h: (x + 0.5 * p["0.w"] * h,), sequence, (np.zeros((5, 3)),)), 1e-14)


def test_equations():
    layer = chains.Equations(
        lambda b, a, u, k: (a * u, k - b), ("a", "b"), network=Dense(2, 1, tanh), outputs=["u"], parameters={"k": 2}
    )
    x = np.random.default_rng(1).normal(size=(5, 2))
    y, p = run(layer, x)
    learned = np.tanh(x @ p["0.network.weight"] + p["0.network.bias"])[:, 0]
    assert_close(y, np.stack([x[:, 0] * learned, p["0.k"] - x[:, 1]], 1), 1e-14)
    assert Chain(layer).init().tolist()[0] == 2.0


def test_ode():
    x = np.random.default_rng(1).normal(size=(5, 2))
    y, p = run(chains.ODE(Dense(2, 2, tanh), (1.0, 1.5, 1.75), "midpoint", 3), x)

    def rhs(x):
        return np.tanh(x @ p["0.weight"] + p["0.bias"])

    states = [x]
    for h in [0.5 / 3] * 3 + [0.25 / 3] * 3:
        x = x + h * rhs(x + 0.5 * h * rhs(x))
        states.append(x)
    assert_close(y, np.stack(states[::3], 1), 1e-14)


def test_steady_state():
    x = np.random.default_rng(1).normal(size=(5, 1))
    rate = chains.Equations(lambda a, b, x: (x - 2.0 * a, a * a - 4.0 * b), ("a", "b", "x"))
    y, _ = run(chains.SteadyState(rate, 2), x)
    assert_close(y, np.column_stack([x / 2.0, x * x / 16.0]), 1e-12)


def test_sde_without_noise():
    x = np.random.default_rng(1).normal(size=(5, 2))
    nothing = chains.Equations(lambda a, b: (0.0 * a, 0.0 * b), ("a", "b"))
    y, p = run(chains.SDE(Dense(2, 2, tanh), nothing, (1.0, 1.5, 1.75), steps=3), x)
    states = [x]
    for h in [0.5 / 3] * 3 + [0.25 / 3] * 3:
        states.append(states[-1] + h * np.tanh(states[-1] @ p["0.drift.weight"] + p["0.drift.bias"]))
    assert_close(y, np.stack(states[::3], 1), 1e-14)


def test_recurrent_layers_at_150_steps_on_every_backend():
    x = np.random.default_rng(3).normal(size=(3, 150, 2))
    dy = np.random.default_rng(4).normal(size=(3, 150, 6))
    layer = chains.GRU(2, 3, return_sequences=True, bidirectional=True)
    nets = [Chain(layer, input_shape=(150, 2), backend=name) for name in BACKENDS]
    p = nets[0].init(dtype=np.float64)
    wanted, *others = [(net(x, p), *net.vjp(p, x, dy)) for net in nets]
    for found in others:
        for a, b in zip(found, wanted, strict=True):
            assert_close(a, b, 1e-12)


def test_cells_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"`inputs` \(=3\) must be the length of a step's input, whose shape is \(2,\)"):
        Chain(chains.GRU(3, 4), input_shape=(5, 2))
    with pytest.raises(ValueError, match="needs samples with a time axis"):
        Chain(chains.Recurrent(Decay()), input_shape=())
    with pytest.raises(ValueError, match=r"BatchNorm\(2\) has a state or arrays of the whole batch"):
        Chain(chains.Recurrent(WithBatchNorm()), input_shape=(5, 2))
    with pytest.raises(ValueError, match="draw them before the loop"):
        Chain(chains.Recurrent(WithDropout()), input_shape=(5, 2)).program(mode="train")


class WithBatchNorm(Decay):
    part = chains.BatchNorm(2)

    def declare(self, d):
        super().declare(d)
        d.child("part", self.part, d.input)


class WithDropout(WithBatchNorm):
    part = Dropout(0.5)

    def forward(self, ops, x, y, p, s):
        inner = ops.scratch("inner", x.sample_shape)
        s.children[0].forward(ops, x, inner)
        super().forward(ops, inner, y, p, s)


def test_dense_without_bias(x):
    y, p = run(Dense(3, 4, bias=False), x)
    assert set(p) == {"0.weight"}
    assert_close(y, x @ p["0.weight"], 1e-14)


@pytest.mark.parametrize("name", ACTIVATION_FORMULAS)
def test_dense_with_each_activation(name, x):
    y, p = run(Dense(3, 4, name), x)
    assert_close(y, ACTIVATION_FORMULAS[name](x @ p["0.weight"] + p["0.bias"]), 1e-14)


def test_scale_and_shift(x):
    y, p = run((Scale(), Shift()), x)
    assert p["0.scale"].shape == x.shape[1:]
    assert_close(y, x * p["0.scale"] + p["1.shift"], 1e-14)


@pytest.mark.parametrize("trained", [False, True])
def test_fourier(x, trained):
    layer = chains.layers.Fourier(x.shape[-1], 4, 0.7, trained=trained)
    y, p = run(layer, x)
    angles = 2.0 * np.pi * x @ p["0.frequencies"]
    assert_close(y, np.concatenate([np.sin(angles), np.cos(angles)], -1), 1e-13)
    net = Chain(layer, input_shape=x.shape[1:])
    assert net.frozen == (set() if trained else {"0.frequencies"})
    wide = Chain(chains.layers.Fourier(50, 200, 0.7, trained=trained))
    assert wide.init(seed=0, dtype=np.float64).std() == pytest.approx(0.7, rel=0.05)


def test_periodic(x):
    n, periods = x.shape[-1], [None, 2.0, 0.5]
    periods = [periods[k % 3] for k in range(1, n + 1)]
    y, _ = run(chains.layers.Periodic(periods, 2), x)
    parts = []
    for k, period in enumerate(periods):
        angles = [] if period is None else [2.0 * np.pi * j * x[..., k] / period for j in (1, 2)]
        parts += [np.sin(a) for a in angles] + [np.cos(a) for a in angles] if angles else [x[..., k]]
    assert_close(y, np.stack(parts, -1), 1e-13)


def test_append(x):
    y, p = run(chains.Append(a=0.5, b=-1.0), x)
    assert {name: value.shape for name, value in p.items()} == {"0.a": (1,), "0.b": (1,)}
    behind = [np.full((*x.shape[:-1], 1), p[name]) for name in ("0.a", "0.b")]
    assert_close(y, np.concatenate([x, *behind], -1), 1e-14)


@pytest.mark.parametrize("indices", [[1], range(1, 3), (-1, 0), [2, 2, 0, 1, 2], np.array([0, 2])])
def test_select(indices, x):
    y, _ = run(chains.Select(indices), x)
    np.testing.assert_array_equal(y, x[..., list(indices)])


def test_the_gradient_of_select_sums_entries_that_repeat(backend_name):
    x, dy = np.zeros((3, 2, 4)), np.arange(18.0).reshape(3, 2, 3)
    net = Chain(chains.Select([3, 0, -1]), input_shape=(2, 4), backend=backend_name)
    wanted = np.zeros((3, 2, 4))
    wanted[..., 0], wanted[..., 3] = dy[..., 1], dy[..., 0] + dy[..., 2]
    np.testing.assert_array_equal(net.vjp(np.empty(0), x, dy)[1], wanted)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_embedding(dtype):
    ids = np.random.default_rng(1).integers(0, 5, (7, 2, 3)).astype(dtype)
    y, p = run(chains.Embedding(5, 4), ids)
    np.testing.assert_array_equal(y, p["0.weight"][ids])


def test_the_gradient_of_an_embedding_counts_ids_that_repeat():
    ids = np.array([[1, 1], [3, 1]])
    net = Chain(chains.Embedding(4, 2, padding=3), input_shape=(2,))
    g, dx = net.vjp(net.init(dtype=np.float64), ids, np.ones((2, 2, 2)))
    np.testing.assert_array_equal(net.views(g)["0.weight"], [[0, 0], [3, 3], [0, 0], [0, 0]])
    np.testing.assert_array_equal(dx, np.zeros((2, 2)))


def test_the_row_of_the_padding_begins_as_zeros_and_stays_so():
    net = Chain(chains.Embedding(4, 2, padding=3), Flatten(), Dense(4, 1), input_shape=(2,))
    p, x = net.init(), np.array([[0, 3], [3, 2], [1, 3]])
    assert not net.views(p)["0.weight"][3].any()
    assert net.views(p)["0.weight"][:3].all()
    chains.train(net, p, x, np.ones((3, 1)), chains.SquaredLoss(), chains.Adam(0.1), epochs=3)
    assert not net.views(p)["0.weight"][3].any()


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    x = np.random.default_rng(1).normal(size=(3, 5, 4))
    y, p = run(chains.Attention(4, 2, causal=causal), x)
    q, k, v = np.split(x @ p["0.in_weight"] + p["0.in_bias"], 3, axis=-1)
    heads = []
    for part in (slice(0, 2), slice(2, 4)):
        scores = q[..., part] @ np.swapaxes(k[..., part], 1, 2) / np.sqrt(2)
        e = np.exp(scores) * (np.tri(5) if causal else 1.0)
        heads.append(e / e.sum(-1, keepdims=True) @ v[..., part])
    assert_close(y, np.concatenate(heads, -1) @ p["0.out_weight"] + p["0.out_bias"], 1e-13)


@pytest.mark.parametrize("layer", [chains.Attention(4, 2, causal=True), chains.CausalConv(4, 4, 2, dilation=2)], ids=str)
def test_causal_layers_see_no_later_steps(layer):
    x = np.random.default_rng(1).normal(size=(3, 5, 4))
    changed = x.copy()
    changed[:, 3:] += 1e3
    np.testing.assert_array_equal(run(layer, x)[0][:, :3], run(layer, changed)[0][:, :3])


def test_attention_of_large_scores():
    x = 1e4 * np.random.default_rng(1).normal(size=(2, 6, 4))
    assert np.isfinite(run(chains.Attention(4, 2), x)[0]).all()


def test_transformer_block():
    x = np.random.default_rng(1).normal(size=(3, 5, 4))
    block = chains.TransformerBlock(4, 2, 7, causal=True)
    p = np.random.default_rng(2).normal(size=Chain(block, input_shape=(5, 4)).n_params)
    layers = [
        Residual(chains.LayerNorm(4), chains.Attention(4, 2, causal=True)),
        Residual(chains.LayerNorm(4), Dense(4, 7, "relu"), Dense(7, 4)),
    ]
    assert Chain(block, input_shape=(5, 4))(x, p).tobytes() == Chain(*layers, input_shape=(5, 4))(x, p).tobytes()


def test_positional_encoding():
    x = np.random.default_rng(1).normal(size=(3, 5, 4))
    added = run(chains.PositionalEncoding(), x)[0] - x
    wanted = [[np.sin(t), np.cos(t), np.sin(t / 100), np.cos(t / 100)] for t in range(5)]
    assert_close(added, np.broadcast_to(wanted, x.shape), 1e-14)
    y, p = run(chains.PositionalEncoding("learned"), x)
    assert_close(y, x + p["0.encoding"], 1e-14)


def test_causal_conv():
    x = np.random.default_rng(1).normal(size=(3, 5, 2))
    y, p = run(chains.CausalConv(2, 4, 3, "tanh", dilation=2), x)
    weight = p["0.1.weight"].reshape(3, 2, 4)
    padded = np.concatenate([np.zeros((3, 4, 2)), x], axis=1)
    wanted = sum(padded[:, 2 * k : 2 * k + 5] @ weight[k] for k in range(3))
    assert_close(y, np.tanh(wanted + p["0.1.bias"]), 1e-14)


def test_softmax(x):
    e = np.exp(x)
    assert_close(run(chains.Softmax(), x)[0], e / e.sum(-1, keepdims=True), 1e-14)
    assert_close(run(chains.LogSoftmax(), x)[0], np.log(e / e.sum(-1, keepdims=True)), 1e-14)


@pytest.mark.parametrize("layer", [chains.Softmax(), chains.LogSoftmax()], ids=str)
def test_softmax_of_large_numbers(layer):
    x = np.array([[1e4, -1e4, 1e4 - 1.0]], np.float32)
    net = Chain(layer, input_shape=(3,))
    y, (_, dx) = net(x, np.empty(0, np.float32)), net.vjp(np.empty(0, np.float32), x, np.ones_like(x))
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()


def test_shapes():
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(run(Flatten(), x)[0], x.reshape(2, 12))
    np.testing.assert_array_equal(run(Reshape(2, -1), x)[0], x.reshape(2, 2, 6))
    np.testing.assert_array_equal(run(Reshape(4, 3), x)[0], x.reshape(2, 4, 3))
    np.testing.assert_array_equal(run((Flatten(), Reshape(3, 4), Reshape(12)), x)[0], x.reshape(2, 12))


def test_combinators(x):
    y, p = run(Residual(Dense(3, 5, tanh), Dense(5, 3)), x)
    hidden = np.tanh(x @ p["0.inner.0.weight"] + p["0.inner.0.bias"])
    assert_close(y, x + hidden @ p["0.inner.1.weight"] + p["0.inner.1.bias"], 1e-14)
    assert_close(run(Residual(), x)[0], 2 * x, 0)
    y, p = run(Residual(Dense(3, 2), shortcut=Dense(3, 2, bias=False), activation=tanh), x)
    assert_close(y, np.tanh(x @ p["0.inner.weight"] + p["0.inner.bias"] + x @ p["0.shortcut.weight"]), 1e-14)
    y, p = run(Parallel(Dense(3, 2, bias=False), Shift(), axis=-1), x)
    assert_close(y, np.concatenate([x @ p["0.0.weight"], x + p["0.1.shift"]], axis=-1), 1e-14)
    y, p = run(Parallel(Scale(), Shift(), join="sum"), x)
    assert_close(y, x * p["0.0.scale"] + x + p["0.1.shift"], 1e-14)
    y, p = run(Series(Scale(), Shift()), x)
    assert_close(y, x * p["0.0.scale"] + p["0.1.shift"], 1e-14)
    np.testing.assert_array_equal(run((), x)[0], x)


def test_own_layers():
    x = np.random.default_rng(1).normal(size=(5, 3))
    np.testing.assert_array_equal(run(Double(), x)[0], 2 * x)
    assert_close(run(DyUser(), x)[0], 0.5 * x * x + x, 1e-14)
    np.testing.assert_array_equal(run(Outer(), x)[0], np.broadcast_to(x[:, :, None], (5, 3, 3)))


def test_constants_of_one_name_are_kept_apart():
    """Two layers may each call their constant "factor"."""
    x = np.random.default_rng(1).normal(size=(5, 3))
    assert_close(run((Boost(2.0), Boost(-3.0)), x)[0], -6 * x, 1e-14)


def test_a_constant_may_have_the_name_of_an_argument():
    class Named(Double):
        def forward(self, ops, x, y, p, s):
            ops.map(y, lambda x, k: x * k, x, ops.constant("x", np.array(2.0)))

    x = np.random.default_rng(1).normal(size=(5, 3))
    assert_close(run(Named(), x)[0], 2 * x, 0)


@pytest.mark.parametrize("layers", [(Repeat(4),), (Double(), Repeat(4)), (Double(), Repeat(4), Double())], ids=str)
def test_broadcasting_copies(layers):
    x = np.random.default_rng(1).normal(size=(5, 1))
    factor = 2.0 ** (len(layers) - 1)
    np.testing.assert_array_equal(run(layers, x)[0], np.repeat(factor * x, 4, axis=1))


def test_one_layer_object_in_two_places():
    layer, x = Dense(3, 3, tanh), np.random.default_rng(1).normal(size=(5, 3))
    y, p = run((layer, layer), x)
    assert set(p) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert_close(y, np.tanh(np.tanh(x @ p["0.weight"] + p["0.bias"]) @ p["1.weight"] + p["1.bias"]), 1e-14)


@pytest.mark.parametrize("case", LAYERS + OWN_LAYERS + ACTIVATION_CASES, ids=str)
def test_layers_can_be_pickled_and_copied(case):
    """Custom ones too, and activations made of lambdas: what is kept is their formula."""
    problem, net = case.problem(3), case.net()
    y, frozen = net(problem.x, problem.p, state=problem.state), net.frozen
    for twin in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert twin(problem.x, problem.p, state=problem.state).tobytes() == y.tobytes()
        assert twin.frozen == frozen
        assert repr(twin) == repr(net)


@pytest.mark.parametrize("loss", [loss for loss, _ in LOSSES], ids=str)
def test_losses_can_be_pickled(loss):
    assert pickle.loads(pickle.dumps(loss)) == loss


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_repr_names_the_layer(case):
    assert type(case.layers[-1]).__name__ in repr(case.layers[-1])


class Named(chains.Softmax):
    def __init__(self, kind="x", other="y", number=1):
        self.kind, self.other, self.number = kind, other, number


Named.__init__.__module__ = "chains.named"  # settings of built-in layers are printed


@pytest.mark.parametrize("text", ["Named(1)", "Named(other='z', number=1)", "Named('z', 'y', 1)", "Named('z', 'z', 2)"])
def test_settings_after_one_that_is_left_out_have_names(text):
    made = eval(text)
    assert vars(eval(repr(made))) == vars(made)


def test_repr_can_be_evaluated():
    for text in ("Dense(3, 4, tanh)", "Dense(3, 4, bias=False)", "Dropout(0.25)", "Reshape(2, -1)", "Flatten()",
                 "Residual(Dense(3, 3))", "Residual(Dense(3, 4), shortcut=Dense(3, 4), activation=tanh)",
                 "Parallel(Scale(), Shift(), join='sum')", "Parallel(Scale(), Shift(), axis=1)",
                 "Series(Scale(), Softmax())", "Activation(tanh)", "SpatialDropout(0.25)", "LayerNorm()",
                 "Embedding(4, 3, 1)", "Attention(4, 2)", "Attention(4, 1, causal=True, bias=False)",
                 "TransformerBlock(4, 2, 16)", "TransformerBlock(4, 2, 8, activation=tanh, causal=True, dropout=0.1)",
                 "PositionalEncoding()", "PositionalEncoding('learned')", "CausalConv(2, 3, 2)", "Select([1, -1])",
                 "CausalConv(2, 3, 2, tanh, dilation=4, bias=False)",
                 "Dense(3, 4, weight_init=0.5, weight_bounds=(0, None))",
                 "Monotone(3, (8, 1), increasing=0, decreasing=(1, 2))",
                 "Convex(2, (4, 4, 1), increasing=1, activation=relu)",
                 "Fourier(2, 16, 0.5, trained=True)", "Periodic((None, 2.0), 3)", "Periodic(2, 1)",
                 "Chebyshev(2, 1, 6)", "Chebyshev(1, 2, 20, (0, 0.5))", "Chebyshev(2, 1, 3, ((0, 1), (-2, 2)))",
                 "FourierSeries(1, 2, 5, 24)", "FourierSeries(2, 1, 3, (24, 0.5))",
                 "LayerNorm(3, eps=0.1)", "LayerNorm((2, 3), affine=False)", "RMSNorm(affine=False)",
                 "GroupNorm(2, 6)", "GroupNorm(2, 6, eps=0.1)",
                 "BatchNorm(3)", "BatchNorm(3, momentum=0.2, eps=0.1, affine=False)",
                 "Conv(1, 6, 5, relu)", "Conv(2, 3, (5,), stride=(2,))",
                 "Conv(2, 4, (3, 1), stride=2, padding=(1, 0), dilation=2, groups=2, bias=False)",
                 "Conv(1, 2, 2, padding=((0, 1), (0, 1)))", "ConvTranspose(2, 3, 2, tanh, stride=2, output_padding=1)",
                 "MaxPool(2)", "MaxPool((2, 3), stride=1, padding=1)", "AvgPool((2,), count_padding=False)",
                 "GlobalAvgPool()", "Upsample((1, 2))", "Upsample(3)", "Pad(1)", "Pad(((1, 0), (2, 2)))"):  # fmt: skip
        assert repr(eval(text, vars(chains.layers) | vars(chains))) == text


# Dropout


MASK64 = (1 << 64) - 1


def philox(key, counter):
    """Four 64-bit words of Philox4x64-10, from the paper (Salmon et al. 2011), in Python's integers."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & MASK64, (a >> 64) ^ c3 ^ k1, a & MASK64
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK64, (k1 + 0xBB67AE8584CAA73B) & MASK64
    return c0, c1, c2, c3


def uniform(size, seed, step, draw):
    """The numbers that `chains.program.operations.Random` documents."""
    words = []
    for block in range(-(-size // 8)):
        for word in philox((seed, 0), (1 + block, draw, step, 0)):
            words += [word & 0xFFFFFFFF, word >> 32]
    return np.array([(word >> 8) * 2.0**-24 for word in words[:size]])


def test_philox_is_numpys():
    raw = np.random.Philox(key=[12345, 0], counter=[7, 1, 2, 0]).random_raw(8)
    assert list(raw) == [*philox((12345, 0), (8, 1, 2, 0)), *philox((12345, 0), (9, 1, 2, 0))]


def dropped(net, x, seed, dtype=np.float64):
    return net(x, np.empty(0, dtype), mode="train", seed=seed)


@pytest.mark.parametrize(("batch", "features"), [(1, 1), (1, 9), (5, 7), (4, 64)])
def test_dropout_follows_the_documented_recipe(batch, features, dtype, backend_name):
    net = Chain(Dropout(0.3), Dropout(0.6), input_shape=(features,), backend=backend_name)
    x = np.random.default_rng(0).normal(size=(batch, features)).astype(dtype)
    first, second = (uniform(x.size, 41, 0, draw).reshape(x.shape) for draw in (0, 1))
    kept = (first >= np.float32(0.3)) & (second >= np.float32(0.6))
    y = dropped(net, x, 41, dtype)
    np.testing.assert_array_equal(y != 0, kept)
    np.testing.assert_allclose(y, np.where(kept, x / 0.7 / 0.4, 0.0), rtol=1e-6)


def test_dropout_depends_on_the_seed_alone(backend_name):
    net, x = Chain(Dropout(0.5), input_shape=(100,), backend=backend_name), np.ones((3, 100))
    assert dropped(net, x, 5).tobytes() == dropped(net, x, 5).tobytes()
    assert np.mean((dropped(net, x, 5) != 0) == (dropped(net, x, 6) != 0)) < 0.7


def test_dropout_keeps_the_mean_and_its_rate(backend_name):
    y = dropped(Chain(Dropout(0.2), input_shape=(1000,), backend=backend_name), np.ones((200, 1000)), 1)
    assert abs(y.mean() - 1.0) < 0.005
    assert abs((y == 0).mean() - 0.2) < 0.004


def test_dropout_of_two_layers_differs(backend_name):
    net = Chain(Parallel(Dropout(0.5), Dropout(0.5)), input_shape=(200,), backend=backend_name)
    y = dropped(net, np.ones((1, 200)), 1)[0]
    assert np.mean((y[:200] != 0) == (y[200:] != 0)) < 0.7


def test_dropout_is_off_at_evaluation(backend_name):
    net, x = Chain(Dropout(0.5), input_shape=(50,), backend=backend_name), np.random.default_rng(0).normal(size=(3, 50))
    np.testing.assert_array_equal(net(x, np.empty(0)), x)
    np.testing.assert_array_equal(net.vjp(np.empty(0), x, x)[1], x)


def test_the_gradient_drops_what_the_forward_dropped(backend_name):
    net, x = Chain(Dropout(0.5), input_shape=(50,), backend=backend_name), np.ones((3, 50))
    _, dx = net.vjp(np.empty(0), x, x, mode="train", seed=9)
    np.testing.assert_array_equal(dx, dropped(net, x, 9))


def test_training_steps_drop_differently_but_as_documented(backend_name):
    """In training, the number of the step is the counter's third word."""
    net = Chain(Scale(), Dropout(0.5), input_shape=(16,), backend=backend_name)
    p, x = np.ones(16), np.ones((1, 16))
    chains.train(net, p, x, np.zeros((1, 16)), chains.SquaredLoss(), chains.SGD(0.01), epochs=3, seed=4)
    wanted = np.ones(16)
    for step in range(3):
        kept = uniform(16, 4, step, 0) >= 0.5
        wanted[kept] -= 0.01 * 4 * wanted[kept]
    assert_close(p, wanted, 1e-12)


@pytest.mark.parametrize("f", [chains.tanh, chains.sigmoid], ids=str)
def test_slopes_of_saturated_activations(f, dtype, backend_name):
    """They come from the output, which rounds to 1: zero from there on, never below it, and close to the exact ones before."""
    net = Chain(chains.Activation(f), input_shape=(1,), backend=backend_name)
    x = np.linspace(-45.0, 45.0, 20001).astype(dtype)[:, None]
    slope = net.vjp(np.zeros(0, dtype), x, np.ones_like(x))[1]
    e = np.exp(-abs(x.astype(np.float64)))
    exact = 4 * e * e / (1 + e * e) ** 2 if f is chains.tanh else e / (1 + e) ** 2
    np.testing.assert_allclose(slope, exact, rtol=0, atol=1e-6 if dtype == np.float32 else 5e-16)
    assert (slope >= 0).all()
    far = x > (40.0 if dtype == np.float64 else 20.0)  # below, sigmoid has small outputs and their slopes
    assert (slope[far] == 0).all()
