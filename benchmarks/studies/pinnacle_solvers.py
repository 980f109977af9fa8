"""Solutions of problems of PINNacle that are in no file at hand: finite volumes with cut cells, and a wave on a grid.

The random coefficients are those of the benchmark's own generator and seed: their ranks equal those of its pictures
``data/heat_2d_coef_256.png`` and ``data/darcy_2d_coef_256.png``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.studies.pinnacle_references import Places

SEED, RESOLUTION = 20220722, 256  # of the random coefficients
FINER = {2: 32, 3: 8}  # points along each side of a cell, for its open parts, by the number of coordinates
LEAST = 1e-3  # the open part of a cell, below which it has no unknown
Hole = tuple[float, ...]  # the middle and the radius


def random_field() -> np.ndarray:
    """A Gaussian field on a grid of the unit square, (y, x), with amplitudes that fall as 1 / k**2; mean 0 and deviation 1."""
    random = np.random.RandomState(SEED)
    k = np.fft.fftfreq(RESOLUTION, 1.0 / RESOLUTION)
    square = k[:, None] ** 2 + k**2
    square[0, 0] = np.inf
    noise = random.normal(size=square.shape) + 1j * random.normal(size=square.shape)
    field = np.fft.ifft2(noise / square).real
    return np.asarray((field - field.mean()) / field.std())


def interpolated(field: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """A field on a grid of the unit square, linear between its points along each axis, at these shares of rows and columns."""
    most = len(field) - 1
    i, j = (np.minimum((each * most).astype(int), most - 1) for each in (row, column))
    a, b = row * most - i, column * most - j
    below = (1.0 - b) * field[i, j] + b * field[i, j + 1]
    return np.asarray((1.0 - a) * below + a * ((1.0 - b) * field[i + 1, j] + b * field[i + 1, j + 1]))


@dataclass(frozen=True)
class CutCells:
    """A box without balls, in cells of a grid: the open part of each cell and face, and the area of each ball in a cell.

    The sum over the faces of a cell, each with its normal, and over the surface in it is zero; this gives the surface.
    """

    low: np.ndarray
    step: np.ndarray
    volumes: np.ndarray  # the open part of each cell
    faces: list[np.ndarray]  # for each axis the open parts of faces, one more along it than there are cells

    @staticmethod
    def of(low: Sequence[float], high: Sequence[float], counts: Sequence[int], holes: Sequence[Hole]) -> CutCells:
        """The cells of a box; `counts` of them along each axis."""
        edges = [np.linspace(a, b, count + 1) for a, b, count in zip(low, high, counts, strict=True)]
        step = np.array([each[1] - each[0] for each in edges])
        finer = FINER[len(counts)]
        offsets = (np.arange(finer) + 0.5) / finer
        middles = [each[:-1, None] + size * offsets for each, size in zip(edges, step, strict=True)]
        volumes = _open(middles, holes)
        faces = [
            _open([edges[k][:, None] if k == axis else middles[k] for k in range(len(edges))], holes)
            for axis in range(len(edges))
        ]
        return CutCells(np.array(low, float), step, volumes, faces)

    def middles(self) -> list[np.ndarray]:
        """The coordinates of the middles of cells, each of the grid's shape."""
        axes = [a + h * (np.arange(n) + 0.5) for a, h, n in zip(self.low, self.step, self.volumes.shape, strict=True)]
        return list(np.meshgrid(*axes, indexing="ij"))

    def surfaces(self) -> np.ndarray:
        """The area of the balls' surfaces in each cell."""
        parts = [
            np.diff(face, axis=axis) * self.step.prod() / self.step[axis] for axis, face in enumerate(self.faces)
        ]  # fmt: skip
        return np.asarray(np.sqrt(sum(part**2 for part in parts)))

    def laplacian(self) -> tuple[object, np.ndarray]:
        """The sparse matrix of flows into open cells from their neighbours, and the flat positions of these cells."""
        from scipy import sparse

        kept = np.flatnonzero(self.volumes > LEAST)
        number = np.full(self.volumes.size, -1)
        number[kept] = np.arange(len(kept))
        grid = number.reshape(self.volumes.shape)
        rows, columns, flows = [], [], []
        for axis, face in enumerate(self.faces):
            inner = [slice(None)] * face.ndim
            inner[axis] = slice(1, -1)
            flow = (face[tuple(inner)] * self.step.prod() / self.step[axis] ** 2).ravel()
            inner[axis] = slice(None, -1)
            a = grid[tuple(inner)].ravel()
            inner[axis] = slice(1, None)
            b = grid[tuple(inner)].ravel()
            both = (a >= 0) & (b >= 0) & (flow > 0.0)
            a, b, flow = a[both], b[both], flow[both]
            rows += [a, b, a, b]
            columns += [b, a, a, b]
            flows += [flow, flow, -flow, -flow]
        entries = np.concatenate(flows), (np.concatenate(rows), np.concatenate(columns))
        return sparse.csr_matrix(entries, shape=(len(kept), len(kept))), kept


def _open(axes: list[np.ndarray], holes: Sequence[Hole]) -> np.ndarray:
    """The share of points outside the balls, for each cell; `axes` has the points of each axis, (cells, points of a cell)."""
    found = np.ones([len(each) for each in axes])
    for *middle, radius in holes:
        near = [
            np.flatnonzero((abs(each - x) <= 1.1 * radius + np.ptp(each, axis=1).max()).any(axis=1))
            for each, x in zip(axes, middle, strict=True)
        ]
        square = np.zeros(())
        for each, rows, x in zip(axes, near, middle, strict=True):
            square = square[..., None, None] + (each[rows] - x) ** 2  # (cells, points, cells, points, ...)
        outside = (square > radius**2).mean(axis=tuple(range(1, square.ndim, 2)))
        found[np.ix_(*near)] += outside - 1.0
    return np.clip(found, 0.0, 1.0)


