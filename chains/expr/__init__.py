"""Scalar formulas: written once as ordinary Python functions, run by every backend."""

from chains.expr.derivatives import derivative, derivatives
from chains.expr.formulas import Formula, Instruction, trace, trace_nodes, trace_with_settings
from chains.expr.nodes import (
    Expr,
    as_expr,
    cos,
    erf,
    exp,
    expm1,
    floor,
    key_of,
    log,
    log1p,
    maximum,
    minimum,
    sign,
    sin,
    sqrt,
    tanh,
    where,
)
from chains.expr.scalar import BINARY, COMPARISONS, TERNARY, UNARY

__all__ = [
    "cos",
    "erf",
    "exp",
    "expm1",
    "floor",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "sign",
    "sin",
    "sqrt",
    "tanh",
    "trace",
    "where",
]
