"""A physics-informed network solves Burgers' equation by Adam, then a quasi-Newton method, without any data.

    u_t + u u_x = (0.01 / pi) u_xx,   -1 <= x <= 1, 0 <= t <= 1,   u(0, x) = -sin(pi x),   u(t, -1) = u(t, 1) = 0

A shock forms at x = 0. A transform of the output of the network N makes the initial and the boundary values exact,

    u = -sin(pi x) + t (1 - x^2) N(t, x),

so that the mean squared residual at points in the domain is the whole loss. The result is compared with the solution by the
Cole-Hopf transform. The problem is that of Raissi, Perdikaris and Karniadakis (2019).

    python examples/burgers.py            # about two seconds: to a relative L2 error of about 1e-2
    python examples/burgers.py --full     # to a relative L2 error below 1e-3
    python examples/burgers.py --full --uniform --rounds 4   # points drawn by the residual find the shock
    python examples/burgers.py --accurate --save burgers.safetensors   # to a relative L2 error of about 1e-8
    python examples/burgers.py --full --jax   # and by JAX from the same start, with this BFGS and with SciPy's
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import Adam, Chain, Dense, ResidualProblem, Term, save, solve, tanh, train
from chains.expr import sin
from chains.layers import Periodic
from chains.minimize.minimize import minimize

VISCOSITY = 0.01 / math.pi
RATE = 2e-3  # of Adam
LOOK_EVERY = 20  # calls
ACCURATE_SECONDS, ACCURATE_POINTS, ACCURATE_EVERY = 465.0, 6000, 1000  # of --accurate
SHOCK_WIDTH = 0.0366  # within which its points are dense


def exact(points: np.ndarray) -> np.ndarray:
    """The solution at points (t, x) by Cole and Hopf: a quotient of integrals against the kernel of the heat equation."""
    # The trapezoidal rule converges faster than any power. The factors are within exp(-50) and exp(50), so that exp(-z^2) must
    # reach far below exp(-100).
    z = np.linspace(-13.0, 13.0, 1301)
    t, x = points[:, :1], points[:, 1:]
    y = x - z * np.sqrt(4.0 * VISCOSITY * t)
    exponent = -np.cos(np.pi * y) / (2.0 * np.pi * VISCOSITY) - z * z
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return -(np.sin(np.pi * y) * weights).sum(axis=1) / weights.sum(axis=1)


def points_of(count: int, seed: int, *, uniform: bool = False) -> np.ndarray:
    """Points (t, x) of the domain, a third of them near the shock, unless `uniform`."""
    rng = np.random.default_rng(seed)
    if uniform:
        return rng.uniform([0.0, -1.0], [1.0, 1.0], (count, 2))
    everywhere = rng.uniform([0.0, -1.0], [1.0, 1.0], (count - count // 3, 2))
    near = np.column_stack([rng.uniform(0.2, 1.0, count // 3), rng.normal(0.0, 0.05, count // 3).clip(-1.0, 1.0)])
    return np.concatenate([everywhere, near])


def clustered(count: int, place: float, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Points of Gauss and Legendre on [0, 1], dense within about `width` of `place`, and the weights of an integral."""
    low, high = (math.asinh((end - place) / width) for end in (0.0, 1.0))
    s, weights = np.polynomial.legendre.leggauss(count)
    q = low + (high - low) * (1.0 + s) / 2.0
    return place + width * np.sinh(q), weights * (high - low) / 2.0 * width * np.cosh(q)


