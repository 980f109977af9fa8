"""
A steady state: a reactor with an unknown rate
==============================================

In a stirred tank, one substance reacts to another one. Only the steady concentrations were measured, at several feeds. How
the rate depends on both concentrations is not known, and a network takes its place in the balance of the tank.
``SteadyState`` solves the balance, with an exact gradient by the implicit function theorem.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import Chain, Dense, Equations, SquaredLoss, SteadyState, minimize, tanh
from chains.expr import exp

# %%
# In the steady state, inflow, outflow and reaction of both substances are in balance. The truth is a rate that its product
# slows down; the flow through the tank is 1.

truth = Equations(
    lambda a, b, feed: (feed - a - 2.0 * a / (1.0 + 3.0 * b), 2.0 * a / (1.0 + 3.0 * b) - b), inputs=["a", "b", "feed"]
)
feeds = np.linspace(0.1, 3.0, 30)[:, None]
rng = np.random.default_rng(0)
measured = Chain(SteadyState(truth, 2, guess=0.5), input_shape=(1,))(feeds, np.zeros(0)) + rng.normal(scale=0.005, size=(30, 2))

# %%
# The network gives the logarithm of the rate constant from both concentrations.

balance = Equations(
    lambda a, b, feed, u: (feed - a - a * exp(u), a * exp(u) - b),
    inputs=["a", "b", "feed"],
    networks={"u": (Chain(Dense(2, 6, tanh), Dense(6, 1)), ("a", "b"))},
)
net = Chain(SteadyState(balance, 2, guess=0.5), input_shape=(1,))
objective = net.objective(feeds, measured, SquaredLoss())
fit = minimize(objective, net.init(seed=0, dtype=np.float64), "BFGS", maxiter=300)
print(f"root mean square error {np.sqrt(np.mean((net(feeds, fit.x) - measured) ** 2)):.4f}, {fit.nit} iterations")

# %%
# The concentrations, and the rate constant along the steady states.

fine = np.linspace(0.1, 3.0, 200)[:, None]
states = net(fine, fit.x)
found = states[:, 1] / states[:, 0]  # the balance of the product
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for k, name in enumerate(("substance", "product")):
    axes[0].plot(feeds, measured[:, k], ".", color=f"C{k}")
    axes[0].plot(fine, states[:, k], color=f"C{k}", label=name)
axes[0].set(xlabel="feed", ylabel="steady concentration")
axes[0].legend()
axes[1].plot(fine, found, label="network")
axes[1].plot(fine, 2.0 / (1.0 + 3.0 * states[:, 1]), "k--", label="truth")
axes[1].set(xlabel="feed", ylabel="rate constant")
axes[1].legend()

# %%
# To try next: ``method="anderson"``, larger states; :doc:`the page on steady states </steady>` says when which one pays.
