"""Lynx and hare: births and deaths are known but for their rates, and a network learns what the hunt does.

    hare' = birth * hare + u(hare, lynx),   lynx' = -death * lynx + v(hare, lynx)

A universal differential equation, Rackauckas et al. 2020 (arXiv 2001.04385), on the pelts that the Hudson Bay company counted,
1900 to 1920. Adam, then BFGS, from several starts, of which the best is kept; the last years are left out of the fit.

    CHAINS_DATA=folder python examples/lynx_hare.py --plot lynx_hare.png

reads sciml/hudson-bay-lynx-hare.csv of that folder: three lines of heading, then year, lynx, hare. The file is that of Stan's
example models (github.com/stan-dev/example-models, knitr/lotka-volterra).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chains import ODE, Adam, Chain, Dense, Equations, MSELoss, Normal, tanh, train


def counts() -> tuple[np.ndarray, np.ndarray]:
    """The years, and thousands of pelts of hares and lynxes, (years, 2)."""
    path = Path(os.environ.get("CHAINS_DATA", "data"), "sciml", "hudson-bay-lynx-hare.csv")
    if not path.exists():
        raise SystemExit(f"{path} is missing: get knitr/lotka-volterra/{path.name} of github.com/stan-dev/example-models")
    table = np.loadtxt(path, delimiter=",", skiprows=3)
    return table[:, 0], table[:, [2, 1]]


def equation() -> Equations:
    learned = Chain(Dense(2, 5, tanh), Dense(5, 5, tanh), Dense(5, 5, tanh), Dense(5, 2, weight_init=Normal(0.01)))
    return Equations(
        lambda hare, lynx, u, v, birth, death: (birth * hare + u, -death * lynx + v),
        inputs=("hare", "lynx"),
        network=learned,
        outputs=("u", "v"),
        parameters={"birth": 0.1, "death": 0.1},
    )


def fitted(net: Chain, p: np.ndarray, target: np.ndarray, adam: int, bfgs: int) -> tuple[float, np.ndarray]:
    """The error and the parameters after so many steps of each."""
    x, t, loss = target[:1], target[None], MSELoss()
    train(net, p, x, t, loss, Adam(0.02), epochs=adam, batch_size=None, progress=False)
    result = net.objective(x, t, loss).minimize(p, progress=False, options={"maxiter": bfgs})
    return (float(result.fun) if np.isfinite(result.fun) else np.inf), result.x


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--years", type=int, default=16, help="of the 21 that are fitted")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--adam", type=int, default=300, help="steps")
    parser.add_argument("--bfgs", type=int, default=300, help="steps at most")
    parser.add_argument("--plot", metavar="FILE", help="draw fit, extrapolation and interaction (needs matplotlib)")
    chosen = parser.parse_args(arguments)

    years, pelts = counts()
    scale = pelts[: chosen.years].std(0)
    target, times = pelts / scale, years - years[0]
    rhs = equation()
    net = Chain(ODE(rhs, times[: chosen.years], steps=10))
    found = []
    for seed in range(chosen.starts):
        begin = time.perf_counter()
        error, p = fitted(net, net.init(seed=seed, dtype=np.float64), target[: chosen.years], chosen.adam, chosen.bfgs)
        print(f"start {seed}: error {error:.5f} in {time.perf_counter() - begin:.2f} s")
        found.append((error, seed, p))
    error, seed, p = min(found)
    whole = Chain(ODE(rhs, times, steps=10))
    solution = whole(target[:1], p)[0]
    later = np.mean((solution[chosen.years :] - target[chosen.years :]) ** 2)
    birth, death = (float(net.views(p)[f"0.{name}"]) for name in ("birth", "death"))
    print(f"best start {seed}: mean squared error {error:.5f} in {chosen.years} years, {later:.5f} in the later ones")
    print(f"birth {birth:.3f} and death {death:.3f} a year")
    if chosen.plot:
        _plot(chosen.plot, rhs, p, years, pelts, scale, chosen.years)


def _plot(
    file: str, rhs: Equations, p: np.ndarray, years: np.ndarray, pelts: np.ndarray, scale: np.ndarray, fitted_years: int
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fine = np.linspace(0.0, years[-1] - years[0], 401)
    way = Chain(ODE(rhs, fine, steps=1))(pelts[:1] / scale, p)[0]
    interaction = Chain(rhs)(way, p) - way * [1.0, -1.0] * p[:2]
    figure, (fit, learned) = pyplot.subplots(1, 2, figsize=(12, 4.5))
    for k, (name, color) in enumerate((("hare", "tab:blue"), ("lynx", "tab:orange"))):
        fit.plot(years, pelts[:, k], "o", color=color, label=f"{name}, counted")
        fit.plot(years[0] + fine, way[:, k] * scale[k], color=color, label=f"{name}, solution")
        learned.plot(years[0] + fine, interaction[:, k] * scale[k], color=color, label=f"network's share of {name}'")
    fit.axvspan(years[fitted_years - 1], years[-1], color="0.9", label="not fitted")
    fit.set(xlabel="year", ylabel="thousands of pelts", ylim=(0.0, 1.3 * pelts.max()))
    learned.set(xlabel="year", ylabel="thousands of pelts a year")
    for axes in (fit, learned):
        axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
