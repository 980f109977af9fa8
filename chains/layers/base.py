"""What a layer is: it declares what it needs, then records how its arrays are filled.

    class Double(Layer):
        def declare(self, d):
            d.output(d.input)

        def forward(self, ops, x, y, p, s):
            ops.map(y, lambda x: 2 * x, x)

        def pullback(self, ops, x, y, dy, dx, p, g, s):
            ops.map(dx, lambda dy: 2 * dy, dy)

A layer object holds settings only: no parameters, no arrays, no shapes of its own. One object may stand in
several chains, and twice in the same one; each place has its own parameters.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import SimpleNamespace
from typing import Any

from chains.checks import check_count, check_settings, check_shape, signature
from chains.initializers import InitializerLike, initializer
from chains.messages import listed, meant, shown
from chains.params import LayoutBuilder, Slice
from chains.program.alias import meet
from chains.program.operations import Operation
from chains.program.recorder import Recorder
from chains.program.view import View

SampleShape = tuple[int, ...]


def _naming_settings(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a layer, with a TypeError that names the layer and its settings where the arguments do not fit."""
    fixed = [p.name for p in signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD][1:]

    @wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            check_settings(type(self), init, args, kwargs)
            raise
        vars(self)["_chains_settings"] = (*vars(self).get("_chains_settings", ()), *fixed)

    return checked


