"""
A stiff reaction
================

Three substances react, the fastest a billion times faster than the slowest (Robertson 1966). Explicit methods need 30,000
steps for the first 40 seconds. An implicit method needs 35, and its gradient gives the rates from measurements.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import ODE, Chain, Equations, SquaredLoss, minimize

# %%
# A formula with three rates. All stay positive.

reaction = Equations(
    lambda a, b, c, k1, k2, k3: (-k1 * a + k3 * b * c, k1 * a - k3 * b * c - k2 * b * b, k2 * b * b),
    inputs=("a", "b", "c"),
    parameters={"k1": 0.04, "k2": 3e7, "k3": 1e4},
    bounds={"k1": (0, None), "k2": (0, None), "k3": (0, None)},
)
times = np.concatenate([[0.0], np.logspace(-5, 5, 41)])
net = Chain(ODE(reaction, times, "kvaerno5", rtol=1e-6, atol=[1e-9, 1e-12, 1e-9], max_steps=400))
start = np.array([[1.0, 0.0, 0.0]])
states = net(start, net.init(dtype=np.float64))[0]

# %%
# The measurements have an error of one per cent. The fit begins with rates that are wrong by factors of 2 to 5.

measured = states * (1.0 + 0.01 * np.random.default_rng(0).normal(size=states.shape))
weights = np.where(states > 0.0, 1.0 / np.maximum(0.01 * states, 1e-12) ** 2, 0.0)  # one over the squares of the errors
p = net.init(dtype=np.float64)
for name, factor in (("0.k1", 2.0), ("0.k2", 0.2), ("0.k3", 3.0)):
    net.views(p)[name][...] += np.log(factor)  # positive parameters are stored as logarithms
objective = net.objective(start, measured[None], SquaredLoss(), weights=weights[None])
fit = minimize(objective, p, "LM", progress=False)
print({name: f"{float(value):.4g}" for name, value in net.values(fit.x).items()})

# %%
# The solution on a logarithmic axis of time; b is drawn ten thousand times larger.

figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
for k, (name, factor) in enumerate((("a", 1), ("b", 10000), ("c", 1))):
    axis.semilogx(times[1:], factor * measured[1:, k], ".", color=f"C{k}")
    axis.semilogx(
        times[1:], factor * net(start, fit.x)[0, 1:, k], color=f"C{k}", label=name + (" times 10,000" if factor > 1 else "")
    )
axis.set(xlabel="seconds", ylabel="share of the substance")
axis.legend()

# %%
# To try next: ``"kvaerno3"`` with ``rtol=1e-4``, for less accuracy. :doc:`The page on stiff equations </stiff>` says when an
# equation is stiff.
