"""JAX on a residual problem: Adam, then SSBroyden, each compiled as a whole, on points that are drawn anew by the residual.

The method is that of `chains.solve`, with its line search: the strong Wolfe conditions by cubic interpolation. A round of
iterations is one compiled loop, which keeps the matrix in the memory of the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

DECREASE, CURVATURE, MAX_TRIES = 1e-4, 0.9, 40
Residual = Callable[[Callable[[Any], Any], Any], Any]


def solved(
    problem: Any, start: np.ndarray, seconds: float, rate: float, adam: int, every: int, iterations: int
) -> list[tuple[float, int, float]]:
    """Seconds, iterations and the error after Adam and after each round."""
    network = _network([view.shape for view in problem.net.views(start).values()])

    def residual(p: Any, points: Any) -> Any:
        return problem.jax_residual(lambda z: problem.jax_transform(network(p, z), z), points)

    def loss(p: Any, points: Any) -> Any:
        return jnp.mean(residual(p, points) ** 2)

    run_adam, run_round, sizes = jax.jit(_adam(loss, rate)), jax.jit(_round(loss)), jax.jit(residual)
    candidates = problem.candidates(0)
    points, p = jnp.asarray(problem.points), jnp.asarray(start)
    matrix = jnp.eye(p.size)
    for compiled in (run_adam(p, points, 1), run_round(p, matrix, points, 1), sizes(p, candidates)):
        jax.block_until_ready(compiled)
    begin = time.perf_counter()
    p = jax.block_until_ready(run_adam(p, points, adam))
    history = [(time.perf_counter() - begin, 0, problem.error(np.asarray(p)))]
    done = 0
    while done < iterations and history[-1][0] < seconds:
        seed = int(np.random.SeedSequence([0, len(history)]).generate_state(1)[0])
        candidates = problem.candidates(seed)
        density = np.abs(np.asarray(sizes(p, candidates)))
        density = density / density.mean() + 1.0
        rng = np.random.default_rng(seed)
        drawn = rng.choice(len(candidates), len(problem.points), replace=False, p=density / density.sum())
        p, matrix = jax.block_until_ready(run_round(p, matrix, candidates[drawn], every))
        done += every
        history.append((time.perf_counter() - begin, done, problem.error(np.asarray(p))))
    return history


def _network(shapes: list[tuple[int, ...]]) -> Callable[[Any, Any], Any]:
    """Dense layers with tanh between them: a function of the flat parameters and of points (n, inputs)."""

    def network(p: Any, z: Any) -> Any:
        y, start = z, 0
        for number in range(0, len(shapes), 2):
            rows, columns = shapes[number]
            weight = p[start : start + rows * columns].reshape(rows, columns)
            start += (rows + 1) * columns
            y = y @ weight + p[start - columns : start]
            y = jnp.tanh(y) if number + 2 < len(shapes) else y
        return y[:, 0]

    return network


def second(u: Callable[[Any], Any], points: Any, axis: int) -> tuple[Any, Any, Any]:
    """The values of `u` at points, and its first and second derivatives along an axis, by forward mode twice."""
    along = jnp.broadcast_to(jnp.eye(points.shape[1])[axis], points.shape)
    (value, first), (_, again) = jax.jvp(lambda z: jax.jvp(u, (z,), (along,)), (points,), (along,))
    return value, first, again


def first(u: Callable[[Any], Any], points: Any, axis: int) -> Any:
    """The first derivative of `u` along an axis."""
    return jax.jvp(u, (points,), (jnp.broadcast_to(jnp.eye(points.shape[1])[axis], points.shape),))[1]


def _adam(loss: Callable[..., Any], rate: float) -> Callable[..., Any]:
    def run(p: Any, points: Any, steps: Any) -> Any:
        def step(k: Any, carried: Any) -> Any:
            p, m, v = carried
            g = jax.grad(loss)(p, points)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            change = rate * (m / (1.0 - 0.9 ** (k + 1.0))) / (jnp.sqrt(v / (1.0 - 0.999 ** (k + 1.0))) + 1e-8)
            return p - change, m, v

        return jax.lax.fori_loop(0, steps, step, (p, jnp.zeros_like(p), jnp.zeros_like(p)))[0]

    return run


def _round(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Iterations of SSBroyden: a function of parameters, matrix, points and their number."""

    def run(p: Any, matrix: Any, points: Any, iterations: Any) -> Any:
        both = jax.value_and_grad(lambda p: loss(p, points))

        def iteration(_: Any, carried: Any) -> Any:
            p, value, g, matrix, fall = carried
            d = -(matrix @ g)
            slope = d @ g
            d = jnp.where(slope < 0.0, d, -g)
            matrix = jnp.where(slope < 0.0, matrix, jnp.eye(p.size))
            slope = d @ g
            reach = 2.02 * fall
            length = jnp.where((reach > 0.0) & (reach < -slope), reach / -slope, 1.0)
            step, new_value, new_g = _search(both, p, value, g, d, slope, length)
            s, y = step * d, new_g - g
            matrix = _learn(matrix, s, y, -step * step * slope)
            return p + s, new_value, new_g, matrix, value - new_value

        value, g = both(p)
        fall = 0.5 * (g @ g) / jnp.abs(g).sum()
        p, _, _, matrix, _ = jax.lax.fori_loop(0, iterations, iteration, (p, value, g, matrix, fall))
        return p, matrix

    return run


