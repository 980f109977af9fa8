"""Formulas as functions again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any

from chains.expr.formulas import Formula, trace
from chains.expr.nodes import erf, where
from chains.expr.scalar import UFUNCS

# The operations as functions of numbers, arrays and symbols of another formula; symbols take NumPy's ufuncs too.
FUNCTIONS: dict[str, Callable[..., Any]] = {name: ufunc for ufunc, name in UFUNCS.items()} | {"erf": erf, "where": where}


@dataclass(frozen=True)
class Replay:
    """A formula as a function. Unlike the traced lambda, it can be pickled. Equal formulas give equal functions."""

    formula: Formula

    def __call__(self, *values: Any) -> Any:
        results = list(values)
        for step in self.formula.instructions:
            operands = (results[number] for number in step.operands)
            results.append(step.value if step.operation == "const" else FUNCTIONS[step.operation](*operands))
        outputs = tuple(results[number] for number in self.formula.outputs)
        return outputs if len(outputs) > 1 else outputs[0]

    def __repr__(self) -> str:
        return f"<{', '.join(self.formula.inputs)} -> {self.formula.text()}>"

    @property
    def __signature__(self) -> Signature:
        return Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in self.formula.inputs])


def kept(what: str, function: Callable[..., Any], inputs: int | None = None) -> Callable[..., Any]:
    """`function`, or its formula if it is a plain function that cannot be pickled, such as a lambda.

    Raises TypeError or ValueError if it cannot be traced; the message calls it `what`.
    """
    formula = traced(what, function, inputs)
    return Replay(formula) if isinstance(function, (FunctionType, partial)) else function


def traced(what: str, function: Callable[..., Any], inputs: int | None = None) -> Formula:
    """As `trace`, for a formula that users know as `what`. Raises TypeError or ValueError with this name."""
    try:
        formula = trace(function, inputs)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
    except (TypeError, AttributeError) as error:
        raise TypeError(f"{what}: {error}") from error
    except Exception as error:
        error.add_note(what)
        raise
    if len(formula.outputs) != 1:
        raise TypeError(f"{what}: the formula must give one number, got {len(formula.outputs)}")
    return formula
