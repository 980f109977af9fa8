"""Networks as ONNX models, which onnxruntime runs, and back."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import (
    GRU,
    LSTM,
    RNN,
    Attention,
    BatchNorm,
    CausalConv,
    Chain,
    Conv,
    Dense,
    Flatten,
    activation,
    leaky_relu,
)
from chains.activations import ACTIVATIONS
from chains.expr import maximum, where
from chains.interop import from_onnx, from_torch, to_onnx
from tests import harness

pytestmark = pytest.mark.few(12)

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

# Words in the names of cases that are not written as ONNX: custom layers and cells, formulas, and gelu within a recurrence.
OTHERS = (
    "Compartments",
    "Recurrent",
    "own-",
    "reads-dy",
    "RNN-sequences-needs-input",
    "Equations",
    "ODE",
    "SDE",
    "SteadyState",
)
CASES = [case for case in harness.LAYERS if not any(word in f"{case.name} {case.layers}" for word in OTHERS)]


def run(model, x, **more):
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x, **more})[0]


def problem_of(case, dtype):
    """A network with parameters, state and input of a type; ids are int64."""
    net, problem = case.net("auto"), case.problem(3)
    x = problem.x.astype(np.int64 if problem.x.dtype.kind in "iu" else dtype)
    return net, problem.p.astype(dtype), problem.state.astype(dtype) if net.n_state else None, x


def assert_close(y, expected):
    assert y.shape == expected.shape
    tolerance = 1e-6 if y.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(y, expected, rtol=2 * tolerance, atol=tolerance * max(1.0, abs(expected).max()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_onnxruntime_computes_the_same(case):
    net, p, state, x = problem_of(case, np.float32)
    model = to_onnx(net, p, state)
    expected = net(x, p, state=state)
    assert_close(run(model, x), expected)
    assert_close(run(model, x[:1]), expected[:1])  # any batch


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_written_is_read(case):
    net, p, state, x = problem_of(case, np.float32)
    back, q, again = from_onnx(to_onnx(net, p, state), backend="numpy")
    assert_close(back(x, q, state=again), net(x, p, state=state))


SEQUENCES = [
    (GRU(3, 2, return_sequences=True, bidirectional=True), GRU(4, 3, reset_after=False), Dense(3, 2)),
    (LSTM(3, 4, bidirectional=True, initial_state="parameter"),),
    (RNN(3, 4, leaky_relu(slope=0.3), return_sequences=True), CausalConv(4, 2, 2, dilation=2)),
    (Dense(3, 6), Attention(6, 3, causal=True), chains.TransformerBlock(6, 2), RNN(6, 2)),
]


@pytest.mark.parametrize("layers", SEQUENCES, ids=lambda layers: type(layers[0]).__name__)
def test_lengths_are_a_second_input(layers):
    net = Chain(*layers, input_shape=(5, 3), backend="numpy")
    rng = np.random.default_rng(1)
    p = rng.normal(0.0, 0.5, net.n_params).astype(np.float32)
    x, lengths = rng.normal(size=(4, *net.input_shape)).astype(np.float32), np.array([5, 1, 3, 2])
    model = to_onnx(net, p, lengths=True)
    assert_close(run(model, x, lengths=lengths), net(x, p, lengths=lengths))
    assert_close(run(model, x, lengths=np.full(4, 5)), net(x, p))
    back, q, _ = from_onnx(model, backend="numpy")
    assert_close(back(x, q, lengths=lengths), net(x, p, lengths=lengths))


OWN = [
    activation("bent", lambda x: where((x > 1.0) & ~(x > 2.0), 2.0 * x, maximum(x, -1.5) ** 3)),
    activation("soft", lambda x: x / (1 + abs(x))),
    activation("steps", lambda x: where(x != 0.0, np.floor(x) + np.sign(x), np.cos(x))),
]


@pytest.mark.parametrize("f", [*ACTIVATIONS.values(), *OWN], ids=str)
def test_activations(f):
    net = Chain(chains.Activation(f), input_shape=(41,))
    x = np.linspace(-3, 3, 41, dtype=np.float32)[None]
    np.testing.assert_allclose(run(to_onnx(net, net.init()), x), net(x, net.init()), rtol=2e-6, atol=1e-6)


def test_models_name_their_parameters_and_are_written(tmp_path):
    net = Chain(Dense(3, 4, "tanh"), Dense(4, 2))
    p = net.init(dtype=np.float64)
    model = to_onnx(net, p, path=tmp_path / "model.onnx")
    assert {each.name for each in model.graph.initializer} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    found, q, state = from_onnx(tmp_path / "model.onnx")
    assert (repr(found), state) == (repr(net), None)
    np.testing.assert_array_equal(q, p)


def test_there_and_back():
    net = Chain(
        Conv(2, 4, 3, "relu", padding=((1, 0), (1, 1)), stride=(1, 2)),
        BatchNorm(4),
        chains.MaxPool(2, stride=1),
        chains.ConvTranspose(4, 3, 2, "softplus", bias=False),
        chains.AvgPool(2, count_padding=False),
        Flatten(),
        Dense(3, 6, chains.elu(alpha=0.5)),
        chains.Scale(),
        chains.Shift(),
        chains.Reshape(2, 3),
        Dense(3, 2, bias=False),
        chains.Softmax(),
        input_shape=(2, 4, 4),
    )
    rng = np.random.default_rng(0)
    p, state = net.init(seed=3), net.init_state() + rng.uniform(0, 1, net.n_state).astype(np.float32)
    x = rng.normal(size=(3, 2, 4, 4)).astype(np.float32)
    found, q, again = from_onnx(to_onnx(net, p, state))
    np.testing.assert_allclose(found(x, q, state=again), net(x, p, state=state), rtol=1e-6, atol=1e-6)


def test_models_that_pytorch_might_write():
    h = onnx.helper
    w, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones(2, np.float32)
    nodes = [
        h.make_node("Flatten", ["x"], ["a"]), h.make_node("Gemm", ["a", "w", "b"], ["c"], transB=1),
        h.make_node("LeakyRelu", ["c"], ["d"], alpha=0.2), h.make_node("Dropout", ["d"], ["e"]),
        h.make_node("LayerNormalization", ["e", "b", "b"], ["f"], axis=-1), h.make_node("Identity", ["f"], ["y"]),
    ]  # fmt: skip
    value = h.make_tensor_value_info
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in (("w", w), ("b", b))]
    graph = h.make_graph(nodes, "g", [value("x", 1, ["n", 3])], [value("y", 1, ["n", 2])], arrays)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    net, p, _ = from_onnx(model)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(net(x, p), run(model, x), rtol=1e-5, atol=1e-6)
    nodes[2] = h.make_node("Hardmax", ["c"], ["d"], name="odd")
    graph = h.make_graph(nodes, "g", [value("x", 1, ["n", 3])], [value("y", 1, ["n", 2])], arrays)
    with pytest.raises(ValueError, match="nothing like the operator Hardmax of the node odd"):
        from_onnx(h.make_model(graph))
    graph = h.make_graph(nodes[:2], "g", [value("x", 1, ["n", None])], [value("c", 1, ["n", 2])], arrays)
    with pytest.raises(ValueError, match="must be known"):
        from_onnx(h.make_model(graph))


READ_AS_WRITTEN = [
    Chain(Dense(3, 4, "silu"), chains.Residual(Dense(4, 4, "tanh"), Dense(4, 4)), chains.RMSNorm(4)),
    Chain(chains.Residual(Dense(3, 4, "elu"), shortcut=chains.Series(Dense(3, 4))), chains.LayerNorm(4), input_shape=(3,)),
    Chain(chains.Parallel(Dense(3, 2), chains.Residual(Dense(3, 3))),
          chains.Parallel(Dense(5, 2), Dense(5, 2), join="sum")),
    Chain(chains.Embedding(9, 4), chains.PositionalEncoding(), *chains.TransformerBlock(4, 2, causal=True).layers, GRU(4, 3),
          input_shape=(5,)),
    Chain(LSTM(2, 3, bidirectional=True, return_sequences=True), GRU(6, 2, reset_after=False, initial_state="parameter"),
          input_shape=(4, 2)),
    Chain(RNN(2, 3, "relu", return_sequences=True), CausalConv(3, 2, 3, dilation=2), input_shape=(4, 2)),
    Chain(Conv(2, 4, 3), chains.GroupNorm(2, 4), chains.Upsample((1, 2)), chains.Pad(((1, 0), (2, 1))), input_shape=(2, 4, 5)),
]  # fmt: skip


@pytest.mark.parametrize("net", READ_AS_WRITTEN, ids=lambda net: type(net.layers[0]).__name__)
def test_the_layers_are_those_that_were_written(net):
    p = net.init(seed=1)
    back, q, _ = from_onnx(to_onnx(net, p))
    assert repr(back) == repr(net)
    np.testing.assert_array_equal(q, p)


def graph_of(*nodes, **arrays):
    """A model of nodes ("Relu", ["x"], ["y"]), with the input x and the output y, both of length 2."""
    h, value = onnx.helper, onnx.helper.make_tensor_value_info
    arrays = {"w": np.ones((2, 2), np.float32), "two": np.float32(2.0), **arrays}
    constants = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    made = [
        h.make_node(operator, ins, outs, name=f"{operator}-{outs[0]}", **dict(*rest)) for operator, ins, outs, *rest in nodes
    ]
    graph = h.make_graph(made, "g", [value("x", 1, ["n", 2])], [value("y", 1, ["n", 2])], constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)


def test_numbers_and_one_array_are_an_activation():
    model = graph_of(
        ("MatMul", ["x", "w"], ["a"]), ("Elu", ["a"], ["b"]), ("Mul", ["b", "two"], ["c"]), ("Max", ["c", "a"], ["d"]),
        ("Erf", ["d"], ["y"]),
    )  # fmt: skip
    net, p, _ = from_onnx(model)
    assert len(net.layers) == 1
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    np.testing.assert_allclose(net(x, p), run(model, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([("MatMul", ["x", "w"], ["a"]), ("Mul", ["a", "x"], ["y"])], "the node Mul-y joins branches by Mul"),
        ([("MatMul", ["w", "x"], ["y"])], "the node MatMul-y: its data must be its first input, not number 2"),
        ([("MatMul", ["x", "w"], ["a"]), ("Add", ["a", "x"], ["b"]), ("MatMul", ["a", "w"], ["c"]), ("Add", ["b", "c"], ["y"])],
         "the node MatMul-a is in two branches"),
        ([("MatMul", ["x", "w"], ["a"]), ("Identity", ["w"], ["y"])], "the output 'y' does not depend on the input 'x'"),
        ([("LayerNormalization", ["x", "w"], ["y"], {"axis": 0})], "node LayerNormalization-y: axis must be after the batch"),
    ],
)  # fmt: skip
def test_branches_and_nodes_that_are_no_layers_are_refused(nodes, reason):
    with pytest.raises(ValueError, match=reason):
        from_onnx(graph_of(*nodes))


def test_from_pytorch_to_onnxruntime():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.Linear(5, 2))
    net, p, _ = from_torch(module)
    x = torch.randn(4, 3)
    np.testing.assert_allclose(run(to_onnx(net, p), x.numpy()), module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_written_is_refused():
    net = Chain(BatchNorm(2), input_shape=(2,))
    with pytest.raises(ValueError, match="`state` is missing"):
        to_onnx(net, net.init())
    net = Chain(harness.Double(), input_shape=(2,))
    with pytest.raises(TypeError, match="no operator of ONNX for"):
        to_onnx(net, net.init())
    with pytest.raises(ValueError, match=r"`lengths` \(=True\) must be False"):
        to_onnx(net, net.init(), lengths=True)
    for layer, reason in (
        (RNN(2, 3, "gelu"), "the operator RNN of ONNX does not have the activation gelu"),
        (chains.Recurrent(harness.Decay()), "no operator of ONNX for"),
        (Doubled(2, 3), "no operator of ONNX for Doubled"),
    ):
        net = Chain(layer, input_shape=(4, 2))
        with pytest.raises(TypeError, match=reason):
            to_onnx(net, net.init())


class Doubled(Dense):
    """A custom layer, though it inherits from a built-in one."""

    def forward(self, ops, x, y, p, s):
        super().forward(ops, x, y, p, s)
        ops.map(y, lambda y: 2.0 * y, y)

    def __repr__(self):
        return "Doubled()"
