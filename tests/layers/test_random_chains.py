"""Random networks of random layers: central differences, poisoned scratch, and nesting that changes nothing."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given, note, reject, settings
from hypothesis import strategies as st

import chains
from chains import Chain, Dense, Dropout, Parallel, Reshape, Residual, Series
from chains.expr import tanh, trace
from chains.expr.formulas import Replay
from chains.network import record
from chains.network.network import network_of
from tests.harness import (
    BACKENDS,
    OPTIMIZERS,
    Case,
    Kink,
    assert_close,
    assert_same_bits,
    central_difference,
    run_program,
)
from tests.layers.test_gradients import arrays_of
from tests.own import Boost, Decay, Double, DyUser

SMOOTH = ["tanh", "sigmoid", "identity", "gelu", "silu", "softplus", "mish", "sin"]
backends = st.sampled_from(BACKENDS)


def plain(draw, shape):
    """A layer without parts, for an input of this shape."""
    if len(shape) in (2, 3) and draw(st.booleans()):
        return of_images(draw, shape)
    if len(shape) == 2 and draw(st.booleans()):
        return of_encoders(draw, shape[1]) if draw(st.booleans()) else of_sequences(draw, shape[1])
    kinds = "Dense Dense Activation Scale Shift Append Select Waves Expansion Constrained Dropout Softmax Reshape Norm ODE own"
    kind = draw(st.sampled_from(kinds.split()))
    if kind == "Dense":
        bias = draw(st.booleans())
        return Dense(shape[-1], draw(st.integers(1, 4)), draw(st.sampled_from(SMOOTH)), bias=bias)
    if kind == "Activation":
        return chains.Activation(draw(st.sampled_from(SMOOTH)))
    if kind == "Append":
        return chains.Append(**{name: draw(st.sampled_from([-1.0, 0.5])) for name in draw(st.sampled_from(["a", "ab"]))})
    if kind == "Select":
        return chains.Select(draw(st.lists(st.integers(-shape[-1], shape[-1] - 1), min_size=1, max_size=4)))
    if kind == "Waves":
        periods = [draw(st.sampled_from([None, 3.0, 5.0])) for _ in range(shape[-1] - 1)]
        fourier = chains.layers.Fourier(shape[-1], draw(st.integers(1, 3)), 0.1, trained=draw(st.booleans()))
        return draw(st.sampled_from([fourier, chains.layers.Periodic((*periods, 4.0), draw(st.integers(1, 2)))]))
    if kind == "Expansion":
        inputs, outputs, size = shape[-1], draw(st.integers(1, 3)), draw(st.integers(1, 2))
        polynomial = chains.layers.Chebyshev(inputs, outputs, size, [(-2.0 - k, 2.0) for k in range(inputs)])
        return draw(st.sampled_from([polynomial, chains.layers.FourierSeries(inputs, outputs, size, 9.0)]))
    if kind == "Constrained":
        widths, n = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)), shape[-1]
        signs = draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=n, max_size=n))
        named = {name: [k for k in range(n) if signs[k] == sign] for name, sign in (("increasing", 1), ("decreasing", -1))}
        return draw(st.sampled_from([chains.layers.Monotone(n, widths, **named), chains.layers.Convex(n, widths, **named)]))
    if kind == "ODE":
        return of_equations(draw, math.prod(shape))
    if kind == "Dropout":
        return Dropout(draw(st.sampled_from([0.0, 0.3, 0.7])))
    if kind == "Softmax":
        return draw(st.sampled_from([chains.Softmax(), chains.LogSoftmax()]))
    if kind == "Reshape":
        return draw(st.sampled_from([chains.Flatten(), Reshape(-1, 1), Reshape(1, -1), Reshape(*reversed(shape))]))
    if kind == "Norm":  # a large eps, so that slopes stay moderate
        rest = {"eps": 0.5, "affine": draw(st.booleans())}
        layers = [chains.LayerNorm(**rest), chains.RMSNorm(shape, **rest), chains.GroupNorm(1, shape[0], **rest)]
        return draw(st.sampled_from([*layers, chains.BatchNorm(shape[0], **rest)]))
    if kind == "own":
        return draw(st.sampled_from([Double(), Boost(1.5), Boost(-0.5), DyUser()]))
    return getattr(chains, kind)()


def of_equations(draw, size):
    """A solution of differential equations whose state has this length, behind what flattens an input."""
    rhs = Dense(size, size, draw(st.sampled_from(SMOOTH)))
    if draw(st.booleans()):
        known = Replay(trace(lambda *v: (v[-2] - v[-1] * v[0], *(-x for x in v[1:size])), size + 2))
        *names, u, k = known.formula.inputs
        rhs = chains.Equations(known, names, network=Dense(size, 1, rhs.activation), outputs=(u,), parameters={k: 0.5})
    if draw(st.integers(0, 4)) == 0:  # which Newton's method solves from anywhere
        balance = Replay(
            trace(lambda *v: tuple(v[size + k] - 2.0 * v[k] - 0.5 * tanh(v[k - 1]) for k in range(size)), 2 * size)
        )
        rate = chains.Equations(balance, balance.formula.inputs)
        return Series(chains.Flatten(), chains.SteadyState(rate, size, draw(st.sampled_from(["newton", "anderson"]))))
    times, steps = (0.0, 0.25, 1.0)[: draw(st.integers(2, 3))], draw(st.integers(1, 3))
    if draw(st.integers(0, 3)) == 0:
        noise = Dense(size, size, draw(st.sampled_from(SMOOTH)))
        solution = chains.SDE(rhs, noise, times, draw(st.sampled_from(["euler", "milstein", "heun"])), steps)
    else:
        solution = chains.ODE(rhs, times, draw(st.sampled_from(["euler", "midpoint", "rk4"])), steps)
    return Series(chains.Flatten(), solution)


def of_sequences(draw, inputs):
    """A layer of a time axis, for inputs of this length at every step: some `Cell`, repeated."""
    settings = {name: draw(st.booleans()) for name in ("return_sequences", "bidirectional")}
    settings["checkpoint_every"] = draw(st.sampled_from([None, None, 1, 2, 3]))
    settings["initial_state"] = draw(st.sampled_from(["zeros", "parameter"]))
    kind, units = draw(st.sampled_from(["RNN", "LSTM", "GRU", "Recurrent"])), draw(st.integers(1, 3))
    if kind == "Recurrent":
        cells = [Decay(), chains.layers.RNNCell(inputs, units, "silu"), chains.layers.GRUCell(inputs, units, reset_after=False)]
        return chains.Recurrent(draw(st.sampled_from([*cells, chains.layers.LSTMCell(inputs, units)])), **settings)
    return getattr(chains, kind)(inputs, units, **settings)


def of_encoders(draw, features):
    """A layer of encoders, for so many features at every step."""
    causal = draw(st.booleans())
    kind = draw(st.sampled_from(["Attention", "TransformerBlock", "PositionalEncoding", "CausalConv"]))
    heads = draw(st.sampled_from([n for n in range(1, features + 1) if features % n == 0]))
    if kind == "Attention":
        return chains.Attention(features, heads, causal=causal, bias=draw(st.booleans()))
    if kind == "TransformerBlock":
        dropout = draw(st.sampled_from([0.0, 0.3]))
        return chains.TransformerBlock(features, heads, 2, activation="tanh", causal=causal, dropout=dropout)
    if kind == "PositionalEncoding":
        return chains.PositionalEncoding(draw(st.sampled_from(["sinusoidal", "learned"])))
    f, kernel, dilation = draw(st.sampled_from(SMOOTH)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return chains.CausalConv(features, draw(st.integers(1, 3)), kernel, f, dilation=dilation)


def of_images(draw, shape):
    """A layer of images or signals, for an input of this shape."""
    kind = draw(st.sampled_from(["Conv", "Conv", "ConvTranspose", "MaxPool", "AvgPool", "GlobalAvgPool", "Upsample", "Pad"]))
    kernel = tuple(draw(st.integers(1, min(3, length))) for length in shape[1:])
    stride = draw(st.sampled_from([1, 2]))
    if kind in ("Conv", "ConvTranspose"):
        outputs, f, bias = draw(st.integers(1, 3)), draw(st.sampled_from(SMOOTH)), draw(st.booleans())
        padding = draw(st.sampled_from([0, "same"])) if kind == "Conv" and stride == 1 else 0
        return getattr(chains, kind)(shape[0], outputs, kernel, f, stride=(stride,) * len(kernel), padding=padding, bias=bias)
    if kind in ("MaxPool", "AvgPool"):
        return getattr(chains, kind)(kernel, stride=(stride,) * len(kernel), padding=tuple(k // 2 for k in kernel))
    return chains.Pad(1) if kind == "Pad" else getattr(chains, kind)()


def output_of(layer, shape):
    return Chain(layer, input_shape=shape).output_shape


def layer_for(draw, shape, depth):
    """Any layer for an input of this shape, and the shape of its output."""
    kind = draw(st.sampled_from(["plain", "plain", "plain", "series", "residual", "sum", "concatenate"]))
    if kind == "plain" or depth == 0:
        layer = plain(draw, shape)
    elif kind == "series":
        layer = Series(*layers_for(draw, shape, depth - 1))
    elif kind == "residual":
        layer = Residual(*keeping(draw, shape, depth - 1))
    elif kind == "sum":
        layer = Parallel(*(Series(*keeping(draw, shape, depth - 1)) for _ in range(draw(st.integers(1, 3)))), join="sum")
    else:
        branches = [Series(*keeping(draw, shape, depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        layer = Parallel(*branches, axis=draw(st.integers(-len(shape), len(shape) - 1)))
    return layer, output_of(layer, shape)


def layers_for(draw, shape, depth):
    """Some layers one after another."""
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        layer, shape = layer_for(draw, shape, depth)
        layers.append(layer)
    return layers


def keeping(draw, shape, depth):
    """Some layers whose output has the input's shape."""
    layers = layers_for(draw, shape, depth)
    output = output_of(Series(*layers), shape)
    if math.prod(output) != math.prod(shape):
        layers += [chains.Flatten(), Dense(math.prod(output), math.prod(shape), draw(st.sampled_from(SMOOTH)))]
    return [*layers, Reshape(*shape)]


