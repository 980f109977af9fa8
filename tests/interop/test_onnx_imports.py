"""What `from_onnx` makes of models of others: equal to onnx's reference evaluator, or refused by name."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import chains
from chains.interop import from_onnx, to_onnx
from chains.interop.onnx_formulas import OPERATORS
from tests.campaign import imports

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402

RNG = np.random.default_rng(0)
W, B, M, S = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 4), (4,), (4,), (4,)))
ROWS = RNG.normal(size=(1, 3, 4)).astype(np.float32)
KERNEL = RNG.normal(size=(4, 4, 3)).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


def model_of(nodes, shape, arrays, opset=20, batch="n", output="y", kind=1):
    """A model of nodes (operator, inputs, outputs, attributes), with the input x of this sample shape, and the output y."""
    h = onnx.helper
    made = [h.make_node(operator, ins, outs, **dict(*rest)) for operator, ins, outs, *rest in nodes]
    constants = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    x = h.make_tensor_value_info("x", kind, [batch, *shape])
    y = onnx.helper.make_tensor_value_info(output, kind if kind < 6 else 1, None)
    graph = h.make_graph(made, "g", [x], [y], constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)


def compared(model, check=True):
    """The network of a model, which computes the same as the model does."""
    net, p, state = from_onnx(model, backend="numpy", check=check)
    kind = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    for batch in (1, 5):
        x = (2.0 * RNG.normal(size=(batch, *net.input_shape))).astype(kind)
        expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
        np.testing.assert_allclose(net(x, p, state=state), expected, rtol=1e-4, atol=1e-5)
    return net


BATCH = [("Shape", ["x"], ["l"]), ("Slice", ["l", "i", "j"], ["n"])]  # the number of samples

# The nodes from x to y, the shape of x, the arrays; and the version of ONNX, if it matters.
EQUAL = {
    "a bias that is another's copy": (
        [("Gemm", ["x", "w", "b"], ["a"]), ("Relu", ["a"], ["r"]), ("Identity", ["b"], ["c"]),
         ("Gemm", ["r", "w", "c"], ["y"])],
        (4,), {"w": W, "b": B}),
    "a weight that is transposed": ([("Transpose", ["w"], ["v"]), ("MatMul", ["x", "v"], ["y"])], (4,), {"w": W}),
    "a bias that is cast and reshaped": (
        [("Cast", ["d"], ["e"], {"to": 1}), ("Reshape", ["e", "s"], ["c"]), ("MatMul", ["x", "w"], ["a"]),
         ("Add", ["a", "c"], ["y"])], (4,), {"w": W, "d": B.astype(np.float64).reshape(2, 2), "s": ints(4)}),
    "a constant of numbers": (
        [("Constant", [], ["c"], {"value_floats": [1.0, -2.0, 3.0, 0.5]}), ("Add", ["x", "c"], ["y"])], (4,), {}),
    "a constant of a number": ([("Constant", [], ["c"], {"value_float": 0.5}), ("Max", ["x", "c"], ["y"])], (4,), {}),
    "a shape of integers": ([("Constant", [], ["s"], {"value_ints": [0, 2, 2]}), ("Reshape", ["x", "s"], ["y"])], (4,), {}),
    "the shape of the batch": (
        [*BATCH, ("Concat", ["n", "m"], ["t"], {"axis": 0}),
         ("Reshape", ["x", "t"], ["y"])], (2, 4), {"i": ints(0), "j": ints(1), "m": ints(-1)}),
    "a sum with a constant": ([("Sum", ["x", "b"], ["y"])], (4,), {"b": B}),
    "selu of other numbers": ([("Selu", ["x"], ["y"], {"alpha": 2.0, "gamma": 3.0})], (4,), {}),
    "softmax of the last axis": ([("Softmax", ["x"], ["y"], {"axis": 2})], (3, 4), {}),
    "a constant first": (
        [*BATCH, ("Concat", ["n", "o"], ["s"], {"axis": 0}), ("Expand", ["b", "s"], ["c"]),
         ("Concat", ["c", "x"], ["y"], {"axis": 1})], (4,), {"b": B[:2], "i": ints(0), "o": ints(2), "j": ints(1)}),
    "resized to lengths": (
        [*BATCH, ("Concat", ["n", "m"], ["t"], {"axis": 0}),
         ("Resize", ["x", "", "", "t"], ["y"], {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                                                "nearest_mode": "floor"})],
        (1, 2, 3), {"i": ints(0), "j": ints(1), "m": ints(1, 4, 9)}),
    "the mean of signals": ([("GlobalAveragePool", ["x"], ["y"])], (3, 5), {}),
    "the largest of images": ([("GlobalMaxPool", ["x"], ["y"])], (3, 5, 4), {}),
    "the mean of images": ([("ReduceMean", ["x", "a"], ["y"], {"keepdims": 0})], (3, 5, 4), {"a": ints(2, 3)}),
    "the least of one": ([("Min", ["x"], ["y"])], (4,), {}),
    "the largest of three": ([("Max", ["x", "t", "o"], ["y"])], (4,), {"t": np.float32(0.1), "o": np.float32([0.3])}),
    "no padding": (
        [("ConstantOfShape", ["l"], ["p"], {"value": onnx.numpy_helper.from_array(ints(0))}), ("Pad", ["x", "p"], ["y"])],
        (2, 4), {"l": ints(6)}),
    "padding of axes": ([("Pad", ["x", "p", "", "a"], ["y"])], (2, 4), {"p": ints(1, 2), "a": ints(-1)}),
    "(x - m) / s": ([("Sub", ["x", "m"], ["a"]), ("Div", ["a", "s"], ["y"])], (4,), {"m": M, "s": S}),
    "m - s * x": ([("Mul", ["s", "x"], ["a"]), ("Sub", ["m", "a"], ["y"])], (3, 4), {"m": ROWS, "s": S}),
    "a surrogate": (
        [("Sub", ["x", "m"], ["a"]), ("Div", ["a", "s"], ["c"]), ("Gemm", ["c", "w", "b"], ["d"], {"transB": 1}),
         ("Tanh", ["d"], ["e"]), ("Mul", ["e", "s"], ["f"]), ("Add", ["m", "f"], ["y"])],
        (4,), {"m": M[None], "s": S, "w": W, "b": B}),
    "gemm with numbers": (
        [("Transpose", ["w"], ["v"]), ("Gemm", ["x", "v", "b"], ["y"], {"alpha": 0.5, "beta": 2.0})], (4,), {"w": W, "b": B}),
    "clip": ([("Clip", ["x", "o", "t"], ["y"])], (4,), {"o": np.float32(0.0), "t": np.float32(6.0)}),
    "clip of old": ([("Clip", ["x"], ["y"], {"min": 0.0, "max": 1.0})], (4,), {}, 6),
    "hard sigmoid": ([("HardSigmoid", ["x"], ["y"], {"alpha": 0.3})], (4,), {}),
    "a gelu by tanh": ([("Gelu", ["x"], ["y"], {"approximate": "tanh"})], (4,), {}),
    "a layer norm written out": (
        [("ReduceMean", ["x"], ["u"], {"axes": [-1]}), ("Sub", ["x", "u"], ["d"]), ("Pow", ["d", "t"], ["q"]),
         ("ReduceMean", ["q"], ["v"], {"axes": [-1]}), ("Add", ["v", "e"], ["f"]), ("Sqrt", ["f"], ["r"]),
         ("Div", ["d", "r"], ["z"]), ("Mul", ["z", "s"], ["g"]), ("Add", ["g", "b"], ["y"])],
        (3, 4), {"t": np.float32(2.0), "e": np.float32(0.1), "s": S, "b": B}, 13),
    "two equal layer norms": (
        [("LayerNormalization", ["x", "s", "b"], ["a"]), ("Identity", ["s"], ["t"]), ("Identity", ["b"], ["c"]),
         ("LayerNormalization", ["a", "t", "c"], ["y"])], (4,), {"s": S, "b": B}),
    "same padding": ([("Conv", ["x", "k"], ["y"], {"auto_pad": "SAME_LOWER", "strides": [2]})], (4, 6), {"k": KERNEL}),
    "a transposition": ([("Transpose", ["x"], ["y"], {"perm": [0, 2, 1]})], (3, 4), {}),
    "the last step": ([("Gather", ["x", "i"], ["y"], {"axis": 1})], (3, 4), {"i": np.int64(-1)}),
    "a product with a vector": ([("MatMul", ["x", "b"], ["y"])], (3, 4), {"b": B}),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_models_of_others_are_read(name):
    nodes, shape, arrays, *opset = EQUAL[name]
    compared(model_of(nodes, shape, arrays, *opset))


def test_an_array_may_have_an_axis_for_each_sample():
    value = onnx.numpy_helper.from_array
    nodes = [
        *BATCH, ("ConstantOfShape", ["n"], ["s"], {"value": value(ints(1))}),
        ("ConstantOfShape", ["s"], ["c"], {"value": value(B[:1])}), ("ReduceMax", ["c"], ["m"], {"keepdims": 0}),
        ("Add", ["x", "m"], ["y"]),
    ]  # fmt: skip
    compared(model_of(nodes, (4,), {"i": ints(0), "j": ints(1)}))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("operator", "opset"), [("LayerNormalization", 17), ("RMSNormalization", 23)])
def test_norms_are_over_axes_after_the_batch(operator, opset, axis):
    model = model_of([(operator, ["x", "s"], ["y"], {"axis": axis})], (4,), {"s": S}, opset)
    if axis:
        compared(model)
    else:
        with pytest.raises(ValueError, match="axis must be after the batch, got 0"):
            from_onnx(model)


def test_functions_of_single_numbers_are_one_activation():
    functions = [
        ("LeakyRelu", {}), ("HardSwish", {}),
        ("Celu", {"alpha": 0.7}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("Shrink", {"lambd": 0.2}),
        ("Selu", {}), ("ThresholdedRelu", {"alpha": 0.1}), ("Tan", {}), ("Elu", {"alpha": 0.5}),
    ]  # fmt: skip
    names = ["x", *(f"h{k}" for k in range(len(functions) - 1)), "y"]
    nodes = [(name, [a], [b], given) for (name, given), a, b in zip(functions, names[:-1], names[1:], strict=True)]
    for k in range(1, len(nodes) + 1):
        *before, (name, ins, _, given) = nodes[:k]
        assert len(compared(model_of([*before, (name, ins, ["y"], given)], (4,), {})).layers) == 1


def test_attributes_of_functions_may_be_left_out():
    kinds = {name: onnx.defs.get_schema(name).attributes.values() for name in OPERATORS if onnx.defs.has(name)}
    optional = [name for name, given in kinds.items() if given and not any(each.required for each in given)]
    assert {"Elu", "LeakyRelu", "Selu", "Celu", "HardSigmoid", "Shrink", "ThresholdedRelu", "Gelu"} <= set(optional)
    for name in optional:
        compared(model_of([(name, ["x"], ["y"])], (50,), {}, onnx.defs.get_schema(name).since_version))


SUMS = {
    "a sum": ("Add", ["a", "b"]), "a sum with the constant first": ("Add", ["b", "a"]), "a difference": ("Sub", ["a", "b"])
}  # fmt: skip
PRODUCTS = {"MatMul": ((4,), (4,)), "Gemm": ((4,), (4,)), "Conv": ((4, 6), (4, 3))}  # the shapes of x, and of a weight


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("operator", PRODUCTS)
@pytest.mark.parametrize("name", SUMS)
def test_a_constant_added_to_a_product_is_its_bias(name, operator, width):
    shape, (inputs, *kernel) = PRODUCTS[operator]
    weight = RNG.normal(size=(width, inputs, *kernel) if kernel else (inputs, width)).astype(np.float32)
    bias = RNG.normal(size=(1, width, *(1 for _ in kernel))).astype(np.float32)
    for b in (bias, bias[0], *([bias.reshape(())] if width == 1 else [])):
        nodes = [(operator, ["x", "w"], ["a"]), (SUMS[name][0], SUMS[name][1], ["y"])]
        net = compared(model_of(nodes, shape, {"w": weight, "b": b}))
        assert (len(net.layers), net.n_params) == (1, weight.size + width)
        assert net.layers[0].bias


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((2,), lambda n: (chains.Dense(2, 4, "tanh"), chains.Dense(4, n))),
        ((2,), lambda n: (chains.Dense(2, n), chains.Dense(n, n))),
        ((2,), lambda n: (chains.Dense(2, 4, "tanh"), chains.Dense(4, n), chains.Scale(), chains.Shift())),
        ((2,), lambda n: (chains.Shift(), chains.Scale(), chains.Dense(2, n, "silu"))),
        ((5, 2), lambda n: (chains.Dense(2, n, "tanh"), chains.Dense(n, n))),
        ((2, 5), lambda n: (chains.Conv(2, n, (3,), "tanh"), chains.Flatten(), chains.Dense(3 * n, n))),
        ((2, 5), lambda n: (chains.ConvTranspose(2, n, (3,)), chains.Scale())),
    ],
)  # fmt: skip
def test_parameters_of_one_number_stay_parameters(shape, layers, width):
    net = chains.Chain(*layers(width), input_shape=shape, backend="numpy")
    rng = np.random.default_rng(2)
    p, x = rng.normal(size=net.n_params).astype(np.float32), rng.normal(size=(4, *shape)).astype(np.float32)
    back, q, _ = from_onnx(to_onnx(net, p), backend="numpy")
    np.testing.assert_array_equal(q, p)
    assert repr(back.layers) == repr(net.layers)
    np.testing.assert_allclose(back(x, q), net(x, p), rtol=2e-6, atol=1e-6)


def test_numbers_after_a_bias_are_an_activation():
    """A surrogate of one output, whose scale and shift have no axes: they are fixed numbers."""
    nodes = [
        ("Gemm", ["x", "w", "b"], ["a"]), ("Mul", ["a", "s"], ["c"]), ("Add", ["c", "m"], ["y"]),
    ]  # fmt: skip
    net = compared(model_of(nodes, (4,), {"w": W[:, :1], "b": B[:1], "s": np.float32(2.0), "m": np.float32(0.5)}))
    assert (len(net.layers), net.n_params) == (1, 5)


def test_a_number_for_many_outputs_is_an_activation():
    nodes = [("MatMul", ["x", "w"], ["a"]), ("Add", ["a", "b"], ["y"])]
    assert compared(model_of(nodes, (4,), {"w": W, "b": B[:1]})).n_params == W.size


@pytest.mark.parametrize(("operator", "layer"), [("Softmax", chains.Softmax()), ("LogSoftmax", chains.LogSoftmax())])
def test_softmax_before_version_13_is_over_all_axes(operator, layer):
    """As ONNX defines it. onnx's own evaluator has the new definition alone."""
    net, p, _ = from_onnx(model_of([(operator, ["x"], ["y"])], (3, 4), {}, 12), backend="numpy")
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    same = chains.Chain(layer, input_shape=(12,), backend="numpy")
    np.testing.assert_array_equal(net(x, p), same(x.reshape(2, 12), p).reshape(2, 3, 4))


