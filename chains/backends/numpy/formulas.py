"""Formulas as NumPy ufunc calls with ``out=``.

`sequence_calls` decides, for given shapes, the order of a formula's instructions and the arrays for their results. Few
temporary arrays are needed, and no operand is overwritten before its last use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from chains.expr import COMPARISONS, Formula
from chains.expr.scalar import OPERATIONS, PYTHON, SYMBOLS

Shape = tuple[int, ...]


def _slow_erf(x: Any, out: np.ndarray | None = None) -> Any:
    """The error function without SciPy."""
    values = np.frompyfunc(math.erf, 1, 1)(x)
    if out is None:
        return values
    out[...] = values
    return out


@cache
def ufunc(operation: str) -> Any:
    """NumPy's function for a scalar operation. The error function is SciPy's if SciPy is installed."""
    if operation != "erf":
        return OPERATIONS[operation].ufunc
    try:
        from scipy.special import erf  # slow to import
    except ImportError:
        return _slow_erf
    return erf


@dataclass(frozen=True)
class Register:
    """An array that an instruction reads or writes: a kind, "in", "out", "temp" or "const", and a number."""

    kind: str
    number: int
    shape: Shape = ()
    boolean: bool = False
    value: Any = None


@dataclass(frozen=True)
class FormulaCall:
    """One call: `operation` ("copy", "where" or the name of a ufunc) of `sources` into `target`."""

    operation: str
    target: Register
    sources: tuple[Register, ...]


@dataclass(frozen=True)
class CallSequence:
    calls: tuple[FormulaCall, ...]
    temporaries: tuple[Register, ...]


def sequence_calls(
    formula: Formula, dtype: np.dtype[Any], ins: Sequence[Shape], out: Shape, conflicts: Sequence[Sequence[str]],
    known: dict[int, Any], dying: Collection[int],
) -> CallSequence:  # fmt: skip
    """Order the calls that compute `formula` over operands of shapes `ins` into results of shape `out`.

    `conflicts[k][j]` says whether result k and operand j are "apart", have the "same" elements, or overlap otherwise
    ("across"). `known` are operands that are numbers fixed in advance; `dying` are operands that may be overwritten.
    """
    where = [
        Register("const", j, value=dtype.type(known[j])) if j in known else Register("in", j, shape)
        for j, shape in enumerate(ins)
    ]
    return _Sequencer(formula, dtype, out, conflicts, dying, where).run()


class _Sequencer:
    """`where` has the register of each operand, then of each instruction's result."""

    def __init__(
        self, formula: Formula, dtype: np.dtype[Any], out: Shape, conflicts: Sequence[Sequence[str]], dying: Collection[int],
        where: list[Register],
    ) -> None:  # fmt: skip
        self.formula, self.dtype, self.out, self.conflicts, self.dying, self.where = (
            formula,
            dtype,
            out,
            conflicts,
            dying,
            where,
        )
        self.first = len(where)
        self.last_use = [-1] * (len(where) + len(formula.instructions))
        for number, instruction in enumerate(formula.instructions, self.first):
            for operand in instruction.operands:
                self.last_use[operand] = number
        for output in formula.outputs:
            self.last_use[output] = len(self.last_use)
        self.calls: list[FormulaCall] = []
        self.temporaries: list[Register] = []
        self.free: list[Register] = []
        self.final: set[int] = set()  # results that are in their final array

    def run(self) -> CallSequence:
        for number, instruction in enumerate(self.formula.instructions, self.first):
            self._place(number, instruction.operation, instruction.operands, instruction.value)
        self._set_aside()
        for k, output in enumerate(self.formula.outputs):
            target, source = Register("out", k, self.out), self.where[output]
            if source != target and not (source.kind == "in" and self.conflicts[k][source.number] == "same"):
                self.calls.append(FormulaCall("copy", target, (source,)))
        return CallSequence(tuple(self.calls), tuple(self.temporaries))

    def _set_aside(self) -> None:
        """Copy operands that are results themselves, and that another result will overwrite."""
        for k, output in enumerate(self.formula.outputs):
            source = self.where[output]
            others = [other for other in range(len(self.formula.outputs)) if other != k and other not in self.final]
            if source.kind == "in" and any(self.conflicts[other][source.number] != "apart" for other in others):
                register = Register("temp", len(self.temporaries), source.shape)
                self.temporaries.append(register)
                self.calls.append(FormulaCall("copy", register, (source,)))
                self.where[output] = register

    def _place(self, number: int, operation: str, operands: tuple[int, ...], value: float) -> None:
        sources = tuple(self.where[operand] for operand in operands)
        if operation == "const":
            self.where.append(Register("const", number, value=self.dtype.type(value)))
            return
        if operation != "where" and all(source.kind == "const" for source in sources):
            with np.errstate(all="ignore"):
                folded = ufunc(operation)(*(source.value for source in sources))
            kind = np.bool_ if operation in COMPARISONS else self.dtype.type
            self.where.append(Register("const", number, value=kind(folded)))
            return
        boolean = operation in COMPARISONS
        shape = np.broadcast_shapes(*(source.shape for source in sources))
        # `where` first writes its last operand, then the chosen part of the second: its other operands must lie elsewhere.
        dying = [o for o in operands if self.last_use[o] <= number]
        reusable = {self.where[o] for o in (operands[2:] if operation == "where" else operands) if o in dying}
        if operation == "where":
            reusable -= set(sources[:2])
        target = self._target(number, operation, sources, shape, boolean, reusable)
        self.calls.append(FormulaCall(operation, target, sources))
        self.where.append(target)
        for register in {self.where[o] for o in dying}:
            if self._owned(register) and register != target and register not in self.free:
                self.free.append(register)

    def _target(
        self, number: int, operation: str, sources: tuple[Register, ...], shape: Shape, boolean: bool, reusable: set[Register]
    ) -> Register:
        if not boolean and shape == self.out:
            for k, output in enumerate(self.formula.outputs):
                if output == number and k not in self.final and self._safe(k, number, operation, sources):
                    self.final.add(k)
                    return Register("out", k, self.out)
        fitting = [r for r in self.free if r.shape == shape and r.boolean == boolean]
        in_place = [r for r in sources if r in reusable and self._owned(r) and r.shape == shape and r.boolean == boolean]
        for register in (*in_place, *fitting):
            if register in self.free:
                self.free.remove(register)
            return register
        register = Register("temp", len(self.temporaries), shape, boolean)
        self.temporaries.append(register)
        return register

    def _owned(self, register: Register) -> bool:
        """Whether a register may be overwritten once its contents are no longer needed."""
        return register.kind == "temp" or (register.kind == "in" and register.number in self.dying)

    def _safe(self, k: int, number: int, operation: str, sources: tuple[Register, ...]) -> bool:
        """Whether out k may be written now: no operand that overlaps it will be read later."""
        for j, conflict in enumerate(self.conflicts[k]):
            if conflict == "apart":
                continue
            if self.last_use[j] > number or (conflict == "across" and self.last_use[j] == number):
                return False
            if operation == "where" and any(s.kind == "in" and s.number == j for s in sources[:2]):
                return False
        return True


