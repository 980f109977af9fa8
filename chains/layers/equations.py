"""Known formulas beside a network, as a layer: the right-hand side of a universal differential equation, for example."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chains.checks import check_number
from chains.expr import Expr, Formula, as_expr, trace_nodes
from chains.expr.derivatives import derivative
from chains.expr.replay import Replay
from chains.initializers import Constant
from chains.layers.base import Declaration, Layer, SampleShape
from chains.messages import listed, shown
from chains.program.recorder import Recorder
from chains.program.view import View


class Equations(Layer):
    """``y = formula(inputs, outputs of a network, parameters)``: what is known as formulas, what is not as a network.

    >>> rhs = Equations(
    ...     lambda hare, lynx, u, v, birth, death: (birth * hare + u, -death * lynx + v),
    ...     inputs=("hare", "lynx"), network=Chain(Dense(2, 5, tanh), Dense(5, 2)), outputs=("u", "v"),
    ...     parameters={"birth": 0.5, "death": 0.8},
    ... )

    The gradient is that of the formula's symbolic derivatives.

    Parameters
    ----------
    formula : callable
        A formula whose arguments are named like inputs, outputs and parameters, in any order; it returns a number, or a tuple
        of them, which are the features of the output.
    inputs : sequence of str
        The names of a sample's features, shape (len(inputs),).
    network : Layer, optional
        A layer or chain of all inputs.
    outputs : sequence of str
        The names of what the network gives, shape (len(outputs),).
    parameters : mapping of str to float, optional
        Numbers to be trained, with their starting values. ``net.with_frozen`` keeps them.

    Raises
    ------
    TypeError, ValueError
        For names that are unknown, no words, or taken twice, and for a network whose output does not fit.
    """

    def __init__(
        self, formula: Callable[..., Any], inputs: Sequence[str], *, network: Layer | None = None,
        outputs: Sequence[str] = (), parameters: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        if network is not None and not isinstance(network, Layer):
            raise TypeError(f"`network` (={shown(network)}) must be a layer, or None")
        self.inputs = _names("inputs", inputs)
        self.network = network
        self.outputs = _names("outputs", outputs)
        if parameters is not None and not isinstance(parameters, Mapping):
            raise TypeError(f'`parameters` (={shown(parameters)}) must be starting values by name, such as {{"birth": 0.5}}')
        self.parameters = {name: _start(name, value) for name, value in dict(parameters or {}).items()}
        names = (*self.inputs, *self.outputs, *_names("parameters", tuple(self.parameters)))
        twice = [name for k, name in enumerate(names) if name in names[:k]]
        if twice:
            raise ValueError(f"`{twice[0]}` is the name of two things: inputs, outputs and parameters need different ones")
        if not self.inputs:
            raise ValueError("`inputs` (=()) must name at least one feature")
        if bool(self.outputs) != (network is not None):
            raise ValueError(f"`outputs` (={self.outputs}) must name what `network` (={network!r}) gives")
        self.formula = Replay(_traced(formula, names))

    def fixed_input(self) -> SampleShape:
        return (len(self.inputs),)

    def declare(self, d: Declaration) -> None:
        if d.input != (len(self.inputs),):
            raise ValueError(f"`inputs` (={self.inputs}) must name the features of a sample, whose shape is {d.input}")
        for name, value in self.parameters.items():
            d.param(name, (), Constant(value))
        if self.network is not None:
            output = d.child("network", self.network, d.input)
            if output != (len(self.outputs),):
                raise ValueError(f"`outputs` (={self.outputs}) must name what `network` gives, whose shape is {output}")
            d.saved("u", output)
            d.temporary("du", output)
            d.temporary("dx", d.input)
        if self.parameters:
            d.temporary("d_parameters", (len(self.parameters),))
        d.output((len(self.formula.formula.outputs),))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        for child in s.children:
            child.forward(ops, x, s.u)
        ops.map(tuple(_features(y)), self.formula, *self._operands(x, p, s))

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        slots = _features(dx) + (_features(s.du) if self.outputs else [])
        slots += _features(s.d_parameters) if self.parameters else []
        ops.map(tuple(slots), _transposed(self.formula.formula), *self._operands(x, p, s), *_features(dy))
        for name, slot in zip(self.parameters, slots[len(slots) - len(self.parameters) :], strict=True):
            ops.sum(getattr(g, name), slot)
        for child in s.children:
            child.pullback(ops, x, s.u, s.du, s.dx)
            ops.map(dx, lambda known, learned: known + learned, dx, s.dx)

    def _operands(self, x: View, p: Any, s: Any) -> list[View]:
        learned = _features(s.u) if self.outputs else []
        return [*_features(x), *learned, *(getattr(p, name) for name in self.parameters)]

    def __repr__(self) -> str:
        network = "" if self.network is None else f", network={self.network!r}, outputs={self.outputs}"
        parameters = f", parameters={self.parameters}" if self.parameters else ""
        return f"Equations({self.formula.formula.text()}, {self.inputs}{network}{parameters})"


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


def _sum_of_products(factors: Any, cotangents: Sequence[Any]) -> Any:
    factors = factors if isinstance(factors, tuple) else (factors,)
    terms = [_scaled(as_expr(a), b) for a, b in zip(factors, cotangents, strict=True)]
    kept = [term for term in terms if term is not None]
    return sum(kept[1:], kept[0]) if kept else as_expr(0.0)


def _scaled(factor: Expr, cotangent: Any) -> Any:
    """A product; None where it is zero."""
    if factor.operation != "const":
        return factor * cotangent
    return None if factor.value == 0.0 else cotangent if factor.value == 1.0 else factor.value * cotangent


def _traced(function: Any, names: tuple[str, ...]) -> Formula:
    """The formula as one of all these names, in this order."""
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


def _start(name: str, value: Any) -> float:
    check_number(f"parameters[{name!r}]", value, "finite")
    return float(value)
