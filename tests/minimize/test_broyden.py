"""The matrix of BFGS and SSBroyden: the equations of the family, one pass over memory, and what is kept for another call."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Chain, Dense, SquaredLoss, minimize, num_threads, tanh
from chains.backends import backend
from chains.minimize.quasi_newton import ArrayMatrix, DenseInverse, bfgs, self_scaled_broyden

METHODS = {"BFGS": bfgs, "SSBroyden": self_scaled_broyden}
every_method = pytest.mark.parametrize("method", METHODS)
sizes = pytest.mark.parametrize("n", [1, 2, 7, 70])  # 70 in machine code, where there is any


def positive_definite(rng, n):
    root = rng.normal(size=(n, n))
    return root @ root.T + 0.1 * np.eye(n)


def steps(n, count=8, seed=0):
    """Steps along directions of the model, on a quadratic function: s, y, the gradient after it, and the curvature expected."""
    rng = np.random.default_rng(seed)
    hessian = positive_definite(rng, n)
    for _ in range(count):
        before, length = rng.normal(size=n), rng.uniform(0.2, 2.0)
        yield lambda direction, before=before, length=length: _step(direction, hessian, before, length)


def _step(direction, hessian, before, length):
    d = direction(before)
    s = length * d
    y = hessian @ s
    return s, y, before + y, -length * float(s @ before)


def textbook(h, s, y, scale, phi):
    """The update as the source writes it, with 1 / tau = scale."""
    hy, sy = h @ y, s @ y
    v = np.sqrt(y @ hy) * (s / sy - hy / (y @ hy))
    return scale * (h - np.outer(hy, hy) / (y @ hy) + phi * np.outer(v, v)) + np.outer(s, s) / sy


@every_method
@sizes
def test_updates_are_those_of_the_family(method, n):
    """Each is the source's formula; the secant equation holds, and the matrix stays symmetric and positive definite."""
    rng = np.random.default_rng(1)
    direction = DenseInverse(np.zeros(n), METHODS[method], positive_definite(rng, n))
    for step in steps(n):
        before = direction.state.copy()
        s, y, g, expected = step(direction)
        direction.learn(s, y, g, expected)
        product, after = -direction(g), direction.state
        scale, phi = METHODS[method](y @ before @ y / (s @ y), expected / (s @ y), n)
        size = abs(after).max()
        np.testing.assert_allclose(after, textbook(before, s, y, scale, phi), atol=1e-11 * size)
        np.testing.assert_allclose(after @ y, s, atol=1e-9 * abs(s).max() + 1e-11 * size * abs(y).max())
        np.testing.assert_allclose(product, after @ g, atol=1e-11 * size * abs(g).sum())
        np.testing.assert_allclose(after, after.T, atol=1e-13 * size)
        assert np.linalg.eigvalsh(after).min() > 0.0


def as_published(h, b, n):
    """1 / tau and phi, from Urbán, Stefanou and Pons's equations 13 to 23 one by one."""
    a = h * b - 1
    c = np.sqrt(a / (1 + a))
    rho_minus = min(1, h * (1 - c))
    theta_minus, theta_plus = (rho_minus - 1) / a, 1 / rho_minus
    theta = max(theta_minus, min(theta_plus, (1 - b) / b))
    sigma = 1 + theta * a
    rho, power = min(1, 1 / b), abs(sigma) ** (1 / (1 - n))
    tau = min(rho * power, sigma) if theta <= 0 else rho * min(power, 1 / theta)
    return 1 / tau, (1 - theta) / (1 + a * theta)


def test_coefficients_are_the_published_ones():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        b, a, n = np.exp(rng.normal(0, 2)), np.exp(rng.normal(0, 2)), int(rng.integers(2, 1000))
        np.testing.assert_allclose(self_scaled_broyden((1 + a) / b, b, n), as_published((1 + a) / b, b, n), rtol=1e-9)


@pytest.mark.parametrize("h", [1e-150, 1e-9, 1.0, 1e9, 1e150])
@pytest.mark.parametrize("b", [1e-150, 1e-9, 1.0, 1e9, 1e150])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_extreme_coefficients_keep_the_matrix_definite(h, b, n):
    """Products h * b below one come from rounding. 1 + phi * a is the factor by which v v' keeps a matrix definite."""
    scale, phi = self_scaled_broyden(h, b, n)
    assert scale > 0.0
    assert phi > -1.0 / max(h * b - 1.0, 1e-300) * (1.0 + 1e-9)


