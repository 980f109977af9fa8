"""A network as JSON, and back: each layer by its name and its settings. Nothing that is read is ever evaluated.

A setting is a number, a text, a list, or one of these: ``{"layer": "Dense", "inputs": 2, ...}``, ``{"activation": "tanh"}``,
``{"initializer": "Normal", ...}``, ``{"array": ...}``, ``{"formula": ...}``, ``{"mapping": ...}``. A formula, such as that of a
custom activation, is the list of instructions that it was traced to. Custom layers and initializers are written by name:
``{"custom_layer": "mine.Double"}``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from chains import layers, models
from chains.activations import ACTIVATIONS, Activation, Elu, LeakyRelu, resolve
from chains.backends import Backend, Cupy
from chains.chain import Chain
from chains.expr.formulas import Formula, Instruction, Replay, traced
from chains.expr.scalar import OPERATIONS
from chains.initializers import Constant, Normal, Uniform, VarianceScaling
from chains.layers import Layer
from chains.network.network import network_of
from chains.support import encoding
from chains.support.checks import is_real, signature
from chains.support.messages import shown

LAYERS: dict[str, type[Layer]] = {
    kind.__name__: kind
    for kind in (*vars(layers).values(), *vars(models).values())
    if inspect.isclass(kind) and issubclass(kind, Layer) and not inspect.isabstract(kind)
}
MAKERS: dict[str, Callable[..., Activation]] = {
    "Elu": Elu, "LeakyRelu": LeakyRelu, "make_elu": Elu, "make_leaky_relu": LeakyRelu  # the latter in earlier files
}  # fmt: skip
INITIALIZERS = {kind.__name__: kind for kind in (Constant, Normal, Uniform, VarianceScaling)}


class LostInitializer:
    """The placeholder of a custom initializer in a network from a file, which cannot hold it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        raise TypeError(f"a file cannot hold the custom initializer {self.text}: begin with the parameters from the file")

    def __repr__(self) -> str:
        return self.text


def described(net: Chain) -> dict[str, Any]:
    """A network, as JSON has it."""
    return _layer(net)


def built(description: Any, backend: str | Cupy | Backend = "auto") -> Chain:
    """The network of a description on a backend. Raises ValueError, saying why, for none, and for one with custom layers."""
    try:
        if not isinstance(description, dict) or description.get("layer") != "Chain":
            raise ValueError(f"it is {shown(_built(description))}")
        net = _built_chain(description, backend)
        network_of(net)
        return net
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise ValueError(f"its architecture makes no sense here: {error}") from error


# To JSON


def _described(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_described(part) for part in value]
    if is_real(value):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"array": encoding.encoded_array(value)}
    if isinstance(value, dict):
        return {"mapping": {name: _described(part) for name, part in value.items()}}
    if isinstance(value, Replay):
        return {"formula": _formula(value.formula)}
    if isinstance(value, Layer):
        return _layer(value)
    if isinstance(value, Activation):
        return {"activation": _activation(value)}
    if INITIALIZERS.get(type(value).__name__) is type(value):
        return {"initializer": type(value).__name__, **{f.name: _described(getattr(value, f.name)) for f in fields(value)}}
    if callable(value):
        return {"custom_initializer": repr(value)}
    raise TypeError(f"a file cannot hold the setting {shown(value)}")


def _layer(layer: Layer) -> dict[str, Any]:
    name = type(layer).__name__
    if type(layer) is Chain:
        frozen = sorted(layer._frozen_names)
        return {
            "layer": name,
            "layers": _described(layer.layers),
            "input_shape": _described(layer._given_shape),
            **({"frozen": frozen} if frozen else {}),
        }
    if LAYERS.get(name) is not type(layer):
        return {"custom_layer": f"{type(layer).__module__}.{type(layer).__qualname__}"}
    settings = {}
    for setting, kind in _settings(type(layer)):
        value = getattr(layer, setting)
        if kind is inspect.Parameter.VAR_KEYWORD:
            settings[setting] = {key: _described(each) for key, each in dict(value).items()}
        else:
            settings[setting] = _described(value)
    return {"layer": name, **settings}


def _settings(kind: type[Layer]) -> Iterator[tuple[str, Any]]:
    """The settings of a layer by name, with the kinds of parameters of its constructor that they are."""
    if kind.__init__ is not object.__init__:
        for parameter in list(signature(kind.__init__).parameters.values())[1:]:
            yield parameter.name, parameter.kind