REFUSED = {
    "groups without channels": (
        [("GroupNormalization", ["x", "s", "b"], ["y"], {"num_groups": 1})], (), {"s": S[:1], "b": B[:1]},
        "GroupNormalization.*must have an axis of channels"),
    "instances without channels": (
        [("InstanceNormalization", ["x", "s", "b"], ["y"])], (), {"s": S[:1], "b": B[:1]}, "must have an axis of channels"),
    "the largest entries' places": (
        [("MaxPool", ["x"], ["a", "y"], {"kernel_shape": [2]})], (2, 4), {}, "its output 'y' is not a result of a layer here"),
    "a mask": ([("Dropout", ["x"], ["a", "y"])], (4,), {}, "its output 'y' is not a result"),
    "a mean beside": ([("LayerNormalization", ["x", "s", "b"], ["a", "y"])], (4,), {"s": S, "b": B}, "its output 'y'"),
    "batches joined": ([("Identity", ["x"], ["a"]), ("Concat", ["x", "a"], ["y"], {"axis": 0})], (4,), {},
                       "the node Concat with the output 'y' must join samples, not batches"),
    "a constant under the batch": ([("Concat", ["x", "c"], ["y"], {"axis": 0})], (4,), {"c": B[None]},
                                   "for any number of samples"),
    "a convolution by the data": ([("Conv", ["k", "x"], ["y"])], (4, 3), {"k": KERNEL}, "must be its first input"),
    "another number for each sample": ([("Add", ["x", "c"], ["y"])], (4,), {"c": W}, "for any number of samples"),
    "samples that become larger": ([("Add", ["x", "c"], ["y"])], (1,), {"c": B}, "must not make samples of shape"),
    "a part of the batch": ([("Slice", ["x", "i", "j"], ["y"])], (4,), {"i": ints(0), "j": ints(1000)},
                            "the operator Slice of the node Slice with the output 'y'"),
    "a number that depends on large batches": (
        [*BATCH, ("Max", ["n", "k"], ["q"]), ("Cast", ["q"], ["c"], {"to": 1}), ("Mul", ["x", "c"], ["y"])],
        (4,), {"i": ints(0), "j": ints(1), "k": ints(5)}, "its input 'c' is not the same for each sample"),
    "softmax of another axis": ([("Softmax", ["x"], ["y"], {"axis": 1})], (3, 4), {}, "axis must be the last one, got 1"),
    "an operator of others": ([("Tanh", ["x"], ["y"], {"domain": "own"})], (4,), {}, "is an operator of own"),
    "random numbers": ([("RandomNormalLike", ["x"], ["a"]), ("Add", ["x", "a"], ["y"])], (4,), {}, "RandomNormalLike"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_layer_is_refused_by_name(name):
    nodes, shape, arrays, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        from_onnx(model_of(nodes, shape, arrays))


def recurrent(operator, directions=1, gates=4, **more):
    """Nodes of a recurrent layer on batches (n, 5, 3) as PyTorch writes them, with 2 units."""
    shapes = {"w": (directions, 2 * gates, 3), "r": (directions, 2 * gates, 2), "b": (directions, 4 * gates)}
    arrays = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    names = [more.pop(name, "") for name in ("lengths", "h", "c")]
    settings = {"hidden_size": 2, "direction": "bidirectional" if directions == 2 else "forward", **more}
    return [
        ("Transpose", ["x"], ["t"], {"perm": [1, 0, 2]}),
        (operator, ["t", "w", "r", "b", *names][: 7 if operator == "LSTM" else 6], ["a", "last"], settings),
    ], arrays


STEPS = [("Squeeze", ["a", "one"], ["q"]), ("Transpose", ["q"], ["y"], {"perm": [1, 0, 2]})]
BOTH = [
    ("Transpose", ["a"], ["u"], {"perm": [0, 2, 1, 3]}), ("Reshape", ["u", "flat"], ["q"]),
    ("Transpose", ["q"], ["y"], {"perm": [1, 0, 2]}),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_with_copies_around_them(operator, gates, directions):
    more = {"linear_before_reset": 1} if operator == "GRU" else {}
    nodes, arrays = recurrent(operator, directions, gates, **more)
    after = STEPS if directions == 1 else BOTH
    net = compared(model_of([*nodes, *after], (5, 3), {**arrays, "one": ints(1), "flat": ints(0, 0, -1)}))
    assert len(net.layers) == 1
    if directions == 1:
        last = [("Squeeze", ["last", "zero"], ["y"])]
        net = compared(model_of([*nodes, *last], (5, 3), {**arrays, "zero": ints(0)}))
        assert len(net.layers) == 1


def test_the_last_step_of_a_recurrent_layer_is_a_setting_of_it():
    nodes, arrays = recurrent("LSTM")
    nodes += [*STEPS[:1], ("Transpose", ["q"], ["s"], {"perm": [1, 0, 2]}), ("Gather", ["s", "i"], ["y"], {"axis": 1})]
    net = compared(model_of(nodes, (5, 3), {**arrays, "one": ints(1), "i": np.int64(-1)}))
    assert repr(net.layers) == repr((chains.LSTM(3, 2),))


@pytest.mark.parametrize("layer", [0, 1])
def test_the_last_state_of_one_of_two_layers(layer):
    """PyTorch gives the states of all layers as one array."""
    nodes, arrays = recurrent("LSTM")
    own = {f"{name}2": RNG.normal(size=shape).astype(np.float32) for name, shape in (("w", (1, 8, 2)), ("r", (1, 8, 2)))}
    nodes += [
        ("Squeeze", ["a", "one"], ["q"]), ("LSTM", ["q", "w2", "r2"], ["", "last2"], {"hidden_size": 2}),
        ("Concat", ["last", "last2"], ["h"], {"axis": 0}), ("Gather", ["h", "i"], ["y"], {"axis": 0}),
    ]  # fmt: skip
    net = compared(model_of(nodes, (5, 3), {**arrays, **own, "one": ints(1), "i": np.int64(layer - 2)}))
    assert len(net.layers) == layer + 1


def test_an_lstm_with_one_of_its_initial_states():
    nodes, arrays = recurrent("LSTM", h="h")
    nodes += [("Squeeze", ["last", "zero"], ["y"])]
    arrays |= {"zero": ints(0), "h": np.repeat(RNG.normal(size=(1, 1, 2)), 1, axis=1).astype(np.float32)}
    n, _, _ = from_onnx(model_of([*nodes[:1], ("Shape", ["x"], ["l"]), ("Slice", ["l", "zero", "one"], ["n"]),
                                  ("Concat", ["one", "n", "two"], ["s"], {"axis": 0}), ("Expand", ["h", "s"], ["e"]),
                                  (nodes[1][0], [*nodes[1][1][:5], "e"], *nodes[1][2:]), nodes[2]],
                                 (5, 3), {**arrays, "one": ints(1), "two": ints(2)}))  # fmt: skip
    assert "initial_state='parameter'" in repr(n)


@pytest.mark.parametrize(
    ("more", "arrays", "reason"),
    [
        ({"lengths": "l"}, {"l": np.array([2, 5], np.int32)}, "sequence_lens must be left out"),
        ({"h": "h"}, {"h": RNG.normal(size=(1, 2, 2)).astype(np.float32)}, "must be the same for each sample"),
        ({"direction": "reverse"}, {}, "the direction reverse is not available here"),
        ({"clip": 1.0}, {}, "clip is not available here"),
    ],
)
def test_recurrent_layers_of_other_kinds_are_refused(more, arrays, reason):
    nodes, own = recurrent("LSTM", **more)
    with pytest.raises(ValueError, match=reason):
        from_onnx(model_of([*nodes, *STEPS], (5, 3), {**own, **arrays, "one": ints(1)}, batch=2))
    nodes[1] = (*nodes[1][:2], ["a", "b1", "last"], nodes[1][3])
    with pytest.raises(ValueError, match=r"'last'|not available|sequence_lens|same for each"):
        from_onnx(model_of([*nodes, ("Squeeze", ["last", "zero"], ["y"])], (5, 3), {**own, **arrays, "zero": ints(0)}, batch=2))


def test_two_numbers_of_a_recurrent_activation_are_refused():
    nodes, arrays = recurrent("RNN", 2, 1, activations=["LeakyRelu"] * 2, activation_alpha=[0.1, 0.2])
    with pytest.raises(ValueError, match="with the same numbers in both directions"):
        from_onnx(model_of([*nodes, *BOTH], (5, 3), {**arrays, "flat": ints(0, 0, -1)}))


def test_a_batch_that_the_exporter_has_fixed_becomes_any():
    nodes = [("MatMul", ["x", "w"], ["a"]), ("Reshape", ["a", "s"], ["b"]), ("Relu", ["b"], ["y"])]
    net, p, _ = from_onnx(model_of(nodes, (3, 4), {"w": W, "s": ints(1, 12)}, batch=1))
    x = RNG.normal(size=(5, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(net(x, p), np.maximum(x @ W, 0.0).reshape(5, 12), rtol=1e-5, atol=1e-6)


def test_numbers_of_half_precision_are_read_as_float32():
    pytest.importorskip("ml_dtypes")
    single = model_of([("MatMul", ["x", "w"], ["y"])], (4,), {"w": W})
    for kind in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16):
        model = model_of([("MatMul", ["x", "w"], ["y"])], (4,), {"w": W}, kind=1)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = kind
        half = onnx.numpy_helper.to_array(single.graph.initializer[0]).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(half, "w"))
        _, p, _ = from_onnx(model, backend="numpy")
        assert p.dtype == np.float32
        np.testing.assert_array_equal(p.reshape(4, 4), half.astype(np.float32))


def test_a_wrong_reader_is_found_out(monkeypatch):
    """The comparison sees what the rules miss, and names the layer."""
    from chains.interop import onnx_layers
    from chains.interop.parts import Part

    monkeypatch.setitem(onnx_layers.MAKERS, "Softmax", lambda c: [Part(chains.LogSoftmax())])
    nodes = [("MatMul", ["x", "w"], ["a"]), ("Relu", ["a"], ["b"]), ("Softmax", ["b"], ["c"]), ("Add", ["c", "b0"], ["y"])]
    model = model_of(nodes, (4,), {"w": W, "b0": B})
    with pytest.raises(ValueError, match=r"not compute what the ONNX model does.*differs is 1, LogSoftmax\(\), read from 'c'"):
        from_onnx(model)
    net, _, _ = from_onnx(model, check=False)
    assert "LogSoftmax" in repr(net)


def test_a_model_that_cannot_be_run_gives_a_warning(monkeypatch):
    monkeypatch.setattr(ReferenceEvaluator, "run", lambda *args, **more: (_ for _ in ()).throw(NotImplementedError("Odd")))
    model = model_of([("Relu", ["x"], ["y"])], (4,), {})
    with pytest.warns(UserWarning, match="the ONNX model, which could not be run: NotImplementedError: Odd"):
        from_onnx(model)
    with pytest.raises(TypeError, match="`check`"):
        from_onnx(model, check=1)


def test_the_models_that_come_with_onnx():
    """Those of its operators are tried by `python -m tests.campaign.imports`."""
    found = Counter(imports.outcome(case, check=False) for case in imports.attempts(operators=False))
    assert found["equal"] >= 82, found
