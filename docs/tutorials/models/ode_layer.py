"""
An equation from observed curves
================================

Three curves are observed. Which differential equation has them as solutions? A network takes the place of the rate of change,
and ``ODE`` makes a layer of the equation: states at the start go in, states at all times come out.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import ODE, Chain, Dense, MSELoss, tanh

# %%
# Data: a rotation whose speed depends on the distance from the origin, with damping. The network does not know it.

times = np.linspace(0.0, 6.0, 61)
start = np.array([[2.0, 0.0], [0.0, 1.5], [-1.0, -1.0]])


def truth(u):
    speed = 1.5 - 0.2 * np.sum(u**2, axis=1, keepdims=True)
    return -0.5 * u + speed * u @ np.array([[0.0, -1.0], [1.0, 0.0]])


observed = [start]
for _ in range(60 * 20):
    u = observed[-1]
    observed.append(u + 0.005 * truth(u + 0.0025 * truth(u)))
observed = np.stack(observed[::20], axis=1)  # (curves, times, 2)

# %%
# The right-hand side is any chain from states to states. ``steps`` is the number of steps between two times.

net = Chain(ODE(Chain(Dense(2, 12, tanh), Dense(12, 2)), times, "rk4", steps=1))
objective = net.objective(start, observed, MSELoss())
starts = [net.init(seed=seed, dtype=np.float64) for seed in range(5)]
fits = [objective.minimize(p, progress=False, options={"maxiter": 200}) for p in starts]
fit = min(fits, key=lambda fit: fit.fun)
print("mean squared errors of five starts:", ", ".join(f"{fit.fun:.1e}" for fit in fits))

# %%
# The fit, and a solution from a start that was not among the data:

new = np.array([[1.5, 1.5]])
figure, axis = plt.subplots(figsize=(6, 4.5), layout="constrained")
for k, curve in enumerate(net(start, fit.x)):
    axis.plot(*observed[k].T, ".", color="gray", markersize=4, label="observed" if k == 0 else None)
    axis.plot(*curve.T, label=f"start {k + 1}")
axis.plot(*net(new, fit.x)[0].T, "--", color="black", label="a new start")
axis.set(xlabel="u1", ylabel="u2", aspect="equal")
axis.legend()

# %%
# To try next: ``rtol=1e-6`` instead of ``"rk4", steps=1``, which chooses the steps. :doc:`The page on ODEs </ode>` has
# separate times for each curve, and events.
