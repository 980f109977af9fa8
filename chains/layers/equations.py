"""Known formulas together with networks, as a layer, such as the right-hand side of a universal differential equation."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chains.expr import Expr, Formula, as_expr, trace_nodes
from chains.expr.derivatives import derivative
from chains.expr.formulas import Replay
from chains.initializers import Constant
from chains.layers.base import Declaration, Layer, SampleShape
from chains.params import LayoutBuilder, bounds_by_name
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_number
from chains.support.messages import counted, listed, meant, shown


class Equations(Layer):
    """``y = formula(inputs, outputs of a network, parameters)``: the known terms as formulas, the unknown ones as networks.

    >>> rhs = Equations(
    ...     lambda hare, lynx, u, v, birth, death: (birth * hare + u, -death * lynx + v),
    ...     inputs=("hare", "lynx"), network=Chain(Dense(2, 5, tanh), Dense(5, 2)), outputs=("u", "v"),
    ...     parameters={"birth": 0.5, "death": 0.8},
    ... )

    With several networks, each has its inputs and the names of its outputs:

    >>> rhs = Equations(
    ...     lambda hare, lynx, growth, hunt, death: (growth * hare - hunt, hunt - death * lynx),
    ...     inputs=("hare", "lynx"),
    ...     networks={"growth": (Chain(Dense(1, 5, tanh), Dense(5, 1)), ("hare",)),
    ...               "hunt": (Chain(Dense(2, 5, tanh), Dense(5, 1)), ("hare", "lynx"))},
    ...     parameters={"death": 0.8}, bounds={"death": (0.0, None)},
    ... )

    The gradient is that of the formula's symbolic derivatives.

    Parameters
    ----------
    formula : callable
        A formula. Its arguments are names of inputs, outputs and parameters, in any order. It returns a number or a tuple of
        numbers: the features of the output.
    inputs : sequence of str
        The names of a sample's features, shape (len(inputs),).
    network : Layer, optional
        A layer or chain of all inputs.
    outputs : sequence of str
        The names of the network's outputs, shape (len(outputs),).
    parameters : mapping of str to float, optional
        Trained numbers, with their starting values. ``net.with_frozen`` makes them constants.
    networks : mapping of str to tuple, optional
        Further networks by name, each as (network, inputs) or (network, inputs, outputs): a layer or chain, the names of its
        features among `inputs`, and the names of its outputs. By default there is one output with the name of the network.
    bounds : mapping of str to pair of float or None, optional
        The ranges of parameters: ``{"birth": (0, None), "death": (0.1, 2)}`` for a positive number and an interval. The flat
        vector stores numbers without bounds; ``net.values(p)`` gives the values.

    Raises
    ------
    TypeError, ValueError
        For names that are unknown, not words, or used twice, for networks whose input or output does not fit the names, and for
        starting values outside their bounds.
    """

    def __init__(
        self, formula: Callable[..., Any], inputs: Sequence[str], *, network: Layer | None = None,
        outputs: Sequence[str] = (), parameters: Mapping[str, float] | None = None,
        networks: Mapping[str, tuple[Any, ...]] | None = None, bounds: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if network is not None and not isinstance(network, Layer):
            raise TypeError(f"`network` (={shown(network)}) must be a layer, or None")
        self.inputs = _names("inputs", inputs)
        self.network = network
        self.outputs = _names("outputs", outputs)
        if parameters is not None and not isinstance(parameters, Mapping):
            raise TypeError(f'`parameters` (={shown(parameters)}) must be starting values by name, such as {{"birth": 0.5}}')
        self.parameters = {name: _start(name, value) for name, value in dict(parameters or {}).items()}
        self.bounds = bounds_by_name(bounds, self.parameters, "parameters[{!r}]")
        self.networks = _networks(networks, self.inputs)
        if "network" in self.networks and network is not None:
            raise ValueError("`networks` (={'network': ...}) has the name of `network`: choose another one")
        learned = [name for _, _, outputs in self._learned.values() for name in outputs]
        names = (*self.inputs, *learned, *_names("parameters", tuple(self.parameters)))
        twice = [name for k, name in enumerate(names) if name in names[:k]]
        if twice:
            raise ValueError(f"`{twice[0]}` is the name of two things: inputs, outputs and parameters need different ones")
        if not self.inputs:
            raise ValueError("`inputs` (=()) must name at least one feature")
        if bool(self.outputs) != (network is not None):
            raise ValueError(f"`outputs` (={self.outputs}) must name what `network` (={network!r}) gives")
        for name, (part, features, given) in self._learned.items():
            _check_fit(f"networks[{name!r}]" if name in self.networks else "network", part, features, given)
        self.formula = Replay(_traced(formula, names))
        _warn_of_conditions(self.formula.formula, tuple(self.parameters))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {name: {} for name in ("networks", "bounds") if name not in state})  # as earlier pickles

    @property
    def _learned(self) -> dict[str, tuple[Layer, tuple[str, ...], tuple[str, ...]]]:
        """The networks, with the names of their inputs and outputs."""
        return {**({} if self.network is None else {"network": (self.network, self.inputs, self.outputs)}), **self.networks}

    def fixed_input(self) -> SampleShape:
        return (len(self.inputs),)

    def declare(self, d: Declaration) -> None:
        if d.input != (len(self.inputs),):
            raise ValueError(f"`inputs` (={self.inputs}) must name the features of a sample, whose shape is {d.input}")
        for name, value in self.parameters.items():
            d.param(name, (), Constant(value), bounds=self.bounds.get(name))
        for name, (network, features, outputs) in self._learned.items():
            d.child(name, network, (len(features),))
            d.saved(f"{name}.x", (len(features),))
            d.saved(f"{name}.y", (len(outputs),))
            d.temporary(f"{name}.dx", (len(features),))
            d.temporary(f"{name}.dy", (len(outputs),))
        if self.parameters:
            d.temporary("d_parameters", (len(self.parameters),))
        d.output((len(self.formula.formula.outputs),))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        for name, child, seen in self._parts(x, s):
            if seen is not x:
                for feature, input in zip(_features(seen), self._features_of(name, x), strict=True):
                    ops.copy(feature, input)
            child.forward(ops, seen, getattr(s, f"{name}.y"))
        ops.map(tuple(_features(y)), self.formula, *self._operands(x, p, s))

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        slots = _features(dx) + [each for name in self._learned for each in _features(getattr(s, f"{name}.dy"))]
        slots += _features(s.d_parameters) if self.parameters else []
        ops.map(tuple(slots), _transposed(self.formula.formula), *self._operands(x, p, s), *_features(dy))
        for name, slot in zip(self.parameters, slots[len(slots) - len(self.parameters) :], strict=True):
            ops.sum(getattr(g, name), slot)
        for name, child, seen in self._parts(x, s):
            y, d_y, d_seen = (getattr(s, f"{name}.{kind}") for kind in ("y", "dy", "dx"))
            child.pullback(ops, seen, y, d_y, d_seen)
            pairs = [(dx, d_seen)] if seen is x else zip(self._features_of(name, dx), _features(d_seen), strict=True)
            for total, learned in pairs:
                ops.map(total, lambda known, learned: known + learned, total, learned)

    def _parts(self, x: View, s: Any) -> Iterator[tuple[str, Any, View]]:
        """The networks with their inputs. For a network of all features, that is `x` itself."""
        for (name, (_, features, _)), child in zip(self._learned.items(), s.children, strict=True):
            yield name, child, x if features == self.inputs else getattr(s, f"{name}.x")

    def _features_of(self, name: str, x: View) -> list[View]:
        """The features of `x` that a network takes."""
        return [x.index(-1, self.inputs.index(feature)) for feature in self._learned[name][1]]

    def _operands(self, x: View, p: Any, s: Any) -> list[View]:
        learned = [each for name in self._learned for each in _features(getattr(s, f"{name}.y"))]
        return [*_features(x), *learned, *(getattr(p, name) for name in self.parameters)]

    def __repr__(self) -> str:
        network = "" if self.network is None else f", network={self.network!r}, outputs={self.outputs}"
        more = "".join(f", {name}={each}" for name in ("parameters", "networks", "bounds") if (each := getattr(self, name)))
        return f"Equations({self.formula.formula.text()}, {self.inputs}{network}{more})"


def _features(view: View) -> list[View]:
    """The features of samples, one by one."""
    return [view.index(-1, k) for k in range(view.sample_shape[-1])]


def _transposed(formula: Formula) -> Callable[..., tuple[Any, ...]]:
    """The function of a formula's inputs and the cotangents of its outputs that gives the cotangents of its inputs."""
    partials = [derivative(formula, k) for k in range(len(formula.inputs))]

    def pull(*values: Any) -> tuple[Any, ...]:
        inputs, cotangents = values[: len(formula.inputs)], values[len(formula.inputs) :]
        return tuple(_sum_of_products(Replay(partial)(*inputs), cotangents) for partial in partials)

    return pull


