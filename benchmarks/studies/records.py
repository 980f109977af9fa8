"""The smallest errors of networks for five equations, beside the smallest published ones.

Each problem says in its docstring which features, points and conditions it takes. All are solved by `solve`: Adam, then
SSBroyden, in float64, on the points of a quadrature or on random points that are drawn anew by the residual.

    python -m benchmarks.studies.records                       # five problems, five seeds, 10 minutes each at most
    python -m benchmarks.studies.records burgers --seeds 0 1 --seconds 120

Seconds are those of processors, of all threads together; CHAINS_NUM_THREADS=1 takes one core.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.problems.burgers import example
from chains import Adam, Chain, Dense, Layer, ResidualProblem, Term, solve, tanh
from chains.expr import cos, erf, exp, sin, sqrt
from chains.layers import Periodic
from chains.solving.solve import Solution

ADAM, RATE = 1000, 2e-3  # steps
ITERATIONS = 10**6  # at most
EVERY = 1000  # iterations of a round on fixed points, half of them on points that are drawn


class Record(NamedTuple):
    """An equation, a network for it, and the error of parameters."""

    problem: ResidualProblem
    net: Chain
    error: Callable[[np.ndarray], float]
    candidates: Callable[[int], np.ndarray] | None = None  # of random points, for a seed


class Even(Layer):
    """Coordinates (t, x) become t and cos(pi x), ..., cos(harmonics pi x): the network is even in x, and has the period 2."""

    def __init__(self, harmonics: int) -> None:
        self.harmonics = harmonics

    def fixed_input(self) -> tuple[int, ...]:
        return (2,)

    def declare(self, d: Any) -> None:
        d.output((1 + self.harmonics,))

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.copy(y.slice(-1, 0, 1), x.slice(-1, 0, 1))
        frequencies = ops.constant("frequencies", math.pi * np.arange(1.0, self.harmonics + 1.0))
        ops.map(y.slice(-1, 1, 1 + self.harmonics), lambda x, w: cos(w * x), x.slice(-1, 1, 2), frequencies)


def hidden(inputs: int, *widths: int, outputs: int = 1) -> list[Layer]:
    pairs = itertools.pairwise([inputs, *widths])
    return [*(Dense(a, b, tanh) for a, b in pairs), Dense(widths[-1], outputs)]


def legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The points of Gauss and Legendre on [0, 1] and their weights."""
    s, weights = np.polynomial.legendre.leggauss(count)
    return (1.0 + s) / 2.0, weights / 2.0