@st.composite
def cases(draw):
    shape = draw(st.sampled_from([(3,), (1,), (2, 2), (1, 3), (2, 1, 2), (1, 3, 3)]))
    first = [chains.Embedding(draw(st.integers(1, 4)), draw(st.integers(1, 3)))] if draw(st.integers(0, 4)) == 0 else []
    layers = [*first, *layers_for(draw, output_of(Series(*first), shape), depth=2)]
    penalty = draw(st.sampled_from([None, chains.L2Penalty(0.1)]))
    net = Chain(*layers, input_shape=shape)
    names = [entry.name for entry in net.layout]
    frozen = tuple(draw(st.lists(st.sampled_from(names), unique=True, max_size=2))) if names else ()
    return Case(
        repr(net),
        None,
        tuple(layers),
        shape,
        weighted=draw(st.sampled_from(["", "samples", "targets"])),
        frozen=frozen,
        penalty=penalty if names else None,
    )


def small(net):
    """Few enough numbers for a central difference each."""
    return net.n_params + math.prod(net.input_shape) <= 120


modes = st.sampled_from(["eval", "train"])
batches = st.sampled_from([1, 2, 5])


@settings(max_examples=6)
@given(cases(), batches, modes, backends)
def test_gradients_are_central_differences(case, batch, mode, name):
    net, problem = case.net(name), case.problem(batch, seed=batch)
    note(str(net.program(case.loss)))
    assume(small(net))
    rest = {"weights": problem.w, "penalty": case.penalty, "state": problem.state, "mode": mode, "seed": 5}
    _, g = net.value_and_grad(problem.p, problem.x, problem.t, case.loss, **rest)
    try:
        wanted = central_difference(lambda p: net.value_and_grad(p, problem.x, problem.t, case.loss, **rest)[0], problem.p)
    except Kink:
        reject()
    for frozen in net.frozen:
        net.views(wanted)[frozen][...] = 0.0
    assert_close(g, wanted, 3e-8)


