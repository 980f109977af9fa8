"""Nodes and arrays of an ONNX model that is being made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.activations import Activation, Elu, LeakyRelu, identity
from chains.expr.formulas import trace
from chains.layers.base import Declaration

# Activations that ONNX has; others, custom ones too, are written as their formulas.
NATIVE = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softplus": "Softplus", "softsign": "Softsign", "sin": "Sin",
    "gelu": "Gelu", "mish": "Mish",
}  # fmt: skip
# Scalar operations of formulas.
OPERATIONS = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh",
    "sin": "Sin", "cos": "Cos", "erf": "Erf", "not": "Not", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div",
    "pow": "Pow", "min": "Min", "max": "Max", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
    "eq": "Equal", "and": "And", "or": "Or", "where": "Where",
}  # fmt: skip


class Nodes:
    """The nodes and constants of a model; a method takes the names of inputs and returns that of the output.

    `arrays` are a network's parameters and state by name; `lengths` is the name of the input that holds those of the samples.
    """

    def __init__(self, onnx: Any, arrays: dict[str, np.ndarray], dtype: np.dtype[Any], lengths: str | None) -> None:
        self.onnx, self.arrays, self.dtype, self.lengths = onnx, arrays, dtype, lengths
        self.kind = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))  # ONNX's number of the type
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.known: set[str] = set()
        self.count = 0

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        (name,) = self.several(operation, inputs, 1, **attributes)
        return name

    def several(self, operation: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """The names of as many outputs of a node."""
        self.count += 1
        name = f"{operation}_{self.count}"
        outputs = [name] if count == 1 else [f"{name}_{k}" for k in range(count)]
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), outputs, name=name, **attributes))
        return outputs

    def constant(self, name: str, value: Any, dtype: Any = None) -> str:
        """The name of an array in the model, by this name; it is written once."""
        if name not in self.known:
            array = np.ascontiguousarray(np.asarray(value, dtype=self.dtype if dtype is None else dtype))
            self.constants.append(self.onnx.numpy_helper.from_array(array.reshape(np.shape(value)), name))
            self.known.add(name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant("shape_" + "_".join(map(str, values)), np.array(values, np.int64), np.int64)

    def number(self, value: float) -> str:
        return self.constant(f"number_{float(value).hex()}", value)

    def value(self, d: Declaration, name: str) -> np.ndarray:
        """A parameter or an array of the state."""
        return self.arrays[f"{d.name}.{name}"]

    def array(self, d: Declaration, name: str) -> str:
        """The name of a parameter or an array of the state."""
        return self.constant(f"{d.name}.{name}", self.value(d, name))

    def reshaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.integers(-1, *shape))

    def activation(self, f: Activation, x: str) -> str:
        if f is identity:
            return x
        if f._recipe is not None and f.name in NATIVE:
            return self.node(NATIVE[f.name], x)
        if isinstance(f, Elu):
            return self.node("Elu", x, alpha=f.alpha)
        if isinstance(f, LeakyRelu):
            return self.node("LeakyRelu", x, alpha=f.negative_slope)
        formula = trace(f.function, 1)
        names = [x]
        for step in formula.instructions:
            names.append(self.instruction(step, [names[operand] for operand in step.operands]))
        return names[formula.outputs[0]]

    def instruction(self, step: Any, operands: list[str]) -> str:
        if step.operation == "const":
            return self.number(step.value)
        if step.operation == "log1p":
            return self.node("Log", self.node("Add", self.number(1.0), *operands))
        if step.operation == "expm1":
            return self.node("Sub", self.node("Exp", *operands), self.number(1.0))
        if step.operation == "ne":
            return self.node("Not", self.node("Equal", *operands))
        return self.node(OPERATIONS[step.operation], *operands)