def gauss_points(count: int) -> tuple[np.ndarray, np.ndarray]:
    """About `count` points (t, x > 0), dense where and when the shock forms, and the weights of an integral."""
    times = max(1, round(math.sqrt(1.2 * count)))
    (t, of_t), (x, of_x) = clustered(times, 0.35, 0.1), clustered(max(1, count // times), 0.0, SHOCK_WIDTH)
    weights = np.outer(of_t, of_x).ravel()
    return np.column_stack([each.ravel() for each in np.meshgrid(t, x, indexing="ij")]), weights / weights.mean()


def accurate_of(count: int) -> tuple[ResidualProblem, Chain]:
    """The half x >= 0 of the problem, since u is odd in x, and a network of sines and cosines, since u has the period 2."""
    points, weights = gauss_points(count)
    problem = ResidualProblem(
        ("t", "x"),
        ("u",),
        [Term(lambda u: u.t + u * u.x - VISCOSITY * u.xx, points, weight=weights)],
        transform=lambda u, t, x: t * x * (1.0 - x) * u - sin(math.pi * x),
    )
    widths = itertools.pairwise([7, 20, 20, 20])
    return problem, Chain(Periodic((None, 2.0), 3), *(Dense(a, b, tanh) for a, b in widths), Dense(20, 1))


def problem_of(points: np.ndarray) -> ResidualProblem:
    """The residual of the equation, and the transform that makes the initial and boundary values exact."""
    return ResidualProblem(
        ("t", "x"),
        ("u",),
        [Term(lambda u: u.t + u * u.x - VISCOSITY * u.xx, points)],
        transform=lambda u, t, x: t * (1.0 - x * x) * u - sin(math.pi * x),
    )


def network_of(width: int, depth: int) -> Chain:
    widths = [2] + [width] * depth
    return Chain(*(Dense(a, b, tanh) for a, b in itertools.pairwise(widths)), Dense(width, 1))


def by_jax(points: np.ndarray, net: Chain) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The loss with its gradient, and Adam, jitted as a whole: second derivatives by forward mode twice, then reverse mode."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    inside = jnp.asarray(points)
    along_t, along_x = (jnp.broadcast_to(jnp.eye(2)[k], inside.shape) for k in range(2))
    shapes = [view.shape for view in net.views(net.init(seed=0)).values()]

    def u(p: Any, z: Any) -> Any:
        y, start = z, 0
        for number in range(0, len(shapes), 2):
            (rows, columns), _ = shapes[number : number + 2]
            weight = p[start : start + rows * columns].reshape(rows, columns)
            start += (rows + 1) * columns
            y = y @ weight + p[start - columns : start]
            y = jnp.tanh(y) if number + 2 < len(shapes) else y
        t, x = z[:, 0], z[:, 1]
        return t * (1.0 - x * x) * y[:, 0] - jnp.sin(math.pi * x)

    def loss(p: Any) -> Any:
        f = lambda z: u(p, z)  # noqa: E731
        _, u_t = jax.jvp(f, (inside,), (along_t,))
        (value, u_x), (_, u_xx) = jax.jvp(lambda z: jax.jvp(f, (z,), (along_x,)), (inside,), (along_x,))
        return jnp.mean((u_t + value * u_x - VISCOSITY * u_xx) ** 2)

    both = jax.jit(jax.value_and_grad(loss))

    @jax.jit
    def adam(p: Any, steps: Any) -> Any:
        def step(k: Any, carried: Any) -> Any:
            p, m, v = carried
            g = jax.grad(loss)(p)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            change = RATE * (m / (1.0 - 0.9 ** (k + 1.0))) / (jnp.sqrt(v / (1.0 - 0.999 ** (k + 1.0))) + 1e-8)
            return p - change, m, v

        return jax.lax.fori_loop(0, steps, step, (p, jnp.zeros_like(p), jnp.zeros_like(p)))[0]

    def value_and_grad(p: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = both(p)
        return float(value), np.asarray(g)

    value_and_grad(np.zeros(net.n_params))  # compiled now, which is not counted
    adam(np.zeros(net.n_params), 1)
    return value_and_grad, lambda p, steps: np.array(adam(p, steps))


def minimize_here(function: Any, p: np.ndarray, method: str, iterations: int, callback: Any) -> Any:
    return minimize(function, p, method, maxiter=iterations, gtol=1e-9, memory=50, callback=callback, progress=False)


def minimize_by_scipy(function: Any, p: np.ndarray, method: str, iterations: int, callback: Any) -> Any:
    from scipy.optimize import minimize

    method, memory = ("BFGS", {}) if method == "BFGS" else ("L-BFGS-B", {"maxcor": 50, "maxfun": 10**6})
    options = {"maxiter": iterations, "gtol": 1e-9, **memory}
    return minimize(function, p, jac=True, method=method, options=options, callback=lambda p: callback(p.copy()))


def grid_of() -> np.ndarray:
    """Points (t, x) to compare with the solution at."""
    t, x = np.meshgrid(np.linspace(0.01, 1.0, 100), np.linspace(-1.0, 1.0, 257), indexing="ij")
    return np.column_stack([t.ravel(), x.ravel()])


def draw(figure: Any, u: np.ndarray, solution: np.ndarray) -> None:
    """The network's solution at the points of `grid_of`, and at three times with the exact one."""
    t, x, u, solution = (values.reshape(100, 257) for values in (*grid_of().T, u, solution))
    left, right = figure.subplots(1, 2)
    figure.colorbar(left.pcolormesh(t, x, u, cmap="RdBu_r"), ax=left)
    left.set(title="u by the network", xlabel="t", ylabel="x")
    for row in (24, 49, 99):
        right.plot(x[row], u[row], label=f"t = {t[row, 0]:.2f}")
        right.plot(x[row], solution[row], "k:", label="exact" if row == 99 else None)
    right.set(xlabel="x", ylabel="u")
    right.legend()


def solve_accurately(seconds: float, count: int, iterations: int, seed: int, file: str | None) -> np.ndarray:
    """The solution at the points of `grid_of` by Adam and SSBroyden on the points of a quadrature, in about `seconds`.

    The place of the shock follows from the integral of the residual over it. A sum over random points has a further error,
    which moves the shock. Here symmetry holds it at x = 0.
    """
    problem, net = accurate_of(count)
    grid = grid_of()
    half, solution = np.abs(grid), exact(grid)

    def found_by(p: np.ndarray) -> np.ndarray:
        return np.sign(grid[:, 1]) * problem.evaluate(net, p, half)["u"]

    def error(p: np.ndarray) -> float:
        return float(np.linalg.norm(found_by(p) - solution) / np.linalg.norm(solution))

    found = solve(
        net, net.init(seed=seed, dtype=np.float64), problem, optimizer=Adam(RATE), iterations=iterations, every=ACCURATE_EVERY,
        metrics={"L2 error": error}, seed=seed, seconds=seconds,
    )  # fmt: skip
    print(f"{net}, {net.n_params} parameters, {len(problem.terms[0].points):,} points of Gauss and Legendre")
    print(found)
    print(f"relative L2 error at {len(grid):,} other points: {error(found.p):.2e}")
    if file is not None:
        save(file, net, found.p)
    return found_by(found.p)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="to a relative L2 error below 1e-3")
    parser.add_argument("--accurate", action="store_true", help="by SSBroyden, to an error of about 1e-8")
    parser.add_argument("--seconds", type=float, default=ACCURATE_SECONDS, help="of --accurate, about")
    parser.add_argument("--save", metavar="FILE", help="where --accurate writes the trained network")
    parser.add_argument("--points", type=int, help="in the domain")
    parser.add_argument("--adam", type=int, help="steps of Adam")
    parser.add_argument("--iterations", type=int, help="of the quasi-Newton method, at most")
    parser.add_argument(
        "--rounds", type=int, default=1, help="share the iterations; points are drawn by the residual between them"
    )
    parser.add_argument("--uniform", action="store_true", help="no more points near the shock than elsewhere")
    parser.add_argument("--method", default="BFGS", choices=["BFGS", "L-BFGS"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jax", action="store_true", help="the same by JAX too")
    add_plot(parser, "burgers.png")
    chosen = parser.parse_args(arguments)
    if chosen.jax and chosen.rounds > 1:
        parser.error("--jax takes the points of one round")
    if chosen.save and not chosen.accurate:
        parser.error("--save goes with --accurate")
    if chosen.accurate:
        iterations = chosen.iterations or 10**6
        u = solve_accurately(chosen.seconds, chosen.points or ACCURATE_POINTS, iterations, chosen.seed, chosen.save)
        save_picture(chosen.plot, (10, 4), lambda figure: draw(figure, u, exact(grid_of())))
        return
    count = chosen.points or 2500
    steps = (1000 if chosen.full else 300) if chosen.adam is None else chosen.adam
    iterations = chosen.iterations or (2000 if chosen.full else 500)

    points, net = points_of(count, chosen.seed, uniform=chosen.uniform), network_of(20, 3)
    problem = problem_of(points)
    start = net.init(seed=chosen.seed, dtype=np.float64)
    grid = grid_of()
    solution = exact(grid)

    def error(p: np.ndarray) -> float:
        found = problem.evaluate(net, p, grid)["u"]
        return float(np.linalg.norm(found - solution) / np.linalg.norm(solution))

    def by_chains() -> tuple[Callable[..., Any], Callable[..., Any]]:
        def adam(p: np.ndarray, steps: int) -> np.ndarray:
            p = p.copy()
            train(net, p, problem.x, problem.t, problem.loss, Adam(RATE), epochs=steps, batch_size=None, progress=False)
            return p

        objective = net.objective(problem.x, problem.t, problem.loss)
        objective(start)  # compiled now, which is not counted
        adam(start, 1)
        return objective, adam

    print(f"2-20-20-20-1, {net.n_params} parameters, {count:,} points, {steps} steps of Adam, then {chosen.method}")
    print(
        f"{'':8}{'seconds':>10}{'of Adam':>10}{'ms a call':>11}{'calls':>8}{'loss':>12}{'L2 error':>11}{'seconds to 1e-3':>17}"
    )
    rows = [("chains", by_chains, minimize_here)]
    if chosen.jax:
        rows += [
            ("JAX", lambda: by_jax(points, net), minimize_here),
            ("+ SciPy", lambda: by_jax(points, net), minimize_by_scipy),
        ]
    for name, make, minimizer in rows:
        function, adam = make()
        begin = time.perf_counter()
        p = adam(start, steps)
        after_adam = time.perf_counter()
        way: list[tuple[float, np.ndarray]] = []  # now and then, the time and the parameters
        calls: list[float] = []

        functions = [function]

        def timed(p: np.ndarray, functions: list[Any] = functions, calls: list[float] = calls) -> Any:
            before = time.perf_counter()
            found = functions[-1](p)
            calls.append(time.perf_counter() - before)
            return found

        def note(p: np.ndarray, begin: float = begin, way: list[Any] = way, calls: list[float] = calls) -> None:
            if not way or len(calls) - len(way) * LOOK_EVERY >= 0:
                way.append((time.perf_counter() - begin, p))

        result = minimizer(timed, p, chosen.method, iterations // chosen.rounds, note)
        for number in range(1, chosen.rounds):
            candidates = points_of(20_000, number, uniform=True)
            drawn = problem.resampled(net, result.x, candidates, number)
            functions.append(net.objective(drawn.x, drawn.t, drawn.loss))
            result = minimizer(timed, result.x, chosen.method, iterations // chosen.rounds, note)
        seconds = time.perf_counter() - begin
        reached = next((f"{moment:.2f}" for moment, p in way if error(p) < 1e-3), "-")
        print(
            f"{name:8}{seconds:10.2f}{after_adam - begin:10.2f}{1e3 * np.median(calls):11.3f}{len(calls):8}"
            f"{result.fun:12.2e}{error(result.x):11.2e}{reached:>17}",
            flush=True,
        )
        if name == "chains":
            u = problem.evaluate(net, result.x, grid)["u"]
    save_picture(chosen.plot, (10, 4), lambda figure: draw(figure, u, solution))


if __name__ == "__main__":
    main()
