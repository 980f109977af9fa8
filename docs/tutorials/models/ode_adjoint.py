"""
A network in a differential equation
====================================

Half of an equation is known, a network stands for the rest: u' = -u/2 + f(u, p). The gradient of what the solver
gives with respect to the parameters is found backwards through its steps. Of the network, that takes one call:
``net.vjp``.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

from chains import Chain, Dense, tanh

net = Chain(Dense(2, 12, tanh), Dense(12, 2))
known = np.array([[-0.5, 0.0], [0.0, -0.5]])
step, steps = 0.1, 60

# %%
# Classical Runge and Kutta's method, for all starting points at once: ``u`` has the shape (points, 2).


def slope(u, p):
    return u @ known.T + net(u, p)


def solve(u, p):
    """The states at all times, (steps + 1, points, 2), and the four places in each step where the slope was taken."""
    states, places = [u], []
    for _ in range(steps):
        a = u
        ka = slope(a, p)
        b = u + step / 2 * ka
        kb = slope(b, p)
        c = u + step / 2 * kb
        kc = slope(c, p)
        d = u + step * kc
        u = u + step / 6 * (ka + 2 * kb + 2 * kc + slope(d, p))
        states.append(u)
        places.append((a, b, c, d))
    return np.array(states), places


# %%
# The way back is the same arithmetic, transposed. ``pull`` takes a cotangent of a slope back to the parameters and
# to the place.


def pull(place, cotangent, p, total):
    dp, du = net.vjp(p, place, cotangent)
    total += dp
    return du + cotangent @ known


def value_and_gradient(p, start, data):
    """The mean squared distance from the data, and its gradient."""
    states, places = solve(start, p)
    difference = states - data
    total = np.zeros(net.n_params)
    du = np.zeros_like(start)
    for k in range(steps, 0, -1):
        du = du + 2 * difference[k] / difference.size
        a, b, c, d = places[k - 1]
        dd = pull(d, step / 6 * du, p, total)
        dc = pull(c, step / 3 * du + step * dd, p, total)
        db = pull(b, step / 3 * du + step / 2 * dc, p, total)
        da = pull(a, step / 6 * du + step / 2 * db, p, total)
        du = du + da + db + dc + dd
    return np.mean(difference**2), total


# %%
# Data: the true equation has a rotation that depends on the distance from the origin.

start = np.array([[2.0, 0.0], [0.0, 1.5], [-1.0, -1.0]])


def truth(u):
    return u @ known.T + (1.5 - 0.2 * np.sum(u**2, axis=1, keepdims=True)) * u @ np.array([[0.0, -1.0], [1.0, 0.0]])


data = [start]
for _ in range(steps):
    u = data[-1]
    for _ in range(20):
        u = u + step / 20 * truth(u + step / 40 * truth(u))
    data.append(u)
data = np.array(data)

# %%
# The gradient agrees with a difference quotient, so BFGS can rely on it.

p = 0.3 * net.init(seed=0, dtype=np.float64)
value, gradient = value_and_gradient(p, start, data)
v = np.random.default_rng(0).normal(size=p.shape)
quotient = (value_and_gradient(p + 1e-5 * v, start, data)[0] - value_and_gradient(p - 1e-5 * v, start, data)[0]) / 2e-5
print(f"along a direction: {gradient @ v:.9f}, by a difference: {quotient:.9f}")

result = minimize(value_and_gradient, p, (start, data), jac=True, method="BFGS", options={"maxiter": 100})
print(f"mean squared distance {value:.3f}, after BFGS {result.fun:.2e}")

# %%
# The fit, from the three starting points:

states, _ = solve(start, result.x)
figure, axis = plt.subplots(layout="constrained")
for k in range(len(start)):
    axis.plot(*data[:, k].T, ".", color="gray", markersize=4)
    axis.plot(*states[:, k].T)
axis.set(xlabel="u1", ylabel="u2", aspect="equal")
