"""
Twenty coefficients or a network
================================

A smooth curve of one variable does not need a network. A ``Chebyshev`` expansion of 20 coefficients fits it to nine digits,
in one step of a least-squares solver. A steep front that runs across two variables is the opposite case: there 21 parameters
of a network do what 231 coefficients cannot. Know which case you have before you choose.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import ODE, Chain, Dense, Equations, MSELoss, expr, minimize, tanh
from chains.layers import Chebyshev, FourierSeries

rng = np.random.default_rng(0)


def error_of(net, p, x, t):
    """The root of the mean square of the errors."""
    return float(np.sqrt(np.mean((net(x, p) - t) ** 2)))


# %%
# A smooth curve
# --------------
#
# Sixty points of a damped oscillation on the interval from 0 to 3, and two models of the same size. The expansion is linear in
# its coefficients, so that its best fit is the solution of a linear system. The network has to search.


def curve(x):
    return np.exp(-x) * np.sin(4.0 * x)


x, between = np.linspace(0.0, 3.0, 60)[:, None], np.linspace(0.0, 3.0, 500)[:, None]
models = {
    "20 coefficients": Chain(Chebyshev(1, 1, 19, (0.0, 3.0))),
    "network, 19 parameters": Chain(Dense(1, 6, tanh), Dense(6, 1)),
}
curves = {}
wide = np.linspace(-0.3, 3.3, 500)[:, None]
for name, net in models.items():
    p = net.init(seed=0, dtype=np.float64)
    fit = minimize(net.objective(x, curve(x), MSELoss()), p, "LM", maxiter=1000, gtol=1e-13)
    curves[name] = net(wide, fit.x)
    print(f"{name}: error {error_of(net, fit.x, between, curve(between)):.1e} after {fit.nit} steps")

# %%
# Outside of the interval the polynomial leaves the curve immediately: a term of degree 19 grows like the 19th power of the
# distance. Give an interval that contains all inputs, those of an equation's states too.

# %%
# A rhythm in an equation
# -----------------------
#
# A room loses heat to the cold outside, and the sun and its people heat it, the same every day. Three days of temperatures are
# known by the hour. ``FourierSeries`` learns the heating, which is periodic whatever its coefficients are; the rate of loss is
# a parameter beside it.

hours = np.arange(0.0, 73.0)
outside = 5.0
heating = Equations(
    lambda temperature, hour, gain, loss: gain - loss * (temperature - outside), ["temperature", "hour"],
    networks={"gain": (FourierSeries(1, 1, 4, 24.0, weight_init="zeros"), ["hour"])}, parameters={"loss": 0.1},
)  # fmt: skip
room = Chain(ODE(heating, hours, "rk4", time=True))


def gain_of(hour):
    """The heating in degrees an hour: the same all night, and a hill around two in the afternoon."""
    return 0.4 + expr.exp(3.0 * expr.cos(2.0 * np.pi * (hour - 14.0) / 24.0) - 3.0)


truth = Equations(lambda temperature, hour: gain_of(hour) - 0.15 * (temperature - outside), ["temperature", "hour"])
start = np.array([[20.0]])
exact = Chain(ODE(truth, hours, steps=4, time=True))(start, np.empty(0))
measured = exact + rng.normal(scale=0.1, size=exact.shape)
p = room.init(seed=0, dtype=np.float64)
fit = minimize(room.objective(start, measured, MSELoss()), p, "LM")
found = room.views(fit.x)
day = np.linspace(0.0, 24.0, 200)[:, None]
gain = Chain(FourierSeries(1, 1, 4, 24.0))(day, found["0.gain.weight"].ravel())
print(f"loss of heat {float(found['0.loss']):.3f} an hour, in truth 0.15, after {fit.nit} steps")
print(f"error of the heating: {np.sqrt(np.mean((gain - gain_of(day)) ** 2)):.3f} degrees an hour")

# %%
# A front across two variables
# ----------------------------
#
# Here the expansion fails. A front runs across the square; it is steep in one direction and flat in the other. Polynomials
# do not know that direction, and they need all products of high degree; these follow the points and not the front. A network
# of five units turns to the direction while it is trained.


def front(x):
    s = 8.0 * (x[:, :1] + 0.7 * x[:, 1:] - 0.2)
    return s / np.sqrt(1.0 + s * s)


points, others = rng.uniform(-1.0, 1.0, (1000, 2)), rng.uniform(-1.0, 1.0, (5000, 2))
models = {
    "21 coefficients": Chain(Chebyshev(2, 1, 5)),
    "231 coefficients": Chain(Chebyshev(2, 1, 20)),
    "network, 21 parameters": Chain(Dense(2, 5, tanh), Dense(5, 1)),
}
for name, net in models.items():
    p = net.init(seed=0, dtype=np.float64)
    fit = minimize(net.objective(points, front(points), MSELoss()), p, "LM", maxiter=500)
    print(f"{name}: error {error_of(net, fit.x, others, front(others)):.1e} after {fit.nit} steps")

# %%
# The number of terms grows with the inputs as well: degree 5 has 6 terms of one input, 21 of two and 252 of five.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(wide, curve(wide), "k:", label="truth")
for name, values in curves.items():
    left.plot(wide, values, label=name)
left.set(xlabel="x", ylabel="y", ylim=(-0.6, 1.0))
right.plot(day, gain_of(day), "k:", label="truth")
right.plot(day, gain, label="Fourier series")
right.set(xlabel="hour", ylabel="heating, degrees an hour")
for axis in (left, right):
    axis.legend()

# %%
# To try next: noise of 0.05 on the smooth curve, with 20 and with 8 coefficients; ``L2Penalty`` for the 231 of the front.
# :doc:`The page on known terms </universal>` has equations with several unknown terms.
