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
from chains.network.record import node_with, zero_frozen
from chains.population.errors import Deviance
from chains.population.matrices import Matrix, cholesky, dot, inverse, log_determinant, solve, symmetric, upper
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


class Table:
    """A recorder of formulas of measurements, `count` in each sample."""

    def __init__(self, name: str, count: int, dtype: Any) -> None:
        self.ops, self.count = Recorder(name, dtype), count

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


class Expansion(Table):
    """A recorder with the network's series by the effects: derivatives of each output as views and as formulas."""

    def __init__(self, name: str, network: Network, recipe: Recipe, order: int, dtype: Any) -> None:
        network.declaration.check_series()
        super().__init__(name, math.prod(network.declaration.output_shape), dtype)
        self.network, self.recipe, self.order = network, recipe, order
        ops, n = self.ops, recipe.effects
        self.p = ops.external("p", (network.layout.size,), role="input")
        self.effects = ops.external("effects", (n,), role="input", batched=True)
        self.x = self._inputs()
        self.y = ops.scratch("y", network.declaration.output_shape)
        self.dx = ops.scratch("dx", network.declaration.input)
        self.g = ops.scratch("gradient", (network.layout.size,), batched=False)
        self.node = node_with(ops, network, self.p, self.g)
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
    n, places = recipe.effects, pairs(recipe.effects)

    def function(values: Sequence[Any]) -> Iterator[Any]:
        each = sort(values)
        a, slope, curvature = each.first, each.slopes.rho(F), each.slopes.rho(F, F)
        kappa = each.slopes.kappa()
        positive = where(kappa < 0.0, 0.0, kappa) if recipe.deviance.exact else kappa
        yield each.slopes.rho()
        yield from (slope * a[i] for i in range(n))
        yield from (curvature * a[i] * a[j] + slope * each.second.get((i, j), 0.0) for i, j in places)
        yield from (positive * a[i] * a[j] for i, j in places)

    rows, finish = expansion.sums("sums", 1 + n + 2 * len(places))
    expansion.record(rows, views, function)
    finish()
    if keeps_rows(recipe):
        kept = expansion.ops.external("rows", (1 + n + len(places), expansion.count), role="output", batched=True)

        def derivatives(*values: Any) -> tuple[Any, ...]:
            each = sort(values)
            return (values[0], *each.first, *each.second.values())

        expansion.ops.map(tuple(kept.index(1, k) for k in range(kept.sample_shape[0])), derivatives, *views)
    return expansion.ops.finish()


def keeps_rows(recipe: Recipe) -> bool:
    """Whether `curvature` works on the predictions and their first two derivatives that `terms` leaves in ``rows``."""
    return not (recipe.linear or recipe.deviance.exact)


class SubjectProgram:
    """A recorder of formulas of subjects: a sample is a subject here, with its sums, effects and other rows."""

    def __init__(self, name: str, recipe: Recipe, dtype: Any) -> None:
        self.ops, self.recipe, self.n = Recorder(name, dtype), recipe, recipe.effects
        self.views: list[View] = []

    def rows(self, name: str, length: int, *, batched: bool = True) -> slice:
        """The places of the symbols of an input."""
        view = self.ops.external(name, (length,), role="input", batched=batched)
        self.views += [view.index(int(batched), k) for k in range(length)]
        return slice(len(self.views) - length, len(self.views))

    def record(self, outs: dict[str, int], function: Any) -> Program:
        """Record a map that fills these outputs of so many numbers."""
        views = [self.ops.external(name, (length,), role="output", batched=True) for name, length in outs.items()]
        columns = [view.index(1, k) for view in views for k in range(view.sample_shape[0])]
        self.ops.map(tuple(columns), lambda *values: tuple(function(values)), *self.views)
        return self.ops.finish()

    def matrices(self, values: Sequence[Any], sums: slice, precision: slice) -> tuple[Matrix, Matrix, Matrix]:
        """The Hessian matrix of l, half of its expected one, which is positive definite, and H."""
        count = len(pairs(self.n))
        own, p = values[sums], values[precision]
        exact, expected = own[1 + self.n : 1 + self.n + count], own[1 + self.n + count :]
        hessian = [a + 2.0 * b for a, b in zip(exact, p, strict=True)]
        half = [a + b for a, b in zip(expected, p, strict=True)]
        h = [0.5 * a for a in hessian] if self.recipe.deviance.exact else half
        first, second, third = (symmetric(each, self.n) for each in (hessian, half, h))
        return first, second, third