@every_method
def test_the_scale_of_the_function_is_no_matter(method):
    """A function times c, from a matrix divided by c: the same steps."""
    net, x = Chain(Dense(1, 5, tanh), Dense(5, 1)), np.linspace(-1.5, 1.5, 40)[:, None]
    function, p = net.objective(x, np.sin(3 * x), SquaredLoss()), net.init(seed=0, dtype=np.float64)
    start = np.eye(p.size)
    one = minimize(function, p, method, state=start, maxiter=20, gtol=0.0)
    scaled = minimize(lambda q: tuple(4.0 * each for each in function(q)), p, method, state=start / 4.0, maxiter=20, gtol=0.0)
    np.testing.assert_array_equal(scaled.x, one.x)
    np.testing.assert_array_equal(4.0 * scaled.state, one.state)


@every_method
def test_linear_maps_of_the_parameters_are_no_matter(method):
    """f(A q) from the matrix inv(A) H inv(A)' takes the steps of f from H."""
    rng = np.random.default_rng(3)
    a, center, hessian = rng.normal(size=(4, 4)) + 3.0 * np.eye(4), rng.normal(size=4), positive_definite(rng, 4)

    def f(p):
        r = p - center
        return 0.5 * r @ hessian @ r + 0.1 * float((r**4).sum()), hessian @ r + 0.4 * r**3

    inverse = np.linalg.inv(a)
    one = minimize(f, np.zeros(4), method, state=np.eye(4), maxiter=6, gtol=0.0)
    other = minimize(
        lambda q: (f(a @ q)[0], a.T @ f(a @ q)[1]), np.zeros(4), method, state=inverse @ inverse.T, maxiter=6, gtol=0.0
    )
    np.testing.assert_allclose(a @ other.x, one.x, rtol=1e-7)
    np.testing.assert_allclose(a @ other.state @ a.T, one.state, rtol=1e-5, atol=1e-7 * abs(one.state).max())


@pytest.mark.parametrize("n", [64, 65, 71, 200])
def test_machine_code_and_arrays_agree(n):
    """On any number of threads with the same bits, and symmetric to the bit."""
    pytest.importorskip("llvmlite")
    rng = np.random.default_rng(n)
    matrix, (a, b, y, g) = positive_definite(rng, n), rng.normal(size=(4, n))
    matrix = matrix + matrix.T
    plain = ArrayMatrix(matrix)
    wanted = plain.change(0.7, a, 1.0, b, -1.0, y, g)
    bits = []
    for threads in (1, 2, 3):
        compiled = backend("native").symmetric_matrix(matrix)
        with num_threads(threads):
            found = compiled.change(0.7, a, 1.0, b, -1.0, y, g)
        np.testing.assert_allclose(compiled.array, plain.array, atol=1e-13 * abs(matrix).max())
        np.testing.assert_allclose(found, wanted, atol=1e-12 * abs(matrix).max() * n)
        np.testing.assert_array_equal(compiled.array, compiled.array.T)
        bits.append(np.concatenate([compiled.array.ravel(), *found]))
    assert (bits[0] == bits[1]).all()
    assert (bits[0] == bits[2]).all()


@pytest.mark.parametrize("method", [*METHODS, "L-BFGS"])
def test_the_state_is_kept_across_a_change_of_the_function(method):
    """Iterations in twelve calls end about as low as in one, lower than if each begins anew."""
    net, x = Chain(Dense(1, 12, tanh), Dense(12, 1)), np.linspace(-1.5, 1.5, 100)[:, None]
    function, start = net.objective(x, np.sin(3 * x), SquaredLoss()), net.init(seed=1, dtype=np.float64)
    whole = minimize(function, start, method, maxiter=120, gtol=0.0, ftol=0.0)
    ends = {}
    for kept in (True, False):
        p, state = start, None
        for _ in range(12):
            found = minimize(function, p, method, maxiter=10, gtol=0.0, ftol=0.0, state=state)
            p, state = found.x, found.state if kept else None
        ends[kept] = found.fun
    assert ends[True] < 3.0 * whole.fun
    assert ends[True] < (0.9 if method == "L-BFGS" else 0.5) * ends[False]  # which has ten pairs from its own ten iterations
    before = found.state.copy()
    minimize(function, p, method, maxiter=3, state=found.state)
    np.testing.assert_array_equal(found.state, before)


@pytest.mark.parametrize(
    ("method", "state", "message"),
    [
        ("BFGS", np.eye(3), r"`state` has shape \(3, 3\), but the method 'BFGS' takes \(2, 2\) for 2 parameters"),
        ("SSBroyden", np.full((2, 2), np.nan), "`state` must be finite"),
        ("L-BFGS", np.eye(2), r"the method 'L-BFGS' takes \(pairs, 2, 2\)"),
        ("LM", np.eye(2), "of no use to the method 'LM'"),
    ],
)
def test_states_that_do_not_fit(method, state, message):
    class Bowl:
        normal_equations = None

        def __call__(self, p):
            return float(p @ p), 2 * p

    with pytest.raises(ValueError, match=message):
        minimize(Bowl(), np.ones(2), method, state=state)
