"""Networks along time, a step a call: the next one goes on with what a call has left."""

from __future__ import annotations

import numpy as np
import pytest

from chains import GRU, LSTM, RNN, CausalConv, Chain, Dense, Flatten, LayerNorm, Residual, tanh
from chains.exporting.c_source import CSource
from chains.exporting.header import fortran_text, header_text
from tests.exporting.support import interface, loaded
from tests.exporting.test_c_source import built

from chains.exporting.objects import Objects  # isort: skip
from chains.exporting.targets import targets_of  # isort: skip


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("made", ["object", "C99"])
def test_steps_one_by_one_are_the_sequence(made, tmp_path):
    net = Chain(LSTM(3, 4, return_sequences=True), Dense(4, 5, tanh), GRU(5, 2, return_sequences=True), input_shape=(6, 3))
    p, x = net.init(1), np.random.default_rng(0).normal(size=(7, 6, 3)).astype(np.float32)
    functions = loaded(interface(net)) if made == "object" else built(interface(net), tmp_path)
    assert functions.number("n_carried") == 4 + 4 + 2
    carried, outputs = np.zeros((7, 10), np.float32), []
    for step in range(6):
        found = functions("stream", 7, x=x[:, step], p=p, carried=carried)
        carried = found["new_carried"]
        outputs.append(found["y"])
    close(np.stack(outputs, axis=1), net(x, p))


@pytest.mark.parametrize("cell", [GRU(3, 16), LSTM(3, 5)], ids=["GRU", "LSTM"])
def test_a_step_of_one_sample_has_the_bits_of_python(cell):
    net = Chain(cell, Dense(cell.units, 4), input_shape=(6, 3), backend="native")
    p, rng = net.init(1), np.random.default_rng(0)
    for n in (1, 2):
        x, carried = (rng.normal(size=(n, length)).astype(np.float32) for length in (3, net.n_carried))
        found = loaded(interface(net))("stream", n, x=x, p=p, carried=carried)
        y, after = net.step(x, p, carried)
        np.testing.assert_array_equal(found["y"], y)
        np.testing.assert_array_equal(found["new_carried"], after)


CONVOLUTIONS = {
    "one": (CausalConv(3, 4, 3),),
    "dilated": (CausalConv(3, 4, 2, "gelu", dilation=3), Dense(4, 2, tanh)),
    "several": (CausalConv(3, 4, 2, "relu"), CausalConv(4, 2, 3, dilation=2, bias=False), CausalConv(2, 2, 1)),
    "residual": (Residual(CausalConv(3, 3, 2, tanh, dilation=2), LayerNorm(3)), Residual(CausalConv(3, 3, 3))),
    "after GRU": (GRU(3, 4, return_sequences=True), CausalConv(4, 2, 3)),
    "before GRU": (CausalConv(3, 4, 2, "silu"), GRU(4, 3, return_sequences=True), Dense(3, 2)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("made", ["object", "C99"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_steps_of_convolutions_are_the_sequence(name, made, tmp_path):
    net = Chain(*CONVOLUTIONS[name], input_shape=(8, 3))
    p, x = net.init(1), np.random.default_rng(0).normal(size=(3, 8, 3)).astype(np.float32)
    functions = loaded(interface(net)) if made == "object" else built(interface(net), tmp_path)
    carried, outputs = np.zeros((3, net.n_carried), np.float32), []
    assert functions.number("n_carried") == net.n_carried
    for step in range(8):
        found = functions("stream", 3, x=x[:, step], p=p, carried=carried)
        carried = found["new_carried"]
        outputs.append(found["y"])
    close(np.stack(outputs, axis=1), net(x, p))


def test_the_output_of_the_last_step_goes_on_through_any_layers():
    net = Chain(Dense(2, 3), RNN(3, 4), LayerNorm(4), Dense(4, 2), input_shape=(5, 2))
    p, x = net.init(1), np.random.default_rng(0).normal(size=(2, 5, 2)).astype(np.float32)
    functions, carried = loaded(interface(net)), np.zeros((2, 4), np.float32)
    for step in range(5):
        found = functions("stream", 2, x=x[:, step], p=p, carried=carried)
        carried = found["new_carried"]
    close(found["y"], net(x, p))


@pytest.mark.parametrize("made", ["object", "C99"])
def test_a_step_needs_little_memory_where_the_sequence_needs_much(made):
    given = interface(Chain(GRU(2, 24), Dense(24, 1), input_shape=(100, 2)), gradient=None)
    found = Objects(given, targets_of("cortex-m4")).interface if made == "object" else CSource(given).interface
    lengths = {end: each.of(1) for end, each in found.work_bytes.items()}
    assert lengths["work_bytes"] == lengths["forward_work_bytes"] > 20_000
    assert lengths["stream_work_bytes"] < {"object": 10_000, "C99": 1_500}[made]
    stated = f"   work: model_stream_work_bytes(n) bytes, {lengths['stream_work_bytes']:,} for one sample"
    assert stated in header_text(found, "tests").splitlines()
    assert "function model_stream_work_bytes(n)" in fortran_text(found)


@pytest.mark.parametrize(
    "net",
    [
        Chain(Dense(3, 2)),
        Chain(GRU(3, 2, bidirectional=True), input_shape=(4, 3)),
        Chain(GRU(3, 2, return_sequences=True), Flatten(), Dense(8, 2), input_shape=(4, 3)),
        Chain(CausalConv(3, 2, 2), Flatten(), input_shape=(4, 3)),
    ],
    ids=["none", "bidirectional", "flattened", "flattened-convolution"],
)
def test_there_is_no_stream_where_steps_do_not_follow_one_another(net):
    assert "stream" not in [call.name for call in interface(net).calls]
