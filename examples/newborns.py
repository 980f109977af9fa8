"""How clearance of phenobarbital depends on the weight of newborns, and on time: formulas and monotone networks.

The data are those of Grasela and Donn (1985): 59 newborns, 155 concentrations, ``population/phenobarbital.csv`` of the folder
CHAINS_DATA, with the columns id, time, amount, weight, apgar and concentration. Models are compared by the value of newborns
who took no part in a fit: in each of five fits, a fifth of them.

    CHAINS_DATA=folder python examples/newborns.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from chains import Chain, Equations, MSELoss, Parallel, Select, Series, minimize
from chains.expr import exp, log, where
from chains.layers import Compartments, Layer, Monotone
from chains.population import PopulationModel, Proportional, read_table
from chains.population.table import Samples

COLUMNS = {"amt": "amount", "dv": "concentration"}
WEIGHTS = (0.8, 1.2, 1.6, 2.4)  # kg


def by_weight(units: int) -> Layer:
    """The logarithm of clearance, increasing in weight."""
    return Series(Equations(lambda w, time: (log(w / 1.4),), ["w", "time"]), Monotone(1, (units, 1), increasing=0))


def by_weight_and_time(units: int) -> Layer:
    """The logarithm of clearance, increasing in weight and in the time since the first dose."""
    scaled = Equations(lambda w, time: (log(w / 1.4), time / 100.0), ["w", "time"])
    return Series(scaled, Monotone(2, (units, 1), increasing=(0, 1)))


RATES: dict[str, Layer] = {
    "proportional to weight": Equations(lambda w, time, scale: log(w) + scale, ["w", "time"], parameters={"scale": -0.3}),
    "a power of weight": Equations(
        lambda w, time, scale, power: power * log(w) + scale, ["w", "time"], parameters={"scale": -0.3, "power": 1.0}
    ),
    "a monotone network of weight": by_weight(2),
    "a monotone network of weight and time": by_weight_and_time(2),
}


def model_of(rate: Layer, samples: Samples) -> PopulationModel:
    """The published model with another clearance: `rate` is its logarithm, less that of 0.007 L/h."""
    drug = Equations(
        lambda w, apgar, time, e1, e2, u, volume, low: (
            0.007 * exp(u + e1), volume * w * (1.0 + where(apgar < 5.0, low, 0.0)) * exp(e2),
        ),
        ["w", "apgar", "time", "e1", "e2"], networks={"u": (rate, ["w", "time"])}, parameters={"volume": 1.0, "low": 0.1},
    )  # fmt: skip
    n = len(samples.columns)
    parts = Parallel(Series(Select([0, 1, 2, n, n + 1]), drug), Select(range(2, n)))
    net = Chain(parts, Compartments(1, samples.doses), input_shape=(n + 2,))
    return PopulationModel(net, {"clearance": 0.03, "volume": 0.03}, Proportional(0.02))


def fitted(model: PopulationModel, x: np.ndarray, y: np.ndarray, subjects: np.ndarray) -> np.ndarray:
    """The flat vector of a fit that begins at the least squares of all newborns as one."""
    loss = model.net.objective(np.hstack([x, np.zeros((len(x), 2))]), y[:, None], MSELoss())
    start = minimize(loss, model.net.init(seed=0, dtype=np.float64), maxiter=30).x
    return model.fit(x, y, subjects, theta=model.init(start)).theta


def held_out(model: PopulationModel, samples: Samples, folds: int) -> float:
    """The value of all newborns, each from a fit without it."""
    x, y, subjects = samples.x, samples.y, samples.subjects
    ids, total = np.unique(subjects), 0.0
    number = np.random.default_rng(0).permutation(len(ids)) % folds
    for fold in range(folds):
        out = np.isin(subjects, ids[number == fold])
        theta = fitted(model, x[~out], y[~out], subjects[~out])
        total += model.objective(x[out], y[out], subjects[out])(theta)[0]
    return total


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=5, help="parts of the newborns that are left out in turn")
    folds = parser.parse_args(arguments).folds
    file = Path(os.environ.get("CHAINS_DATA", "")) / "population" / "phenobarbital.csv"
    if not file.exists():
        raise SystemExit(f"there is no {file}: set CHAINS_DATA to a folder with population/phenobarbital.csv")
    samples = read_table(file, COLUMNS, ["weight", "apgar"]).samples()
    for name, rate in RATES.items():
        model = model_of(rate, samples)
        theta = fitted(model, samples.x, samples.y, samples.subjects)
        value = model.objective(samples.x, samples.y, samples.subjects)(theta)[0]
        drug, x = model.net[:1], np.zeros((len(WEIGHTS), len(samples.columns) + 2))
        x[:, :3] = [(weight, 9.0, 48.0) for weight in WEIGHTS]
        rates = 1000.0 * drug(x, theta[: drug.n_params])[:, 0] / WEIGHTS
        print(f"{name}: {model.n_params} numbers, value {value:.1f}, held out {held_out(model, samples, folds):.1f}")
        print(
            f"    mL/h/kg after two days: {', '.join(f'{rate:.1f} at {w} kg' for w, rate in zip(WEIGHTS, rates, strict=True))}"
        )


if __name__ == "__main__":
    main()
