"""A population's likelihood: value and gradient of 59 subjects in closed form and by an `ODE`, and fits.

    python -m benchmarks.studies.population

The subjects are simulated: newborns with doses each twelve hours, and two or three concentrations. If CHAINS_DATA has them,
those of Grasela and Donn (1985) come first, with the estimates and their standard errors.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chains import ODE, Chain, Equations, Layer, Reshape, Select
from chains.expr import exp, where
from chains.initializers import Constant
from chains.population import PopulationModel, Proportional

START = {"clearance": 0.00469307, "volume": 1.00916, "apgar": 0.1}
VARIANCES, ERROR = {"clearance": 0.0309626, "volume": 0.031128}, 0.0130865
Data = tuple[np.ndarray, np.ndarray, np.ndarray]


class Bolus(Layer):
    """The concentration after bolus doses: a sample is (time, weight, apgar, dose times, amounts, two effects)."""

    def __init__(self, doses: int) -> None:
        self.doses = doses

    def fixed_input(self) -> tuple[int, ...]:
        return (5 + 2 * self.doses,)

    def declare(self, d: Any) -> None:
        for name, value in START.items():
            d.param(name, (), Constant(value))
        d.temporary("parts", (self.doses,))
        d.output((1,))

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        n = self.doses
        numbers = [x.slice(1, k, k + 1) for k in (0, 1, 2, 3 + 2 * n, 4 + 2 * n)]  # time, weight, apgar, two effects
        ops.map(s.parts, _part, *numbers, x.slice(1, 3, 3 + n), x.slice(1, 3 + n, 3 + 2 * n), p.clearance, p.volume, p.apgar)
        ops.sum(y, s.parts)


def _part(
    time: Any, weight: Any, apgar: Any, e1: Any, e2: Any, given: Any, amount: Any, t1: Any, t2: Any, t3: Any
) -> Any:  # fmt: skip
    """The concentration from one dose."""
    volume = t2 * weight * (1.0 + where(apgar < 5.0, t3, 0.0)) * exp(e2)
    since = where(time < given, 0.0, time - given)
    return where(time < given, 0.0, amount / volume * exp(-t1 * weight * exp(e1) / volume * since))


def newborns(folder: Path) -> Data:
    """Samples of a `Bolus`, concentrations and subjects, a row for each concentration."""
    with open(folder / "phenobarbital.csv") as file:
        rows = [*csv.DictReader(file)]
    doses: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["amount"]:
            doses.setdefault(row["id"], []).append((float(row["time"]), float(row["amount"])))
    observed = [row for row in rows if row["concentration"]]
    x = [[float(row[name]) for name in ("time", "weight", "apgar")] + _padded(doses[row["id"]], doses) for row in observed]
    return np.array(x), *(np.array([float(row[name]) for row in observed]) for name in ("concentration", "id"))


def _padded(own: list[tuple[float, float]], doses: dict[str, list[tuple[float, float]]]) -> list[float]:
    missing = max(map(len, doses.values())) - len(own)
    return [*(t for t, _ in own), *[1e6] * missing, *(amount for _, amount in own), *[0.0] * missing]


def simulated(subjects: int, seed: int = 0) -> Data:
    """As `newborns`."""
    rng = np.random.default_rng(seed)
    x, number = [], []
    for subject in range(subjects):
        weight = rng.uniform(0.6, 3.6)
        doses = [20.0 * weight, *[2.5 * weight] * 11]
        times = np.sort(rng.uniform(1.0, 140.0, rng.integers(2, 4)))
        x += [[t, weight, float(rng.integers(1, 10)), *12.0 * np.arange(12), *doses] for t in times]
        number += [subject] * len(times)
    net, effects = Chain(Bolus(12)), 0.17 * rng.standard_normal((subjects, 2))
    f = net(np.hstack([x, effects[number]]), net.init(dtype=np.float64))[:, 0]
    return np.array(x), f * (1.0 + 0.11 * rng.standard_normal(len(f))), np.array(number)


def differential(subjects: int, seed: int = 0) -> tuple[PopulationModel, np.ndarray, np.ndarray]:
    """A dose by mouth, at three times of each subject, by an `ODE`: the model and its data."""
    rhs = Equations(
        lambda depot, c, e1, e2, cl, ka, v: (-ka * depot, ka * depot / v * exp(-e2) - cl / v * exp(e1 - e2) * c),
        ("depot", "c", "e1", "e2"),
        parameters={"cl": 0.4, "ka": 1.0, "v": 2.0},
        bounds=dict.fromkeys(("cl", "ka", "v"), (0.0, None)),
    )
    order = Select([0, 1, 6, 7, 2, 3, 4, 5])  # an `ODE` has its times last
    net = Chain(order, ODE(rhs, 4, rtol=1e-6, given=2), Reshape(8), Select([3, 5, 7]), input_shape=(8,))
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0.3, 12.0, (subjects, 3)), axis=1)
    x = np.hstack([np.full((subjects, 1), 10.0), np.zeros((subjects, 2)), times])
    f = net(np.hstack([x, 0.2 * rng.standard_normal((subjects, 2))]), net.init(dtype=np.float64))
    model = PopulationModel(net, {"clearance": 0.04, "volume": 0.04}, Proportional(0.01))
    return model, x, f * (1.0 + 0.1 * rng.standard_normal(f.shape))


def shortest(call: Callable[[int], object], seconds: float) -> float:
    """The shortest time of a call after the first one, which compiles, in milliseconds."""
    call(1)
    found, end = [], time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        begun = time.perf_counter()
        call(len(found))
        found.append(time.perf_counter() - begun)
    return 1e3 * min(found)


def row(name: str, model: PopulationModel, data: tuple[np.ndarray, ...], seconds: float) -> str:
    """A row of the table; the vector moves by a thousandth from call to call."""
    objective, theta = model.objective(*data), model.init()
    value = shortest(lambda k: objective(theta + 1e-3 * (k % 2) * abs(theta)), seconds)
    fit = shortest(lambda _: model.fit(*data), seconds)
    return f"| {name} | {objective.subjects} | {value:.2f} | {fit:.0f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subjects", type=int, default=59)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    chosen = parser.parse_args(arguments)
    print("| model | data | value and gradient, ms | fit, ms |", "| --- | --- | --- | --- |", sep="\n")
    folder = Path(os.environ.get("CHAINS_DATA", "")) / "population"
    if (folder / "phenobarbital.csv").exists():
        data = newborns(folder)
        model = PopulationModel(Chain(Bolus((data[0].shape[1] - 3) // 2)), VARIANCES, Proportional(ERROR))
        print(row("newborns, closed form", model, data, chosen.seconds), flush=True)
    closed = PopulationModel(Chain(Bolus(12)), VARIANCES, Proportional(ERROR))
    print(row("simulated newborns, closed form", closed, simulated(chosen.subjects), chosen.seconds), flush=True)
    own, x, y = differential(chosen.subjects)
    print(row("a dose by mouth, `ODE`, rtol 1e-6", own, (x, y), chosen.seconds))
    if (folder / "phenobarbital.csv").exists():
        fit = model.fit(*data)
        errors = fit.standard_errors()
        print(f"\n{fit.value:.5f}", *(f"{k}: {v:.6g} ({errors[k]:.4g})" for k, v in fit.estimates().items()), sep="\n")


if __name__ == "__main__":
    main()
