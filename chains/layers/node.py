"""A declared layer in a program that is being recorded: its views, and checks of what its functions record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from chains.layers.base import Declaration, Layer, noted
from chains.layers.derived import Derived, derive, keep, keeping_parts
from chains.params import Slice
from chains.program.alias import overlap
from chains.program.operations import Operation
from chains.program.places import Part, Place
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer, View, scratch_like
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
        of_that_name = f" of that name, but {listed(declared)}{meant(name, declared)}" if declared else ""
        raise AttributeError(f"`{self._prefix}.{name}`: {self._layer}.declare declares no {self._what}{of_that_name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"`{self._prefix}.{name} = ...` fills no array: record an operation that does, such as "
            f"ops.copy({self._prefix}.{name}, ...) in {self._layer}"
        )


class Node:
    """A declared layer in a program being recorded: the layer with its parameter, gradient, state and scratch views."""

    def __init__(self, declaration: Declaration, ops: Recorder, vectors: Vectors) -> None:
        self.declaration = declaration
        self._derived: dict[Any, Derived] = {}  # by input and output; for the step of a loop, by the number of loops
        self._kept: list[View] = []  # scratch arrays that derived pullbacks read, if they are kept for each step of a loop
        self._step: Callable[[View], View] | None = None  # the part of a saved array for this step of a loop
        self._twins: list[Node] = []  # this layer at its other places in a derived layer
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
        outer = self._step
        twin._step = part if outer is None else lambda view: part(outer(view))
        twin.children = [child.at_a_step(part, gradient, {}) for child in self.children]
        twin.g = self._names("g", "parameters", {name: gradient(name, view) for name, view in vars(self.g).items()})
        twin._saved = {name: part(view) for name, view in self._saved.items()} | {
            name: self._names(f"s.{name}", "carried arrays", views) for name, views in arrays.items()
        }
        list(twin._arrays())  # kept arrays too are fetched before the step
        return twin

    def forward(self, ops: Recorder, x: View, y: View) -> None:
        begun = len(ops.operations)
        self._check_kind(x)
        if ops.keeps_parts and any(isinstance(each, Part) and each.node is self for each in ops.operations):
            self._twins.append(self._twin(ops, len(self.declaration.kept_axes)))
            self._twins[-1].forward(ops, x, y)
            return
        with noted(self.declaration, "forward"), ops.label(self._label("")):
            if derives(self.declaration.layer):
                ops.operations += self._derive(ops, x, y).forward
            else:
                with keeping_parts(ops, False):
                    self._record_forward(ops, x, y)
            if ops.keeps_parts:
                recorded = tuple(ops.operations[begun:])
                ops.operations[begun:] = [Part((y,), (x,), self, recorded, label=self._label(""))]

    def _record_forward(self, ops: Recorder, x: View, y: View) -> None:
        begun = len(ops.operations)
        self.declaration.layer.forward(ops, x, y, self.p, self._scratch(ops))
        check_filled(self._name("forward"), ops.operations[begun:], {"y": y})
        self._check_kept("forward", ops.operations[begun:], {"x": x})

    # Derived pullbacks

    def _derive(self, ops: Recorder, x: View, y: View) -> Derived:
        """What `forward` records, and its pullback; for the step of a loop, what the pullback reads is kept for each step."""
        places, cotangents = self._places(ops, x, y)
        results = [y, *self._carried("after")[1:]]
        record = partial(self._record_forward, ops, x, y)
        for child in self.children:
            child._twins = []
        forward, pullback = derive(ops, record, places, results, self._label("'"))
        if self.children:
            pullback += self._gradients_of_parts(ops, pullback)
        if self._step is not None:
            given = [x, y, *self._arrays()]
            forward, pullback = keep(forward, pullback, given, ops.depth, partial(self._saved_at_a_step, ops))
        key = (x, y) if self._step is None else ops.depth
        self._derived[key] = Derived(forward, pullback, [*cotangents, x, y, *self._arrays()], ops.depth)
        return self._derived[key]

    def _twin(self, ops: Recorder, kept_axes: int) -> Node:
        """The layer at a further place in a derived layer: its gradients and saved arrays are scratch of this place.

        Of a saved array, this many axes are steps of a loop around the derived layer, which keeps what its pullback reads.
        """
        own = self.declaration
        if kept_axes and len(own.kept_axes) > kept_axes:
            raise NotImplementedError(
                f"{own.layer!r} is used twice in a layer that a loop repeats, and has a loop itself: "
                "declare a part for each use"
            )
        twin = copy.copy(self)
        twin._derived, twin._kept, twin._twins, twin._step = {}, [], [], None
        twin.children = [child._twin(ops, kept_axes) for child in self.children]
        parameters = vars(self.g).items()
        gradients = {name: ops.scratch(f"{name} again", view.sample_shape, batched=False) for name, view in parameters}
        twin.g = self._names("g", "parameters", gradients)
        saved = {name: ops.scratch(name, shape[kept_axes:]) for name, shape in own.saved_shapes.items()}
        shared = {name: ops.scratch(name, shape, batched=False) for name, shape in own.shared_shapes.items()}
        twin._saved = self._saved | saved | shared
        return twin

    def _gradients_of_parts(self, ops: Recorder, pullback: Sequence[Operation]) -> list[Operation]:
        """What completes the gradients of parts: zeros for one that is not pulled back, a sum for one of several places."""
        written = [view for each in pullback for view in each.writes]
        with ops.aside() as operations, ops.label(self._label("'")):
            for child in self.children:
                for g, *others in zip(*(node._gradients() for node in (child, *child._twins)), strict=True):
                    first, *rest = [each for each in (g, *others) if any(overlap(out, each) for out in written)] or [None]
                    if first is None:
                        ops.fill(g, 0.0)
                    else:
                        ops.copy(g, first)
                    for each in rest:
                        ops.map(g, lambda total, term: total + term, g, each)
        return operations

    def _gradients(self) -> list[View]:
        """The gradients of this layer and its parts."""
        return [*vars(self.g).values(), *(view for child in self.children for view in child._gradients())]

    def _places(self, ops: Recorder, x: View, y: View) -> tuple[list[Place], list[View]]:
        """The arrays that `forward` is given, and the cotangents of y, x and of what it carries. Ids have no cotangent."""
        depth, before, after = ops.depth, self._carried("before"), self._carried("after")[1:]
        cotangents = [scratch_like(y, "dy"), scratch_like(x, "dx", ops.dtype)]
        cotangents += [scratch_like(view, f"d {view}") for view in (*before, *after)]
        dy, dx, *carried = cotangents
        places = [Place(x, None if x.dtype.kind == "i" else dx, depth), Place(y, dy, depth)]
        places += [Place(view, d, depth) for view, d in zip((*before, *after), carried, strict=True)]
        places += [Place(view, getattr(self.g, name), depth) for name, view in vars(self.p).items()]
        saved = [view for view in self._saved.values() if isinstance(view, View)]
        return [*places, *(Place(view, scratch_like(view, f"d {view}"), depth, own=True) for view in saved)], cotangents

    def _carried(self, name: str) -> list[View]:
        """The arrays that a cell carries; of others none."""
        views = self._saved.get(name)
        return list(vars(views).values()) if isinstance(views, Names) else []

    def _arrays(self) -> Iterator[View]:
        """The arrays of this layer and its parts that another step of a loop, or its pullback, has elsewhere."""
        yield from vars(self.g).values()
        yield from (view for view in self._saved.values() if isinstance(view, View))
        yield from (view for name in ("before", "after") for view in self._carried(name))
        if self._step is not None:
            yield from map(self._step, self._kept)
        for child in self.children:
            yield from child._arrays()

    def _saved_at_a_step(self, ops: Recorder, number: int, buffer: Buffer) -> View:
        """The part for this step of the array that keeps a scratch array."""
        assert self._step is not None
        if number == len(self._kept):
            shape = (*self.declaration.kept_axes, *buffer.whole.sample_shape)
            self._kept.append(Buffer(buffer.name, "scratch", buffer.dtype, (Batch(), *shape)).whole)
        return self._step(self._kept[number])

    def _pull_back(self, ops: Recorder, x: View, y: View, dy: View, dx: View) -> None:
        """Record the derived pullback; in a loop without an entry for each step, after `forward` once more."""
        at_a_step = self._step is not None
        derived = self._derived.get(ops.depth if at_a_step else (x, y))
        if not at_a_step and (derived is None or ops.in_loop):
            y = scratch_like(y, "y again")
            derived = self._derive(ops, x, y)
            ops.operations += derived.forward
        arrays = [x, y, *self._arrays()]
        if derived is None or not all(map(derived.fits, derived.arrays[-len(arrays) :], arrays)):
            derived = self._derive(ops, x, y)
        cotangents = [dy, dx, *self._carried("d_before"), *self._carried("d_after")[1:]]
        results = len(self._carried("after")[1:])
        used = [self._used(derived, array, other, dy) for array, other in zip(derived.arrays, cotangents, strict=False)]
        for k in (0, *range(len(used) - results, len(used))):
            ops.copy(used[k], cotangents[k])
        ops.operations += derived.placed([*used, *arrays], fresh=at_a_step)
        if x.dtype.kind == "i":
            ops.fill(dx, 0.0)  # there are no derivatives with respect to ids
            return
        for k in range(1, len(used) - results):
            ops.copy(cotangents[k], used[k])

    def _used(self, derived: Derived, array: View, cotangent: View, dy: View) -> View:
        """The array of a cotangent in the derived pullback: its own, if that is possible."""
        shared = cotangent != dy and overlap(cotangent, dy)
        return array if shared or not derived.fits(array, cotangent) else cotangent

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
    """Whether the pullback of a layer is derived from its forward.

    A class that inherits a pullback and has another `forward` needs another pullback too.
    """
    classes = type(layer).__mro__
    forward, pullback = (next(k for k, each in enumerate(classes) if name in vars(each)) for name in ("forward", "pullback"))
    return forward < pullback


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
