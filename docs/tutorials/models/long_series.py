"""
A long series: multiple shooting
================================

Hares and lynxes are counted for forty years, and their numbers rise and fall six times. How each of them grows is not known.
A fit of the whole series from its first year fails from most starts: a solution that runs ahead by half a cycle is as wrong
as one that does not swing at all. ``MultipleShooting`` cuts the series into segments.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import ODE, Chain, Dense, Equations, MultipleShooting, tanh

# %%
# The data come from the equation of Lotka and Volterra, with errors of three per cent.

times = np.linspace(0.0, 40.0, 161)
truth = Equations(lambda hare, lynx: (hare - hare * lynx, hare * lynx - lynx), inputs=("hare", "lynx"))
true = Chain(ODE(truth, times, steps=20))(np.array([[3.0, 1.0]]), np.zeros(0))[0]
counted = true + 0.03 * true.std(0) * np.random.default_rng(0).normal(size=true.shape)

# %%
# One fact is known: the growth is proportional to the number of animals. A network gives both rates of growth.

rhs = Equations(
    lambda hare, lynx, u, v: (hare * u, lynx * v),
    inputs=("hare", "lynx"),
    network=Chain(Dense(2, 8, tanh), Dense(8, 2)),
    outputs=("u", "v"),
)
ode = ODE(rhs, times, method="rk4", steps=2)
starts = [Chain(ode).init(seed=seed, dtype=np.float64) for seed in range(3)]

# %%
# Three starts, as one segment and as twenty. Errors are mean squares over the variance; those of the counts are 0.0009.

fits = {segments: [MultipleShooting(ode, counted, segments).fit(p) for p in starts] for segments in (1, 20)}
for segments, found in fits.items():
    print(f"{segments:2} segments: errors {', '.join(f'{fit.error:.2g}' for fit in found)}")

# %%
# The initial states of all segments are trained along with the network. At first gaps between segments cost little, so that
# each segment follows its data; then they cost more. At last the whole series is one solution.

figure, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
for axis, (segments, found) in zip(axes, fits.items(), strict=True):
    best = min(found, key=lambda fit: fit.error)
    axis.plot(times, counted[:, 0], ".", color="0.6", label="hares, counted")
    axis.plot(times, best.states[0, :, 0], label=f"best of three fits, {segments} segment{'s' * (segments > 1)}")
    axis.set(ylabel="hares", ylim=(-0.5, 5.5))
    axis.legend(loc="upper right", ncols=2)
axes[1].set(xlabel="years")

# %%
# The network has found how fast hares grow: without lynxes by a factor of e a year.

grid = np.linspace(0.2, 3.0, 50)
best = min(fits[20], key=lambda fit: fit.error)
lynxes = np.stack([np.ones_like(grid), grid], axis=1)  # one hare, and more and more lynxes
growth = Chain(rhs)(lynxes, best.p)[:, 0]
figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
axis.plot(grid, growth, label="network")
axis.plot(grid, 1.0 - grid, "--", color="black", label="truth")
axis.set(xlabel="lynxes", ylabel="growth of hares")
axis.legend()

# %%
# To try next: fewer segments, more noise; :doc:`the page on long series </shooting>` explains the stages of a fit.
