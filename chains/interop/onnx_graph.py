"""The nodes of an ONNX model between its input and its output."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from chains.interop.onnx_model import Known, called, first_output

ALL = 2**31 - 1  # the end of a slice that goes to the end, whatever the length
FLOATS, INTEGERS = ("FLOAT", "DOUBLE"), ("INT32", "INT64")
# Operators whose results are entries of their first input, in another order, perhaps repeated or left out.
COPYING = {
    "Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Expand", "Tile",
    "DepthToSpace", "SpaceToDepth", "Resize", "Upsample",
}  # fmt: skip

CONVOLUTIONS = ("Conv", "ConvTranspose")
PRODUCTS = ("MatMul", "Gemm", *CONVOLUTIONS)


class Graph:
    """The nodes by their outputs, with the array that each comes from.

    Names stand for arrays. `arrays` are the constants. An array that depends on the input has a *source*: the nearest array
    that is on every path to it from the input. Branches that a node joins begin there.
    """

    def __init__(self, onnx: Any, model: Any, first: Any) -> None:
        self.onnx = onnx
        self.known = Known(onnx, model, first)
        self.arrays, self.version = self.known.constants, self.known.version
        self.nodes: dict[str, Any] = {}  # by the names of their outputs
        self.sources: dict[str, str] = {}  # the nearest array on every path from the input
        self._depths = {first.name: 0}
        for node in model.graph.node:
            self._add(self._from_one(node))
        self._taken: set[str] = set()

    def _add(self, node: Any) -> None:
        data = [] if first_output(node) in self.known.values[0] else self.data(node)
        if data:
            source = reduce(self._common, data)
            for name in filter(None, node.output):
                self.nodes[name], self.sources[name], self._depths[name] = node, source, self._depths[source] + 1

    def _from_one(self, node: Any) -> Any:
        """A node that takes one entry of a concatenation takes it of the array that has it, as of the states of many layers."""
        joined = self.nodes.get(node.input[0]) if node.op_type == "Gather" else None
        index = self.arrays.get(node.input[1]) if joined is not None else None
        if joined is None or joined.op_type != "Concat" or index is None or index.size != 1:
            return node
        axes = [self.attributes(each).get("axis", 0) for each in (node, joined)]
        shapes = [self.known.shapes(name)[0] if name in self._depths else None for name in joined.input]
        if axes[0] != axes[1] or any(shape is None for shape in shapes):
            return node
        lengths = [shape[axes[0]] for shape in shapes if shape is not None]
        place = int(index.reshape(())) % sum(lengths)
        ends = np.cumsum(lengths)
        which = int(np.searchsorted(ends, place, side="right"))
        name = f"{first_output(node)}.place"
        own = np.array(place - ends[which] + lengths[which]).reshape(index.shape)
        for values in (self.arrays, *self.known.values):
            values[name] = own
        made = self.onnx.NodeProto()
        made.CopyFrom(node)
        made.input[0], made.input[1] = joined.input[which], name
        return made

    def _common(self, a: str, b: str) -> str:
        while a != b:
            if self._depths[a] < self._depths[b]:
                a, b = b, a
            a = self.sources[a]
        return a

    def data(self, node: Any) -> list[str]:
        """Those of its inputs that depend on the input of the model."""
        return [name for name in node.input if name in self._depths]

    def constants(self, node: Any) -> list[np.ndarray]:
        return [self.arrays[name] for name in node.input if name in self.arrays]

    def attributes(self, node: Any) -> dict[str, Any]:
        found = {each.name: self.onnx.helper.get_attribute_value(each) for each in node.attribute}
        return {name: number(np.float32(value)) if isinstance(value, float) else value for name, value in found.items()}

    def setting(self, node: Any, name: str, position: int, default: Any = None) -> Any:
        """A setting that is an attribute, or in newer versions of the operator a constant input."""
        if len(node.input) > position and node.input[position]:
            return self.arrays.get(node.input[position], default)
        return self.attributes(node).get(name, default)

    def axes(self, node: Any, position: int = 1) -> list[int] | None:
        """The axes of a node, from 0; None if they are left out. The arrays have the batch as axis 0."""
        axes, shape = self.setting(node, "axes", position), self.known.shapes(node.input[0])[0]
        if axes is None or shape is None:
            return None
        return sorted(int(axis) % len(shape) for axis in np.ravel(axes))

    def sample(self, name: str) -> tuple[int, ...] | None:
        return self.known.sample(name)

    def is_float(self, name: str) -> bool:
        return self.known.element(name) in {self.onnx.TensorProto.DataType.Value(each) for each in FLOATS}

    def is_integer(self, name: str) -> bool:
        return self.known.element(name) in {self.onnx.TensorProto.DataType.Value(each) for each in INTEGERS}

    def path(self, name: str, *operators: str) -> list[Any]:
        """The nodes with these operators, from the one that gives `name` upwards; empty if there are others."""
        found = []
        for operator in operators:
            node = self.nodes.get(name)
            if node is None or node.op_type != operator or len(self.data(node)) != 1:
                return []
            others = [each for each in node.input if each and each not in self._depths and each not in self.arrays]
            if (others and operator != "Where") or (node.output[0] != name and operator != "Split"):
                return []
            found.append(node)
            (name,) = self.data(node)
        return found

    def lacks_bias(self, name: str) -> bool:
        """Whether an array is the product of a layer with one output, to which a number may be added as its bias."""
        node, sample = self.nodes.get(name), self.sample(name)
        if node is None or node.op_type not in PRODUCTS or not sample or self.data(node) != [node.input[0]]:
            return False
        weight = self.arrays.get(node.input[1])
        if weight is None or weight.ndim < 2 or any(node.input[2:]):
            return False
        return sample[0 if node.op_type in CONVOLUTIONS else -1] == 1

    def between(self, start: str, end: str) -> list[Any]:
        """The nodes on the paths from `start` to `end`, each after the nodes of its inputs."""
        found: list[Any] = []
        seen: set[str] = set()
        waiting = [(end, False)]
        while waiting:
            name, is_done = waiting.pop()
            node = self.nodes.get(name)
            if is_done:
                found.append(node)
            elif name != start and node is not None and first_output(node) not in seen:
                seen.add(first_output(node))
                waiting.append((name, True))
                waiting += [(before, False) for before in reversed(self.data(node))]
        return found

    def copied(self, end: str) -> tuple[str, list[Any]]:
        """The array of which `end` has entries, and the nodes that copy them, from the first to the last."""
        nodes: list[Any] = []
        while (node := self.nodes.get(end)) is not None and self._copies(node):
            nodes.append(node)
            end = node.input[0]
        return end, nodes[::-1]

    def _copies(self, node: Any) -> bool:
        others = [name for name in node.input[1:] if name]
        if node.op_type not in COPYING or node.input[0] not in self._depths:
            return False
        if not all(name in values for name in others for values in self.known.values):
            return False
        if node.op_type == "Cast":
            names = node.input[0], node.output[0]
            return all(map(self.is_float, names)) or all(map(self.is_integer, names))
        if node.op_type == "Slice":
            return not self._cuts_batch(node)
        if node.op_type in ("Resize", "Upsample"):
            return bool(self.attributes(node).get("mode", b"nearest") == b"nearest")
        return True

    def _cuts_batch(self, node: Any) -> bool:
        """Whether a Slice leaves out samples of batches that are large enough."""
        one, other = self.known.shapes(node.input[0])
        if one is None or other is None:
            return True
        starts, ends = (np.ravel(self.setting(node, name, k)).tolist() for k, name in enumerate(("starts", "ends"), 1))
        axes, steps = (self.setting(node, name, k) for k, name in enumerate(("axes", "steps"), 3))
        axes = range(len(starts)) if axes is None else np.ravel(axes).tolist()
        steps = [1] * len(starts) if steps is None else np.ravel(steps).tolist()
        rows = zip(axes, starts, ends, steps, strict=True)
        cuts = [axis for axis, start, end, step in rows if (start, step) != (0, 1) or end < ALL]
        return any(one[axis] != other[axis] for axis in cuts)

    def relabelled(self, nodes: list[Any], labels: np.ndarray, which: int) -> np.ndarray | None:
        """What copying nodes make of an array, for one of the two batch sizes; None if that is unknown."""
        for node in nodes:
            if node.op_type not in ("Cast", "Identity"):
                values = self.known.values[which]
                feeds = {name: values[name] for name in node.input[1:] if name} | {node.input[0]: labels}
                found = self.known.computed(node, feeds)
                if found is None:
                    return None
                labels = found[node.output[0]]
        return labels

    def take(self, *nodes: Any) -> None:
        """Mark nodes as parts of the network. Raises ValueError for one that is a part already."""
        for node in nodes:
            if first_output(node) in self._taken and not self._copies(node):
                raise ValueError(f"{called(node)} is in two branches, which is not a layer here")
            self._taken.add(first_output(node))

    def check_known(self, node: Any) -> None:
        """Raise ValueError if an input of a node is neither data nor a constant."""
        for name in node.input:
            if name in self.known.following:
                raise ValueError(f"{called(node)} depends on the lengths, which it cannot here")
            if name and name not in self._depths and name not in self.arrays:
                raise ValueError(
                    f"{called(node)}: its input {name!r} is not the same for each sample, or onnx cannot compute it"
                )


def number(value: Any) -> float:
    """A number of NumPy, by the fewest digits that mean it: 1e-05 for the float32 9.99999975e-06."""
    return float(str(np.asarray(value).reshape(())[()]))
