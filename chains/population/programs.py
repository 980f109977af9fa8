"""Programs of a population's likelihood: a network's series by the effects, then the formulas of a method.

Buffers: ``p``, ``x`` (samples without effects), ``effects`` (of each sample's subject), ``s`` (the errors' parameters), ``t``
and ``weights`` (measurements, and 1 where there is one), ``at`` (the predictions of the variances, where they are those
without effects), ``inverse`` (the upper triangle of a subject's S, the inverse of H) and ``w`` (see `likelihood`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chains.expr import where
from chains.jets.jet import Jet
from chains.jets.per_sample import PerSample
from chains.jets.series import ZERO, Index
from chains.network.network import Network
from chains.network.record import _node, _zero_frozen
from chains.population.errors import Deviance
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import View

F, AT, Y, FIRST = 0, 1, 2, 3  # the inputs of a deviance: prediction, that of the variance, measurement, parameters


def pairs(n: int) -> list[tuple[int, int]]:
    """The upper triangle of a matrix (n, n), row by row."""
    return [*itertools.combinations_with_replacement(range(n), 2)]


@dataclass(frozen=True)
class Recipe:
    """What a program computes: the number of effects, the formulas, and whether predictions are linearised at zero (FO)."""

    effects: int
    deviance: Deviance
    linear: bool = False


class Expansion:
    """A recorder with the network's series by the effects: derivatives of each output as views and as formulas."""

    def __init__(self, name: str, network: Network, recipe: Recipe, order: int, dtype: Any) -> None:
        network.declaration.check_series()
        self.network, self.recipe, self.order = network, recipe, order
        self.ops = ops = Recorder(name, dtype)
        n = recipe.effects
        self.p = ops.external("p", (network.layout.size,), role="input")
        self.effects = ops.external("effects", (n,), role="input", batched=True)
        self.x = self._inputs()
        self.y = ops.scratch("y", network.declaration.output_shape)
        self.count = math.prod(network.declaration.output_shape)
        self.g = ops.scratch("gradient", (network.layout.size,), batched=False)
        self.node = _node(ops, network, self.p, self.g)
        self.directions = [(i, i) for i in range(n)] + [(i, j) for i, j in pairs(n) if i < j] * (order > 1)
        self._expand()

    def _inputs(self) -> View:
        """The network's inputs: the samples, then the effects, or zeros where predictions are linearised there."""
        ops, n = self.ops, self.recipe.effects
        width = self.network.declaration.input[0] - n
        x = ops.scratch("inputs", (width + n,))
        if width:
            ops.copy(x.slice(1, 0, width), ops.external("x", (width,), role="input", batched=True))
        if self.recipe.linear:
            ops.fill(x.slice(1, width, width + n), 0.0)
        else:
            ops.copy(x.slice(1, width, width + n), self.effects)
        return x

    def _expand(self) -> None:
        ops, x = self.ops, self.x
        before = ops.pop_operations()
        self.node.forward(ops, x, self.y)
        forward, ops.operations = ops.pop_operations(), before
        self.jet = Jet(ops, (self.order,) * len(self.directions))
        first = x.sample_shape[0] - self.recipe.effects
        for number, direction in enumerate(self.directions):
            tangent = ops.scratch(f"direction {number}", x.sample_shape)
            ops.fill(tangent, 0.0)
            for k in {*direction}:
                ops.fill(tangent.slice(1, first + k, first + k + 1), 1.0)
            self.jet.perturb(x, (number, 1), tangent)
        self.jet.record(forward)
        indices = [(number, power) for number in range(len(self.directions)) for power in range(1, self.order + 1)]
        self.rows: dict[Index, View] = {
            index: row for index in indices if (row := self.jet.coefficient(self.y, index)) is not None
        }

    def derivatives(self, rows: dict[Index, Any]) -> tuple[list[Any], dict[tuple[int, int], Any]]:
        """The first derivatives, and the second ones if the order is two, from the coefficients; zeros where they are."""
        n = self.recipe.effects
        first = [rows.get((i, 1), 0.0) for i in range(n)]
        if self.order < 2:
            return first, {}
        along = {pair: rows.get((number, 2), 0.0) for number, pair in enumerate(self.directions)}
        mixed = {(i, j): c - along[i, i] - along[j, j] for (i, j), c in along.items() if i != j}
        return first, {(i, j): 2.0 * along[i, i] if i == j else mixed[i, j] for i, j in pairs(n)}

    def operands(self, *more: View) -> tuple[list[View], Any]:
        """The views that formulas read, and a function that sorts their symbols: see `Symbols`."""
        ops, deviance, count = self.ops, self.recipe.deviance, self.count
        t, weights = (ops.external(name, (count,), role="input", batched=True) for name in ("t", "weights"))
        s = ops.external("s", (max(deviance.count, 1),), role="input")
        parameters = [s.index(0, k) for k in range(deviance.count)]
        at = [] if deviance.interaction or self.recipe.linear else [self.at]
        effects = [self.effects.index(1, k).expand(-1) for k in range(self.recipe.effects)] if self.recipe.linear else []
        groups = [[self.y.reshape(count)], [row.reshape(count) for row in self.rows.values()]]
        groups += [[t, weights], parameters, at, effects, list(more)]
        views = [view for group in groups for view in group]

        def sort(values: Sequence[Any]) -> Symbols:
            rest = iter(values)
            (f,), rows, (y, weight), parameters, at, effects, more = ([next(rest) for _ in group] for group in groups)
            first, second = self.derivatives(dict(zip(self.rows, rows, strict=True)))
            if self.recipe.linear:
                at, f = [f], sum((a * e for a, e in zip(first, effects, strict=True)), f)
            slopes = deviance.at(f, at[0] if at else f, y, *parameters)
            return Symbols(slopes, first, second, effects, weight, more)

        return views, sort

    @property
    def at(self) -> View:
        return self.ops.external("at", (self.count,), role="input", batched=True)

    def record(self, outs: Sequence[View], views: Sequence[View], function: Any) -> None:
        """Record a map whose results are zero where there is no measurement."""
        weights = self.ops.external("weights", (self.count,), role="input", batched=True)
        number = list(views).index(weights)

        def masked(*values: Any) -> tuple[Any, ...]:
            return tuple(where(values[number] == 0.0, 0.0, each) for each in function(values))

        self.ops.map(tuple(outs), masked, *views)

    def sums(self, name: str, length: int) -> tuple[list[View], Any]:
        """Rows for numbers of each measurement, and a function that records their sums over each sample, an output."""
        out = self.ops.external(name, (length,), role="output", batched=True)
        if self.count == 1:
            return [out.index(1, k).expand(-1) for k in range(length)], lambda: None
        entries = self.ops.scratch(name, (length, self.count))
        return [entries.index(1, k) for k in range(length)], lambda: self.ops.sum(out.expand(-1), entries)