class Layer(ABC):
    """A differentiable function from one array to another, with parameters. See the module's docstring."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _naming_settings(cls.__init__))  # noqa: B010 - mypy takes it for a mistake

    def __setattr__(self, name: str, value: Any) -> None:
        if "_chains_declared" in self.__dict__ and name in self.__dict__.get("_chains_settings", ()):
            raise AttributeError(
                f"`{name}` (={getattr(self, name)!r}) of {self} cannot become {value!r}: a network was made of it; "
                f"make a new {type(self).__name__} and a network of that"
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_chains_declared"}  # a copy may be changed

    def fixed_input(self) -> SampleShape | None:
        """The shape of one sample, where the layer's settings decide it; None where any shape will do."""
        return None

    @abstractmethod
    def declare(self, d: Declaration) -> None:
        """State the parameters, the output's shape (required) and scratch arrays for samples of shape ``d.input``.

        Raises ValueError, naming the setting and its value, where such an input does not fit.
        """

    @abstractmethod
    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        """Record how `y` is filled from `x`. `p` has the parameters by name, `s` the scratch arrays.

        A layer with state reads it from ``s.state.<name>``, and while training may fill ``s.new_state.<name>``, which may
        be the same memory: read first. Where a call leaves the state as it is, the new one is never computed.
        """

    @abstractmethod
    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        """Record how ``g.<parameter>`` and `dx` are filled from `dy`, the gradient with respect to `y`.

        All of them are filled, none is added to. `dy` may be overwritten; `x` and `y` may not. What turns
        out not to be needed (the first layer's `dx`, a frozen gradient) is never computed.
        """

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Only networks can be called. Raises TypeError."""
        raise TypeError(f"layers are not callable; use Chain({self!r}), or a part of a network, net[:1]")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def brief(self) -> str:
        """The layer for tables of layers: as it is printed, but without starting values."""
        return repr(self)


class Declaration:
    """What one layer in one place of a network needs; filled by `Layer.declare`.

    Shapes are tuples of positive lengths, ``(3,)`` or ``()``, as everywhere. Raises TypeError or ValueError, naming the layer
    and the array, for others, for names that are taken, and for initial values that do not fit.
    """

    def __init__(
        self, layer: Layer, input: SampleShape, layout: LayoutBuilder, state_layout: LayoutBuilder, name: str = ""
    ) -> None:
        self.layer = layer
        self.name = name
        self.input = tuple(input)
        self.slices: dict[str, Slice] = {}
        self.state_slices: dict[str, Slice] = {}
        self.saved_shapes: dict[str, SampleShape] = {}
        self.shared_shapes: dict[str, SampleShape] = {}
        self.temporary_shapes: dict[str, SampleShape] = {}
        self.carried_shapes: dict[str, SampleShape] = {}
        self.smallest_batch = 1
        self.timed = False  # whether the samples may have lengths
        self.id_count: int | None = None  # where the input are ids, how many there are
        self.children: list[Declaration] = []
        self._layout = layout
        self._state_layout = state_layout
        self._output: SampleShape | None = None
        with _noted(self, "declare"):
            layer.declare(self)
        vars(layer)["_chains_declared"] = True

    def param(self, name: str, shape: SampleShape, init: InitializerLike) -> None:
        """A parameter array: the next slice of the flat vector."""
        of, shape = self._declared("parameter", name, shape, self.slices)
        self.slices[name] = self._layout.add(self._full(name), shape, initializer(init, "init", of, shape))

    def state(self, name: str, shape: SampleShape, init: InitializerLike) -> None:
        """An array that training updates, but not along a gradient: the next slice of the network's state."""
        of, shape = self._declared("state", name, shape, self.state_slices)
        self.state_slices[name] = self._state_layout.add(self._full(name), shape, initializer(init, "init", of, shape))

    def output(self, shape: SampleShape) -> None:
        """The shape of the output of one sample."""
        self._output = check_shape("shape", shape, f" of the output in {type(self.layer).__name__}.declare")

    def saved(self, name: str, shape: SampleShape) -> None:
        """A scratch array for each sample that the forward fills and the pullback reads."""
        self.saved_shapes[name] = self._scratch(name, shape)

    def shared(self, name: str, shape: SampleShape) -> None:
        """A scratch array for the whole batch that the forward fills and the pullback reads."""
        self.shared_shapes[name] = self._scratch(name, shape)

    def temporary(self, name: str, shape: SampleShape) -> None:
        """A scratch array for each sample; forward and pullback each have their own."""
        self.temporary_shapes[name] = self._scratch(name, shape)

    def carry(self, name: str, shape: SampleShape) -> None:
        """An array of each sample that a cell hands on from step to step; the first one is its output."""
        self.carried_shapes[name] = self._scratch(name, shape)
        self._output = self._output or self.carried_shapes[name]

    def freeze(self, name: str) -> None:
        """Leave a parameter of this layer, or of a part of it ("0.weight"), out of training."""
        self._layout.frozen.add(self._full(name))

    def batch_at_least(self, samples: int) -> None:
        """Have smaller batches refused while training."""
        self.smallest_batch = check_count("samples", samples)

    def takes_ids(self, count: int) -> None:
        """Have the input hold ids, whole numbers from 0 up to `count`, exclusive, in place of real numbers."""
        self.id_count = check_count("count", count)

    def child(self, name: str, layer: Layer, input: SampleShape) -> SampleShape:
        """Make `layer` a part of this one and return the shape of its output."""
        if not isinstance(layer, Layer):
            raise TypeError(
                f"`layer` (={shown(layer)}) of the part `{name}` in {type(self.layer).__name__}.declare must be a layer"
            )
        input = check_shape("input", input, f" of the part `{name}` in {type(self.layer).__name__}.declare")
        declaration = Declaration(layer, input, self._layout, self._state_layout, self._full(name))
        self.children.append(declaration)
        return declaration.output_shape

    @property
    def output_shape(self) -> SampleShape:
        if self._output is None:
            raise ValueError(f"{type(self.layer).__name__}.declare must call d.output(shape)")
        return self._output

    @property
    def n_params(self) -> int:
        own = sum(entry.stop - entry.start for entry in self.slices.values())
        return own + sum(child.n_params for child in self.children)

    @property
    def n_state(self) -> int:
        own = sum(entry.stop - entry.start for entry in self.state_slices.values())
        return own + sum(child.n_state for child in self.children)

    @property
    def takes_lengths(self) -> bool:
        """Whether this layer or a part of it goes along a time axis."""
        return self.timed or any(child.takes_lengths for child in self.children)

    @property
    def most_demanding(self) -> Declaration:
        """Of this layer and its parts, the one that needs the largest batch while training."""
        parts = [child.most_demanding for child in self.children]
        return max([self, *parts], key=lambda declaration: declaration.smallest_batch)

    def _declared(self, what: str, name: str, shape: Any, taken: Container[str]) -> tuple[str, SampleShape]:
        """What an array is, for messages, and its checked shape. Raises ValueError where the name is taken."""
        where = f"in {type(self.layer).__name__}.declare"
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a {what} {where} (={shown(name)}) must be a string")
        if name in taken:
            raise ValueError(f"{type(self.layer).__name__}.declare names the {what} {name!r} twice")
        of = f" of the {what} `{name}` {where}"
        return of, check_shape("shape", shape, of)

    def _scratch(self, name: str, shape: Any) -> SampleShape:
        taken = {*self.saved_shapes, *self.shared_shapes, *self.temporary_shapes, *self.carried_shapes}
        return self._declared("scratch array", name, shape, taken)[1]

    def _full(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name and name else self.name or name


@dataclass(frozen=True)
class Vectors:
    """The flat vectors of a program being recorded: parameters, their gradient, the state before and after."""

    p: View
    g: View
    state: View
    new_state: View
    frozen: frozenset[str]


@contextmanager
def _noted(declaration: Declaration, function: str) -> Iterator[None]:
    """Errors raised inside say in which function of which layer they were; of layers within layers, the innermost."""
    try:
        yield
    except Exception as error:
        if declaration.name and not hasattr(error, "__notes__"):
            layer = declaration.layer
            error.add_note(f"in {type(layer).__name__}.{function}, of layer {declaration.name}, {layer!r}")
        raise


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
        self.children = [Node(child, ops, vectors) for child in declaration.children]
        self.p = self._names("p", "parameters", _windows(vectors.p, declaration.slices))
        gradients = _windows(vectors.g, declaration.slices)
        for name, entry in declaration.slices.items():
            if entry.name in vectors.frozen:  # the gradient goes to scratch that is never read, and so is never computed
                gradients[name] = ops.scratch(f"{entry.name}.frozen", entry.shape, batched=False)
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
        with _noted(self.declaration, "forward"), ops.label(self._label("")):
            self.declaration.layer.forward(ops, x, y, self.p, self._scratch(ops))
            check_filled(self._name("forward"), ops.operations[begun:], {"y": y})
            self._check_kept("forward", ops.operations[begun:], {"x": x})

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View) -> None:
        begun = len(ops.operations)
        with _noted(self.declaration, "pullback"), ops.label(self._label("'")):
            self.declaration.layer.pullback(ops, x, y, dy, dx, self.p, self.g, self._scratch(ops))
            wanted = {"dx": dx} | {f"g.{name}": view for name, view in vars(self.g).items()}
            if dx.buffer is not dy.buffer:
                check_filled(self._name("pullback"), ops.operations[begun:], wanted)
            self._check_kept("pullback", ops.operations[begun:], {"x": x, "y": y})

    def _check_kind(self, x: View) -> None:
        """Raise TypeError unless `x` holds ids where the layer takes them, and real numbers where it does not."""
        takes_ids = self.declaration.id_count is not None
        if takes_ids != (x.dtype.kind == "i"):
            wanted, given = ("ids", "real numbers") if takes_ids else ("real numbers", "ids")
            layer = f"layer {self.declaration.name}, {self.declaration.layer!r},"
            raise TypeError(f"{layer} takes {wanted}, but its input holds {given}")

    def _check_kept(self, function: str, recorded: Sequence[Operation], views: dict[str, View]) -> None:
        kept = views | {f"p.{name}": view for name, view in vars(self.p).items()}
        check_kept(self._name(function), recorded, kept, "declare an array of its own with d.temporary(name, shape)")

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


def check_filled(function: str, recorded: Sequence[Operation], views: Mapping[str, View]) -> None:
    """Raise ValueError, naming the function that recorded them, unless some operation writes to each of the views."""
    written = [out for operation in recorded for out in operation.writes]
    for name, view in views.items():
        if view.sample_size and not any(meet(out, view) for out in written):
            raise ValueError(f"{function} does not fill `{name}`")


def check_kept(function: str, recorded: Sequence[Operation], views: Mapping[str, View], remedy: str) -> None:
    """Raise ValueError, naming the function that recorded them, where some operation writes to one of the views."""
    written = [out for operation in recorded for out in operation.writes]
    for name, view in views.items():
        if any(meet(out, view) for out in written):
            raise ValueError(f"{function} writes to `{name}`, which may only be read: {remedy}")


def _windows(vector: View, slices: Mapping[str, Slice]) -> dict[str, View]:
    """The slices of a flat vector, each in its shape, by name."""
    views = {name: vector.slice(0, entry.start, entry.stop).reshape(*entry.shape) for name, entry in slices.items()}
    return {name: view.named(f"{vector.buffer.name}.{slices[name].name}") for name, view in views.items()}
