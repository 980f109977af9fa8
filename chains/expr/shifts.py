"""How the results of a formula change when some inputs are shifted, or scaled, by a number that varies.

With the number d, an input that shifts by the degree c becomes x + c d, one that scales becomes exp(c d) x; others stay. The
rules are identities of real numbers that hold for every d, such as exp(x + c d) = exp(c d) exp(x). So ``exp(x) / total`` stays
where x shifts by the degree 1 and the total scales by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from chains.expr.formulas import Formula
from chains.expr.scalar import COMPARISONS


class Change(NamedTuple):
    """What becomes of a number: it shifts or scales, by a degree."""

    scales: bool
    degree: float


STAYS = Change(False, 0.0)


@lru_cache(2048)
def changes(formula: Formula, inputs: tuple[Change, ...]) -> tuple[Change | None, ...]:
    """The changes of a formula's results, given those of its inputs; None where no rule says."""
    found: list[Change | None] = list(inputs)
    constants: list[float | None] = [None] * len(inputs)
    for step in formula.instructions:
        constants.append(step.value if step.operation == "const" else None)
        operands = [found[k] for k in step.operands]
        known = [each for each in operands if each is not None]
        if len(known) < len(operands):
            found.append(None)
        elif all(each == STAYS for each in known):
            found.append(STAYS)
        else:
            found.append(_change(step.operation, known, [constants[k] for k in step.operands]))
    return tuple(found[k] for k in formula.outputs)


def _change(operation: str, operands: Sequence[Change], constants: Sequence[float | None]) -> Change | None:
    """The change of a result one of whose operands changes."""
    if len(operands) == 1:
        return _of_function(operation, operands[0])
    if operation == "where":
        return None if operands[0] != STAYS else _alike(operands[1:], constants[1:])
    if operation in ("mul", "div", "pow"):
        return _of_product(operation, (operands[0], operands[1]), (constants[0], constants[1]))
    same = _alike(operands, constants)
    if operation in COMPARISONS:
        return None if same is None else STAYS
    if operation in ("add", "sub") and not any(each.scales for each in operands):
        a, b = operands
        return Change(False, a.degree + (b.degree if operation == "add" else -b.degree))
    return same if operation in ("add", "sub", "min", "max") else None


def _of_function(operation: str, x: Change) -> Change | None:
    """That of a function of one number."""
    if x.scales:
        powers = {"neg": x, "abs": x, "sqrt": Change(True, x.degree / 2.0), "log": Change(False, x.degree), "sign": STAYS}
        return powers.get(operation)
    return {"neg": Change(False, -x.degree), "exp": Change(True, x.degree)}.get(operation)


def _alike(operands: Sequence[Change], constants: Sequence[float | None]) -> Change | None:
    """The change that all operands have; zero scales by any degree."""
    changing = [each for each, constant in zip(operands, constants, strict=True) if constant != 0.0]
    first = changing[0]
    if any(each != first for each in changing) or (len(changing) < len(operands) and not first.scales):
        return None
    return first


def _of_product(
    operation: str, operands: tuple[Change, Change], constants: tuple[float | None, float | None]
) -> Change | None:  # fmt: skip
    """That of a product, a quotient or a power."""
    (a, b), (first, second) = operands, constants
    if operation == "pow":
        return Change(True, a.degree * second) if a.scales and second is not None else None
    scaling = [each.scales or each == STAYS for each in (a, b)]
    if all(scaling):
        degree = a.degree + (b.degree if operation == "mul" else -b.degree)
        return Change(True, degree) if degree else STAYS
    if operation == "mul" and first is not None and not b.scales:
        return Change(False, first * b.degree)
    if second is not None and not a.scales:
        return Change(False, a.degree * second if operation == "mul" else a.degree / second)
    return None
