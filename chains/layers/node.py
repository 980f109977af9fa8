"""A declared layer in a program that is being recorded: its views, and checks of what its functions record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from chains.layers.base import Declaration, Layer, noted
from chains.params import Slice
from chains.program.alias import overlap
from chains.program.operations import Operation
from chains.program.recorder import Recorder
from chains.program.transpose import Part, Place, Read, Transposer, kept, without_parts
from chains.program.view import View, scratch_like
from chains.support.messages import listed, meant


@dataclass(frozen=True)
class Vectors:
    """The flat vectors of a program being recorded: parameters, their gradient, the state before and after."""

    p: View
    g: View
    state: View
    new_state: View
    frozen: frozenset[str]
    bounded: Mapping[str, Bounded] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounded:
    """A parameter with bounds: its value, the derivative of the value by the stored number, and the gradients with respect to
    both.
    """

    value: View
    slope: View
    d_value: View
    d_stored: View


class Names(SimpleNamespace):
    """Views by name, as attributes. A name that the layer did not declare is refused, and so is an assignment."""

    __slots__ = ("_layer", "_prefix", "_what")

    def __init__(self, layer: str, prefix: str, what: str, views: Mapping[str, Any]) -> None:
        vars(self).update(views)
        for name, text in zip(self.__slots__, (layer, prefix, what), strict=True):
            object.__setattr__(self, name, text)

    def __getattr__(self, name: str) -> Any:
        declared = [other for other in vars(self) if other != "children"]
        raise AttributeError(
            f"`{self._prefix}.{name}`: {self._layer}.declare declares no {self._what} of that name, but {listed(declared)}"
            f"{meant(name, declared)}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"`{self._prefix}.{name} = ...` fills no array: record an operation that does, such as "
            f"ops.copy({self._prefix}.{name}, ...) in {self._layer}"
        )


class Node:
    """A declared layer in a program being recorded: the layer with its parameter, gradient, state and scratch views."""

    def __init__(self, declaration: Declaration, ops: Recorder, vectors: Vectors) -> None:
        self.declaration = declaration
        self._derived: dict[tuple[View, View], Sequence[Operation]] = {}  # what `forward` recorded, by its input and output
        self.children = [Node(child, ops, vectors) for child in declaration.children]
        values, gradients = (_windows(vector, declaration.slices) for vector in (vectors.p, vectors.g))
        for name, entry in declaration.slices.items():
            if entry.name in vectors.bounded:
                values[name], gradients[name] = vectors.bounded[entry.name].value, vectors.bounded[entry.name].d_value
            if entry.name in vectors.frozen:  # the gradient goes to scratch that is never read, so it is never computed
                gradients[name] = ops.scratch(f"{entry.name}.frozen", entry.shape, batched=False)
        self.p = self._names("p", "parameters", values)
        self.g = self._names("g", "parameters", gradients)
        with ops.label(declaration.name):
            self._saved: dict[str, Any] = {name: ops.scratch(name, shape) for name, shape in declaration.saved_shapes.items()}
            for name, shape in declaration.shared_shapes.items():
                self._saved[name] = ops.scratch(name, shape, batched=False)
        if declaration.state_slices:
            for name in ("state", "new_state"):
                views = _windows(getattr(vectors, name), declaration.state_slices)
                self._saved[name] = self._names(f"s.{name}", "state", views)

    def at_a_step(self, part: Callable[[View], View], gradient: Callable[[str, View], View], arrays: dict[str, Any]) -> Node:
        """The layer as the cell of a loop: with a `part` of each saved array, the `gradient` of a step, and more `arrays`."""
        twin = copy.copy(self)
        twin.children = [child.at_a_step(part, gradient, {}) for child in self.children]
        twin.g = self._names("g", "parameters", {name: gradient(name, view) for name, view in vars(self.g).items()})
        twin._saved = {name: part(view) for name, view in self._saved.items()} | {
            name: self._names(f"s.{name}", "carried arrays", views) for name, views in arrays.items()
        }
        return twin

    def forward(self, ops: Recorder, x: View, y: View) -> None:
        begun = len(ops.operations)
        self._check_kind(x)
        with noted(self.declaration, "forward"), ops.label(self._label("")):
            within, ops.keeps_parts = ops.keeps_parts, derives(self.declaration.layer)
            (self._derive if ops.keeps_parts else self._record_forward)(ops, x, y)
            ops.keeps_parts = within
            if within:
                recorded = tuple(ops.operations[begun:])
                ops.operations[begun:] = [Part((y,), (x,), self, recorded, label=self._label(""))]

    def _record_forward(self, ops: Recorder, x: View, y: View) -> None:
        begun = len(ops.operations)
        self.declaration.layer.forward(ops, x, y, self.p, self._scratch(ops))
        check_filled(self._name("forward"), ops.operations[begun:], {"y": y})
        self._check_kept("forward", ops.operations[begun:], {"x": x})

    # Derived pullbacks

    def _derive(self, ops: Recorder, x: View, y: View) -> Sequence[Operation]:
        """Record `forward`, and keep its operations for the pullback. What the pullback reads is not overwritten."""
        if self.declaration.carried_shapes:
            raise NotImplementedError(
                f"the pullback of a cell is not derived: {type(self.declaration.layer).__name__} must have a pullback"
            )
        begun = len(ops.operations)
        self._record_forward(ops, x, y)
        operations: list[Operation] | None = ops.operations[begun:]
        while operations is not None:
            del ops.operations[begun:]
            final, places = operations, self._places(x, y, scratch_like(y, "dy"), scratch_like(x, "dx", ops.dtype))
            operations = kept(final, self._transpose(ops, final, places, y), places)
        del ops.operations[begun:]
        ops.operations += without_parts(final)
        if not ops.in_loop:  # in a loop, the pullback is in another one, which has other scratch arrays
            self._derived[x, y] = final
        return final

    def _pull_back(self, ops: Recorder, x: View, y: View, dy: View, dx: View) -> None:
        """Record the derived pullback; in a loop, after `forward` once more."""
        operations = self._derived.get((x, y))
        if operations is None or ops.in_loop:
            y = scratch_like(y, "y again")
            within, ops.keeps_parts = ops.keeps_parts, True
            operations = self._derive(ops, x, y)
            ops.keeps_parts = within
        own = dx if dx.contiguous and not overlap(dx, dy) else scratch_like(dx, "dx")
        given = dy if dy.contiguous else scratch_like(dy, "dy")
        ops.copy(given, dy)
        if x.dtype.kind == "i":
            ops.fill(own, 0.0)  # there are no derivatives with respect to ids
        self._transpose(ops, operations, self._places(x, y, given, own), y)
        ops.copy(dx, own)

    def _transpose(self, ops: Recorder, operations: Sequence[Operation], places: Sequence[Place], y: View) -> list[Read]:
        transposer, within, ops.keeps_parts = Transposer(ops, operations, places), ops.keeps_parts, False
        transposer.record(y)
        ops.keeps_parts = within
        return transposer.reads

    def _places(self, x: View, y: View, dy: View, dx: View) -> list[Place]:
        """The arrays that `forward` is given. Ids have no cotangent."""
        parameters = [Place(view, getattr(self.g, name)) for name, view in vars(self.p).items()]
        saved = [Place(view, scratch_like(view, f"d {view}")) for view in self._saved.values() if isinstance(view, View)]
        return [Place(x, None if x.dtype.kind == "i" else dx), Place(y, dy), *parameters, *saved]

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View) -> None:
        begun = len(ops.operations)
        if derives(self.declaration.layer):
            with noted(self.declaration, "pullback"), ops.label(self._label("'")):
                self._pull_back(ops, x, y, dy, dx)
            return
        with noted(self.declaration, "pullback"), ops.label(self._label("'")):
            self.declaration.layer.pullback(ops, x, y, dy, dx, self.p, self.g, self._scratch(ops))
            wanted = {"dx": dx} | {f"g.{name}": view for name, view in vars(self.g).items()}
            if dx.buffer is not dy.buffer:
                check_filled(self._name("pullback"), ops.operations[begun:], wanted)
            self._check_kept("pullback", ops.operations[begun:], {"x": x, "y": y})

    def _check_kind(self, x: View) -> None:
        """Raise TypeError unless `x` holds ids for a layer that takes ids, and real numbers for any other."""
        takes_ids = self.declaration.id_count is not None
        if takes_ids != (x.dtype.kind == "i"):
            wanted, given = ("ids", "real numbers") if takes_ids else ("real numbers", "ids")
            layer = f"layer {self.declaration.name}, {self.declaration.layer!r},"
            raise TypeError(f"{layer} takes {wanted}, but its input holds {given}")

    def _check_kept(self, function: str, recorded: Sequence[Operation], views: dict[str, View]) -> None:
        kept = views | {f"p.{name}": view for name, view in vars(self.p).items()}
        check_kept(self._name(function), recorded, kept, "declare a separate array with d.temporary(name, shape)")

    def _name(self, function: str) -> str:
        return f"{type(self.declaration.layer).__name__}.{function}"

    def _label(self, mark: str) -> str:
        name = self.declaration.name
        return f"{name}.{type(self.declaration.layer).__name__}{mark}" if name else ""

    def _names(self, prefix: str, what: str, views: Mapping[str, Any]) -> Names:
        return Names(f"{type(self.declaration.layer).__name__}", prefix, what, views)

    def _scratch(self, ops: Recorder) -> Names:
        with ops.label(self.declaration.name):
            temporaries = {name: ops.scratch(name, shape) for name, shape in self.declaration.temporary_shapes.items()}
        return self._names("s", "scratch arrays", {**self._saved, **temporaries, "children": self.children})


class Root(Node):
    """A whole network in a program being recorded.

    The value of a parameter with bounds is computed once, before the layers; they see the value instead of the stored number.
    After their pullbacks, the gradient with respect to the value is changed to that with respect to the stored number.
    """

    def __init__(self, declaration: Declaration, ops: Recorder, vectors: Vectors) -> None:
        slices = {entry.name: entry for part in declaration.all for entry in part.slices.values() if entry.bounds is not None}
        stored, gradients = (_windows(vector, slices) for vector in (vectors.p, vectors.g))
        bounded: dict[str, Bounded] = {}
        for name, entry in slices.items():
            value, slope, gradient = (
                ops.scratch(f"{name}{kind}", entry.shape, batched=False) for kind in ("", ".slope", ".gradient")
            )
            each = bounded[name] = Bounded(value, slope, gradient, gradients[name])
            with ops.label(f"{name} {entry.bounds}"):
                ops.map((each.value, each.slope), entry.bounds.value_and_slope, stored[name])  # type: ignore[union-attr]
        super().__init__(declaration, ops, replace(vectors, bounded=bounded))
        self._trained = [each for name, each in bounded.items() if name not in vectors.frozen]

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View) -> None:
        super().pullback(ops, x, y, dy, dx)
        for each in self._trained:
            with ops.label(f"{each.value.buffer.name}'"):
                ops.map(each.d_stored, lambda gradient, slope: gradient * slope, each.d_value, each.slope)


def derives(layer: Layer) -> bool:
    """Whether the pullback of a layer is derived from its forward."""
    return type(layer).pullback is Layer.pullback


def check_filled(function: str, recorded: Sequence[Operation], views: Mapping[str, View]) -> None:
    """Raise ValueError, naming the function that recorded them, unless some operation writes to each of the views."""
    written = [out for operation in recorded for out in operation.writes]
    for name, view in views.items():
        if view.sample_size and not any(overlap(out, view) for out in written):
            raise ValueError(f"{function} does not fill `{name}`")


def check_kept(function: str, recorded: Sequence[Operation], views: Mapping[str, View], remedy: str) -> None:
    """Raise ValueError, naming the function that recorded them, if some operation writes to one of the views."""
    written = [out for operation in recorded for out in operation.writes]
    for name, view in views.items():
        if any(overlap(out, view) for out in written):
            raise ValueError(f"{function} writes to `{name}`, which may only be read: {remedy}")


def _windows(vector: View, slices: Mapping[str, Slice]) -> dict[str, View]:
    """The slices of a flat vector, each in its shape, by name."""
    views = {name: vector.slice(0, entry.start, entry.stop).reshape(*entry.shape) for name, entry in slices.items()}
    return {name: view.named(f"{vector.buffer.name}.{slices[name].name}") for name, view in views.items()}
