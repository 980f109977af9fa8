"""Runge-Kutta methods for ordinary differential equations: the numbers of their stages, and a step of an explicit method.

Stage i evaluates the right-hand side at ``x_i = y + h * sum(a[i][j] * k_j for j < i)`` and time ``t + c[i] * h``, which gives
``k_i``; the step ends at ``y + h * sum(b[j] * k_j)``. A symplectic method has separate numbers for each half of the state. A
method with one more stage, at the end of the step, estimates the error of the step: ``h * sum(error[j] * k_j)``.

In an implicit method, all stages but the first one add ``h * gamma * k_i`` to x_i. Its last stage is the end of the step.

A method with an error estimate also has an interpolant: the state at a share s of the step is ``y + h * sum(w_i(s) * k_i)``.
The weights w_i are polynomials in s. For an implicit method it is ``y + sum(w_i(s) * (x_i - y))``: slopes of stiff equations
would multiply errors of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.program.recorder import Recorder
from chains.program.view import View

Row = tuple[float, ...]


@dataclass(frozen=True)
class Tableau:
    """The numbers of a method: `halves` has (a, b) of the whole state, or of its halves. `error` is for methods with an
    estimate. `interpolant` has, for each stage, the coefficients of its weight, those of s, s**2 and so on.
    """

    order: int
    c: Row
    halves: tuple[tuple[tuple[Row, ...], Row], ...]
    error: Row = ()
    gamma: float = 0.0  # 0 in explicit methods
    interpolant: tuple[Row, ...] = ()

    @property
    def stages(self) -> int:
        return len(self.c)

    @property
    def with_end(self) -> Tableau:
        """The method with a stage for each weight of the interpolant: in an explicit one, the end of the step is one more."""
        if self.gamma:
            return self
        halves = tuple(((*a, b), (*b, 0.0)) for a, b in self.halves)
        return replace(self, c=(*self.c, 1.0), halves=halves)

    @property
    def slopes_interpolant(self) -> np.ndarray:
        """The coefficients of the weights of slopes, (stages, powers)."""
        weights = np.array(self.interpolant)
        if not self.gamma:
            return weights
        ((rows, _),) = self.halves
        stages = np.array([[*row, *[0.0] * (self.stages - len(row))] for row in rows])
        stages[1:] += self.gamma * np.eye(self.stages)[1:]
        return stages.T @ weights


_EULER = Tableau(1, (0.0,), ((((),), (1.0,)),))

_MIDPOINT = Tableau(2, (0.0, 0.5), ((((), (0.5,)), (0.0, 1.0)),))

_RK4 = Tableau(
    4, (0.0, 0.5, 0.5, 1.0), ((((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1.0 / 6.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 6.0)),)
)

# Tsitouras, "Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption", 2011. Its seventh stage
# is the first one of the next step. The interpolant, of order 4, needs no more stages.
_TSIT5 = Tableau(
    5,
    (0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0),
    (
        (
            (
                (),
                (0.161,),
                (-0.008480655492356989, 0.335480655492357),
                (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
                (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
                (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
            ),
            (0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774),
        ),
    ),
    (
        -0.0017800110522257773,
        -0.0008164344596567463,
        0.007880878010261994,
        -0.1447110071732629,
        0.5823571654525552,
        -0.45808210592918686,
        0.015151515151515152,
    ),
    interpolant=(
        (1.0, -2.763706197274826, 2.9132554618219126, -1.0530884977290216),
        (0.0, 0.1317, -0.2234, 0.1017),
        (0.0, 3.930296236894751, -5.941033872131505, 2.490627285651253),
        (0.0, -12.411077166933676, 30.338188630282318, -16.548102889244902),
        (0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928),
        (0.0, -27.896526289197286, 65.09189467479368, -34.87065786149661),
        (0.0, 1.5, -4.0, 2.5),
    ),
)

# Velocities by half a step, positions by a whole one, velocities by the other half: Hairer, Lubich and Wanner, "Geometric
# numerical integration", I.1.4. The first half of the state are positions, the second one velocities.
_LEAPFROG = Tableau(
    2,
    (0.0, 0.5, 1.0),
    ((((), (0.0,), (0.0, 1.0)), (0.0, 1.0, 0.0)), (((), (0.5,), (0.5, 0.0)), (0.5, 0.0, 0.5))),
)

# Kværnø, "Singly diagonally implicit Runge-Kutta methods with an explicit first stage", 2004: both the method and the one that
# estimates the error, which ends with the stage before the last, are stiffly accurate; the method is L-stable.
#
# The paper has no interpolants. Those here satisfy all conditions of order 3 and 4. For order 3 the weights are the only ones
# of degree 3; for order 4 they have the least error of order 5, and are small.


def _kvaerno(order: int, gamma: float, interpolant: tuple[Row, ...], *rows: Row) -> Tableau:
    """The method whose implicit stages have these numbers off the diagonal, and these weights in the interpolant."""
    (*_, before), last = [(*row, gamma) for row in rows[:-1]], rows[-1]
    error = (*(a - b for a, b in zip(last, before, strict=True)), gamma)
    c = (0.0, *(sum(row) + gamma for row in rows))
    first = (0.0,) * len(interpolant[0])  # of the state itself
    return Tableau(order, c, ((((), *rows), (*last, gamma)),), error, gamma, (first, *interpolant))


_G = 0.4358665215084590  # a root of 6 g**3 - 18 g**2 + 9 g - 1

_KVAERNO3 = _kvaerno(
    3,
    _G,
    (
        (8.943380330530717, -8.943380330530717, 0.0),
        (-4.398120075195592, 2.2942803602790613, 2.1038397149165347),
        (-2.398120075195593, 5.50195979011213, -2.1038397149165347),
    ),
    (_G,),
    ((-4.0 * _G**2 + 6.0 * _G - 1.0) / (4.0 * _G), (1.0 - 2.0 * _G) / (4.0 * _G)),
    ((6.0 * _G - 1.0) / (12.0 * _G), -1.0 / ((24.0 * _G - 12.0) * _G), (-6.0 * _G**2 + 6.0 * _G - 1.0) / (6.0 * _G - 3.0)),
)

_KVAERNO5 = _kvaerno(
    5,
    0.26,
    (
        (7.766532752490635, -27.703473549222846, 27.276732949655965, -7.339792152923753),
        (-0.3338110607102651, 1.2320860599923809, -2.3820782216924994, 1.4838032224103743),
        (-2.973874740725837, 8.021639216210835, -4.371514811205667, -0.6762496642793209),
        (-3.071529220937553, 22.42274514012963, -28.766150734921705, 9.414934815729625),
        (1.9329932747400476, -10.862210319209172, 20.282874084741533, -11.353657040272424),
        (-0.5565999132173656, 6.78148592440603, -15.066806644762003, 9.841920633573345),
    ),
    (0.26,),
    (0.13, 0.84033320996790809),
    (0.22371961478320505, 0.47675532319799699, -0.06470895363112615),
    (0.16648564323248321, 0.1045001884159172, 0.03631482272098715, -0.13090704451073998),
    (0.13855640231268224, 0.0, -0.04245337201752043, 0.02446657898003141, 0.61943039072480676),
    (0.13659751177640291, 0.0, -0.05496908796538376, -0.04118626728321046, 0.62993304899016403, 0.06962479448202728),
)

METHODS = {
    "euler": _EULER,
    "midpoint": _MIDPOINT,
    "rk4": _RK4,
    "tsit5": _TSIT5,
    "leapfrog": _LEAPFROG,
    "kvaerno3": _KVAERNO3,
    "kvaerno5": _KVAERNO5,
}


Length = View | float  # of a step: a number if all are equal


def move(ops: Recorder, tableau: Tableau, out: View, y: View, h: Length, rows: Sequence[Row], slopes: Sequence[View]) -> None:
    """Record ``out = y + h * (a weighted sum of slopes)``, with weights for each half of the state."""
    of_halves = (_halves(tableau, view) for view in (out, y, *slopes))
    for row, to, start, *ks in zip(rows, *of_halves, strict=True):
        combine(ops, to, start, h, [(a, k) for a, k in zip(row, ks, strict=False) if a])


def pull_slope(
    ops: Recorder, tableau: Tableau, out: View, d: View, h: Length, i: int, d_states: Sequence[View],
    within: Sequence[View] = (),
) -> None:  # fmt: skip
    """Record the cotangent of slope i, from the cotangents of the step's end and of the states of the stages.

    `within` may have the cotangents of the interpolant's coefficients, one for each power.
    """
    later = [_halves(tableau, view) for view in d_states]
    halves = zip(tableau.halves, _halves(tableau, out), _halves(tableau, d), strict=True)
    for number, ((a, b), to, end) in enumerate(halves):
        terms = [(b[i], end)] if b[i] else []
        terms += [(a[r][i], later[r][number]) for r in range(i + 1, len(d_states)) if a[r][i]]
        terms += [(w, each) for w, each in zip(tableau.interpolant[i], within, strict=True) if w] if within else []
        combine(ops, to, None, h, terms)


def _halves(tableau: Tableau, view: View) -> list[View]:
    """The parts of a state that have separate numbers in the method."""
    halves = len(tableau.halves)
    size = view.sample_shape[-1] // halves
    return [view.slice(-1, k * size, (k + 1) * size) for k in range(halves)]


def combine(ops: Recorder, out: View, start: View | None, h: Length, terms: Sequence[tuple[float, View]]) -> None:
    """Record ``out = start + h * sum(weight * view)``; without a start from zero."""
    weights, views = [weight for weight, _ in terms], [view for _, view in terms]
    first = [] if start is None else [start]
    if not terms:
        ops.fill(out, 0.0) if start is None else ops.copy(out, start)
    elif isinstance(h, View):

        def varying(h: Any, *values: Any) -> Any:
            change = h * sum(w * value for w, value in zip(weights, values[len(first) :], strict=True))
            return values[0] + change if first else change

        ops.map(out, varying, h, *first, *views)
    else:

        def fixed(*values: Any) -> Any:
            terms = [*values[: len(first)], *(h * w * value for w, value in zip(weights, values[len(first) :], strict=True))]
            return sum(terms[1:], terms[0])

        ops.map(out, fixed, *first, *views)