def newton(recipe: Recipe, dtype: Any) -> Program:
    """step = Newton's; fall = the promised one; value = l without log det Omega. Where the Hessian matrix is not positive
    definite, the expected one takes its place.
    """
    program = SubjectProgram("Newton's steps", recipe, dtype)
    n = recipe.effects
    sums, effects = program.rows("sums", 1 + n + 2 * len(pairs(n))), program.rows("effects", n)
    precision = program.rows("precision", len(pairs(n)), batched=False)

    def function(values: Sequence[Any]) -> list[Any]:
        own, e = values[sums], values[effects]
        pe = [dot(row, e) for row in symmetric(values[precision], n)]
        slope = [a + 2.0 * b for a, b in zip(own[1 : 1 + n], pe, strict=True)]
        hessian, half, _ = program.matrices(values, sums, precision)
        factor = cholesky(hessian)
        exact = solve(factor, slope)
        other = [0.5 * each for each in solve(cholesky(half), slope)]
        positive = factor[-1][-1] > 0.0  # NaN is not
        step = [where(positive, -a, -b) for a, b in zip(exact, other, strict=True)]
        return [*step, -0.5 * dot(slope, step), own[0] + dot(e, pe)]

    return program.record({"step": n, "fall": 1, "value": 1}, function)


def laplace(recipe: Recipe, dtype: Any) -> Program:
    """value = l + log det H without log det Omega; inverse = the upper triangle of the inverse of H."""
    program = SubjectProgram("values of subjects", recipe, dtype)
    n, count = recipe.effects, len(pairs(recipe.effects))
    sums, effects = program.rows("sums", 1 + n + 2 * count), program.rows("effects", n)
    precision = program.rows("precision", len(pairs(n)), batched=False)

    def function(values: Sequence[Any]) -> list[Any]:
        e = values[effects]
        factor = cholesky(program.matrices(values, sums, precision)[2])
        prior = dot(e, [dot(row, e) for row in symmetric(values[precision], n)])
        return [values[sums][0] + prior + log_determinant(factor), *upper(inverse(factor))]

    return program.record({"value": 1, "inverse": count}, function)


def implicit(recipe: Recipe, dtype: Any) -> Program:
    """w = the inverse Hessian matrix of l times slopes; by_precision = the total derived by the inverse of Omega, but for
    log det Omega: S + e e' - w e' - e w', its upper triangle.
    """
    program = SubjectProgram("derivatives of effects", recipe, dtype)
    n, count = recipe.effects, len(pairs(recipe.effects))
    sums, effects = program.rows("sums", 1 + n + 2 * count), program.rows("effects", n)
    slopes, inverses, precision = (
        program.rows("slopes", n),
        program.rows("inverse", count),
        program.rows("precision", len(pairs(n)), batched=False),
    )

    def function(values: Sequence[Any]) -> list[Any]:
        e = values[effects]
        w = solve(cholesky(program.matrices(values, sums, precision)[0]), values[slopes])
        s = symmetric(values[inverses], n)
        return [*w, *(s[i][j] + e[i] * e[j] - w[i] * e[j] - e[i] * w[j] for i, j in pairs(n))]

    return program.record({"w": n, "by_precision": count}, function)


def curvature(network: Network, recipe: Recipe, dtype: Any) -> Program:
    """slopes = the gradient of log det H by the effects of each sample.

    An exact H has second derivatives, of which third ones are needed: a pullback has them.
    """
    if keeps_rows(recipe):
        return _curvature_of_rows(network, recipe, dtype)
    expansion = _adjoint("slopes of log det H", network, recipe, dtype, total=False)
    width = expansion.x.sample_shape[0]
    out = expansion.ops.external("slopes", (recipe.effects,), role="output", batched=True)
    expansion.ops.copy(out, expansion.dx.slice(1, width - recipe.effects, width))
    return expansion.ops.finish()


