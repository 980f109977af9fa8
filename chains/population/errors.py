"""Residual errors: how measurements differ from a subject's predictions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from chains.expr import Expr, Formula, as_expr, derivative, log, trace_nodes
from chains.expr.formulas import Replay
from chains.support.checks import check_number
from chains.support.messages import shown

METHODS = ("FO", "FOCE", "FOCEI", "Laplace")


class ErrorModel:
    """A distribution of measurements around predictions, with positive parameters: see `Additive` and its neighbours."""

    start: dict[str, float]  # starting values of the parameters
    normal = True

    def variance(self, f: Any, *parameters: Any) -> Any:
        """The variance at a prediction, as a formula."""
        raise NotImplementedError

    def deviance(self, f: Any, at: Any, y: Any, *parameters: Any) -> Any:
        """Minus two times the logarithm of the density, up to a constant, with the variance of the prediction `at`."""
        v = self.variance(at, *parameters)
        return (y - f) * (y - f) / v + log(v)

    def _parameters(self, **start: float) -> None:
        for name, value in start.items():
            check_number(name, value, "in (0, inf)")
        self.start = {name: float(value) for name, value in start.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value:g}' for name, value in self.start.items())})"


class Additive(ErrorModel):
    """``y = f + e`` with normal e.

    Parameters
    ----------
    additive : float
        The starting value of the variance of e.
    """

    def __init__(self, additive: float) -> None:
        self._parameters(additive=additive)

    def variance(self, f: Any, *parameters: Any) -> Any:
        return parameters[0] + 0.0 * f


class Proportional(ErrorModel):
    """``y = f (1 + e)`` with normal e.

    Parameters
    ----------
    proportional : float
        The starting value of the variance of e.
    """

    def __init__(self, proportional: float) -> None:
        self._parameters(proportional=proportional)

    def variance(self, f: Any, *parameters: Any) -> Any:
        return parameters[0] * f * f


class Combined(ErrorModel):
    """``y = f (1 + e1) + e2`` with independent normal e1 and e2.

    Parameters
    ----------
    additive, proportional : float
        The starting values of the variances of e2 and e1.
    """

    def __init__(self, additive: float, proportional: float) -> None:
        self._parameters(additive=additive, proportional=proportional)

    def variance(self, f: Any, *parameters: Any) -> Any:
        return parameters[0] + parameters[1] * f * f


class Density(ErrorModel):
    """Measurements with a density of yours, for the method "Laplace".

    >>> poisson = Density(lambda f, y: 2.0 * (f - y * log(f)))
    >>> student = Density(lambda f, y, scale: 5.0 * log(1.0 + (y - f) ** 2 / (4.0 * scale)) + log(scale), scale=0.1)

    Parameters
    ----------
    deviance : callable
        Minus two times the logarithm of the density, up to a constant: a formula of the prediction, the measurement and the
        parameters, with functions of `chains.expr`. It needs two derivatives with respect to the prediction.
    **start : float
        The starting values of the parameters, which are positive, by the names of the arguments.
    """

    normal = False

    def __init__(self, deviance: Callable[..., Any], **start: float) -> None:
        if not callable(deviance):
            raise TypeError(f"`deviance` (={shown(deviance)}) must be a formula, such as lambda f, y: 2 * (f - y * log(f))")
        names = [p.name for p in inspect.signature(deviance).parameters.values()]
        if names[2:] != [*start]:
            raise ValueError(f"`deviance` takes {names}: wanted a prediction, a measurement, then {[*start]}")
        self.formula = deviance
        self._parameters(**start)

    def deviance(self, f: Any, at: Any, y: Any, *parameters: Any) -> Any:
        return self.formula(f, y, *parameters)


@dataclass(frozen=True)
class Deviance:
    """The formulas of a method: inputs are the prediction f, that of the variance, the measurement, and the parameters.

    `rho` is the deviance of a measurement. `kappa` is the factor of a a' in half the Hessian matrix of a subject's objective by
    the effects, where a is the derivative of f: the expected one, or for "Laplace" the exact one, which also has half of rho'
    times the second derivatives of f (`exact`).
    """

    rho: Formula
    kappa: Formula
    exact: bool
    interaction: bool

    @cached_property
    def count(self) -> int:
        """The number of parameters."""
        return len(self.rho.inputs) - 3

    def at(self, *values: Any) -> Slopes:
        """Derivatives as formulas of these symbols."""
        return Slopes(self, values)


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the formulas of a method, made of symbols when they are asked for."""

    deviance: Deviance
    values: tuple[Any, ...]

    def rho(self, *by: int) -> Any:
        """The deviance derived by these inputs."""
        return self._derived(self.deviance.rho, by)

    def kappa(self, *by: int) -> Any:
        """The factor of the Hessian matrix, derived."""
        return self._derived(self.deviance.kappa, by)

    def _derived(self, formula: Formula, by: tuple[int, ...]) -> Any:
        for k in by:
            formula = derivative(formula, k)
        return Replay(formula)(*self.values)


def deviance_of(error: ErrorModel, method: str) -> Deviance:
    """The formulas of a residual error for a method. Raises ValueError for a density with another method than "Laplace"."""
    exact, interaction = method == "Laplace", method in ("FOCEI", "Laplace")
    if not error.normal and not exact:
        raise ValueError(f"`method` (={method!r}) needs normal errors: {error!r} goes with 'Laplace'")
    names = ("f", "at", "y", *error.start)
    f, at, y, *parameters = (Expr("input", value=k) for k in range(len(names)))
    traced = partial(trace_nodes, names=names)
    rho = traced((as_expr(error.deviance(f, f if interaction else at, y, *parameters)),))
    if exact:
        half = Replay(derivative(derivative(rho, 0), 0))(f, at, y, *parameters)
        return Deviance(rho, traced((as_expr(0.5 * half),)), exact, interaction)
    v = as_expr(error.variance(f if interaction else at, *parameters))
    kappa: Any = 1.0 / v
    if interaction:
        change = Replay(derivative(traced((v,)), 0))(f, at, y, *parameters) / v
        kappa = kappa + 0.5 * change * change
    return Deviance(rho, traced((as_expr(kappa),)), exact, interaction)


def variances(error: ErrorModel, f: np.ndarray, parameters: Any) -> np.ndarray:
    """The variances of measurements at these predictions."""
    return np.broadcast_to(np.asarray(error.variance(f, *parameters), np.float64), f.shape)
