"""Explicit methods for ordinary differential equations, as the numbers of their stages.

Stage i evaluates the right-hand side at ``x_i = y + h * sum(a[i][j] * k_j for j < i)`` and time ``t + c[i] * h``, which gives
``k_i``; the step ends at ``y + h * sum(b[j] * k_j)``. A symplectic method has such numbers for each half of the state. With one
more stage at the end of the step, a method estimates the step's error: ``h * sum(error[j] * k_j)``.
"""

from __future__ import annotations

from dataclasses import dataclass

Row = tuple[float, ...]


@dataclass(frozen=True)
class Tableau:
    """The numbers of a method: `halves` has (a, b) of the whole state, or of its halves; without an estimate no `error`."""

    order: int
    c: Row
    halves: tuple[tuple[tuple[Row, ...], Row], ...]
    error: Row = ()

    @property
    def stages(self) -> int:
        return len(self.c)


_EULER = Tableau(1, (0.0,), ((((),), (1.0,)),))

_MIDPOINT = Tableau(2, (0.0, 0.5), ((((), (0.5,)), (0.0, 1.0)),))

_RK4 = Tableau(
    4, (0.0, 0.5, 0.5, 1.0), ((((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1.0 / 6.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 6.0)),)
)

# Tsitouras, "Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption", 2011. Its seventh stage
# is the first one of the next step.
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
)

# Velocities by half a step, positions by a whole one, velocities by the other half: Hairer, Lubich and Wanner, "Geometric
# numerical integration", I.1.4. The first half of the state are positions, the second one velocities.
_LEAPFROG = Tableau(
    2,
    (0.0, 0.5, 1.0),
    ((((), (0.0,), (0.0, 1.0)), (0.0, 1.0, 0.0)), (((), (0.5,), (0.5, 0.0)), (0.5, 0.0, 0.5))),
)

METHODS = {"euler": _EULER, "midpoint": _MIDPOINT, "rk4": _RK4, "tsit5": _TSIT5, "leapfrog": _LEAPFROG}
