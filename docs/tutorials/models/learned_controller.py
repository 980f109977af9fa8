"""
A controller around a learned plant
===================================

A pendulum hangs down, and its motor is too weak to lift it directly. A controller has to swing it up. The controller knows
the pendulum as a network, trained on single steps. At each step it solves an optimal control problem for the next twenty
steps by Ipopt. Ipopt takes exact first and second derivatives of the network from machine code. This page needs
``pip install -e ".[control]"``. ``examples/cart_pole.py`` does the same with a pole on a cart.
"""

import casadi as ca
import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, MSELoss, minimize, tanh, train
from chains.interop import to_casadi

STEP, HORIZON, TORQUE = 0.1, 20, 4.0  # s, steps, N m; 9.8 N m would hold it horizontally


def plant(state, torque, parts=10):
    """The angle (0 is upright) and its rate, (..., 2), a step later, by the explicit midpoint rule."""
    h = STEP / parts
    for _ in range(parts):
        angle, rate = np.moveaxis(state, -1, 0)
        angle, rate = angle + h / 2 * rate, rate + h / 2 * (9.81 * np.sin(angle) + torque)
        state = state + h * np.stack([rate, 9.81 * np.sin(angle) + torque], -1)
    return state


# %%
# Data and network
# ----------------
#
# Random states and torques, all scaled to [-1, 1], and how much the state changes in a step.

rng = np.random.default_rng(0)
scales = np.array([5.0, 9.0, TORQUE])
x = rng.uniform(-1, 1, (2000, 3))
state, torque = x[:, :2] * scales[:2], x[:, 2] * scales[2]
t = plant(state, torque) - state

net = Chain(Dense(3, 16, tanh), Dense(16, 16, tanh), Dense(16, 2))
p = net.init(seed=0, dtype=np.float64)
train(net, p, x, t, MSELoss(), Adam(3e-3), epochs=50, batch_size=50, seed=0, progress=False)
p = minimize(net.objective(x, t, MSELoss()), p, "BFGS", maxiter=300, progress=False).x
print(f"root of the mean squared error: {np.sqrt(np.mean((net(x, p) - t) ** 2)):.1e}")

# %%
# Controller
# ----------
#
# ``samples=HORIZON`` computes all steps of the horizon in one call, as columns. States and torques are the unknowns, and
# each step of the network is a constraint.

F = to_casadi(net, p, samples=HORIZON)
states, torques, start = ca.MX.sym("states", 2, HORIZON + 1), ca.MX.sym("torques", 1, HORIZON), ca.MX.sym("start", 2)
following = states[:, :-1] + F(ca.vertcat(states[:, :-1], torques) / scales)
gaps = ca.horzcat(states[:, 0] - start, following - states[:, 1:])
costs = ca.DM([[10.0, 0.1]]) @ states**2  # of each state
cost = ca.sum2(costs) + 10 * costs[-1] + 0.01 * ca.sumsqr(torques)
unknowns = ca.vertcat(ca.vec(states), ca.vec(torques))
problem = {"x": unknowns, "p": start, "f": cost, "g": ca.vec(gaps)}
solver = ca.nlpsol("controller", "ipopt", problem, {"print_time": False, "ipopt": {"print_level": 0, "sb": "yes"}})
limits = np.full(unknowns.numel(), np.inf)
limits[-HORIZON:] = TORQUE

# %%
# Closed loop
# -----------
#
# Each solution is the first guess of the next problem. The first torque of each goes to the plant, which is not the network.

state, guess = np.array([np.pi, 0.0]), 0
angles, applied = [state[0]], []
for _ in range(60):
    guess = solver(x0=guess, p=state, lbx=-limits, ubx=limits, lbg=0, ubg=0)["x"].full()[:, 0]
    applied.append(guess[-HORIZON])
    state = plant(state, applied[-1])
    angles.append(state[0])

figure, axes = plt.subplots(2, 1, sharex=True, layout="constrained")
axes[0].plot(STEP * np.arange(61), np.degrees(angles))
axes[0].set_ylabel("angle, degrees")
axes[1].step(STEP * np.arange(60), applied, where="post")
axes[1].set_ylabel("torque, N m")
axes[1].set_xlabel("time, s")
plt.show()

# %%
# The pendulum swings back and forth until it has enough energy, then it stays upright:

print(f"after 6 s: {np.degrees(state[0]):.1f} degrees")

# %%
# To try next: a longer horizon, limits on the states; :doc:`the page on control </control>` has Ipopt, Pyomo and exported
# solvers.
