"""A controller that knows its plant as a network swings a pole up on a cart, and balances it.

    python examples/cart_pole.py

takes a few seconds. The network learns one step of the plant from simulated runs with random forces. The controller solves an
optimal control problem at each step, over the next 20 steps, by Ipopt with exact derivatives of the network (pip install
casadi).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from picture import add_plot, save_picture

import chains
from chains import Chain, Dense, MSELoss, tanh
from chains.interop import to_casadi

STEP, HORIZON, MOST_FORCE = 0.1, 20, 15.0  # s, steps, N
CART, POLE, LENGTH, GRAVITY = 1.0, 0.2, 0.5, 9.81  # kg, kg, m to the pole's centre, m/s^2
SCALES = np.array([3.0, 5.0, 5.0, MOST_FORCE])  # of speed, angle, angular speed, force


def rates(state: np.ndarray, force: np.ndarray) -> np.ndarray:
    """The derivatives of position, speed, angle (0 is upright) and angular speed, (..., 4)."""
    _, speed, angle, spin = np.moveaxis(state, -1, 0)
    sine, cosine = np.sin(angle), np.cos(angle)
    push = (force + POLE * LENGTH * spin**2 * sine) / (CART + POLE)
    turning = (GRAVITY * sine - cosine * push) / (LENGTH * (4 / 3 - POLE * cosine**2 / (CART + POLE)))
    return np.stack([speed, push - POLE * LENGTH * turning * cosine / (CART + POLE), spin, turning], -1)


def plant(state: np.ndarray, force: np.ndarray, parts: int = 10) -> np.ndarray:
    """The state a step later, by Runge and Kutta's method."""
    h = STEP / parts
    for _ in range(parts):
        a = rates(state, force)
        b = rates(state + h / 2 * a, force)
        c = rates(state + h / 2 * b, force)
        state = state + h / 6 * (a + 2 * b + 2 * c + rates(state + h * c, force))
    return state


