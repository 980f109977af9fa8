"""What is known of an ONNX model before it is read: its constants, and the shapes of all other arrays.

Whatever does not depend on the data is computed once, by onnx's reference evaluator. This is done for two batch sizes. Arrays
that are the same for both are constants; so are those that repeat one array for each sample.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

BATCHES = (2, 3)
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
# Operators whose results may be the same for both batch sizes, and others for larger batches.
THRESHOLDS = {"Max", "Min", "Clip", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Div", "Mod", "Sign", "Floor", "Range"}
SMALL = 1000  # entries of constants that may determine a shape


def loaded(onnx: Any, model: Any) -> Any:
    """A copy of the model, or that in a file, in which float32 takes the place of float16 and bfloat16."""
    if isinstance(model, (str, os.PathLike)):
        model = onnx.load(os.fspath(model))
    else:
        model = onnx.ModelProto.FromString(model.SerializeToString())
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    _widen(onnx, model.graph)
    return model


def _widen(onnx: Any, graph: Any) -> None:
    single, half = onnx.TensorProto.FLOAT, (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    tensors = list(graph.initializer)
    for node in graph.node:
        for each in node.attribute:
            if each.type == onnx.AttributeProto.TENSOR:
                tensors.append(each.t)
            elif each.name in ("to", "dtype") and each.i in half:
                each.i = single
            elif each.type == onnx.AttributeProto.GRAPH:
                _widen(onnx, each.g)
    for tensor in tensors:
        if tensor.data_type in half:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in half:
            value.type.tensor_type.elem_type = single


def called(node: Any) -> str:
    """A node in messages: its name, or its operator and its output."""
    return f"the node {node.name}" if node.name else f"the node {node.op_type} with the output {first_output(node)!r}"


def first_output(node: Any) -> str:
    """The name of the first output of a node that is not left out."""
    return next(filter(None, node.output), "")


class Known:
    """The values and types of the arrays of a model, for each of two batch sizes.

    `values` are those of arrays that do not depend on the input `first`, nor on "lengths", by name; `types` are ONNX's types
    of the arrays that do. `data` are the names of arrays that depend on `first`, `following` those that depend on "lengths"
    alone.
    """

    def __init__(self, onnx: Any, model: Any, first: Any) -> None:
        self.onnx, self.model = onnx, model
        self.opset = {each.domain: each.version for each in model.opset_import}
        self.version = self.opset.get("", self.opset.get("ai.onnx", 1))
        arrays = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
        self.values: list[dict[str, np.ndarray]] = [dict(arrays) for _ in BATCHES]
        self.types: list[dict[str, Any]] = [{first.name: _batched(onnx, first.type, batch)} for batch in BATCHES]
        self.data, self.following = {first.name}, set()
        for each in model.graph.input:
            if each.name == "lengths" and each.name != first.name:
                self.following.add(each.name)
                for types, batch in zip(self.types, BATCHES, strict=True):
                    types[each.name] = _batched(onnx, each.type, batch)
        self.constants: dict[str, np.ndarray] = {}
        self.makers = {name: node for node in model.graph.node for name in node.output}
        for node in model.graph.node:
            self._add(node)
        for name in self.values[0].keys() & self.values[1].keys():
            if (constant := _same(self.values[0][name], self.values[1][name])) is not None:
                self.constants[name] = constant

    def _add(self, node: Any) -> None:
        names = [name for name in node.input if name]
        if node.op_type not in RANDOM and all(name in self.values[0] for name in names) and self._is_fixed(names):
            found = self.computed(node, {name: self.values[0][name] for name in names}) or {}
            for values in self.values:
                values |= found
            return
        is_shape = node.op_type in ("Shape", "Size")
        if not is_shape and (self.data | self.following) & set(names):
            (self.data if self.data & set(names) else self.following).update(filter(None, node.output))
        for values, types in zip(self.values, self.types, strict=True):
            if is_shape and node.input[0] in types:
                if (shape := self._shape_of(node, types)) is not None:
                    values[node.output[0]] = shape
            elif any(name in types for name in names):
                types |= dict.fromkeys(node.output) | self._inferred(node, types, values)
            elif all(name in values for name in names) and node.op_type not in RANDOM:
                values |= self.computed(node, {name: values[name] for name in names}) or {}
        if node.op_type in THRESHOLDS and self._differ(names) and not self._differ(node.output):
            for values in self.values:
                values.pop(node.output[0], None)

    def _differ(self, names: Any) -> bool:
        """Whether one of some arrays depends on the batch size."""
        one, other = self.values
        return any(name in one and name in other and not np.array_equal(one[name], other[name]) for name in names)

    def _is_fixed(self, names: list[str]) -> bool:
        """Whether arrays do not depend on the batch size."""
        one, other = self.values
        return all(one[name] is other.get(name) for name in names)

    def _shape_of(self, node: Any, types: dict[str, Any]) -> np.ndarray | None:
        shape = _shape(types[node.input[0]])
        found = None if shape is None else self.computed(node, {node.input[0]: np.empty(shape, bool)})
        return None if found is None else found[node.output[0]]

    def computed(self, node: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """The outputs of a node by the reference evaluator; None if it cannot compute them."""
        from onnx.reference import ReferenceEvaluator

        helper = self.onnx.helper
        try:
            inputs = [helper.make_value_info(name, self._type_of(np.asarray(array))) for name, array in feeds.items()]
            outputs = [helper.make_value_info(name, self.onnx.TypeProto()) for name in node.output if name]
            graph = helper.make_graph([node], "node", inputs, outputs)
            model = helper.make_model(graph, opset_imports=self.model.opset_import)
            with np.errstate(all="ignore"):
                found = ReferenceEvaluator(model).run(None, feeds)
        except Exception:  # of whatever kind: the array is unknown then, and its reader says so
            return None
        return {each.name: np.asarray(value) for each, value in zip(outputs, found, strict=True)}

    def _inferred(self, node: Any, types: dict[str, Any], values: dict[str, np.ndarray]) -> dict[str, Any]:
        """The types of a node's outputs, as far as they are known."""
        onnx, every, data = self.onnx, {}, {}
        try:
            for name in filter(None, node.input):
                if name in values:
                    every[name] = self._type_of(values[name])
                    if values[name].size <= SMALL:
                        data[name] = onnx.numpy_helper.from_array(values[name], name)
                elif types.get(name) is not None:
                    every[name] = types[name]
            schema = onnx.defs.get_schema(node.op_type, self.opset.get(node.domain, self.version), node.domain)
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, every, data, opset_imports=list(self.model.opset_import), ir_version=self.model.ir_version
            )
        except Exception:  # an unknown operator, or shapes that do not fit
            found = {}
        if all(_shape(found.get(name)) is not None for name in node.output if name):
            return dict(found)
        return self._tried(node, types, values) or dict(found)

    def _tried(self, node: Any, types: dict[str, Any], values: dict[str, np.ndarray]) -> dict[str, Any]:
        """The types of what a node computes of ones, for operators whose shapes are not inferred."""
        helper, feeds = self.onnx.helper, {}
        for name in filter(None, node.input):
            shape = _shape(types.get(name))
            if name not in values and shape is None:
                return {}  # no reader gets a shape
            kind = None if name in values else helper.tensor_dtype_to_np_dtype(types[name].tensor_type.elem_type)
            feeds[name] = values[name] if name in values else np.ones(shape or (), kind)
        found = self.computed(node, feeds) or {}
        return {name: self._type_of(array) for name, array in found.items() if array.dtype.kind in "fiub"}

    def _type_of(self, array: np.ndarray) -> Any:
        helper = self.onnx.helper
        return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    def follows_lengths(self, name: str) -> bool:
        """Whether an array is the input "lengths", perhaps in another type."""
        while name in self.makers and self.makers[name].op_type in ("Cast", "Identity"):
            name = self.makers[name].input[0]
        return name == "lengths" and name in self.following

    def is_filled(self, name: str) -> bool:
        """Whether a constant is a number that a node has repeated."""
        node = self.makers.get(name)
        while node is not None and node.op_type in ("Slice", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Identity"):
            node = self.makers.get(node.input[0])
        if node is None or node.op_type not in ("ConstantOfShape", "Expand"):
            return False
        return node.op_type == "ConstantOfShape" or self.values[0][node.input[0]].size == 1

    def shapes(self, name: str) -> list[tuple[int, ...] | None]:
        """The shapes of an array for both batch sizes."""
        return [_shape(types.get(name)) for types in self.types]

    def sample(self, name: str) -> tuple[int, ...] | None:
        """The shape of a sample of an array; None if it is unknown, or the first axis is not the batch."""
        one, other = self.shapes(name)
        if not one or not other or (one[0], other[0]) != BATCHES or one[1:] != other[1:]:
            return None
        return one[1:]

    def element(self, name: str) -> int:
        """ONNX's number of the type of an array's entries; 0 if it is unknown."""
        return getattr(getattr(self.types[0].get(name), "tensor_type", None), "elem_type", 0)


def _batched(onnx: Any, kind: Any, batch: int) -> Any:
    found = onnx.TypeProto.FromString(kind.SerializeToString())
    found.tensor_type.shape.dim[0].Clear()
    found.tensor_type.shape.dim[0].dim_value = batch
    return found


def _shape(kind: Any) -> tuple[int, ...] | None:
    """The shape in a type, if all lengths are known."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return tuple(each.dim_value for each in dims) if all(each.HasField("dim_value") for each in dims) else None


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """An array that is the same for both batch sizes; with length 1 along axes where it has an equal entry for each sample."""
    if one.ndim != other.ndim or one.dtype != other.dtype:
        return None
    for axis, lengths in enumerate(zip(one.shape, other.shape, strict=True)):
        if lengths[0] != lengths[1]:
            if lengths != BATCHES:
                return None
            one, other = (_repeated(array, axis) for array in (one, other))
    return one if one is other or np.array_equal(one, other, equal_nan=one.dtype.kind == "f") else None


def _repeated(array: np.ndarray, axis: int) -> np.ndarray:
    first = np.take(array, [0], axis)
    return first if (array == first).all() else array
