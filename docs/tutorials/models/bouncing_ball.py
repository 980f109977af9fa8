"""
A bouncing ball: events and restarts
====================================

Balls fall and bounce. Each bounce takes some of their speed, and so does the air. Only the times of the bounces were
measured. How much speed does a bounce leave, and how strong is the drag? ``ODE(..., event=...)`` ends a flight where the
ball reaches the ground, with an exact gradient through the time of the event.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import ODE, Chain, Equations, minimize
from chains.expr import sqrt

# %%
# A flight: height h and speed v, with gravity and drag, until h becomes negative. It lasts four seconds at most.

fall = Equations(lambda h, v, drag: (v, -9.81 - drag * v * sqrt(v * v + 1e-9)), ["h", "v"], parameters={"drag": 0.05})
ground = Equations(lambda h, v: h, ["h", "v"])
flight = Chain(ODE(fall, [0.0, 4.0], steps=40, event=ground, direction="down"))

# %%
# Four bounces, one flight after the other. The last row of a flight is the state at the event, then its time.

start = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]])


def bounces(q):
    """The times of four bounces of each ball, and the flights, for the drag and the part of the speed that a bounce leaves."""
    state, clock, times, flights = start, np.zeros(len(start)), [], []
    for _ in range(4):
        end = flight(state, q[:1])[:, -1]
        flights.append((state, end))
        clock = clock + end[:, 2]
        times.append(clock)
        state = np.column_stack([np.zeros(len(start)), -q[1] * end[:, 1]])
    return np.array(times), flights


# %%
# The gradient goes back through the flights: ``vjp`` of each, and by hand through the bounces between.


def value_and_gradient(q):
    times, flights = bounces(q)
    wrong = times - measured
    g, d_state = np.zeros(2), np.zeros_like(start)
    for k in reversed(range(4)):
        state, end = flights[k]
        dy = np.zeros((len(start), 3, 3))
        dy[:, -1] = np.column_stack([0.0 * end[:, 0], -q[1] * d_state[:, 1], wrong[k:].sum(axis=0)])
        g[1] -= (end[:, 1] * d_state[:, 1]).sum()
        dp, d_state = flight.vjp(q[:1], state, dy)
        g[0] += dp[0]
    return 0.5 * (wrong**2).sum(), g


truth = np.array([0.08, 0.75])
measured = bounces(truth)[0] + np.random.default_rng(0).normal(scale=0.005, size=(4, 3))
fit = minimize(value_and_gradient, np.array([0.0, 0.9]), "BFGS", gtol=1e-9)
print(f"drag {fit.x[0]:.3f} (truth {truth[0]}), part of the speed {fit.x[1]:.3f} (truth {truth[1]}), {fit.nit} iterations")

# %%
# The fitted flights, and the measured times:

figure, axis = plt.subplots(figsize=(8, 3.5), layout="constrained")
fine = Chain(ODE(fall, np.linspace(0.0, 4.0, 401), event=ground, direction="down"))
times, flights = bounces(fit.x)
for ball in range(len(start)):
    clock = 0.0
    for state, _ in flights:
        rows = fine(state[ball : ball + 1], fit.x[:1])[0, :-1]
        axis.plot(clock + rows[:, 2], rows[:, 0], color=f"C{ball}")
        clock += rows[-1, 2]
    axis.plot(measured[:, ball], 0.0 * measured[:, ball], "o", color=f"C{ball}")
axis.set(xlabel="seconds", ylabel="metres", title="points: measured times of bounces")

# %%
# To try next: a ball in the plane, a wall; :doc:`the page on ODEs </ode>` has the rules of events.
