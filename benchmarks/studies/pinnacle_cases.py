"""The problems of PINNacle as equations, conditions, points and solutions, for `benchmarks.studies.pinnacle`.

The equations and domains are those of Hao et al., "PINNacle: A comprehensive benchmark of physics-informed neural networks for
solving PDEs", NeurIPS 2024, and of its code. All have `INSIDE` random points for the equations and `SIDE` for each condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies import pinnacle_references as references
from benchmarks.studies import pinnacle_solvers as solvers
from benchmarks.studies.pinnacle_references import Places
from benchmarks.studies.pinnacle_solvers import Hole
from chains import Term
from chains.expr import cos, exp, sin, where

INSIDE, SIDE, TESTS = 1000, 200, 5000
NOISE = 0.1  # the deviation of measurements

PI = math.pi


@dataclass(frozen=True)
class Case:
    """The terms of a problem, and its solution at some points."""

    coordinates: str  # one letter each
    terms: list[Term]
    solution: Places


@dataclass(frozen=True)
class Context:
    """The random numbers of a problem, and the folder of reference solutions."""

    rng: np.random.Generator
    folder: Path

    def inside(
        self, low: Sequence[float], high: Sequence[float], count: int = INSIDE, holes: Sequence[Hole] = ()
    ) -> np.ndarray:
        """Points in a box, none of them in a hole; holes are balls in the last coordinates."""
        found = np.empty((0, len(low)))
        while len(found) < count:
            points = self.rng.uniform(low, high, (count, len(low)))
            for *middle, radius in holes:
                points = points[((points[:, -len(middle) :] - middle) ** 2).sum(axis=1) > radius**2]
            found = np.concatenate([found, points])
        return found[:count]

    def faces(self, low: Sequence[float], high: Sequence[float], axes: Sequence[int], count: int = SIDE) -> np.ndarray:
        """Points on both faces of a box across each of these axes."""
        points = self.rng.uniform(low, high, (count, len(low)))
        numbers = np.arange(count)
        axis = np.array(axes)[numbers % len(axes)]
        points[numbers, axis] = np.where(numbers // len(axes) % 2, np.array(high)[axis], np.array(low)[axis])
        return points

    def circles(self, holes: Sequence[Hole], count: int = SIDE) -> np.ndarray:
        """Points on the edges of holes in the plane, as many on each."""
        x, y, radius = np.array([holes[k % len(holes)] for k in range(count)]).T
        angle = self.rng.uniform(0.0, 2.0 * PI, count)
        return np.column_stack([x + radius * np.cos(angle), y + radius * np.sin(angle)])

    def balls(self, holes: Sequence[Hole], count: int = SIDE) -> tuple[np.ndarray, np.ndarray]:
        """Points on the surfaces of holes, as many on each, and the normals out of the domain, into the holes."""
        *middle, radius = np.array([holes[k % len(holes)] for k in range(count)]).T
        inward = self.rng.normal(size=(count, len(middle)))
        inward /= np.linalg.norm(inward, axis=1, keepdims=True)
        return np.stack(middle, axis=1) - radius[:, None] * inward, inward


def normals(points: np.ndarray, low: Sequence[float], high: Sequence[float]) -> np.ndarray:
    """The normals out of a box at points on its faces."""
    return np.asarray((points == np.array(high)).astype(float) - (points == np.array(low)))


def burgers_1d(c: Context) -> Case:
    """Burgers' equation with a viscosity of 0.01 / pi."""
    viscosity = 0.01 / PI
    low, high = [0.0, -1.0], [1.0, 1.0]
    places = c.inside(low, high, TESTS)
    terms = [
        Term(lambda u: u.t + u * u.x - viscosity * u.xx, c.inside(low, high)),
        Term(lambda u, x: u + sin(PI * x), c.inside(low, [0.0, 1.0], SIDE)),
        Term(lambda u: u, c.faces(low, high, [1])),
    ]
    return Case("tx", terms, (places, {"u": references.burgers(places, viscosity)}))


