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

# Each operation on numbers, arrays and the symbols of another formula, which take NumPy's ufuncs too.
FUNCTIONS: dict[str, Callable[..., Any]] = {name: ufunc for ufunc, name in UFUNCS.items()} | {"erf": erf, "where": where}


@dataclass(frozen=True)
class Replay:
    """A formula as a function. Unlike the lambda it was traced from, it can be pickled; equal formulas give equal functions."""

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
    """`function`, or its formula where it is a plain one, such as a lambda, that cannot be pickled.

    Raises TypeError or ValueError, which name it as `what`, where it cannot be traced.
    """
    formula = traced(what, function, inputs)
    return Replay(formula) if isinstance(function, (FunctionType, partial)) else function


def traced(what: str, function: Callable[..., Any], inputs: int | None = None) -> Formula:
    """As `trace`, for a formula that users know as `what`. Raises TypeError or ValueError, which name it."""
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