def poisson_3d(
    source: Callable[..., np.ndarray], squares: tuple[float, float], holes: Sequence[Hole], count: int = 64
) -> Places:
    """-u_xx - u_yy - u_zz + k**2 u = f in the unit cube without balls, no flow through all surfaces.

    Parameters
    ----------
    source : callable
        f of x, y and z.
    squares : pair of float
        k**2 below and above z = 0.5.
    holes : sequence
        The balls.
    count : int
        Cells along each axis.
    """
    from scipy import sparse
    from scipy.sparse.linalg import cg

    cells = CutCells.of([0.0] * 3, [1.0] * 3, [count] * 3, holes)
    flows, kept = cells.laplacian()
    x, y, z = (each.ravel()[kept] for each in cells.middles())
    volume = cells.volumes.ravel()[kept] * cells.step.prod()
    factor = np.where(z < 0.5, *squares)
    matrix = sparse.diags(volume * factor) - flows
    u, failed = cg(matrix, volume * source(x, y, z), rtol=1e-8, M=sparse.diags(1.0 / matrix.diagonal()))
    assert not failed
    whole = volume > 0.999 * cells.step.prod()
    return np.column_stack([x, y, z])[whole], {"u": u[whole]}


def heat_2d_cg(
    holes: Sequence[Hole], given: Sequence[float], outside: float, step: float = 1.0 / 15.0, steps: int = 60
) -> Places:
    """Heat in the box from (-8, -12) to (8, 12) without discs, 0 to 3, from 0; `given` - u flows in through each edge.

    Parameters
    ----------
    holes : sequence
        The discs.
    given : sequence of float
        For each disc.
    outside : float
        The same for the sides of the box.
    step : float
        The size of a cell.
    steps : int
        Steps of the second-order backward formula.
    """
    from scipy import sparse
    from scipy.sparse.linalg import splu

    cells = CutCells.of([-8.0, -12.0], [8.0, 12.0], [round(16.0 / step), round(24.0 / step)], holes)
    flows, kept = cells.laplacian()
    grid = cells.middles()
    nearest = np.argmin([np.hypot(grid[0] - x, grid[1] - y) - radius for x, y, radius in holes], axis=0)
    area = cells.surfaces()
    inflow = area * np.array(given)[nearest]
    for side in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        area[side] += step
        inflow[side] += outside * step
    between = 1.0 + 0.5 * step * cells.volumes  # from the middle of the open part to the surface
    area, inflow = area / between, inflow / between
    area, inflow, volume = (each.ravel()[kept] for each in (area, inflow, cells.volumes * step**2))
    dt = 3.0 / steps
    operator = sparse.diags(area) - flows
    first = splu(sparse.csc_matrix(sparse.diags(volume / dt) + operator))
    later = splu(sparse.csc_matrix(sparse.diags(1.5 * volume / dt) + operator))
    earlier, u = np.zeros(len(kept)), first.solve(inflow)
    times, found = [0.0], [earlier]
    whole = np.flatnonzero(volume > 0.999 * step**2)[::7]
    for number in range(2, steps + 1):
        earlier, u = u, later.solve(inflow + volume / dt * (2.0 * u - 0.5 * earlier))
        if number % (steps // 10) == 0:
            times.append(number * dt)
            found.append(u)
    places = np.column_stack([each.ravel()[kept][whole] for each in grid])
    points = np.column_stack([np.repeat(times, len(whole)), np.tile(places, (len(times), 1))])
    return points, {"u": np.concatenate([each[whole] for each in found])}


def wave_2d_cg(
    speeds: Callable[[np.ndarray, np.ndarray], np.ndarray], start: Callable[..., np.ndarray], count: int = 300
) -> Places:
    """u_tt = c (u_xx + u_yy) in the square from -1 to 1, 0 to 5, from rest, no slope across the sides, by leapfrog steps.

    Parameters
    ----------
    speeds : callable
        c of x and y.
    start : callable
        u at 0 of x and y.
    count : int
        Cells along each side.
    """
    step = 2.0 / count
    x, y = np.meshgrid(*[-1.0 + step * (np.arange(count) + 0.5)] * 2, indexing="ij")
    c = speeds(x, y)
    steps = 50 * int(np.ceil(5.0 / 50.0 / (0.6 * step / np.sqrt(c.max()))))
    dt = 5.0 / steps
    factor = c * (dt / step) ** 2

    def change(u: np.ndarray) -> np.ndarray:
        wide = np.pad(u, 1, mode="edge")
        return factor * (wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2] - 4.0 * u)

    u = start(x, y)
    found, earlier, u = [u], u, u + 0.5 * change(u)
    for number in range(2, steps + 1):
        earlier, u = u, 2.0 * u - earlier + change(u)
        if number % (steps // 50) == 0:
            found.append(u)
    thin = np.s_[2::7, 2::7]
    times, places = np.linspace(0.0, 5.0, 51), np.column_stack([x[thin].ravel(), y[thin].ravel()])
    points = np.column_stack([np.repeat(times, len(places)), np.tile(places, (51, 1))])
    return points, {"u": np.concatenate([each[thin].ravel() for each in found])}
