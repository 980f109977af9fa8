"""The 59 newborns with phenobarbital, and a layer for their concentrations in closed form."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np

from chains import Chain, Layer
from chains.expr import exp, where
from chains.initializers import Constant

FOLDER = Path(os.environ.get("CHAINS_DATA", "")) / "population"
HERE = bool(os.environ.get("CHAINS_DATA")) and (FOLDER / "phenobarbital.csv").exists()
START = np.array([0.00469307, 1.00916, 0.1])
START_EFFECTS = {"clearance": 0.0309626, "volume": 0.031128}
START_ERROR = 0.0130865
ESTIMATE = np.array([4.69555e-3, 0.984258, 0.158920])
ESTIMATE_VARIANCES = [2.93508e-2, 2.79060e-2]
ESTIMATE_ERROR = 1.32410e-2


class Bolus(Layer):
    """The concentration after bolus doses: a sample is (time, weight, apgar, dose times, amounts, two effects)."""

    def __init__(self, doses: int) -> None:
        self.doses = doses

    def fixed_input(self) -> tuple[int, ...]:
        return (5 + 2 * self.doses,)

    def declare(self, d: Any) -> None:
        for name, value in zip(("clearance", "volume", "apgar"), START, strict=True):
            d.param(name, (), Constant(value))
        d.temporary("parts", (self.doses,))
        d.output((1,))

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        n = self.doses
        time, weight, apgar = (x.slice(1, k, k + 1) for k in range(3))
        given, amount = x.slice(1, 3, 3 + n), x.slice(1, 3 + n, 3 + 2 * n)
        e1, e2 = (x.slice(1, k, k + 1) for k in (3 + 2 * n, 4 + 2 * n))

        def part(time, weight, apgar, given, amount, e1, e2, t1, t2, t3):
            clearance = t1 * weight * exp(e1)
            volume = t2 * weight * (1.0 + where(apgar < 5.0, t3, 0.0)) * exp(e2)
            since = time - given
            return where(since < 0.0, 0.0, amount / volume * exp(-clearance / volume * where(since < 0.0, 0.0, since)))

        ops.map(s.parts, part, time, weight, apgar, given, amount, e1, e2, p.clearance, p.volume, p.apgar)
        ops.sum(y, s.parts)


def read() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A row for each concentration: x for `Bolus`, y, and the subject."""
    with open(FOLDER / "phenobarbital.csv") as file:
        rows = [*csv.DictReader(file)]
    doses: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["amount"]:
            doses.setdefault(row["id"], []).append((float(row["time"]), float(row["amount"])))
    most = max(map(len, doses.values()))
    x, y, ids = [], [], []
    for row in rows:
        if row["concentration"]:
            own = doses[row["id"]]
            times, amounts = np.full(most, 1e6), np.zeros(most)
            times[: len(own)], amounts[: len(own)] = np.array(own).T
            x.append([float(row["time"]), float(row["weight"]), float(row["apgar"]), *times, *amounts])
            y.append(float(row["concentration"]))
            ids.append(int(row["id"]))
    return np.array(x), np.array(y), np.array(ids)


def network(x: np.ndarray) -> Chain:
    return Chain(Bolus((x.shape[1] - 3) // 2))