def array_calls(operation: str, target: np.ndarray, sources: Sequence[np.ndarray]) -> list[Callable[[], Any]]:
    """The calls of an operation ("copy", "where" or the name of a ufunc) on arrays."""
    if operation == "copy":
        return [partial(np.copyto, target, sources[0])]
    if operation == "where":
        condition, chosen, other = sources
        first = [] if other is target else [partial(np.copyto, target, other)]
        return [*first, partial(np.copyto, target, chosen, "same_kind", condition)]
    if operation == "neg":  # NumPy 2.4's `negative` is wrong in place for some strides: tests/numpy/test_ufuncs.py
        return [partial(np.multiply, sources[0], target.dtype.type(-1), target)]
    if operation in ("min", "max", "erf"):  # these take `out` by name only
        return [partial(ufunc(operation), *sources, out=target)]
    return [partial(ufunc(operation), *sources, target)]


# Operations on Python floats that differ from the table's functions: they treat NaN as NumPy does, or take floats only.
_FUNCTIONS: dict[str, Any] = PYTHON | {
    "pow": math.pow,
    "min": lambda a, b: a if a < b or a != a else b,
    "max": lambda a, b: a if a > b or a != a else b,
    "sign": lambda a: a if a != a else float((a > 0) - (a < 0)),
    "both": lambda a, b: bool(a) and bool(b),
    "either": lambda a, b: bool(a) or bool(b),
}


def scalar_call(formula: Formula, outs: Sequence[np.ndarray], ins: Sequence[np.ndarray]) -> Callable[[], None]:
    """A call that computes a formula of scalars with Python floats, in a fifth of the time of ufuncs on 0-d arrays."""
    texts = [f"x{j}" for j in range(len(ins))]
    lines = [f"x{j} = in{j}()" for j in range(len(ins))]
    for number, instruction in enumerate(formula.instructions, len(ins)):
        lines.append(
            f"x{number} = {_scalar_text(instruction.operation, [texts[o] for o in instruction.operands], instruction.value)}"
        )
        texts.append(f"x{number}")
    lines += [f"out{k}[()] = {texts[output]}" for k, output in enumerate(formula.outputs)]
    body = "\n    ".join(lines)
    names: dict[str, Any] = {f"in{j}": array.item for j, array in enumerate(ins)}
    names |= {f"out{k}": array for k, array in enumerate(outs)} | _FUNCTIONS
    exec(f"def compute():\n    {body}", names)  # the source consists of this module's text and of numbers only
    compute = names["compute"]

    def call() -> None:
        try:
            compute()
        except (ArithmeticError, ValueError):  # where NumPy gives an infinity or NaN, Python raises
            for out, value in zip(outs, _by_ufuncs(formula, ins), strict=True):
                out[()] = value

    return call


def _scalar_text(operation: str, operands: list[str], value: float) -> str:
    if operation == "const":
        return f"float({str(value)!r})" if not math.isfinite(value) else repr(value)
    if operation == "where":
        return f"{operands[1]} if {operands[0]} else {operands[2]}"
    if operation in ("neg", "not"):
        return f"{'-' if operation == 'neg' else 'not '}{operands[0]}"
    if operation in ("and", "or"):
        return f"{'both' if operation == 'and' else 'either'}({operands[0]}, {operands[1]})"
    if operation in SYMBOLS and operation != "pow":
        return f"{operands[0]} {SYMBOLS[operation]} {operands[1]}"
    return f"{operation}({', '.join(operands)})"


def _by_ufuncs(formula: Formula, ins: Sequence[np.ndarray]) -> list[Any]:
    values: list[Any] = [np.float64(array[()]) for array in ins]
    for instruction in formula.instructions:
        operands = [values[operand] for operand in instruction.operands]
        if instruction.operation == "const":
            values.append(np.float64(instruction.value))
        else:
            values.append((np.where if instruction.operation == "where" else ufunc(instruction.operation))(*operands))
    return [values[output] for output in formula.outputs]