def poisson_2d_c(c: Context) -> Case:
    """Laplace's equation in a square without four discs."""
    holes = [(x, y, 0.1) for x in (-0.3, 0.3) for y in (-0.3, 0.3)]
    low, high = [-0.5, -0.5], [0.5, 0.5]
    terms = [
        Term(lambda u: u.xx + u.yy, c.inside(low, high, holes=holes)),
        Term(lambda u: u - 1.0, c.faces(low, high, [0, 1])),
        Term(lambda u: u, c.circles(holes)),
    ]
    return Case("xy", terms, references.table(c.folder, "poisson1_cg_data.dat", 2, "u"))


def poisson_2d_cg(c: Context) -> Case:
    """Poisson and Boltzmann's equation, linear, in a square without four discs of other sizes."""
    holes = [(0.5, 0.5, 0.2), (0.4, -0.4, 0.4), (-0.2, -0.7, 0.1), (-0.6, 0.5, 0.3)]
    low, high = [-1.0, -1.0], [1.0, 1.0]
    terms = [
        Term(
            lambda u, x, y: (
                u.xx + u.yy - 64.0 * u + 10.0 * (17.0 + x * x + y * y) * sin(PI * x) * sin(4.0 * PI * y)
            ),
            c.inside(low, high, holes=holes),
        ),
        Term(lambda u: u - 0.2, c.faces(low, high, [0, 1])),
        Term(lambda u: u - 1.0, c.circles(holes)),
    ]  # fmt: skip
    return Case("xy", terms, references.table(c.folder, "poisson_boltzmann2d.dat", 2, "u"))


def heat_2d_ms(c: Context) -> Case:
    """Heat from sin(20 pi x) sin(pi y), with a conductivity that is 250,000 times smaller along x."""
    along, across = 1.0 / (500.0 * PI) ** 2, 1.0 / PI**2
    low, high = [0.0, 0.0, 0.0], [5.0, 1.0, 1.0]
    places = c.inside(low, high, TESTS)
    t, x, y = places.T
    exact = np.sin(20.0 * PI * x) * np.sin(PI * y) * np.exp(-(along * (20.0 * PI) ** 2 + across * PI**2) * t)
    terms = [
        Term(lambda u: u.t - along * u.xx - across * u.yy, c.inside(low, high)),
        Term(lambda u, x, y: u - sin(20.0 * PI * x) * sin(PI * y), c.inside(low, [0.0, 1.0, 1.0], SIDE)),
        Term(lambda u: u, c.faces(low, high, [1, 2])),
    ]
    return Case("txy", terms, (places, {"u": exact}))


def heat_2d_lt(c: Context) -> Case:
    """Heat with a source that oscillates, 100 units of time."""
    low, high = [0.0, 0.0, 0.0], [100.0, 1.0, 1.0]
    terms = [
        Term(
            lambda u, t, x, y: (
                u.t - 0.001 * (u.xx + u.yy)
                - 5.0 * sin(u * u) * (1.0 + 2.0 * sin(PI / 4.0 * t)) * sin(4.0 * PI * x) * sin(2.0 * PI * y)
            ),
            c.inside(low, high),
        ),
        Term(lambda u, x, y: u - sin(4.0 * PI * x) * sin(3.0 * PI * y), c.inside(low, [0.0, 1.0, 1.0], SIDE)),
        Term(lambda u: u, c.faces(low, high, [1, 2])),
    ]  # fmt: skip
    return Case("txy", terms, references.table_in_time(c.folder, "heat_longtime.dat", "u"))


def _flow(points: np.ndarray) -> Term:
    """Navier and Stokes' equations of a steady flow, Reynolds' number 100."""
    return Term(
        lambda u, v, p: (
            u * u.x + v * u.y + p.x - 0.01 * (u.xx + u.yy), u * v.x + v * v.y + p.y - 0.01 * (v.xx + v.yy), u.x + v.y
        ),
        points,
    )  # fmt: skip


def ns_2d_c(c: Context) -> Case:
    """A cavity with the lid's velocity 4 x (1 - x)."""
    low, high = [0.0, 0.0], [1.0, 1.0]
    walls = c.faces(low, high, [0, 1], 4 * SIDE)
    terms = [
        _flow(c.inside(low, high)),
        Term(lambda u, v, x: (u - 4.0 * x * (1.0 - x), v), walls[walls[:, 1] == 1.0][:SIDE]),
        Term(lambda u, v: (u, v), walls[walls[:, 1] != 1.0][:SIDE]),
        Term(lambda p: p, np.zeros((1, 2))),
    ]
    return Case("xy", terms, references.table(c.folder, "lid_driven_a4.dat", 2, "uvp"))


