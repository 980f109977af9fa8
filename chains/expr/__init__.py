"""Scalar formulas: written once as ordinary Python functions, run by every backend."""

from chains.expr.derivatives import derivative as derivative
from chains.expr.derivatives import derivatives as derivatives
from chains.expr.formulas import Formula as Formula
from chains.expr.formulas import Instruction as Instruction
from chains.expr.formulas import trace
from chains.expr.formulas import trace_nodes as trace_nodes
from chains.expr.formulas import trace_with_settings as trace_with_settings
from chains.expr.nodes import Expr as Expr
from chains.expr.nodes import as_expr as as_expr
from chains.expr.nodes import cos, erf, exp, expm1, floor, log, log1p, maximum, minimum, sign, sin, sqrt, tanh, where
from chains.expr.nodes import key_of as key_of
from chains.expr.scalar import BINARY as BINARY
from chains.expr.scalar import COMPARISONS as COMPARISONS
from chains.expr.scalar import TERNARY as TERNARY
from chains.expr.scalar import UNARY as UNARY

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
