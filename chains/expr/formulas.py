"""Formulas: the computation of a traced function as a list of instructions.

``trace(lambda x, b: tanh(x + b))`` calls the function once with symbols, and returns its operations as a `Formula`: a short
list of instructions in static single assignment form, with equal subexpressions shared. A backend turns a formula into ufunc
calls, vector instructions or a GPU kernel.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any

from chains.expr.nodes import Expr, as_expr, erf, key_of, stripped, text_of, where
from chains.expr.scalar import UFUNCS

MAX_WRITTEN_TERMS = 40  # longer formulas are not written out in full


@dataclass(frozen=True)
class Instruction:
    """One scalar operation. Its position in `Formula.instructions` gives the number of its result."""

    operation: str
    operands: tuple[int, ...] = ()
    value: float = 0.0


@dataclass(frozen=True)
class Formula:
    """A traced function. Its results are numbered: first the inputs, then a result for each instruction.

    `outputs` are the numbers of the results that the function returned. Equal functions give equal formulas.
    """

    inputs: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    @property
    def copied_input(self) -> int | None:
        """The position of the input that this formula returns unchanged; None if it computes something."""
        if len(self.outputs) == 1 and self.outputs[0] < len(self.inputs):
            return self.outputs[0]
        return None

    def only(self, outputs: Sequence[int]) -> tuple[Formula, list[int]]:
        """The formula of the outputs at these positions alone, and the positions of the inputs that it still reads."""
        kept = [self.outputs[position] for position in outputs]
        needed = set(kept)
        first = len(self.inputs)
        for number in range(first + len(self.instructions) - 1, first - 1, -1):
            if number in needed:
                needed.update(self.instructions[number - first].operands)
        inputs = [position for position in range(first) if position in needed]
        renumber = {number: new for new, number in enumerate(sorted(needed))}
        instructions = tuple(
            Instruction(i.operation, tuple(renumber[operand] for operand in i.operands), i.value)
            for number, i in enumerate(self.instructions, first)
            if number in needed
        )
        names = tuple(self.inputs[position] for position in inputs)
        return Formula(names, instructions, tuple(renumber[number] for number in kept)), inputs

    def given(self, values: Mapping[int, float]) -> Formula:
        """The formula with numbers for the inputs at these positions."""
        kept = [position for position in range(len(self.inputs)) if position not in values]
        places = {position: new for new, position in enumerate((*kept, *values))}
        places |= {number: number for number in range(len(self.inputs), len(self.inputs) + len(self.instructions))}
        numbers = tuple(Instruction("const", value=value) for value in values.values())
        rest = (replace(each, operands=tuple(places[k] for k in each.operands)) for each in self.instructions)
        names = tuple(self.inputs[position] for position in kept)
        return Formula(names, (*numbers, *rest), tuple(places[k] for k in self.outputs))

    def text(self, names: Sequence[str] | None = None) -> str:
        """The formula as a person would write it, with `names` for the inputs.

        In a long formula, terms that are used more than once have names, which are explained after the formula.
        """
        texts = list(names or self.inputs)
        shared = self._shared() if self._terms() > MAX_WRITTEN_TERMS else set()
        meanings: list[str] = []
        for number, instruction in enumerate(self.instructions, len(self.inputs)):
            text = text_of(instruction.operation, instruction.value, [texts[operand] for operand in instruction.operands])
            if number in shared:
                meanings.append(f"t{len(meanings) + 1} = {stripped(text)}")
                text = f"t{len(meanings)}"
            texts.append(text)
        formula = ", ".join(stripped(texts[output]) for output in self.outputs)
        return f"{formula} where {', '.join(meanings)}" if meanings else formula

    def _terms(self) -> int:
        """The number of operations if no result is shared."""
        terms = [0] * len(self.inputs)
        for instruction in self.instructions:
            terms.append(1 + sum(terms[operand] for operand in instruction.operands))
        return sum(terms[output] for output in self.outputs)

    def _shared(self) -> set[int]:
        """The results that are used more than once, constants left out."""
        uses = Counter(operand for instruction in self.instructions for operand in instruction.operands)
        uses.update(self.outputs)
        return {
            number
            for number, instruction in enumerate(self.instructions, len(self.inputs))
            if uses[number] > 1 and instruction.operands
        }

    def __str__(self) -> str:
        return f"({', '.join(self.inputs)}) -> {self.text()}"


def trace(function: Callable[..., Any], inputs: int | None = None) -> Formula:
    """Call a function once with symbols and return what it computes as a `Formula`.

    Parameters
    ----------
    function : callable
        It may use arithmetic and the functions of `chains.expr`, or NumPy's ufuncs of the same names.
    inputs : int, optional
        The number of arguments, where the signature does not say (``*args``).

    Raises
    ------
    TypeError
        If the function does something that no formula can; the message names the call.
    """
    return trace_with_settings(function, inputs)[0]


def trace_with_settings(function: Callable[..., Any], inputs: int | None = None) -> tuple[Formula, tuple[Expr, ...]]:
    """As `trace`, together with the expressions of settings that become the formula's last inputs."""
    try:
        names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    except ValueError:  # a builtin or ufunc without a signature
        names = []
    if inputs is not None and len(names) != inputs:
        names = [f"x{position}" for position in range(inputs)]
    results = function(*(Expr("input", value=position) for position in range(len(names))))
    if not isinstance(results, tuple):
        results = (results,)
    return _numbered(tuple(as_expr(result) for result in results), tuple(names))


def trace_nodes(results: tuple[Expr, ...], names: tuple[str, ...]) -> Formula:
    """The formula of these results; equal nodes become one instruction."""
    return _numbered(results, names)[0]


def _numbered(results: tuple[Expr, ...], names: tuple[str, ...]) -> tuple[Formula, tuple[Expr, ...]]:
    """The formula of these nodes, and the expressions of settings alone in them, which become its last inputs."""
    settings: dict[Any, Expr] = {}
    seen: set[int] = set()

    def find(node: Expr) -> None:
        if node.setting:
            settings.setdefault(key_of(node), node)
        elif id(node) not in seen:
            seen.add(id(node))
            for operand in node.operands:
                find(operand)

    for result in results:
        find(result)
    positions = {key: position for position, key in enumerate(settings, len(names))}
    names = (*names, *map(repr, settings.values()))
    instructions: list[Instruction] = []
    known: dict[Instruction, int] = {}
    numbers: dict[int, int] = {}  # id of a node -> number of its result

    def number(node: Expr) -> int:
        if node.operation == "input":
            return int(node.value)
        if id(node) not in numbers:
            if node.setting:
                numbers[id(node)] = positions[key_of(node)]
                return numbers[id(node)]
            operands = tuple(number(operand) for operand in node.operands)
            instruction = Instruction(node.operation, operands, float(node.value))
            if instruction not in known:
                known[instruction] = len(names) + len(instructions)
                instructions.append(instruction)
            numbers[id(node)] = known[instruction]
        return numbers[id(node)]

    outputs = tuple(number(result) for result in results)
    return Formula(names, tuple(instructions), outputs), tuple(settings.values())


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
