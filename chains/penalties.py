"""Penalties on parameters, added to the loss.

A penalty applies to the trained parameters whose names match its patterns ("*", "*.weight", "0.*"); frozen ones do not count.
Penalties are added with ``+``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from chains.expr import sign
from chains.params import Layout
from chains.program.recorder import Recorder
from chains.program.settings import FrozenOnceRecorded, Tunable
from chains.program.view import View
from chains.support.checks import check_number


@dataclass(frozen=True)
class Selection:
    """The parameters that a penalty may apply to: their `names` in the `layout`, and which names are frozen."""

    layout: Layout
    names: frozenset[str]
    frozen: frozenset[str]


class Penalty(FrozenOnceRecorded, Tunable, ABC):
    """A function of the parameters.

    After a program was recorded with a custom penalty, its attributes are fixed: a change raises AttributeError.
    """

    @abstractmethod
    def record(self, ops: Recorder, at: Selection, p: View, g: View, value: View) -> None:
        """Record additions to the loss and to the gradient.

        Parameters
        ----------
        ops : Recorder
            The operations.
        at : Selection
            The names of the parameters that the penalty may apply to, and of those that are frozen.
        p, g : View, shape (n_params,)
            Parameters and gradient.
        value : View, shape ()
            The loss.
        """

    def __add__(self, other: Penalty) -> Penalty:
        if not isinstance(other, Penalty):
            raise TypeError(f"only penalties can be added to {self!r}, not {other!r}")
        return _Sum((self, other))


@dataclass(frozen=True)
class _Sum(Penalty):
    parts: tuple[Penalty, ...]

    def record(self, ops: Recorder, at: Selection, p: View, g: View, value: View) -> None:
        for part in self.parts:
            part.record(ops, at, p, g, value)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


@dataclass(frozen=True)
class _Norm(Penalty):
    """``strength`` times a sum over the parameters that match `patterns`. Raises ValueError for a negative strength."""

    settings: ClassVar[tuple[str, ...]] = ("strength",)

    strength: float
    patterns: str | tuple[str, ...] = "*"

    def __post_init__(self) -> None:
        check_number("strength", self.strength, "in [0, inf)")
        patterns = (self.patterns,) if isinstance(self.patterns, str) else self.patterns
        if not isinstance(patterns, tuple) or not patterns or not all(isinstance(pattern, str) for pattern in patterns):
            raise TypeError(f"`patterns` (={self.patterns!r}) must be a text such as '*.weight', or a tuple of such")

    def record(self, ops: Recorder, at: Selection, p: View, g: View, value: View) -> None:
        if not len(at.layout):  # a network without parameters: the sum over none
            return
        patterns = (self.patterns,) if isinstance(self.patterns, str) else self.patterns
        others = frozenset(entry.name for entry in at.layout) - (at.layout.names(*patterns) & at.names) | at.frozen
        total = ops.scratch("penalty", (1, 1), batched=False)
        for start, stop in at.layout.ranges(without=others):
            self._add_value(ops, p.slice(0, start, stop), total)
            ops.map(value, lambda value, total: value + self.strength * total, value, total.reshape())
            self._add_gradient(ops, p.slice(0, start, stop), g.slice(0, start, stop))

    @abstractmethod
    def _add_value(self, ops: Recorder, p: View, total: View) -> None:
        """Record how `total` (1, 1) is filled with the sum over `p`."""

    @abstractmethod
    def _add_gradient(self, ops: Recorder, p: View, g: View) -> None:
        """Record the addition of the gradient over `p` to `g`."""


class L2Penalty(_Norm):
    """strength * the sum of squares, as SimpleChains.jl's L2Penalty. PyTorch's weight_decay is twice the strength.

    Parameters
    ----------
    strength : float
        0 or more.
    patterns : str or tuple of str
        Shell-style patterns of parameter names: ``"*.weight"``. Frozen ones among them do not count.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def _add_value(self, ops: Recorder, p: View, total: View) -> None:
        row = p.reshape(1, p.sample_size)
        ops.matmul(total, row, row.T)

    def _add_gradient(self, ops: Recorder, p: View, g: View) -> None:
        ops.map(g, lambda g, p: g + 2.0 * self.strength * p, g, p)


class L1Penalty(_Norm):
    """strength * the sum of absolute values of the trained parameters.

    Parameters
    ----------
    strength, patterns
        As of `L2Penalty`.
    """

    def _add_value(self, ops: Recorder, p: View, total: View) -> None:
        magnitude = ops.scratch("magnitude", p.sample_shape, batched=False)
        ops.map(magnitude, abs, p)
        ops.sum(total.reshape(), magnitude)

    def _add_gradient(self, ops: Recorder, p: View, g: View) -> None:
        ops.map(g, lambda g, p: g + self.strength * sign(p), g, p)


@dataclass(frozen=True)
class FrontLastPenalty(Penalty):
    """One penalty for the last layer that has parameters, another for all layers before it, as in SimpleChains.jl.

    Parameters
    ----------
    front, last : Penalty or None
        For the layers before, and for the last one.

    Raises
    ------
    TypeError
        For anything else.
    """

    front: Penalty | None
    last: Penalty | None

    def __post_init__(self) -> None:
        for name, penalty in (("front", self.front), ("last", self.last)):
            if penalty is not None and not isinstance(penalty, Penalty):
                raise TypeError(f"`{name}` (={penalty!r}) must be a penalty such as L2Penalty(1e-4), or None")

    def record(self, ops: Recorder, at: Selection, p: View, g: View, value: View) -> None:
        layers = list(dict.fromkeys(name.split(".")[0] for name in (entry.name for entry in at.layout)))
        for penalty, chosen in ((self.front, layers[:-1]), (self.last, layers[-1:])):
            names = frozenset(name for name in at.names if name.split(".")[0] in chosen)
            if penalty is not None and names:
                penalty.record(ops, replace(at, names=names), p, g, value)
