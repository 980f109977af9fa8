"""Draws the pictures of the front page's cards: ``python docs/draw_cards.py``, a minute. Each shows what was computed here."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from chains import GRU, Adam, Chain, Dense, Equations, MSELoss, ResidualProblem, SquaredLoss, Term, minimize, solve, tanh, train
from chains.expr import exp, sin

FOLDER = Path(__file__).parent / "_static" / "cards"
OWN, OTHER, GREY = "#c2410c", "#2563eb", "#94a3b8"


def axes(limits: tuple[float, float, float, float] | None = None) -> Any:
    """An empty picture, as wide as two heights, without scales."""
    found = Figure(figsize=(3.2, 1.6)).add_axes((0.04, 0.06, 0.92, 0.88))
    found.axis("off")
    if limits:
        found.set(xlim=limits[:2], ylim=limits[2:])
    return found


def save(drawn: Any, name: str) -> None:
    drawn.figure.savefig(FOLDER / name, metadata={} if name.endswith(".png") else {"Date": None}, dpi=120)
    print(FOLDER / name)


def curve() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(-3.0, 3.0, 60)[:, None]
    t = np.sin(2.0 * x) * np.exp(-0.2 * x * x) + 0.08 * rng.normal(size=x.shape)
    net = Chain(Dense(1, 16, tanh), Dense(16, 1))
    p = net.init(seed=0)
    train(net, p, x, t, MSELoss(), Adam(1e-2), epochs=2000, progress=False)
    drawn = axes()
    drawn.plot(x, t, ".", color=GREY, markersize=5)
    drawn.plot(x, net(x, p), color=OWN, linewidth=2.5)
    save(drawn, "curve.svg")


def bfgs() -> None:
    x = np.random.default_rng(0).normal(size=(500, 2))
    t = np.tanh(x[:, :1] * x[:, 1:])
    net, loss = Chain(Dense(2, 16, tanh), Dense(16, 1)), SquaredLoss()
    p = net.init(seed=0, dtype=np.float64)
    adam = train(net, p, x, t, loss, Adam(1e-2), epochs=150, progress=False).loss
    objective, later = net.objective(x, t, loss), []
    minimize(objective, p, "BFGS", maxiter=150, callback=lambda q: later.append(objective(q)[0]))
    drawn = axes()
    drawn.semilogy(adam, color=GREY, linewidth=2.5)
    drawn.semilogy(np.arange(len(later)) + len(adam), later, color=OWN, linewidth=2.5)
    save(drawn, "bfgs.svg")


def burgers() -> None:
    points = np.random.default_rng(0).uniform([0.0, -1.0], [1.0, 1.0], (1000, 2))
    problem = ResidualProblem(
        ("t", "x"), ("u",), [Term(lambda u: u.t + u * u.x - 0.01 / math.pi * u.xx, points)],
        transform=lambda u, t, x: t * (1.0 - x * x) * u - sin(math.pi * x),
    )  # fmt: skip
    net = Chain(Dense(2, 20, tanh), Dense(20, 20, tanh), Dense(20, 20, tanh), Dense(20, 1))
    solution = solve(net, net.init(0, np.float64), problem, adam=500, iterations=2000)
    t, x = np.meshgrid(np.linspace(0.0, 1.0, 160), np.linspace(-1.0, 1.0, 80))
    grid = np.column_stack([t.ravel(), x.ravel()])
    u = grid[:, 0] * (1.0 - grid[:, 1] ** 2) * net(grid, solution.p)[:, 0] - np.sin(math.pi * grid[:, 1])
    drawn = axes()
    drawn.imshow(u.reshape(t.shape), cmap="RdBu_r", aspect="auto", origin="lower")
    save(drawn, "burgers.png")


def fits() -> None:
    rng = np.random.default_rng(0)
    time = np.linspace(0.0, 4.0, 30)[:, None]
    truth = np.column_stack([rng.uniform(1.0, 3.0, 12), rng.uniform(0.5, 2.0, 12)])
    curves = truth[:, :1] * np.exp(-truth[:, 1:] * time.T) + 0.05 * rng.normal(size=(12, 30))
    net = Chain(Equations(lambda t, a, k: a * exp(-k * t), ("t",), parameters={"a": 1.0, "k": 1.0}))
    found = minimize(net.objective(time, curves[:, :, None], SquaredLoss()), np.ones((12, 2)), "LM")
    drawn = axes()
    for data, p in zip(curves, found.x, strict=True):
        drawn.plot(time, data, ".", color=GREY, markersize=3)
        drawn.plot(time, net(time, p), color=OWN, linewidth=1.2)
    save(drawn, "fits.svg")


def sequence() -> None:
    time = np.arange(120)
    series = (np.sin(0.3 * time) * np.sin(0.05 * time))[:, None]
    windows = np.stack([series[k : k + 20] for k in range(70)])
    net = Chain(GRU(1, 16), Dense(16, 1), input_shape=(20, 1))
    p = net.init(seed=0)
    train(net, p, windows, series[20:90], MSELoss(), Adam(1e-2), epochs=1500, progress=False)
    seen = list(series[:90])
    for _ in range(30):
        seen.append(net(np.array(seen[-20:])[None], p)[0])
    drawn = axes()
    drawn.plot(time, series, color=GREY, linewidth=2.5)
    drawn.plot(time[89:], seen[89:], color=OWN, linewidth=2.5)
    save(drawn, "sequence.svg")


def tutorial(place: str) -> dict[str, Any]:
    """The names of a tutorial that ran."""
    return runpy.run_path(str(Path(__file__).parent / "tutorials" / f"{place}.py"))


def hares() -> None:
    found = tutorial("models/lynx_hare")
    drawn = axes()
    for k, shade in enumerate((OTHER, OWN)):
        drawn.plot(found["years"], found["pelts"][:, k], "o", color=shade, markersize=3)
        drawn.plot(1900 + found["fine"], found["solution"][:, k] * found["scale"][k], color=shade, linewidth=2)
    save(drawn, "hares.svg")


def control() -> None:
    found = tutorial("models/learned_controller")
    drawn = axes()
    drawn.plot(found["angles"], color=OWN, linewidth=2.5)
    drawn.step(np.arange(len(found["applied"])), np.array(found["applied"]) / 2.0, color=GREY, linewidth=1.5)
    save(drawn, "control.svg")


def words(name: str, *lines: str) -> None:
    drawn = axes()
    for k, line in enumerate(lines):
        height = 0.5 + 0.2 * (0.5 * (len(lines) - 1) - k)
        drawn.text(0.5, height, line, family="monospace", fontsize=12, ha="center", va="center", color=OWN if k == 0 else GREY)
    save(drawn, name)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    matplotlib.use("agg")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "chains"}):
        for draw in (curve, bfgs, burgers, hares, fits, sequence, control):
            draw()
        words("export.svg", "model.h  model.c", "model_forward(n, x, p, y)", "model_jacobian(n, x, p, J)")
        words("code.png", ">>> y = net(x, p)", ">>> y.shape", "(200, 1)")  # of tutorials without a picture
        words("gpu.svg", 'backend="cupy"', "17 us a step on an H200", "PyTorch: 105 us")


if __name__ == "__main__":
    main()