def _warn_of_conditions(formula: Formula, parameters: tuple[str, ...]) -> None:
    """Warn of parameters that are in conditions alone, as in ``where(time < switch, a, b)``: all their gradients are zero."""
    first, used = len(formula.inputs) - len(parameters), {k for step in formula.instructions for k in step.operands}
    for k, name in enumerate(parameters, first):
        if k in used and _is_zero(derivative(formula, k)):
            warnings.warn(
                f"the parameter {name!r} is in a condition alone, such as where(time < {name}, a, b), so its gradient is zero "
                f"and no fit moves it: write a + (b - a) / (1 + exp(-(time - {name}) / width)), or freeze it",
                UserWarning, stacklevel=4,  # above the constructor, and the function around it
            )  # fmt: skip


def _is_zero(formula: Formula) -> bool:
    steps = [formula.instructions[k - len(formula.inputs)] for k in formula.outputs if k >= len(formula.inputs)]
    return len(steps) == len(formula.outputs) and all(step.operation == "const" and step.value == 0.0 for step in steps)


def _sum_of_products(factors: Any, cotangents: Sequence[Any]) -> Any:
    factors = factors if isinstance(factors, tuple) else (factors,)
    terms = [_scaled(as_expr(a), b) for a, b in zip(factors, cotangents, strict=True)]
    kept = [term for term in terms if term is not None]
    return sum(kept[1:], kept[0]) if kept else as_expr(0.0)