def learned(samples: int = 3000, epochs: int = 100, iterations: int = 400, seed: int = 0) -> tuple[Chain, np.ndarray, float]:
    """A network of one step's changes, trained on random states and forces; and its largest error on new ones."""
    rng = np.random.default_rng(seed)

    def flights(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.uniform(-1, 1, (count, 4))
        state = np.concatenate([np.zeros((count, 1)), x[:, :3] * SCALES[:3]], axis=1)
        return x, plant(state, x[:, 3] * SCALES[3]) - state

    net = Chain(Dense(4, 24, tanh), Dense(24, 24, tanh), Dense(24, 4))
    x, t = flights(samples)
    p = net.init(seed, dtype=np.float64)
    chains.train(net, p, x, t, MSELoss(), chains.Adam(3e-3), epochs=epochs, batch_size=100, seed=seed, progress=False)
    p = chains.minimize(net.objective(x, t, MSELoss()), p, "BFGS", gtol=1e-7, maxiter=iterations, progress=False).x
    x, t = flights(1000)
    return net, p, float(abs(net(x, p) - t).max())


def controller(net: Chain, p: np.ndarray, **options: object):
    """A function from a state and a guess to the forces of the next steps, the next guess, and the solver's times."""
    import casadi as ca

    F = to_casadi(net, p, samples=HORIZON)
    states, forces, start = ca.MX.sym("states", 4, HORIZON + 1), ca.MX.sym("forces", 1, HORIZON), ca.MX.sym("start", 4)
    before = states[:, :-1]
    inputs = ca.vertcat(before[1, :] / SCALES[0], before[2, :] / SCALES[1], before[3, :] / SCALES[2], forces / SCALES[3])
    gaps = ca.horzcat(states[:, 0] - start, before + F(inputs) - states[:, 1:])
    weights = ca.DM([1.0, 0.1, 10.0, 0.1])
    costs = weights.T @ states**2  # of each state
    cost = ca.sum2(costs) + 10 * costs[-1] + 1e-3 * ca.sumsqr(forces)
    z = ca.vertcat(ca.vec(states), ca.vec(forces))
    limits = np.full(z.numel(), np.inf)
    limits[: 4 * (HORIZON + 1) : 4] = 2.0  # m, the track's half length
    limits[4 * (HORIZON + 1) :] = MOST_FORCE
    settings = {
        "print_time": False,
        "record_time": True,
        "ipopt": {"print_level": 0, "sb": "yes", "max_iter": 200, "tol": 1e-6, **options},
    }
    solver = ca.nlpsol("controller", "ipopt", {"x": z, "p": start, "f": cost, "g": ca.vec(gaps)}, settings)

    def control(state: np.ndarray, guess: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, dict]:
        if guess is None:
            guess = np.concatenate([np.tile(state, HORIZON + 1), np.zeros(HORIZON)])
        z = solver(x0=guess, p=state, lbx=-limits, ubx=limits, lbg=0, ubg=0)["x"].full()[:, 0]
        states, forces = z[: 4 * (HORIZON + 1)].reshape(-1, 4), z[4 * (HORIZON + 1) :]
        shifted = np.concatenate([states[1:].ravel(), states[-1], forces[1:], forces[-1:]])
        return forces, shifted, solver.stats()

    return control


def closed_loop(control, steps: int = 60) -> tuple[np.ndarray, np.ndarray, list[dict]]:
    """States and forces from the hanging pole on, and the solver's statistics of each step."""
    state, guess = np.array([0.0, 0.0, np.pi, 0.0]), None
    states, applied, stats = [state], [], []
    for _ in range(steps):
        forces, guess, found = control(state, guess)
        state = plant(state, forces[0])
        states.append(state)
        applied.append(forces[0])
        stats.append(found)
    return np.array(states), np.array(applied), stats


def shares(stats: list[dict]) -> dict[str, float]:
    """Milliseconds of a control step: all of it, and the evaluation of the problem's functions, the network among them."""
    names = ("nlp_f", "nlp_g", "nlp_grad_f", "nlp_jac_g", "nlp_hess_l")
    functions = [sum(each.get(f"t_wall_{name}", 0.0) for name in names) for each in stats]
    return {
        "control step": 1e3 * float(np.median([each["t_wall_total"] for each in stats])),
        "functions": 1e3 * float(np.median(functions)),
        "iterations": float(np.median([each["iter_count"] for each in stats])),
    }


def draw(figure: Any, states: np.ndarray, forces: np.ndarray) -> None:
    """Angle, position and force over time, and the pole at some of the steps."""
    axes = figure.subplots(2, 1)
    seconds = STEP * np.arange(len(states))
    axes[0].plot(seconds, np.degrees(states[:, 2]), label="angle, degrees (0: upright)")
    axes[0].plot(seconds, 100 * states[:, 0], label="position, cm")
    axes[0].step(seconds[:-1], 10 * forces, where="post", label="force, 0.1 N")
    axes[0].set_xlabel("time, s")
    axes[0].legend()
    for k in range(0, len(states), 2):
        x, angle = states[k, 0], states[k, 2]
        shade = str(0.85 * (1 - k / len(states)))
        axes[1].plot([x, x + 2 * LENGTH * np.sin(angle)], [0, 2 * LENGTH * np.cos(angle)], color=shade)
    axes[1].set_aspect("equal")
    axes[1].set_xlabel("position, m")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_plot(parser, "cart_pole.png")
    given = parser.parse_args()
    begin = time.perf_counter()
    net, p, error = learned()
    print(f"{net!r}: learned in {time.perf_counter() - begin:.1f} s, largest error of a step {error:.1e}")
    begin = time.perf_counter()
    control = controller(net, p)
    print(f"controller of {HORIZON} steps: built in {time.perf_counter() - begin:.2f} s")
    states, forces, stats = closed_loop(control)
    for k in range(0, len(forces), 5):
        position, angle = states[k, 0], np.degrees(states[k, 2])
        print(f"{STEP * k:4.1f} s: position {position:6.2f} m, angle {angle:7.1f} degrees, force {forces[k]:6.1f} N")
    print(", ".join(f"{name} {value:.2f}" for name, value in shares(stats).items()), "(medians, milliseconds)")
    wrong = np.flatnonzero(abs(states[:, 2]) > np.radians(5))[-1]
    print(f"within 5 degrees of upright from {STEP * (wrong + 1):.1f} s on" if wrong + 1 < len(states) else "never balanced")
    save_picture(given.plot, (8, 6), lambda figure: draw(figure, states, forces))


if __name__ == "__main__":
    main()