@settings(max_examples=6)
@given(cases(), batches, modes, backends)
def test_pullbacks_are_central_differences(case, batch, mode, name):
    net, problem = case.net(name), case.problem(batch, seed=batch)
    assume(small(net))
    dp, dx = net.vjp(problem.p, problem.x, problem.dy, state=problem.state, mode=mode, seed=5)

    def total(p, x):
        return float(np.sum(problem.dy * net(x, p, state=problem.state.copy(), mode=mode, seed=5)))

    try:
        wanted_p = central_difference(lambda p: total(p, problem.x), problem.p)
        wanted_x = np.zeros(dx.shape)
        if network_of(net).id_count is None:
            wanted_x = central_difference(lambda x: total(problem.p, x), problem.x)
    except Kink:
        reject()
    for frozen in net.frozen:
        net.views(wanted_p)[frozen][...] = 0.0
    assert_close(dp, wanted_p, 3e-8, "dp")
    assert_close(dx, wanted_x, 3e-8, "dx")


@settings(max_examples=6)
@given(
    cases(),
    st.sampled_from([1, 2, 17]),
    st.booleans(),
    backends,
    st.sampled_from(sorted(OPTIMIZERS)),
    st.sampled_from(["f4", "f8"]),
)
def test_nothing_is_read_before_it_is_written(case, batch, training, name, optimizer, dtype):
    network, problem, chosen = network_of(case.net()), case.problem(batch), OPTIMIZERS[optimizer]
    objective = case.criterion()
    arrays = arrays_of(problem) | {"moments": np.zeros(chosen.n_states * len(problem.p)), "step": np.zeros(())}
    for program in (
        record.gradient(network, objective, np.dtype(dtype), training), record.vjp(network, np.dtype(dtype), training),
        record.forward(network, np.dtype(dtype), training), record.training_step(network, objective, chosen, np.dtype(dtype)),
    ):  # fmt: skip
        clean, poisoned = (run_program(program, name, len(problem.x), arrays, fill, runs=2) for fill in (0x00, 0xFF))
        assert_same_bits(clean, poisoned)
        assert all(np.isfinite(array).all() for array in clean.values())


