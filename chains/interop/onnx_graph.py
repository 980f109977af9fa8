"""The graph of an ONNX model: which arrays are constants, what depends on the input, and where branches begin."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np


class Graph:
    """The nodes of a model between its input and its output, with the array that each comes from.

    Names stand for arrays. `arrays` are the constants; what depends on the input has a *source*, the nearest array that
    lies on every way to it from the input: where a node joins several branches, these begin there.
    """

    def __init__(self, onnx: Any, graph: Any, first: str) -> None:
        self.onnx = onnx
        self.arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
        self.nodes: dict[str, Any] = {}  # by the names of their outputs
        self._sources: dict[str, str] = {}
        self._depths = {first: 0}
        for node in graph.node:
            self._add(node)
        self._taken: set[str] = set()

    def _add(self, node: Any) -> None:
        data = [] if node.op_type == "Shape" else self.data(node)
        if data:
            source = reduce(self._common, data)
            for name in node.output:
                self.nodes[name], self._sources[name], self._depths[name] = node, source, self._depths[source] + 1
        elif node.op_type == "Constant":
            self.arrays[node.output[0]] = self.onnx.numpy_helper.to_array(self.attributes(node)["value"])
        elif node.op_type == "Expand" and node.input[0] in self.arrays:  # for each sample the same
            self.arrays[node.output[0]] = self.arrays[node.input[0]]

    def _common(self, a: str, b: str) -> str:
        while a != b:
            if self._depths[a] < self._depths[b]:
                a, b = b, a
            a = self._sources[a]
        return a

    def data(self, node: Any) -> list[str]:
        """Those of its inputs that depend on the input of the model."""
        return [name for name in node.input if name in self._depths]

    def constants(self, node: Any) -> list[np.ndarray]:
        return [self.arrays[name] for name in node.input if name in self.arrays]

    def attributes(self, node: Any) -> dict[str, Any]:
        found = {each.name: self.onnx.helper.get_attribute_value(each) for each in node.attribute}
        return {name: number(np.float32(value)) if isinstance(value, float) else value for name, value in found.items()}

    def source(self, name: str) -> str:
        return self._sources[name]

    def path(self, name: str, *operators: str) -> list[Any]:
        """The nodes with these operators, from the one that gives `name` upwards; empty where there are others."""
        found = []
        for operator in operators:
            node = self.nodes.get(name)
            if node is None or node.op_type != operator or len(self.data(node)) != 1:
                return []
            found.append(node)
            (name,) = self.data(node)
        return found

    def between(self, start: str, end: str) -> list[Any]:
        """The nodes on the ways from `start` to `end`, each behind those whose results it takes."""
        found: list[Any] = []
        seen: set[str] = set()

        def visit(name: str) -> None:
            node = self.nodes.get(name)
            if name != start and node is not None and node.output[0] not in seen:
                seen.add(node.output[0])
                for before in self.data(node):
                    visit(before)
                found.append(node)

        visit(end)
        return found

    def take(self, *nodes: Any) -> None:
        """Note that nodes are a part of the network. Raises ValueError for one that is a part already."""
        for node in nodes:
            if node.output[0] in self._taken:
                raise ValueError(f"{called(node)} is in two branches, which are no layers side by side")
            self._taken.add(node.output[0])


def number(value: Any) -> float:
    """A number of NumPy, by the fewest digits that mean it: 1e-05 for the float32 9.99999975e-06."""
    return float(str(value[()]))


def called(node: Any) -> str:
    """A node in messages."""
    return f"the node {node.name or node.op_type}"