@dataclass(frozen=True)
class Symbols:
    """The operands of a formula."""

    slopes: Any
    first: list[Any]
    second: dict[tuple[int, int], Any]
    effects: list[Any]
    weight: Any
    more: list[Any]


def terms(network: Network, recipe: Recipe, dtype: Any) -> Program:
    """sums = a sample's deviance, its gradient by the effects, and the upper triangles of its Hessian matrix and of `kappa`.

    The last one is never indefinite: a negative `kappa` counts as zero, and second derivatives are left out. The Hessian matrix
    is exact.
    """
    expansion = Expansion("terms of subjects", network, recipe, 1 if recipe.linear else 2, dtype)
    views, sort = expansion.operands()
    n, upper = recipe.effects, pairs(recipe.effects)

    def function(values: Sequence[Any]) -> Iterator[Any]:
        each = sort(values)
        a, slope, curvature = each.first, each.slopes.rho(F), each.slopes.rho(F, F)
        kappa = each.slopes.kappa()
        positive = where(kappa < 0.0, 0.0, kappa) if recipe.deviance.exact else kappa
        yield each.slopes.rho()
        yield from (slope * a[i] for i in range(n))
        yield from (curvature * a[i] * a[j] + slope * each.second.get((i, j), 0.0) for i, j in upper)
        yield from (positive * a[i] * a[j] for i, j in upper)

    rows, finish = expansion.sums("sums", 1 + n + 2 * len(upper))
    expansion.record(rows, views, function)
    finish()
    return expansion.ops.finish()


def curvature(network: Network, recipe: Recipe, dtype: Any) -> Program:
    """slopes = the gradient of log det H by the effects of each sample."""
    expansion = _adjoint("slopes of log det H", network, recipe, dtype, total=False)
    width = expansion.x.sample_shape[0]
    out = expansion.ops.external("slopes", (recipe.effects,), role="output", batched=True)
    expansion.ops.copy(out, expansion.dx.slice(1, width - recipe.effects, width))  # type: ignore[attr-defined]
    return expansion.ops.finish()


def gradient(network: Network, recipe: Recipe, dtype: Any, *, each: bool = False) -> Program:
    """g = the gradient by the network's parameters; errors, those of each sample by the errors' parameters.

    If the variances are of other predictions than `y`, `dat` is the cotangent of these. `each`: g is j, of each sample.
    """
    expansion = _adjoint("gradient of a population", network, recipe, dtype, total=True)
    ops = expansion.ops
    _zero_frozen(ops, network, expansion.g)
    if each:
        recorded = ops.pop_operations()
        target = ops.external("j", (network.layout.size,), role="output", batched=True)
        PerSample(ops, {expansion.g.buffer: target}).record(recorded)
    else:
        ops.copy(ops.external("g", (network.layout.size,), role="output"), expansion.g)
    return ops.finish()