@settings(max_examples=6)
@given(cases(), batches, backends)
def test_float32_equals_float64(case, batch, name):
    problem, net = case.problem(batch), case.net(name)
    p, state = problem.p.astype(np.float32), problem.state.astype(np.float32)
    assert_close(net(problem.x, p, state=state), case.net()(problem.x, problem.p, state=problem.state), 1e-3)
    data, w = (problem.x, problem.t, case.loss), problem.w
    value, g = net.value_and_grad(p, *data, weights=w, state=state)
    wanted_value, wanted_g = case.net().value_and_grad(problem.p, *data, weights=w, state=problem.state)
    assert_close(value, wanted_value, 1e-3)
    assert_close(g, wanted_g, 1e-3)


@settings(max_examples=6)
@given(cases(), backends, st.data())
def test_nesting_changes_nothing(case, name, data):
    """A chain of chains has the layout, and the numbers, of one chain."""
    problem, flat = case.problem(3), Chain(*case.layers, input_shape=case.input_shape, backend=name)
    first = 0 if network_of(flat).id_count is None else 1  # what takes ids comes first
    k = data.draw(st.integers(first, len(case.layers)))
    nested = Chain(Series(*case.layers[:k]), Chain(*case.layers[k:], input_shape=_shape_after(case, k)),
                   input_shape=case.input_shape, backend=name)  # fmt: skip
    assert nested.n_params == flat.n_params
    for mode in ("eval", "train"):
        y, wanted = (net(problem.x, problem.p, state=problem.state.copy(), mode=mode) for net in (nested, flat))
        assert y.tobytes() == wanted.tobytes()
        a, b = (net.vjp(problem.p, problem.x, problem.dy, state=problem.state, mode=mode) for net in (nested, flat))
        assert [array.tobytes() for array in a] == [array.tobytes() for array in b]


def _shape_after(case, k):
    return Chain(*case.layers[:k], input_shape=case.input_shape).output_shape