def product(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The points of a product of two rules, (points, 2), and their weights, of mean one."""
    points = np.column_stack([each.ravel() for each in np.meshgrid(first[0], second[0], indexing="ij")])
    weights = np.outer(first[1], second[1]).ravel()
    return points, weights / weights.mean()


def uniform(low: float, high: float, count: int) -> Callable[[int], np.ndarray]:
    """Random points of a square, (count, 2), for a seed."""
    return lambda seed: np.random.default_rng(seed).uniform(low, high, (count, 2))


def relative(problem: ResidualProblem, net: Chain, points: np.ndarray, **exact: np.ndarray) -> Callable[[np.ndarray], float]:
    """The relative L2 error of the outputs `exact`, together, as a function of the parameters."""
    known = np.concatenate(list(exact.values()))

    def error(p: np.ndarray) -> float:
        found = problem.evaluate(net, p, points)
        return float(np.linalg.norm(np.concatenate([found[name] for name in exact]) - known) / np.linalg.norm(known))

    return error


def grid(t: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.column_stack([each.ravel() for each in np.meshgrid(t, x, indexing="ij")])


# Burgers


def burgers() -> Record:
    """Raissi's problem, `examples/burgers.py --accurate`. The solution is odd and has the period 2: x >= 0 is all of it.

    Features: three harmonics of x. Points: 98 times 81 of Gauss and Legendre, dense at the shock.
    """
    problem, net = example.accurate_of(example.ACCURATE_POINTS)
    others = grid(np.linspace(0.01, 1.0, 100), np.linspace(0.0, 1.0, 129))
    return Record(problem, net, relative(problem, net, others, u=example.exact(others)))


# Allen and Cahn

DIFFUSION, WAVES, STEPS = 1e-4, 2048, 1600
SAMPLES = 2**18  # of the initial values, whose edge has waves of all lengths


def allen_cahn() -> Record:
    """Raissi's problem, u = x^2 cos(pi x) at first. The solution is even and has the period 2: 0 <= x <= 1 is all of it.

    Features: four cosines of x. The transform has the edge of x^2 at x = 1, rounded as by diffusion, which falls as values near
    -1 do, by exp(-10 t). Points: 60 in time, more of them early, times 120 in x, dense at the fronts.
    """
    s, of_s = legendre(60)
    z, of_z = (np.arange(120) + 0.5) / 120.0, np.ones(120)  # exact for even periodic functions
    x, of_x = z - 0.8 / (4.0 * math.pi) * np.sin(4.0 * math.pi * z), of_z * (1.0 - 0.8 * np.cos(4.0 * math.pi * z))
    points, weights = product((s * s, 2.0 * s * of_s), (x, of_x))

    def periodic(u: Any, t: Any, x: Any) -> Any:
        edge, width = cos(0.5 * math.pi * x), math.pi * sqrt(DIFFUSION * t)
        rounded = edge * erf(edge / width) + width / math.sqrt(math.pi) * exp(-((edge / width) ** 2))  # |edge| at t = 0
        smooth = cos(math.pi * x) * (x * x + 4.0 / math.pi * edge)
        return u + exp(-4.0 * t) * (smooth - u) - exp(-10.0 * t) * 4.0 / math.pi * cos(math.pi * x) * rounded

    equation = Term(lambda u: u.t - DIFFUSION * u.xx - 5.0 * u + 5.0 * u * u * u, points, weight=weights)
    problem = ResidualProblem(("t", "x"), ("u",), [equation], transform=periodic)
    net = Chain(Even(4), *hidden(5, 20, 20, 20))
    times, exact = allen_cahn_by_waves()
    return Record(problem, net, relative(problem, net, grid(times, np.linspace(0.0, 1.0, 257)), u=exact.ravel()))


@functools.cache
def allen_cahn_by_waves() -> tuple[np.ndarray, np.ndarray]:
    """Times, and the solution at 257 places of [0, 1]: 2,048 waves, the method of Runge and Kutta, diffusion solved exactly.

    It is right to 1e-11. With values at 1,024 places instead of the waves of many, the error is 4e-6, and 3e-5 at t = 0.02.
    """
    x = 2.0 * np.arange(SAMPLES) / SAMPLES - 1.0
    decay = np.exp(-DIFFUSION * (math.pi * WAVES * np.fft.rfftfreq(WAVES)) ** 2 / (2 * STEPS))  # of half a step

    def reaction(waves: np.ndarray) -> np.ndarray:
        u = np.fft.irfft(waves)
        return np.fft.rfft(5.0 * (u - u**3) / STEPS)

    waves, found = np.fft.rfft(x * x * np.cos(math.pi * x))[: WAVES // 2 + 1] * (WAVES / SAMPLES), []
    for step in range(1, STEPS + 1):
        a = reaction(waves)
        b = reaction(decay * (waves + a / 2.0))
        c = reaction(decay * waves + b / 2.0)
        d = reaction(decay * (decay * waves + c))
        waves = decay * (decay * (waves + a / 6.0) + (b + c) / 3.0) + d / 6.0
        if step % (STEPS // 50) == 0:
            u = np.fft.irfft(waves)
            found.append(np.append(u[WAVES // 2 :], u[0])[:: WAVES // 512])
    return np.arange(1, 51) / 50.0, np.array(found)


# Helmholtz


def helmholtz() -> Record:
    """Wang, Teng and Perdikaris' problem, one wave by four.

    Features: eight harmonics of x and of y, of twice the length of the square. The factor that is zero at the boundary is of
    such harmonics too. Points: 3,000, drawn by the residual.
    """

    def equation(u: Any, x: Any, y: Any) -> Any:
        return u.xx + u.yy + u - (1.0 - 17.0 * math.pi**2) * sin(math.pi * x) * sin(4.0 * math.pi * y)

    problem = ResidualProblem(
        ("x", "y"), ("u",), [Term(equation, uniform(-1.0, 1.0, 3000)(0))],
        transform=lambda u, x, y: cos(0.5 * math.pi * x) * cos(0.5 * math.pi * y) * u,
    )  # fmt: skip
    net = Chain(Periodic((4.0, 4.0), 8), *hidden(32, 20, 20))
    others = grid(np.linspace(-1.0, 1.0, 101), np.linspace(-1.0, 1.0, 101))
    exact = np.sin(math.pi * others[:, 0]) * np.sin(4.0 * math.pi * others[:, 1])
    return Record(problem, net, relative(problem, net, others, u=exact), uniform(-1.0, 1.0, 24000))


# The wave


def wave() -> Record:
    """Two tones of a string, Wave1d-C of PINNacle. It is odd and has the period 2 in x.

    Features: four harmonics of t and of x, of twice their lengths. The factor that is zero at the start and at the ends is of
    such harmonics too. Points: 2,500, drawn by the residual.
    """

    def standing(u: Any, t: Any, x: Any) -> Any:
        started = sin(0.5 * math.pi * t)
        return sin(math.pi * x) + sin(4.0 * math.pi * x) / 2.0 + started * started * sin(math.pi * x) * u

    problem = ResidualProblem(
        ("t", "x"), ("u",), [Term(lambda u: u.tt - 4.0 * u.xx, uniform(0.0, 1.0, 2500)(0))],
        transform=standing,
    )  # fmt: skip
    net = Chain(Periodic((2.0, 2.0), 4), *hidden(16, 24, 24))
    others = grid(np.linspace(0.0, 1.0, 101), np.linspace(0.0, 1.0, 101))
    tones = [np.sin(n * math.pi * others[:, 1]) * np.cos(2.0 * n * math.pi * others[:, 0]) for n in (1, 4)]
    exact = tones[0] + tones[1] / 2.0
    return Record(problem, net, relative(problem, net, others, u=exact), uniform(0.0, 1.0, 20000))


# The cavity

REYNOLDS = 100.0
DEGREE = 48  # the velocities change by 1.6e-4 from degree 36 to 56


def cavity() -> Record:
    """A cavity whose lid moves with 4 x (1 - x), Reynolds number 100, NS2d-C of PINNacle: the error of u and v together.

    Walls and lid are exact. Points: 60 times 60 of Gauss and Legendre, dense at the walls.
    """
    z, of_z = legendre(60)
    x, of_x = z - 0.9 / (2.0 * math.pi) * np.sin(2.0 * math.pi * z), of_z * (1.0 - 0.9 * np.cos(2.0 * math.pi * z))
    points, weights = product((x, of_x), (x, of_x))

    def flow(u: Any, v: Any, p: Any) -> Any:
        along_x = u * u.x + v * u.y + p.x - (u.xx + u.yy) / REYNOLDS
        along_y = u * v.x + v * v.y + p.y - (v.xx + v.yy) / REYNOLDS
        return along_x, along_y, u.x + v.y

    def walls(u: Any, v: Any, p: Any, x: Any, y: Any) -> Any:
        bubble = 16.0 * x * (1.0 - x) * y * (1.0 - y)
        return 4.0 * x * (1.0 - x) * y * y * y + bubble * u, bubble * v, p

    problem = ResidualProblem(("x", "y"), ("u", "v", "p"), [Term(flow, points, weight=weights)], transform=walls)
    net = Chain(*hidden(2, 24, 24, 24, outputs=3))
    others, u, v = cavity_by_polynomials(DEGREE)
    return Record(problem, net, relative(problem, net, others, u=u, v=v))


@functools.cache
def cavity_by_polynomials(degree: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """51 times 51 places, and u and v there: the stream function as a polynomial, by collocation and Newton's method.

    The stream function is (1 - X^2)(1 - Y^2) q(X, Y) for X = 2 x - 1, Y = 2 y - 1, as in Trefethen, "Spectral methods in
    MATLAB", 2000, chapter 14. The lid gives q(X, 1), and q is zero at the walls.
    """
    nodes, one = slopes_within(degree)

    def slope(m: int, n: int) -> np.ndarray:  # d^m/dx^m d^n/dy^n of the stream function, from q
        return np.kron(one[m], one[n]) * 2.0 ** (m + n)

    along_x, along_y = slope(1, 0), slope(0, 1)
    whirl_x, whirl_y = slope(3, 0) + slope(1, 2), slope(2, 1) + slope(0, 3)
    friction = (slope(4, 0) + 2.0 * slope(2, 2) + slope(0, 4)) / REYNOLDS
    inner = np.ravel(np.outer(*2 * [np.arange(degree + 1) % degree != 0]))
    q = np.zeros((degree + 1, degree + 1))
    q[:, 0] = -0.25  # u = -4 (1 - X^2) q at Y = 1, and the lid's speed is 1 - X^2
    q = q.ravel()
    change = np.ones(1)
    while np.abs(change).max() > 1e-10:
        u, v, at_x, at_y = along_y @ q, -(along_x @ q), whirl_x @ q, whirl_y @ q
        matrix = u[:, None] * whirl_x + at_x[:, None] * along_y + v[:, None] * whirl_y - at_y[:, None] * along_x - friction
        change = np.linalg.solve(matrix[np.ix_(inner, inner)], (u * at_x + v * at_y - friction @ q)[inner])
        q[inner] -= change
    x = np.linspace(0.0, 1.0, 51)
    to_places = np.kron(*2 * [barycentric(nodes, 2.0 * x - 1.0)])
    return grid(x, x), to_places @ (along_y @ q), -(to_places @ (along_x @ q))


def slopes_within(degree: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Chebyshev's points, and the matrices from q there to the derivatives of (1 - X^2) q of order 0 to 4."""
    order = np.arange(degree + 1)
    nodes = np.cos(math.pi * order / degree)
    ends = np.where(order % degree == 0, 2.0, 1.0) * (-1.0) ** order
    slope = np.outer(ends, 1.0 / ends) / (nodes[:, None] - nodes[None, :] + np.eye(degree + 1))
    slope -= np.diag(slope.sum(axis=1))
    d = [np.linalg.matrix_power(slope, k) for k in range(5)]
    inside, twice = np.diag(1.0 - nodes * nodes), np.diag(2.0 * nodes)
    return nodes, [inside @ d[k] - k * twice @ d[max(k - 1, 0)] - k * (k - 1) * d[max(k - 2, 0)] for k in range(5)]


def barycentric(nodes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The values at places of a polynomial, from those at Chebyshev's points, as a matrix."""
    weights = (-1.0) ** np.arange(len(nodes))
    weights[[0, -1]] *= 0.5
    apart = places[:, None] - nodes[None, :]
    exact = apart == 0.0
    terms = weights / np.where(exact, 1.0, apart)
    matrix = terms / terms.sum(axis=1, keepdims=True)
    matrix[exact.any(axis=1)] = exact[exact.any(axis=1)]
    return matrix


RECORDS: dict[str, tuple[Callable[[], Record], float, str]] = {
    "burgers": (burgers, 8.2e-9, "Toscano et al. 2025"),
    "allen_cahn": (allen_cahn, 9.4e-7, "Kiyani et al. 2025"),
    "helmholtz": (helmholtz, 1e-5, "Anagnostopoulos et al. 2024"),
    "wave": (wave, 9.8e-2, "Hao et al. 2024"),
    "cavity": (cavity, 3.6e-2, "Hao et al. 2024"),
}


def solved(made: Record, seed: int, seconds: float) -> Solution:
    """The solution after `seconds` of processors. Its metrics are "error" and "processor", in seconds."""
    begun = time.process_time()
    metrics = {"error": made.error, "processor": lambda p: time.process_time() - begun}
    before = signal.signal(signal.SIGPROF, signal.default_int_handler)  # as Ctrl-C, which ends a run after an iteration
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return solve(
            made.net, made.net.init(seed=seed, dtype=np.float64), made.problem, adam=ADAM, optimizer=Adam(RATE),
            iterations=ITERATIONS, every=EVERY if made.candidates is None else EVERY // 2, candidates=made.candidates,
            metrics=metrics, seed=seed,
        )  # fmt: skip
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", nargs="*", choices=[*RECORDS, []], default=list(RECORDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--seconds", type=float, default=600.0, help="of processors, of each run, at most")
    parser.add_argument("--rounds", action="store_true", help="print each round")
    chosen = parser.parse_args(arguments)

    for name in chosen.problems:
        make, published, source = RECORDS[name]
        made, errors = make(), []
        for seed in chosen.seeds:
            begun = time.process_time()
            solution = solved(made, seed, chosen.seconds)
            taken = time.process_time() - begun
            if chosen.rounds:
                print(solution)
            errors.append(made.error(solution.p))
            rounds = zip(solution.metrics["processor"], solution.metrics["error"], strict=True)
            first = next((f"{at:.0f} s" for at, error in rounds if error < published), "not reached")
            print(f"{name} seed {seed}: {errors[-1]:.2e} after {taken:.0f} s; {published:.1e}: {first}", flush=True)
        print(f"{name}: median {statistics.median(errors):.2e}, worst {max(errors):.2e}; published {published:.1e} ({source})")


if __name__ == "__main__":
    main()
