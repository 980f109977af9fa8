"""Levenberg-Marquardt needs a twentieth of the iterations of BFGS to fit the network of `quickstart.py`.

BFGS learns the curvature of the loss from gradients, a direction an iteration. Levenberg-Marquardt has the derivatives of every
residual by every parameter, exactly (`net.jacobian`).

    python examples/levenberg_marquardt.py

takes about five seconds. Both start where Adam ends, in double precision.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture
from quickstart import matrix_exponential

from chains import Adam, Chain, Dense, SquaredLoss, tanh, train
from chains.minimize.minimize import minimize


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=1000, help="of Adam")
    parser.add_argument("--bfgs", type=int, default=1000, help="iterations")
    parser.add_argument("--lm", type=int, default=100, help="iterations")
    parser.add_argument("--seed", type=int, default=0)
    add_plot(parser, "levenberg_marquardt.png")
    chosen = parser.parse_args(arguments)

    matrices = np.random.default_rng(chosen.seed).normal(size=(chosen.samples, 2, 2))
    x, t = matrices.reshape(-1, 4), matrix_exponential(matrices).reshape(-1, 4)
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
    start = net.init(seed=chosen.seed, dtype=np.float64)
    train(net, start, x, t, SquaredLoss(), Adam(0.01), epochs=chosen.epochs, batch_size=None, progress=False)
    objective = net.objective(x, t, SquaredLoss())
    print(f"{net.n_params} parameters, {chosen.samples} samples; after Adam the loss is {objective.value(start):.3e}")
    print(f"{'':6}{'iterations':>12}{'calls':>8}{'seconds':>10}{'loss':>12}{'seconds to the loss of BFGS':>29}")
    goal, ways = None, {}
    for method, iterations in (("BFGS", chosen.bfgs), ("LM", chosen.lm)):
        way: list[tuple[float, np.ndarray]] = []
        begin = time.perf_counter()

        def note(p: np.ndarray, begin: float = begin, way: list[tuple[float, np.ndarray]] = way) -> None:
            way.append((time.perf_counter() - begin, p))

        result = minimize(objective, start, method, maxiter=iterations, gtol=1e-12, callback=note, progress=False)
        seconds = time.perf_counter() - begin
        ways[method] = [objective.value(p) for _, p in way]
        goal = result.fun if goal is None else goal
        reached = next((moment for (moment, _), value in zip(way, ways[method], strict=True) if value <= goal), None)
        shown = "-" if reached is None else f"{reached:.2f}"
        print(f"{method:6}{result.nit:12}{result.nfev:8}{seconds:10.2f}{result.fun:12.3e}{shown:>29}", flush=True)

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for method, losses in ways.items():
            axis.loglog(np.arange(1, len(losses) + 1), losses, label=method)
        axis.set(xlabel="iteration after Adam", ylabel="loss")
        axis.legend()

    save_picture(chosen.plot, (6, 4), draw)


if __name__ == "__main__":
    main()