def _curvature_of_rows(network: Network, recipe: Recipe, dtype: Any) -> Program:
    """The gradient of log det H where it is the sum of kappa a a': kappa' a (a' S a) + 2 kappa B S a."""
    n, places, deviance = recipe.effects, pairs(recipe.effects), recipe.deviance
    table = Table("slopes of log det H", math.prod(network.declaration.output_shape), dtype)
    ops, count = table.ops, table.count
    rows = ops.external("rows", (1 + n + len(places), count), role="input", batched=True)
    inverses = ops.external("inverse", (len(places),), role="input", batched=True)
    s = ops.external("s", (max(deviance.count, 1),), role="input")
    at = [] if deviance.interaction else [ops.external("at", (count,), role="input", batched=True)]
    views = [ops.external("weights", (count,), role="input", batched=True)]
    views += [rows.index(1, k) for k in range(rows.sample_shape[0])]
    views += [inverses.index(1, k).expand(-1) for k in range(len(places))]
    views += [*(s.index(0, k) for k in range(deviance.count)), *at]

    def function(values: Sequence[Any]) -> list[Any]:
        rest = iter(values[1:])
        f, a = next(rest), [next(rest) for _ in range(n)]
        b, inverse = (symmetric([next(rest) for _ in places], n) for _ in range(2))
        parameters = [next(rest) for _ in range(deviance.count)]
        slopes = deviance.at(f, next(rest) if at else f, f, *parameters)
        sa = [dot(row, a) for row in inverse]
        first = slopes.kappa(F) * dot(a, sa)
        return [first * a[i] + 2.0 * slopes.kappa() * dot(b[i], sa) for i in range(n)]

    outs, finish = table.sums("slopes", n)
    table.record(outs, views, function)
    finish()
    return ops.finish()


def gradient(network: Network, recipe: Recipe, dtype: Any, *, each: bool = False) -> Program:
    """g = the gradient by the network's parameters; errors, those of each sample by the errors' parameters.

    If the variances are of other predictions than `y`, `dat` is the cotangent of these. `each`: g is j, of each sample.
    """
    expansion = _adjoint("gradient of a population", network, recipe, dtype, total=True)
    ops = expansion.ops
    zero_frozen(ops, network, expansion.g)
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
    ops, jet, count, n, triangle = expansion.ops, expansion.jet, expansion.count, recipe.effects, len(pairs(recipe.effects))
    inverses = ops.external("inverse", (triangle,), role="input", batched=True)
    w = ops.external("w", (n,), role="input", batched=True)
    given = [inverses.index(1, k).expand(-1) for k in range(triangle)]
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
    before = ops.pop_operations()
    expansion.node.pullback(ops, expansion.x, expansion.y, dy, expansion.dx)
    pullback, ops.operations = ops.pop_operations(), before
    jet.record(pullback)
    return expansion


class Adjoint:
    """The derivatives of a measurement's part of log det H, and of the total, by its prediction and the derivatives of that.

    With the prediction's derivatives a and B by the effects, the part of H is kappa a a', plus rho' B / 2 if H is exact.
    """

    def __init__(self, symbols: Symbols, recipe: Recipe, total: bool) -> None:
        n = recipe.effects
        places = pairs(n)
        self.symbols, self.recipe, self.slopes, self.total = symbols, recipe, symbols.slopes, total
        self.s = dict(zip(places, symbols.more, strict=False))
        self.w = symbols.more[len(places) :]
        a = symbols.first
        self.sa = [dot([self.s[min(i, j), max(i, j)] for j in range(n)], a) for i in range(n)]
        self.asa = dot(a, self.sa)
        self.wa: Any = dot(self.w, a) if self.w and not recipe.linear else 0.0
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
