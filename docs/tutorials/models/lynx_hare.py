"""
Lynx and hare: a network in an equation
=======================================

The Hudson Bay company counted the pelts of hares and lynxes for 21 years. Part of an equation for them is known: hares are
born, lynxes die, and lynxes eat hares. How the hunt depends on the numbers of both is not known. A network learns it.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import ODE, Chain, Dense, Equations, L2Penalty, MSELoss, tanh
from chains.expr import exp
from chains.initializers import Normal

# %%
# Thousands of pelts from 1900 to 1920, from Howard 2009 in Stan's example models. They are divided by their standard
# deviations.

years = np.arange(1900, 1921)
hare = "30.0 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22.0 25.4 27.1 40.3 57.0 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7"
lynx = "4.0 6.1 9.8 35.2 59.4 41.7 19.0 13.0 8.3 9.1 7.4 8.0 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6"
pelts = np.array([hare.split(), lynx.split()], float).T
fitted = 16  # years; the last five are predicted
scale = pelts[:fitted].std(0)
states = pelts / scale

# %%
# ``Equations`` has the known terms as a formula. ``u`` and ``v`` come from the network; if they are constant, this is the
# equation of Lotka and Volterra. ``birth`` and ``death`` are trained too, between 0.1 and 2 a year.

rhs = Equations(
    lambda hare, lynx, u, v, birth, death: (birth * hare - hare * lynx * exp(u), hare * lynx * exp(v) - death * lynx),
    inputs=("hare", "lynx"),
    network=Chain(Dense(2, 5, tanh), Dense(5, 2, weight_init=Normal(0.01))),
    outputs=("u", "v"),
    parameters={"birth": 0.5, "death": 0.5},
    bounds={"birth": (0.1, 2.0), "death": (0.1, 2.0)},
)

# %%
# ``ODE`` solves the equation from the counts of the first year. BFGS fits the first 16 years. A penalty keeps the network
# small: without one it fits the counts of 16 years too closely, and predicts worse.

net = Chain(ODE(rhs, np.arange(float(fitted)), steps=10))
penalty = L2Penalty(0.03, "0.network.*.weight")
objective = net.objective(states[:1], states[None, :fitted], MSELoss(), penalty)
fits = [
    objective.minimize(net.init(seed=seed, dtype=np.float64), progress=False, options={"maxiter": 300}) for seed in range(5)
]
p = min(fits, key=lambda fit: fit.fun).x
rates = net.values(p)
print("losses of five starts:", ", ".join(f"{fit.fun:.4f}" for fit in fits))
print(f"births {rates['0.birth']:.2f} and deaths {rates['0.death']:.2f} a year")

# %%
# The solution between the years, and after the fitted ones: a network with other times takes the same parameters.

fine = np.linspace(0.0, 20.0, 401)
solution = Chain(ODE(rhs, fine, steps=1))(states[:1], p)[0]
figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
for k, name in enumerate(("hare", "lynx")):
    axis.plot(years, pelts[:, k], "o", color=f"C{k}", label=f"{name}, counted")
    axis.plot(1900 + fine, solution[:, k] * scale[k], color=f"C{k}", label=f"{name}, solution")
axis.axvspan(1915, 1920, color="0.9", label="not fitted")
axis.set(xlabel="year", ylabel="thousands of pelts", ylim=(0, 100), xticks=range(1900, 1921, 4))
axis.legend(ncols=3)

# %%
# Errors are mean squares over the variance of the fitted years.

errors = (Chain(ODE(rhs, np.arange(21.0), steps=10))(states[:1], p)[0] - states) ** 2
print(f"error {errors[:fitted].mean():.3f} in the fitted years, {errors[fitted:].mean():.3f} in the five later ones")

# %%
# To try next: the other half of the equation as a network; :doc:`universal differential equations </universal>` says what
# such a fit can show.