def _activation(f: Activation) -> Any:
    if f._recipe is None:
        both = ("function", "derivative")
        parts = {name: _formula(traced(f"activation {f.name}, {name}", getattr(f, name))) for name in both}
        return {"name": f.name, **parts}
    make, arguments = f._recipe
    return arguments[0] if make is resolve else {"make": make.__name__, "arguments": list(arguments)}


def _formula(formula: Formula) -> dict[str, Any]:
    steps = [[step.operation, list(step.operands), *encoding.encoded([step.value])] for step in formula.instructions]
    return {"inputs": list(formula.inputs), "instructions": steps, "outputs": list(formula.outputs)}


# From JSON


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_built(part) for part in value)
    if not isinstance(value, dict):
        return value
    settings = dict(value)
    if "layer" in settings:
        return _built_layer(settings.pop("layer"), settings)
    if "activation" in settings:
        return _built_activation(settings["activation"])
    if "initializer" in settings:
        return _known(INITIALIZERS, settings.pop("initializer"), "initializer")(**_built_settings(settings))
    if "array" in settings:
        return encoding.decoded_array(settings["array"])
    if "mapping" in settings:
        return _built_settings(settings["mapping"])
    if "formula" in settings:
        return Replay(_built_formula(settings["formula"]))
    if "custom_initializer" in settings:
        return LostInitializer(str(settings["custom_initializer"]))
    if "custom_layer" in settings:
        raise ValueError(
            f"it has the custom layer {settings['custom_layer']}, which a file cannot hold: pass the network as `net`"
        )
    raise ValueError(f"there is nothing like {shown(value)}")


def _built_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _built(value) for name, value in settings.items()}


def _built_layer(name: Any, settings: dict[str, Any]) -> Layer:
    if name == "Chain":
        return _built_chain(settings)
    kind = _known(LAYERS, name, "layer")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for setting, how in _settings(kind):
        if setting not in settings:  # of a later version, which has it
            continue
        value = settings.pop(setting)
        if how is inspect.Parameter.VAR_POSITIONAL:
            positional += _built(value)
        elif how is inspect.Parameter.VAR_KEYWORD:
            named |= _built_settings(value)
        else:
            named[setting] = _built(value)
    if settings:
        raise ValueError(f"{name} has no setting {', '.join(settings)}")
    return kind(*positional, **named)


def _built_chain(settings: Mapping[str, Any], backend: str | Cupy | Backend = "auto") -> Chain:
    chain = Chain(*_built(settings["layers"]), input_shape=_built(settings["input_shape"]), backend=backend)
    frozen = frozenset(map(str, settings.get("frozen", ())))
    return chain._with_frozen(frozen) if frozen else chain


def _built_activation(value: Any) -> Activation:
    if isinstance(value, str):
        return _known(ACTIVATIONS, value, "activation")
    if "make" in value:
        return _known(MAKERS, value["make"], "function for activations")(*value["arguments"])
    function, derivative = (_built_formula(value[name], 1) for name in ("function", "derivative"))
    return Activation(str(value["name"]), Replay(function), Replay(derivative))


def _built_formula(value: Mapping[str, Any], count: int | None = None) -> Formula:
    """A formula of `count` outputs, or of any number."""
    inputs = tuple(map(str, value["inputs"]))
    instructions = []
    for number, (name, operands, constant) in enumerate(value["instructions"], len(inputs)):
        if name != "const" and OPERATIONS[name].arity != len(operands):
            raise ValueError(f"`{name}` has {len(operands)} operands")
        if any(encoding.as_count(operand) >= number for operand in operands):
            raise ValueError(f"`{name}` has an operand that comes after it")
        instructions.append(Instruction(name, tuple(operands), *encoding.decoded([constant])))
    outputs = tuple(encoding.as_count(number) for number in value["outputs"])
    if len(outputs) != (count or max(len(outputs), 1)) or max(outputs) >= len(inputs) + len(instructions):
        raise ValueError("a formula has one output" if count == 1 else "a formula has outputs, which are among its results")
    return Formula(inputs, tuple(instructions), outputs)


def _known(table: Mapping[str, Any], name: Any, what: str) -> Any:
    if name not in table:
        raise ValueError(f"there is no {what} {shown(name)}")
    return table[name]
