"""One row, in a process of its own: `python -m rosetta.run PROBLEM NAME DATA EPOCHS` prints a line of JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from rosetta import problem
from rosetta.environments import ROWS

SKIPPED = 2  # steps before the ones that count: functions are compiled in them


def measured(kind: str, name: str, data: str, epochs: int) -> dict[str, str | int | float]:
    """Train and test a row's network, "cnn" or "rnn", on the arrays in the file `data`."""
    row = ROWS[name]
    with np.load(data) as arrays:
        x, t, x_test, t_test = (arrays[key] for key in ("x", "t", "x_test", "t_test"))
    module = importlib.import_module(f"rosetta.{kind}.{row.module}")
    model = module.build()
    problem.BEGINNINGS.clear()
    start = time.perf_counter()
    module.train(model, x, t, epochs)
    end = time.perf_counter()
    steps = len(problem.BEGINNINGS)
    right = np.asarray(module.predict(model, x_test))[: len(x_test)] == t_test
    skipped = min(SKIPPED, steps - 1)
    return {
        "row": name,
        "version": version(row.distribution),
        "lines": len(Path(module.__file__ or "").read_text().splitlines()),
        "milliseconds a step": 1e3 * (end - problem.BEGINNINGS[skipped]) / (steps - skipped),
        "seconds an epoch": (end - start) / epochs,
        "accuracy": float(right.mean()),
        "steps": steps,
    }


if __name__ == "__main__":
    print(json.dumps(measured(*sys.argv[1:4], int(sys.argv[4]))))