def _learn(matrix: Any, s: Any, y: Any, expected: Any) -> Any:
    """The self-scaled Broyden update; the unit matrix where the step has no curvature."""
    sy, hy = s @ y, matrix @ y
    yhy = y @ hy
    h, b, n = yhy / sy, expected / sy, s.size
    a = h * b - 1.0
    rho = jnp.minimum(1.0, 1.0 / (b * (1.0 + jnp.sqrt(a / (1.0 + a)))))
    theta = jnp.maximum((rho - 1.0) / a, jnp.minimum(1.0 / rho, (1.0 - b) / b))
    sigma = jnp.maximum(1.0 + theta * a, rho)
    root = sigma ** (1.0 / (1.0 - n))
    low = jnp.minimum(root * jnp.minimum(1.0, 1.0 / b), sigma)
    high = jnp.minimum(1.0, 1.0 / b) * jnp.minimum(root, 1.0 / theta)
    scale = jnp.where(a > 1e-12, 1.0 / jnp.where(theta <= 0.0, low, high), jnp.maximum(1.0, b))
    phi = jnp.where(a > 1e-12, (1.0 - theta) / sigma, 1.0)
    v = s / sy - hy / yhy
    changed = scale * (matrix - jnp.outer(hy, hy) / yhy + phi * yhy * jnp.outer(v, v)) + jnp.outer(s, s) / sy
    return jnp.where((sy > 1e-300) & (yhy > 0.0) & (b > 0.0), changed, jnp.eye(n))


def _search(both: Any, p: Any, value: Any, g: Any, d: Any, slope: Any, length: Any) -> Any:
    """How far to go along `d`, and the value and gradient there."""

    def trial(state: Any) -> Any:
        tries, _, step, low, high, best = state
        found, gradient = both(p + step * d)
        rise = d @ gradient
        finite = jnp.isfinite(found) & jnp.isfinite(rise)
        found, rise = jnp.where(finite, found, jnp.inf), jnp.where(finite, rise, jnp.inf)
        flat = (found <= value + 1e-15 * jnp.abs(value)) & ((2.0 * DECREASE - 1.0) * slope >= rise)
        falls = (found <= value + DECREASE * step * slope) | flat
        ends = falls & (jnp.abs(rise) <= -CURVATURE * slope)
        better = ends | (found < best[1])
        best = tuple(jnp.where(better, new, old) for new, old in zip((step, found, gradient), best, strict=True))
        here = jnp.array([step, found, rise])
        too_far = ~falls | ((found > low[1]) & (low[0] > 0.0))
        turned = ~too_far & (rise >= 0.0)
        crossed = ~too_far & (rise < 0.0) & jnp.isfinite(high[0]) & ((high[0] - low[0]) * rise >= 0.0)
        high = jnp.where(too_far, here, jnp.where(turned | crossed, low, high))
        low = jnp.where(too_far, low, here)
        bounded = jnp.isfinite(high[0])
        narrow = bounded & (jnp.abs(high[0] - low[0]) <= 1e-14 * jnp.maximum(jnp.abs(high[0]), jnp.abs(low[0])))
        wider = step * jnp.where(step < 1.0, 2.0, 4.0)
        return tries + 1, ends | narrow, jnp.where(bounded, _between(low, high), wider), low, high, best

    low, high = jnp.array([0.0, 0.0, 0.0]).at[1].set(value).at[2].set(slope), jnp.full(3, jnp.inf)
    state = (0, False, length, low, high, (0.0, value, g))
    return jax.lax.while_loop(lambda state: (state[0] < MAX_TRIES) & ~state[1], trial, state)[5]


def _between(low: Any, high: Any) -> Any:
    """The minimum of the cubic through both ends, or the middle where that lies too near to an end."""
    (a, fa, da), (b, fb, db) = low, high
    d1 = da + db - 3.0 * (fa - fb) / (a - b)
    inside = d1 * d1 - da * db
    d2 = jnp.sign(b - a) * jnp.sqrt(jnp.maximum(inside, 0.0))
    step = b - (b - a) * (db + d2 - d1) / (db - da + 2.0 * d2)
    edge = 0.1 * jnp.abs(b - a)
    usable = (inside >= 0.0) & (step >= jnp.minimum(a, b) + edge) & (step <= jnp.maximum(a, b) - edge)
    middle = jnp.where(usable, step, 0.5 * (a + b))
    return jnp.where(jnp.isfinite(fb) & jnp.isfinite(db), middle, 0.9 * a + 0.1 * b)