def ns_2d_cg(c: Context) -> Case:
    """A channel that widens by a step backwards."""
    low, high = [0.0, 0.0], [4.0, 2.0]
    inside = c.inside(low, high, 2 * INSIDE)
    walls = np.concatenate([
        c.inside([0.0, 0.0], [4.0, 0.0], SIDE), c.inside([2.0, 2.0], [4.0, 2.0], SIDE // 2),
        c.inside([0.0, 1.0], [2.0, 1.0], SIDE // 2), c.inside([2.0, 1.0], [2.0, 2.0], SIDE // 4),
    ])  # fmt: skip
    terms = [
        _flow(inside[(inside[:, 0] > 2.0) | (inside[:, 1] < 1.0)][:INSIDE]),
        Term(lambda u, v, y: (u - 4.0 * y * (1.0 - y), v), c.inside([0.0, 0.0], [0.0, 1.0], SIDE)),
        Term(lambda p: p, c.inside([4.0, 0.0], [4.0, 2.0], SIDE)),
        Term(lambda u, v: (u, v), c.rng.permutation(walls)[:SIDE]),
    ]
    return Case("xy", terms, references.table(c.folder, "ns_0_obstacle.dat", 2, "uvp"))


def wave_1d_c(c: Context) -> Case:
    """Two standing waves of speed 2."""
    low, high = [0.0, 0.0], [1.0, 1.0]
    places = c.inside(low, high, TESTS)
    t, x = places.T
    exact = np.sin(PI * x) * np.cos(2.0 * PI * t) + 0.5 * np.sin(4.0 * PI * x) * np.cos(8.0 * PI * t)
    terms = [
        Term(lambda u: u.tt - 4.0 * u.xx, c.inside(low, high)),
        Term(lambda u, x: (u - sin(PI * x) - 0.5 * sin(4.0 * PI * x), u.t), c.inside(low, [0.0, 1.0], SIDE)),
        Term(lambda u: u, c.faces(low, high, [1])),
    ]
    return Case("tx", terms, (places, {"u": exact}))


def poisson_3d_cg(c: Context) -> Case:
    """Poisson and Boltzmann's equation in a cube without four balls, with a coefficient that jumps; all is closed."""
    holes = [(0.4, 0.3, 0.6, 0.2), (0.6, 0.7, 0.6, 0.2), (0.2, 0.8, 0.7, 0.1), (0.6, 0.2, 0.3, 0.1)]
    low, high = [0.0] * 3, [1.0] * 3
    sides = c.faces(low, high, [0, 1, 2])
    balls, inward = c.balls(holes)
    points, out = np.concatenate([sides, balls]), np.concatenate([normals(sides, low, high), inward])

    def source(x: Any, y: Any, z: Any) -> Any:
        square, a, b, d = x * x + y * y + z * z, sin(PI * x), sin(10.0 * PI * y), sin(5.0 * PI * z)
        return 20.0 * exp(a + b + d) * (square - 1.0) / (square + 1.0) + 100.0 * a * b * d

    terms = [
        Term(
            lambda u, x, y, z: u.xx + u.yy + u.zz - where(z < 0.5, 64.0, 100.0) * u + source(x, y, z),
            c.inside(low, high, holes=holes),
        ),
        Term(
            lambda u, along, across, upward: along * u.x + across * u.y + upward * u.z,
            points,
            data=dict(zip(("along", "across", "upward"), out.T, strict=True)),
        ),
    ]
    return Case("xyz", terms, solvers.poisson_3d(source, (64.0, 100.0), holes))


def heat_2d_cg(c: Context) -> Case:
    """Heat in a box without seventeen discs, 0 to 3, with flows of 5 - u, 1 - u and 0.1 - u in through the edges."""
    large = [(-4, -3), (4, -3), (-4, 3), (4, 3), (-4, -9), (4, -9), (-4, 9), (4, 9), (0, 0), (0, 6), (0, -6)]
    small = [(-3.2, -6), (-3.2, 6), (3.2, -6), (3.2, 6), (-3.2, 0), (3.2, 0)]
    discs = [[(*middle, 1.0) for middle in large], [(*middle, 0.4) for middle in small]]
    holes = [*discs[0], *discs[1]]
    low, high = [-8.0, -12.0], [8.0, 12.0]

    def flow(outside: float, points: np.ndarray, out: np.ndarray) -> Term:
        times = c.rng.uniform(0.0, 3.0, len(points))
        return Term(
            lambda u, along, across: along * u.x + across * u.y - outside + u,
            np.column_stack([times, points]),
            data={"along": out[:, 0], "across": out[:, 1]},
        )

    sides = c.faces(low, high, [0, 1])
    terms = [
        Term(lambda u: u.t - u.xx - u.yy, c.inside([0.0, *low], [3.0, *high], holes=holes)),
        Term(lambda u: u, c.inside([0.0, *low], [0.0, *high], SIDE, holes)),
        flow(5.0, *c.balls(discs[0])),
        flow(1.0, *c.balls(discs[1])),
        flow(0.1, sides, normals(sides, low, high)),
    ]
    return Case("txy", terms, solvers.heat_2d_cg(holes, [5.0] * len(large) + [1.0] * len(small), 0.1))


def wave_2d_cg(c: Context) -> Case:
    """A wave from rest where the square of the speed is 1 or 12, 0 to 5."""
    low, high = [0.0, -1.0, -1.0], [5.0, 1.0, 1.0]
    inside, sides = c.inside(low, high), c.faces(low, high, [1, 2])
    out = normals(sides, low, high)
    field = np.where(solvers.random_field() > 0.0, 12.0, 1.0)

    def squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return solvers.interpolated(field, 0.5 * (y + 1.0), 0.5 * (x + 1.0))

    def start(x: Any, y: Any) -> Any:
        return exp(-((x + 0.5) * (x + 0.5) + y * y) / 0.18)

    terms = [
        Term(lambda u, slowness: u.xx + u.yy - slowness * u.tt, inside, data={"slowness": 1.0 / squares(*inside[:, 1:].T)}),
        Term(lambda u, x, y: (u - start(x, y), u.t), c.inside(low, [0.0, 1.0, 1.0], SIDE)),
        Term(lambda u, along, across: along * u.x + across * u.y, sides, data={"along": out[:, 1], "across": out[:, 2]}),
    ]
    return Case("txy", terms, solvers.wave_2d_cg(squares, start))


def wave_2d_ms(c: Context) -> Case:
    """The equation that the paper's solution satisfies: u.tt has the other sign, so conditions at the end are needed too."""
    low, high = [0.0, 0.0, 0.0], [100.0, 1.0, 1.0]
    places = c.inside(low, high, TESTS)

    def exact(t: Any, x: Any, y: Any, sine: Any, cosine: Any, sinh: Any) -> Any:
        return (sine(PI * x) * sinh(PI * y) + sinh(3.0 * PI * x) * sine(2.0 * PI * y)) * cosine(PI * t)

    def formula(t: Any, x: Any, y: Any) -> Any:
        return exact(t, x, y, sin, cos, lambda a: 0.5 * (exp(a) - exp(-a)))

    terms = [
        Term(lambda u: u.tt + u.xx + 2.0 * u.yy, c.inside(low, high)),
        Term(lambda u, t, x, y: u - formula(t, x, y), c.faces(low, high, [0])),
        Term(lambda u, t, x, y: u - formula(t, x, y), c.faces(low, high, [1, 2])),
    ]
    return Case("txy", terms, (places, {"u": exact(*places.T, np.sin, np.cos, np.sinh)}))


def gs(c: Context) -> Case:
    """Gray and Scott's reaction, 200 units of time, without conditions on the sides."""
    low, high = [0.0, -1.0, -1.0], [200.0, 1.0, 1.0]
    terms = [
        Term(
            lambda u, v: (
                u.t - 1e-5 * (u.xx + u.yy) - 0.04 * (1.0 - u) + u * v * v, v.t - 5e-6 * (v.xx + v.yy) + 0.1 * v - u * v * v
            ),
            c.inside(low, high),
        ),
        Term(
            lambda u, v, x, y: (
                u - 1.0 + exp(-80.0 * ((x + 0.05) * (x + 0.05) + (y + 0.02) * (y + 0.02))),
                v - exp(-80.0 * ((x - 0.05) * (x - 0.05) + (y - 0.02) * (y - 0.02))),
            ),
            c.inside(low, [0.0, 1.0, 1.0], SIDE),
        ),
    ]  # fmt: skip
    return Case("txy", terms, references.gray_scott(0.04, 0.1, (1e-5, 5e-6)))


def ks(c: Context) -> Case:
    """Kuramoto and Sivashinsky's equation, without conditions on the sides."""
    alpha, beta, gamma = 100.0 / 16.0, 100.0 / 16.0**2, 100.0 / 16.0**4
    low, high = [0.0, 0.0], [1.0, 2.0 * PI]
    terms = [
        Term(lambda u: u.t + alpha * u * u.x + beta * u.xx + gamma * u.xxxx, c.inside(low, high)),
        Term(lambda u, x: u - cos(x) * (1.0 + sin(x)), c.inside(low, [0.0, 2.0 * PI], SIDE)),
    ]
    return Case("tx", terms, references.kuramoto(alpha, beta, gamma))


def pnd(c: Context) -> Case:
    """Poisson's equation in five dimensions."""
    low, high = [0.0] * 5, [1.0] * 5
    places, k = c.inside(low, high, TESTS), PI / 2.0
    terms = [
        Term(
            lambda u, v, w, x, y, z: (
                u.vv + u.ww + u.xx + u.yy + u.zz
                + k * k * (sin(k * v) + sin(k * w) + sin(k * x) + sin(k * y) + sin(k * z))
            ),
            c.inside(low, high),
        ),
        Term(
            lambda u, v, w, x, y, z: u - sin(k * v) - sin(k * w) - sin(k * x) - sin(k * y) - sin(k * z),
            c.faces(low, high, range(5)),
        ),
    ]  # fmt: skip
    return Case("vwxyz", terms, (places, {"u": np.sin(k * places).sum(axis=1)}))


def hnd(c: Context) -> Case:
    """Heat in a ball of five dimensions, with a given flow through its surface."""

    def ball(count: int, *, surface: bool = False) -> np.ndarray:
        points = c.rng.normal(size=(count, 5))
        radius = 1.0 if surface else c.rng.uniform(0.0, 1.0, (count, 1)) ** 0.2
        return np.asarray(radius * points / np.linalg.norm(points, axis=1, keepdims=True))

    def in_time(points: np.ndarray) -> np.ndarray:
        return np.column_stack([c.rng.uniform(0.0, 1.0, len(points)), points])

    places = in_time(ball(TESTS))
    terms = [
        Term(
            lambda u, t, v, w, x, y, z: (
                u.t - 0.2 * (u.vv + u.ww + u.xx + u.yy + u.zz)
                + 0.2 * (v * v + w * w + x * x + y * y + z * z) * exp(t + 0.5 * (v * v + w * w + x * x + y * y + z * z))
            ),
            in_time(ball(INSIDE)),
        ),
        Term(
            lambda u, t, v, w, x, y, z: v * u.v + w * u.w + x * u.x + y * u.y + z * u.z - exp(t + 0.5),
            in_time(ball(SIDE, surface=True)),
        ),
        Term(
            lambda u, v, w, x, y, z: u - exp(0.5 * (v * v + w * w + x * x + y * y + z * z)),
            np.column_stack([np.zeros(SIDE), ball(SIDE)]),
        ),
    ]  # fmt: skip
    return Case("tvwxyz", terms, (places, {"u": np.exp(places[:, 0] + 0.5 * (places[:, 1:] ** 2).sum(axis=1))}))


def pinv(c: Context) -> Case:
    """The coefficient of Poisson's equation from 2,500 measurements of the solution."""
    low, high = [0.0, 0.0], [1.0, 1.0]
    x, y = np.stack(np.meshgrid(np.linspace(0.0, 1.0, 50), np.linspace(0.0, 1.0, 50)), axis=-1).reshape(-1, 2).T
    seen = np.sin(PI * x) * np.sin(PI * y) + c.rng.normal(0.0, NOISE, len(x))
    places = c.inside(low, high, TESTS)
    terms = [
        Term(
            lambda u, a, x, y: (
                a * (u.xx + u.yy) + a.x * u.x + a.y * u.y + 2.0 * PI * PI * sin(PI * x) * sin(PI * y) * _share(x, y)
                + 2.0 * PI * ((2.0 * x - 1.0) * cos(PI * x) * sin(PI * y) + (2.0 * y - 1.0) * sin(PI * x) * cos(PI * y))
                * _share(x, y) * _share(x, y)
            ),
            c.inside(low, high),
        ),
        Term(lambda u, seen: u - seen, np.column_stack([x, y]), data={"seen": seen}),
        Term(lambda a, x, y: a - _share(x, y), c.faces(low, high, [0, 1])),
    ]  # fmt: skip
    x, y = places.T
    return Case("xy", terms, (places, {"u": np.sin(PI * x) * np.sin(PI * y), "a": np.asarray(_share(x, y))}))


def _share(x: Any, y: Any) -> Any:
    """The coefficient, of arrays or formulas."""
    return 1.0 / (1.0 + x * x + y * y + (x - 1.0) * (x - 1.0) + (y - 1.0) * (y - 1.0))


def hinv(c: Context) -> Case:
    """The coefficient of the heat equation from 2,500 measurements of the solution."""
    low, high = [0.0, -1.0, -1.0], [1.0, 1.0, 1.0]
    measured, places = c.inside(low, high, 2500), c.inside(low, high, TESTS)

    def waves(points: np.ndarray) -> np.ndarray:
        return np.asarray(np.sin(PI * points[:, 1]) * np.sin(PI * points[:, 2]))

    def source(t: Any, x: Any, y: Any) -> Any:
        wave, along, across = sin(PI * x) * sin(PI * y), cos(PI * x) * sin(PI * y), sin(PI * x) * cos(PI * y)
        slopes = along * along + across * across
        return exp(-t) * ((4.0 * PI * PI - 1.0) * wave + PI * PI * (2.0 * wave * wave - slopes))

    seen = np.exp(-measured[:, 0]) * waves(measured) + c.rng.normal(0.0, NOISE, len(measured))
    terms = [
        Term(
            lambda u, a, t, x, y: (u.t - a * (u.xx + u.yy) - a.x * u.x - a.y * u.y - source(t, x, y), a.t),
            c.inside(low, high),
        ),
        Term(lambda u, seen: u - seen, measured, data={"seen": seen}),
        Term(lambda a, x, y: a - 2.0 - sin(PI * x) * sin(PI * y), c.faces(low, high, [1, 2])),
    ]
    return Case("txy", terms, (places, {"u": np.exp(-places[:, 0]) * waves(places), "a": 2.0 + waves(places)}))


CASES: dict[str, Callable[[Context], Case]] = {
    "Burgers1d-C": burgers_1d, "Poisson2d-C": poisson_2d_c, "Poisson2d-CG": poisson_2d_cg, "Poisson3d-CG": poisson_3d_cg,
    "Heat2d-MS": heat_2d_ms, "Heat2d-CG": heat_2d_cg, "Heat2d-LT": heat_2d_lt, "NS2d-C": ns_2d_c,
    "NS2d-CG": ns_2d_cg, "Wave1d-C": wave_1d_c, "Wave2d-CG": wave_2d_cg, "Wave2d-MS": wave_2d_ms, "GS": gs, "KS": ks,
    "PNd": pnd, "HNd": hnd, "PInv": pinv, "HInv": hinv,
}  # fmt: skip

LEFT_OUT = {
    "Burgers2d-C": "its start is a file of random numbers that is in no copy of its code",
    "Poisson2d-MS": "its solution is in no copy of its code; its coefficient jumps",
    "Heat2d-VC": "the solution in its code is far from that of its equation with the coefficient of its code",
    "NS2d-LT": "its solution is in no copy of its code, and needs a solver of flows with an open end",
}
