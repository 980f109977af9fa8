"""Lynx and hare: births and deaths are known, and a network learns how the hunt depends on both numbers.

    hare' = birth * hare - hare * lynx * exp(u),   lynx' = hare * lynx * exp(v) - death * lynx,   (u, v) = network(hare, lynx)

A universal differential equation, Rackauckas et al. 2020 (arXiv 2001.04385), on the pelts that the Hudson Bay company counted,
1900 to 1920. Without a network, u and v are constant, as in the equation of Lotka and Volterra. Rates stay between 0.1 and 2 a
year, a penalty keeps the network's weights small, and BFGS fits from ten random starts. The last years are left out of the fit
and predicted.

    CHAINS_DATA=folder python examples/lynx_hare.py

reads sciml/hudson-bay-lynx-hare.csv of that folder: three lines of heading, then year, lynx, hare. The file is that of Stan's
example models (github.com/stan-dev/example-models, knitr/lotka-volterra).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import ODE, Chain, Dense, Equations, L2Penalty, MSELoss, tanh
from chains.expr import exp
from chains.initializers import Normal

RATES = (0.1, 2.0)  # a year: hares have several litters, lynxes live for some years


def counts() -> tuple[np.ndarray, np.ndarray]:
    """The years, and thousands of pelts of hares and lynxes, (years, 2)."""
    path = Path(os.environ.get("CHAINS_DATA", "data"), "sciml", "hudson-bay-lynx-hare.csv")
    if not path.exists():
        raise SystemExit(f"{path} is missing: get knitr/lotka-volterra/{path.name} of github.com/stan-dev/example-models")
    table = np.loadtxt(path, delimiter=",", skiprows=3)
    return table[:, 0], table[:, [2, 1]]


def equation() -> Equations:
    learned = Chain(Dense(2, 5, tanh), Dense(5, 2, weight_init=Normal(0.01)))
    return Equations(
        lambda hare, lynx, u, v, birth, death: (
            birth * hare - hare * lynx * exp(u),
            hare * lynx * exp(v) - death * lynx,
        ),
        inputs=("hare", "lynx"),
        network=learned,
        outputs=("u", "v"),
        parameters={"birth": 0.5, "death": 0.5},
        bounds={"birth": RATES, "death": RATES},
    )


def start(net: Chain, seed: int) -> np.ndarray:
    """A network that hardly changes the hunt, and rates anywhere within their bounds."""
    p, rng = net.init(seed=seed, dtype=np.float64), np.random.default_rng(seed)
    for name in ("0.birth", "0.death"):
        net.views(p)[name][...] = net.layout[name].bounds.stored(rng.uniform(*RATES))
    return p


def rates(net: Chain, p: np.ndarray) -> str:
    values = net.values(p)
    return f"birth {values['0.birth']:.3f} and death {values['0.death']:.3f} a year"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--years", type=int, default=16, help="of the 21 that are fitted")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--strength", type=float, default=0.03, help="of the penalty")
    parser.add_argument("--iterations", type=int, default=300, help="of BFGS at most")
    add_plot(parser, "lynx_hare.png")
    chosen = parser.parse_args(arguments)

    years, pelts = counts()
    scale = pelts[: chosen.years].std(0)
    target, times = pelts / scale, years - years[0]
    rhs = equation()
    net, whole = (Chain(ODE(rhs, part, steps=10)) for part in (times[: chosen.years], times))
    x, t = target[:1], target[None, : chosen.years]

    def fitted(net: Chain, p: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and the parameters after BFGS."""
        objective = net.objective(x, t, MSELoss(), L2Penalty(chosen.strength, "0.network.*.weight"))
        result = objective.minimize(p, progress=False, options={"maxiter": chosen.iterations})
        return float(result.fun), result.x

    def errors(p: np.ndarray) -> str:
        squares = (whole(x, p)[0] - target) ** 2
        fit, later = squares[: chosen.years].mean(), squares[chosen.years :].mean()
        return f"mean squared error {fit:.4f} in {chosen.years} years, {later:.4f} in the later ones"

    begin = time.perf_counter()
    found = []
    for seed in range(chosen.starts):
        loss, p = fitted(net, start(net, seed))
        print(f"start {seed}: {errors(p)}; {rates(net, p)}")
        found.append((loss, seed, p))
    loss, seed, p = min(found)
    print(f"best start {seed}, of loss {loss:.4f}: {errors(p)}; {rates(net, p)}")
    plain = start(net, 0)
    net.views(plain)["0.network.1.weight"][...] = 0.0  # u and v are the last biases
    _, plain = fitted(net.with_frozen("0.network.*.weight"), plain)
    print(f"without the network: {errors(plain)}; {rates(net, plain)}")
    print(f"{time.perf_counter() - begin:.1f} s")
    save_picture(chosen.plot, (12, 4.5), lambda figure: draw(figure, rhs, p, years, pelts, scale, chosen.years))


def draw(
    figure: Any, rhs: Equations, p: np.ndarray, years: np.ndarray, pelts: np.ndarray, scale: np.ndarray, fitted_years: int
) -> None:
    """The fit, the extrapolation and the hunt."""
    fine = np.linspace(0.0, years[-1] - years[0], 401)
    net = Chain(ODE(rhs, fine, steps=1))
    states = net(pelts[:1] / scale, p)[0]
    birth, death = (net.values(p)[name] for name in ("0.birth", "0.death"))
    hunt = Chain(rhs)(states, p) - states * [birth, -death]
    fit, learned = figure.subplots(1, 2)
    for k, (name, color) in enumerate((("hare", "tab:blue"), ("lynx", "tab:orange"))):
        fit.plot(years, pelts[:, k], "o", color=color, label=f"{name}, counted")
        fit.plot(years[0] + fine, states[:, k] * scale[k], color=color, label=f"{name}, solution")
        learned.plot(years[0] + fine, hunt[:, k] * scale[k], color=color, label=f"share of the hunt in {name}'")
    fit.axvspan(years[fitted_years - 1], years[-1], color="0.9", label="not fitted")
    fit.set(xlabel="year", ylabel="thousands of pelts", ylim=(0.0, 1.3 * pelts.max()))
    learned.set(xlabel="year", ylabel="thousands of pelts a year")
    for axes in (fit, learned):
        axes.legend()


if __name__ == "__main__":
    main()