def _adjoint(name: str, network: Network, recipe: Recipe, dtype: Any, *, total: bool) -> Expansion:
    """The pullback of log det H, or of the total: log det H + rho - w' (gradient of rho by the effects)."""
    exact = recipe.deviance.exact
    expansion = Expansion(name, network, recipe, 2 if exact else 1, dtype)
    ops, jet, count, n, upper = expansion.ops, expansion.jet, expansion.count, recipe.effects, pairs(recipe.effects)
    inverse = ops.external("inverse", (len(upper),), role="input", batched=True)
    w = ops.external("w", (n,), role="input", batched=True)
    given = [inverse.index(1, k).expand(-1) for k in range(len(upper))]
    given += [w.index(1, k).expand(-1) for k in range(n)] if total else []
    views, sort = expansion.operands(*given)
    kept = [index for index in expansion.rows if index[1] == 2 or index[0] < n]
    dy = ops.scratch("dy", network.declaration.output_shape)
    jet.adjoint(dy, [ZERO, *kept])
    outs = [jet.row(dy, index).reshape(count) for index in (ZERO, *kept)]
    finish: list[Any] = []
    separate = not (recipe.deviance.interaction or recipe.linear)
    if total and separate:
        outs.append(ops.external("dat", (count,), role="output", batched=True))
    if total and recipe.deviance.count:
        rows, end = expansion.sums("errors", recipe.deviance.count)
        outs += rows
        finish.append(end)

    def function(values: Sequence[Any]) -> Iterator[Any]:
        adjoint = Adjoint(sort(values), recipe, total)
        yield adjoint.by_prediction()
        for number, power in kept:
            direction = expansion.directions[number]
            yield adjoint.by_first(number) if power == 1 else adjoint.by_second(direction)
        if total and separate:
            yield adjoint.by(AT)
        if total:
            yield from (adjoint.by(FIRST + k) for k in range(recipe.deviance.count))

    expansion.record(outs, views, function)
    for end in finish:
        end()
    dx = ops.scratch("dx", network.declaration.input)
    before = ops.pop_operations()
    expansion.node.pullback(ops, expansion.x, expansion.y, dy, dx)
    pullback, ops.operations = ops.pop_operations(), before
    jet.record(pullback)
    expansion.dx = dx  # type: ignore[attr-defined]
    return expansion


class Adjoint:
    """The derivatives of a measurement's part of log det H, and of the total, by its prediction and the derivatives of that.

    With the prediction's derivatives a and B by the effects, the part of H is kappa a a', plus rho' B / 2 if H is exact.
    """

    def __init__(self, symbols: Symbols, recipe: Recipe, total: bool) -> None:
        n = recipe.effects
        upper = pairs(n)
        self.symbols, self.recipe, self.slopes, self.total = symbols, recipe, symbols.slopes, total
        self.s = dict(zip(upper, symbols.more, strict=False))
        self.w = symbols.more[len(upper) :]
        a = symbols.first
        self.sa = [sum((self.s[min(i, j), max(i, j)] * a[j] for j in range(1, n)), self.s[0, i] * a[0]) for i in range(n)]
        self.asa = sum((a[i] * self.sa[i] for i in range(1, n)), a[0] * self.sa[0])
        self.wa: Any = sum((w * each for w, each in zip(self.w, a, strict=True)), 0.0) if self.w and not recipe.linear else 0.0
        twice = [(1.0 if i == j else 2.0) * self.s[i, j] * b for (i, j), b in symbols.second.items()]
        self.trace: Any = sum(twice[1:], twice[0]) if recipe.deviance.exact else 0.0

    def by(self, k: int) -> Any:
        """By an input of the deviance."""
        found = self.slopes.kappa(k) * self.asa
        if self.recipe.deviance.exact:
            found = found + 0.5 * self.slopes.rho(F, k) * self.trace
        return found + self.slopes.rho(k) - self.slopes.rho(F, k) * self.wa if self.total else found

    def by_prediction(self) -> Any:
        return self.by(F) + self.by(AT) if self.recipe.linear else self.by(F)

    def by_first(self, i: int) -> Any:
        found = 2.0 * self.slopes.kappa() * self.sa[i]
        if not self.total:
            return found
        return found + self.slopes.rho(F) * (self.symbols.effects[i] if self.recipe.linear else -self.w[i])

    def by_second(self, direction: tuple[int, int]) -> Any:
        """By the coefficient of order two along a direction: the second derivative along it is twice that."""
        i, j = direction
        slope = self.slopes.rho(F)
        if i != j:
            return slope * self.s[i, j]
        others = [self.s[min(i, k), max(i, k)] for k in range(self.recipe.effects) if k != i]
        return slope * (self.s[i, i] - sum(others, 0.0))
