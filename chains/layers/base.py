"""The base class of layers. A layer declares its arrays, then records how they are filled.

    class Double(Layer):
        def declare(self, d):
            d.output(d.input)

        def forward(self, ops, x, y, p, s):
            ops.map(y, lambda x: 2 * x, x)

The pullback is derived from the operations of `forward` (`chains.program.transpose`), unless the class has one:

        def pullback(self, ops, x, y, dy, dx, p, g, s):
            ops.map(dx, lambda dy: 2 * dy, dy)

A layer object holds settings only: no parameters, no arrays, no shapes. One object may be in several chains, and several times
in one; each place has separate parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar

from chains.activations import Activation
from chains.initializers import InitializerLike, initializer, setting_text
from chains.params import LayoutBuilder, Slice, bounds_of
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_settings, check_shape, is_real, signature
from chains.support.messages import shown

SampleShape = tuple[int, ...]


def _naming_settings(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a layer, with a TypeError that names the layer and its settings if the arguments do not fit."""
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

    has_series: ClassVar[bool] = True  # whether it has second derivatives and Taylor series

    @property
    def has_tangents(self) -> bool:
        """Whether its Jacobian by the parameters may be computed forward: its tangents are those of its gradient."""
        return self.has_series

    advice: ClassVar[str] = ""  # what to do if a loss is not finite, for the message that ends training

    @property
    def may_fail(self) -> bool:
        """Whether calls of the network search their results for NaN. If there are any, FloatingPointError says why."""
        return False

    def fixed_input(self) -> SampleShape | None:
        """The shape of one sample, if the layer's settings fix it; else None."""
        return None

    @abstractmethod
    def declare(self, d: Declaration) -> None:
        """State the parameters, the output's shape (required) and scratch arrays for samples of one shape.

        Parameters
        ----------
        d : Declaration
            Collects them; ``d.input`` is the shape of a sample.

        Raises
        ------
        ValueError
            For an input that does not fit; the error names the setting and its value.
        """

    @abstractmethod
    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        """Record how `y` is filled from `x`.

        A layer with state reads it from ``s.state.<name>``. While training it may fill ``s.new_state.<name>``, which may be the
        same memory: read first. Calls that do not update the state never compute the new one.

        Parameters
        ----------
        ops : Recorder
            The operations.
        x, y : View, shapes (batch, *d.input) and (batch, *output)
            Input and output; `x` may not be written to.
        p, s
            Parameters and scratch arrays by name, ``p.weight``.
        """

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        """Record how ``g.<parameter>`` and `dx` are filled from `dy`, the gradient with respect to `y`.

        A class without this method gets its pullback from the operations of `forward`, when a network is recorded. Operations
        without a rule are refused by name.

        Fill all of them; do not add to them. Unused gradients (the first layer's `dx`, those of frozen parameters) are never
        computed.

        Parameters
        ----------
        ops : Recorder
            The operations.
        x, y, dy, dx : View
            Input and output, which may not be written to, and their gradients; `dy` may be overwritten.
        p, g, s
            Parameters, their gradients, and scratch arrays by name.
        """
        raise NotImplementedError(f"{self!r} has no pullback to call: it is derived when a network is recorded")

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Only networks can be called. Raises TypeError."""
        raise TypeError(f"layers are not callable; use Chain({self!r}), or a part of a network, net[:1]")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(_settings(self, initializers=True))})"

    def short_repr(self) -> str:
        """The layer for tables of layers: as it is printed, but without starting values."""
        if type(self).__repr__ is not Layer.__repr__:
            return repr(self)
        return f"{type(self).__name__}({', '.join(_settings(self, initializers=False))})"


def _settings(layer: Layer, *, initializers: bool) -> list[str]:
    """The settings of a built-in layer as arguments. A custom layer has none, since its attributes may be anything.

    Settings by keyword that have their default values are left out, and so are activations.
    """
    init, named = type(layer).__init__, False  # `named`: after a positional setting that was left out
    parts: list[str] = []
    if not getattr(init, "__module__", "").startswith("chains."):
        return []
    for p in list(signature(init).parameters.values())[1:]:
        value = getattr(layer, p.name)
        if p.kind is p.VAR_POSITIONAL:
            parts += map(_text, value)
        elif p.kind is p.VAR_KEYWORD:
            parts += [f"{name}={_text(each)}" for name, each in dict(value).items()]
        elif p.name.endswith("init"):
            text = setting_text(p.name, value, p.default) if initializers else ""
            parts += [text.removeprefix(", ")] if text else []
        elif p.kind is p.KEYWORD_ONLY or named:
            parts += [] if str(value) == str(p.default) else [f"{p.name}={_text(value)}"]
        elif str(value) != str(p.default) or is_real(value):
            parts.append(_text(value))
        else:
            named = True
    return parts


def _text(value: Any) -> str:
    """A setting as it is printed."""
    if isinstance(value, tuple) and len(value) == 1:
        return _text(value[0])
    if isinstance(value, (float, Activation)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return shown(value)


class Declaration:
    """The arrays that one layer in one place of a network needs; filled by `Layer.declare`.

    Shapes are those of one sample, tuples of positive lengths, ``(3,)`` or ``()``. All methods raise TypeError or ValueError,
    naming layer and array, for other shapes, for names in use, and for initial values that do not fit.

    Parameters
    ----------
    layer : Layer
        The layer.
    input : tuple of int
        The shape of its input.
    layout, state_layout : LayoutBuilder
        The builders that give parameters and state their slices.
    name : str
        The place in the network, such as "0.inner".
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
        self.kept_axes: tuple[int, ...] = ()  # of arrays that are kept for each step of a loop, before those of a sample
        self.smallest_batch = 1
        self.timed = False  # whether the samples may have lengths
        self.output_times: int | None = None  # steps of the output; 0: none; None: those of the input, if the axis stays
        self.has_other_steps = False  # whether a part has other steps than those of the input
        self.without_lengths = ""  # what a layer with steps does, so that its samples have no lengths
        self.id_count: int | None = None  # the number of different ids, if the input holds ids
        self.children: list[Declaration] = []
        self._layout = layout
        self._state_layout = state_layout
        self._output: SampleShape | None = None
        with noted(self, "declare"):
            layer.declare(self)
            self._check_names()
        vars(layer)["_chains_declared"] = True

    def __repr__(self) -> str:
        return f"<declaration of {self.layer!r}: {self.input} to {self._output}>"

    def param(self, name: str, shape: SampleShape, init: InitializerLike, *, bounds: Any = None) -> None:
        """Declare a parameter: the next slice of the flat vector.

        Parameters
        ----------
        name : str
            Its name in `forward` and `pullback`: ``p.<name>``, ``g.<name>``.
        shape : tuple of int
            Its shape, without the batch.
        init : initializer
            Its starting values, or the name of an initializer.
        bounds : pair of float or None, optional
            The range of its values, of `init` and of ``p.<name>``: (0, None) for positive numbers, (0, 1) for an interval.
        """
        of, shape = self._declared("parameter", name, shape, self.slices)
        start = initializer(init, "init", of, shape)
        self.slices[name] = self._layout.add(self._full(name), shape, start, bounds_of(bounds, of), of)

    def state(self, name: str, shape: SampleShape, init: InitializerLike) -> None:
        """Declare an array that training updates without a gradient: the next slice of the network's state.

        Parameters
        ----------
        name, shape, init
            As of `param`; `forward` reads ``s.state.<name>`` and fills ``s.new_state.<name>``.
        """
        of, shape = self._declared("state", name, shape, self.state_slices)
        self.state_slices[name] = self._state_layout.add(self._full(name), shape, initializer(init, "init", of, shape))

    def output(self, shape: SampleShape) -> None:
        """Declare the output.

        Parameters
        ----------
        shape : tuple of int
            Of one sample.
        """
        self._output = check_shape("shape", shape, f" of the output in {type(self.layer).__name__}.declare")

    def saved(self, name: str, shape: SampleShape) -> None:
        """Declare a scratch array for each sample that the forward fills and the pullback reads.

        Parameters
        ----------
        name, shape
            ``s.<name>``, and the shape for one sample.
        """
        self.saved_shapes[name] = self._scratch(name, shape)

    def shared(self, name: str, shape: SampleShape) -> None:
        """Declare a scratch array for the whole batch that the forward fills and the pullback reads.

        Parameters
        ----------
        name, shape
            ``s.<name>``, and the shape.
        """
        self.shared_shapes[name] = self._scratch(name, shape)

    def temporary(self, name: str, shape: SampleShape) -> None:
        """Declare a scratch array for each sample; forward and pullback each have their own.

        Parameters
        ----------
        name, shape
            ``s.<name>``, and the shape for one sample.
        """
        self.temporary_shapes[name] = self._scratch(name, shape)

    def carry(self, name: str, shape: SampleShape) -> None:
        """Declare an array of each sample that a cell passes from step to step; the first one is its output.

        Parameters
        ----------
        name, shape
            ``s.before.<name>`` and ``s.after.<name>``, and the shape for one sample.
        """
        self.carried_shapes[name] = self._scratch(name, shape)
        self._output = self._output or self.carried_shapes[name]

    def freeze(self, name: str) -> None:
        """Leave a parameter out of training.

        Parameters
        ----------
        name : str
            Of this layer, or of a part of it: "0.weight".
        """
        self._layout.frozen.add(self._full(name))

    def batch_at_least(self, samples: int) -> None:
        """Refuse smaller batches while training.

        Parameters
        ----------
        samples : int
            The smallest batch.
        """
        self.smallest_batch = check_count("samples", samples)

    def takes_ids(self, count: int) -> None:
        """Declare that the input holds ids, whole numbers from 0, instead of real numbers.

        Parameters
        ----------
        count : int
            The number of different ids; all are below it.
        """
        self.id_count = check_count("count", count)

    def child(self, name: str, layer: Layer, input: SampleShape) -> SampleShape:
        """Make another layer a part of this one.

        Parameters
        ----------
        name : str
            Its name in this layer. Its weight is then "<name>.weight".
        layer : Layer
            The part.
        input : tuple of int
            The shape of its input.

        Returns
        -------
        tuple of int
            The shape of its output.
        """
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
        """The shape of the output of one sample."""
        if self._output is None:
            raise ValueError(f"{type(self.layer).__name__}.declare must call d.output(shape)")
        return self._output

    @property
    def n_params(self) -> int:
        """How many parameters the layer has, with its parts."""
        own = sum(entry.stop - entry.start for entry in self.slices.values())
        return own + sum(child.n_params for child in self.children)

    @property
    def n_state(self) -> int:
        """How many numbers of the state the layer has, with its parts."""
        own = sum(entry.stop - entry.start for entry in self.state_slices.values())
        return own + sum(child.n_state for child in self.children)

    @property
    def all(self) -> list[Declaration]:
        """This layer and all its parts, in order."""
        found, left = [], [self]
        while left:
            found.append(each := left.pop())
            left += reversed(each.children)
        return found

    @property
    def has_time_axis(self) -> bool:
        """Whether this layer or a part of it takes the first axis of samples as time, so that samples may have fewer steps."""
        return any(each.timed for each in self.all)

    @property
    def keeps_time(self) -> bool:
        """Whether the first axis of the output has the same steps as that of the input."""
        others = any(part.output_times is not None for part in (self, *self.children))
        return not others and len(self.output_shape) > 1 and self.input[:1] == self.output_shape[:1]

    @property
    def output_steps(self) -> int:
        """The number of steps along the first axis of a network's output, if samples may have fewer; else 0."""
        if not self.has_time_axis:
            return self.output_times or 0
        return int(self.input[0]) if self.keeps_time else 0

    @property
    def max_steps(self) -> int:
        """The largest length of a sample, if the network or a part of it takes lengths; else 0."""
        if self.has_time_axis:
            return int(self.input[0])
        return next((each.output_times for each in self.all if each.output_times), 0)

    @property
    def may_fail(self) -> bool:
        """Whether this layer, or a part of it, may fail."""
        return any(each.layer.may_fail for each in self.all)

    def check_series(self) -> None:
        """Raise NotImplementedError if this layer, or a part of it, has no second derivatives and series."""
        for each in self.all:
            if not each.layer.has_series:
                raise NotImplementedError(
                    f"{each.layer!r} has no second derivatives and Taylor series, since its iterations end when the values "
                    "have converged: gradients, those of samples, and Jacobians are exact"
                )

    @property
    def has_tangents(self) -> bool:
        """Whether this layer and all its parts have tangents."""
        return all(each.layer.has_tangents for each in self.all)

    def check_tangents(self) -> None:
        """Raise NotImplementedError if this layer, or a part of it, has no tangents."""
        for each in self.all:
            if not each.layer.has_tangents:
                raise NotImplementedError(
                    f"{each.layer!r} has no tangents that belong to its gradient: its Jacobian is computed in reverse"
                )

    @property
    def advice(self) -> str:
        """The advice of the layers for a loss that is not finite."""
        return "; ".join(dict.fromkeys(each.layer.advice for each in self.all if each.layer.advice))

    @property
    def most_demanding(self) -> Declaration:
        """This layer or the part of it that needs the largest batch while training."""
        return max(self.all, key=lambda declaration: declaration.smallest_batch)

    def _declared(self, what: str, name: str, shape: Any, taken: Container[str]) -> tuple[str, SampleShape]:
        """The words for an array in messages, and its checked shape. Raises ValueError if the name is in use."""
        where = f"in {type(self.layer).__name__}.declare"
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a {what} {where} (={shown(name)}) must be a string")
        if name in taken:
            raise ValueError(f"{type(self.layer).__name__}.declare names the {what} {name!r} twice")
        of = f" of the {what} `{name}` {where}"
        return of, check_shape("shape", shape, of)

    def _scratch(self, name: str, shape: Any) -> SampleShape:
        taken = ChainMap(self.saved_shapes, self.shared_shapes, self.temporary_shapes, self.carried_shapes)
        return self._declared("scratch array", name, shape, taken)[1]

    def _check_names(self) -> None:
        """Raise ValueError for a scratch array whose name in `s` has another meaning."""
        cell, state = ("before", "after", "d_before", "d_after") * bool(self.carried_shapes), ("state", "new_state")
        taken = ("children", *cell, *state * bool(self.state_slices))
        for name in (*self.saved_shapes, *self.shared_shapes, *self.temporary_shapes):
            if name in taken:
                raise ValueError(
                    f"{type(self.layer).__name__}.declare names a scratch array {name!r}, but `s.{name}` has another meaning "
                    f"in {'a cell' if self.carried_shapes else 'a layer'}: choose another name"
                )

    def _full(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name and name else self.name or name


@contextmanager
def noted(declaration: Declaration, function: str) -> Iterator[None]:
    """Errors raised inside name the layer and its function; for layers within layers, the innermost."""
    try:
        yield
    except Exception as error:
        if declaration.name and not hasattr(error, "__notes__"):
            layer = declaration.layer
            error.add_note(f"in {type(layer).__name__}.{function}, of layer {declaration.name}, {layer!r}")
        raise


def check_sequence(layer: Layer, input: SampleShape, name: str = "", features: int | None = None) -> SampleShape:
    """`input`, the shape of a sequence. Raises ValueError unless it is (time, features) with these `features`."""
    if len(input) != 2:
        raise ValueError(f"{layer!r} needs samples (time, features), not of shape {input}")
    if features is not None:
        check_last_axis(input, name, features)
    return input


def check_last_axis(input: SampleShape, name: str, features: int) -> None:
    """Raise ValueError unless the last axis of samples of this shape has these `features`, the setting `name`."""
    if input[-1:] != (features,):
        raise ValueError(f"`{name}` (={features}) must be the last length of the input's shape {input}")
