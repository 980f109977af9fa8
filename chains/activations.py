"""Activations: a scalar formula and its derivative, both ordinary Python functions.

The argument names of the derivative show its inputs: ``lambda y: 1 - y * y`` needs only the output (nothing extra is stored),
``lambda x: ...`` the input, ``lambda x, y: ...`` both.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from chains.expr import cos, erf, exp, expm1, log1p, maximum, minimum, sin, trace, where
from chains.expr import tanh as _tanh
from chains.expr.derivatives import slope
from chains.expr.formulas import Replay, traced
from chains.support.checks import check_number, check_text, is_real
from chains.support.messages import meant


class Activation:
    """An elementwise function with its derivative; call it on numbers, arrays, or symbols of a formula.

    Parameters
    ----------
    name : str
        How it is printed.
    function : callable
        The function of one number.
    derivative : callable
        Its derivative, with arguments named ``x`` (the input), ``y`` (the output), or both.
    recipe : tuple, optional
        A function and its arguments that make an equal activation, if the functions cannot be pickled.
    note : str
        A further part of the docstring.
    """

    def __init__(
        self, name: str, function: Callable[[Any], Any], derivative: Callable[..., Any],
        recipe: tuple[Callable[..., Activation], tuple[Any, ...]] | None = None, note: str = "",
    ) -> None:  # fmt: skip
        needs = tuple(inspect.signature(derivative).parameters)
        if not set(needs) <= {"x", "y"}:
            raise ValueError(f"the arguments of `derivative` of {name} (={needs}) must be among x (input) and y (output)")
        self.formula = f"y = {trace(function, 1).text(['x'])}"
        self.slope_formula = f"dy/dx = {trace(derivative, len(needs)).text(needs)}"
        self.__doc__ = f"{name}: {self.formula}, with the derivative {self.slope_formula}.\n{note}".strip()
        self.name = name
        self.function = function
        self.derivative = derivative
        self.needs_input = "x" in needs
        self._needs = needs
        self._recipe = recipe  # makes a built-in one again: its lambdas cannot be pickled

    def __call__(self, x: Any) -> Any:
        return self.function(x)

    def slope(self, x: Any, y: Any) -> Any:
        """The derivative.

        Parameters
        ----------
        x, y : number, array or symbol
            Input and output. An argument that the derivative does not need may be anything.
        """
        values = {"x": x, "y": y}
        return self.derivative(*(values[name] for name in self._needs))

    def __reduce__(self) -> Any:
        return self._recipe or super().__reduce__()

    def __getstate__(self) -> dict[str, Any]:
        """A built-in one by what makes it, for libraries such as skops, which save states rather than call `__reduce__`."""
        return vars(self) if self._recipe is None else {"recipe": self._recipe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "recipe" in state:
            make, arguments = state["recipe"]
            state = vars(make(*arguments))
        vars(self).update(state)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<activation {self.name}: {self.formula}, {self.slope_formula}>"


ACTIVATIONS: dict[str, Activation] = {}


def activation(name: str, function: Callable[[Any], Any], *, derivative: Callable[..., Any] | None = None) -> Activation:
    """Make a custom activation, for use like a built-in one. It can be pickled: it keeps formulas, not functions.

    Parameters
    ----------
    name : str
        How it is printed.
    function : callable
        Maps a number to a number, in arithmetic and the functions of `chains.expr` (or NumPy's ufuncs of the same names).
    derivative : callable, optional
        Takes arguments named ``x`` (the input), ``y`` (the output), or both. None derives it from the function; at kinks it is
        the derivative from the left.

    Raises
    ------
    TypeError, ValueError
        If one of the functions cannot be traced; the error names the activation.

    Examples
    --------
    >>> softsign = activation("softsign", lambda x: x / (1 + abs(x)), derivative=lambda x: 1 / (1 + abs(x)) ** 2)
    """
    check_text("name", name)
    what = f"activation {name!r}"
    formula = traced(what, function, 1)
    derived = slope(formula) if derivative is None else traced(f"{what}, derivative", derivative)
    return Activation(name, Replay(formula), Replay(derived))


def resolve(choice: Activation | str, example: str = "tanh") -> Activation:
    """The activation, from an `Activation` or the name of a built-in one. Raises ValueError or TypeError, with an `example`."""
    if isinstance(choice, Activation):
        return choice
    if isinstance(choice, str):
        if choice not in ACTIVATIONS:
            raise ValueError(
                f"unknown activation {choice!r}: choose one of {', '.join(ACTIVATIONS)}, or make one with activation()"
                f"{meant(choice, ACTIVATIONS)}"
            )
        return ACTIVATIONS[choice]
    if getattr(choice, "__module__", "") == "chains.expr":
        raise TypeError(f"`activation` is chains.expr.{choice.__name__}, which is for formulas: pass chains.{choice.__name__}")
    is_value = is_real(choice) or hasattr(choice, "ndim")
    number = ", and one with another number by elu(alpha=0.5) or leaky_relu(slope=0.1)" if is_value else ""
    raise TypeError(
        f"`activation` (={choice!r}) must be an activation such as {example}, or its name; "
        f"make one of a custom function with activation(name, f){number}"
    )


def _built_in(name: str, function: Callable[[Any], Any], derivative: Callable[..., Any], note: str = "") -> Activation:
    ACTIVATIONS[name] = Activation(name, function, derivative, (resolve, (name,)), note)
    return ACTIVATIONS[name]


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + exp(-x))


def _softplus(x: Any) -> Any:
    return maximum(x, 0.0) + log1p(exp(-abs(x)))


def _identity(x: Any) -> Any:
    return x


identity = _built_in("identity", _identity, lambda y: 1.0)
sigmoid = _built_in("sigmoid", _sigmoid, lambda y: y * (1.0 - y))
tanh = _built_in(
    "tanh",
    _tanh,
    lambda y: 1.0 - y * y,
    "The derivative is as exact as y: within 1e-6 in float32, where y is 1 and the derivative 0 from about |x| = 9 on.",
)
relu = _built_in(
    "relu", lambda x: maximum(x, 0.0), lambda y: where(y <= 0.0, 0.0, 1.0), "At the kink, x = 0, the derivative is taken as 0."
)
sine = _built_in("sin", sin, lambda x: cos(x))
softplus = _built_in("softplus", _softplus, _sigmoid, "log(1 + exp(x)), so written that nothing overflows.")
softsign = _built_in("softsign", lambda x: x / (1.0 + abs(x)), lambda y: (1.0 - abs(y)) ** 2)
silu = _built_in(
    "silu", lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1.0 + x * (1.0 - _sigmoid(x))), "Also called swish."
)
mish = _built_in(
    "mish",
    lambda x: x * _tanh(_softplus(x)),
    lambda x: _tanh(_softplus(x)) + x * _sigmoid(x) * (1.0 - _tanh(_softplus(x)) ** 2),
    "x * tanh(softplus(x)). Source: Misra 2019.",
)
gelu = _built_in(
    "gelu",
    lambda x: 0.5 * x * (1.0 + erf(x * math.sqrt(0.5))),
    lambda x: 0.5 * (1.0 + erf(x * math.sqrt(0.5))) + x * exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi)),
    "x times the normal distribution function, exactly. Source: Hendrycks and Gimpel 2016.",
)


_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772  # Klambauer et al. 2017
selu = _built_in(
    "selu",
    lambda x: _SELU_SCALE * where(x > 0.0, x, _SELU_ALPHA * expm1(minimum(x, 0.0))),
    lambda y: where(y > 0.0, _SELU_SCALE, y + _SELU_SCALE * _SELU_ALPHA),
    "At the kink, x = 0, the derivative is that from below. Source: Klambauer et al. 2017.",
)


class _WithNumber(Activation):
    """An activation with a number in its formula: ``elu(x)`` is its value, ``elu(alpha=0.5)`` the activation with another
    number.
    """

    def __call__(self, x: Any = None, **number: float) -> Any:
        kind: Any = type(self)
        f = kind(**number) if number else self
        return f if x is None else f.function(x)


class LeakyRelu(_WithNumber):
    """x above zero, ``slope * x`` below. The slope must be positive. Source: Maas et al. 2013."""

    def __init__(self, slope: float = 0.01) -> None:
        check_number("slope", slope, "in (0, inf)", "; for zero use relu")
        super().__init__(
            "leaky_relu" if slope == 0.01 else f"leaky_relu(slope={slope:g})",
            lambda x: where(x > 0.0, x, slope * x),
            lambda y: where(y > 0.0, 1.0, slope),
            (LeakyRelu, (slope,)),
            f"At the kink, x = 0, the derivative is taken as {slope:g}. Of another slope: leaky_relu(slope=0.2).",
        )
        self.negative_slope = slope


class Elu(_WithNumber):
    """x above zero, ``alpha * (exp(x) - 1)`` below. Source: Clevert et al. 2016. Alpha must be positive."""

    def __init__(self, alpha: float = 1.0) -> None:
        check_number("alpha", alpha, "in (0, inf)")
        super().__init__(
            "elu" if alpha == 1.0 else f"elu(alpha={alpha:g})",
            lambda x: where(x > 0.0, x, alpha * expm1(minimum(x, 0.0))),
            lambda y: where(y > 0.0, 1.0, y + alpha),
            (Elu, (alpha,)),
            f"At x = 0, a kink unless alpha is 1, the derivative is taken as {alpha:g}. Of another alpha: elu(alpha=0.5). "
            "Source: Clevert et al. 2016.",
        )
        self.alpha = alpha


make_leaky_relu, make_elu = LeakyRelu, Elu  # their names in earlier pickles

leaky_relu = ACTIVATIONS["leaky_relu"] = LeakyRelu()
elu = ACTIVATIONS["elu"] = Elu()

σ = sigmoid