def _scaled(factor: Expr, cotangent: Any) -> Any:
    """A product; None if it is zero."""
    if factor.operation != "const":
        return factor * cotangent
    return None if factor.value == 0.0 else cotangent if factor.value == 1.0 else factor.value * cotangent


def _traced(function: Any, names: tuple[str, ...]) -> Formula:
    """The formula as a function of all these names, in this order."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise TypeError(f"`formula` (={shown(function)}) must be a formula, such as lambda x, v: (v, -x)") from None
    arguments = [p.name for p in parameters if p.default is p.empty]
    for name in arguments:
        if name not in names:
            raise ValueError(f"`formula` takes `{name}`, but there are only {listed(names)}")
    try:
        results = function(*(Expr("input", value=names.index(name)) for name in arguments))
        results = tuple(map(as_expr, results if isinstance(results, (tuple, list)) else (results,)))
    except (TypeError, AttributeError) as error:
        raise TypeError(f"`formula`: {error}") from error
    if not results:
        raise ValueError("`formula` returns no results: the output needs at least one feature")
    return trace_nodes(results, names)


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise TypeError(f'`{what}` (={shown(names)}) must be names such as ("hare", "lynx")')
    return tuple(names)


def _networks(networks: Any, inputs: Sequence[str]) -> dict[str, tuple[Layer, tuple[str, ...], tuple[str, ...]]]:
    """The checked networks, each with the names of its inputs and outputs."""
    example = '{"growth": (Chain(Dense(1, 5, tanh), Dense(5, 1)), ("hare",))}'
    if networks is not None and not isinstance(networks, Mapping):
        raise TypeError(f"`networks` (={shown(networks)}) must be networks with their inputs by name, such as {example}")
    found: dict[str, tuple[Layer, tuple[str, ...], tuple[str, ...]]] = {}
    for name in _names("networks", tuple(networks or ())):
        given = (networks or {})[name]
        if not isinstance(given, (tuple, list)) or len(given) not in (2, 3) or not isinstance(given[0], Layer):
            raise TypeError(f"`networks[{name!r}]` (={shown(given)}) must be a network with its inputs, such as {example}")
        features = _names(f"networks[{name!r}][1]", given[1])
        for feature in features:
            if feature not in inputs:
                raise ValueError(
                    f"`networks[{name!r}]` takes `{feature}`, but the inputs are {listed(inputs)}{meant(feature, inputs)}"
                )
        found[name] = given[0], features, _names(f"networks[{name!r}][2]", given[2]) if len(given) == 3 else (name,)
    return found


def _check_fit(what: str, network: Layer, features: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    """Raise ValueError unless the network takes an input for each of `features` and gives a number for each of `outputs`."""
    wanted = network.fixed_input()
    if wanted not in (None, (len(features),)):
        raise ValueError(
            f"`{what}` takes samples of shape {wanted}, but it is given {counted(len(features), 'input')}: {listed(features)}"
        )
    found = Declaration(network, (len(features),), LayoutBuilder(), LayoutBuilder()).output_shape
    if found != (len(outputs),):
        raise ValueError(f"`{what}` gives samples of shape {found}, but its outputs are named {listed(outputs)}")


def _start(name: str, value: Any) -> float:
    check_number(f"parameters[{name!r}]", value, "finite")
    return float(value)
