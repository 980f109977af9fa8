"""The goals of the GPU backend on an H200, each with its figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from benchmarks.gpu.backends import PRECISIONS
from benchmarks.gpu.problems import Result
from benchmarks.gpu.training import WIDTHS

MODES = ("graph", "channels-last", "eager", "compile")  # of PyTorch
Find = Callable[..., Result | None]


def goals(results: Sequence[Result]) -> list[Result]:
    """Each goal, its figure, and whether it holds; "not measured" where a row is missing."""

    def find(problem: str, who: str, precision: str = "") -> Result | None:
        """The fastest of a problem's rows with names that begin so, at this precision if one is given; None without one."""
        rows = [r for r in results if r["problem"] == problem and r["who"].startswith(who) and "failed" not in r]
        rows = [r for r in rows if not precision or ("tf32" in r["who"]) == (precision == "tf32")]
        return min(rows, key=lambda r: r.get("seconds", 0.0), default=None)

    found = [
        _goal("matrix_exp: us a step of 10,000 samples", find("matrix_exp", "chains"), "us_a_step", most=25.0),
        _times("matrix_exp", find, "PyTorch eager", 20.0),
        _times("matrix_exp", find, "PyTorch graph", 2.0),
        _times("mnist_mlp", find, "PyTorch graph", 10.0),
        _goal("lenet5: seconds for 10 epochs", find("lenet5", "chains"), "seconds", most=0.25),
        _goal("lenet5: accuracy", find("lenet5", "chains"), "accuracy", least=0.97),
        _goal("rosetta_cnn: seconds an epoch", find("rosetta_cnn", "chains"), "seconds", most=0.4),
        *(_times(problem, find, "PyTorch", 1.0, each) for problem in ("rosetta_cnn", "wide") for each in PRECISIONS),
    ]
    counted = [r for r in results if r["problem"] == "allocations"]
    worst = max(counted, key=lambda r: r.get("value", math.inf), default=None)  # one that failed is not measured
    found.append(_goal("device allocations in steady steps, the most of all problems", worst, "value", most=0.0))
    for width in WIDTHS:
        row = find("overlap", f"chains data streamed, width {width:,}")
        found.append(_goal(f"data streamed, width {width:,}: time over that of the largest part", row, "value", most=1.1))
    return found


def _times(problem: str, find: Find, peer: str, least: float, precision: str = "float32") -> Result:
    """How many times as fast as a mode of a peer, or its best one, at the same precision."""
    modes = [peer] if " " in peer else [f"{peer} {mode}" for mode in MODES]
    ours, rows = find(problem, "chains", precision), [row for mode in modes if (row := find(problem, f"{mode} {precision}"))]
    times = {"times": min(row["seconds"] for row in rows) / ours["seconds"]} if ours and rows else None
    name = peer if " " in peer else f"{peer}'s best mode"
    return _goal(f"{problem}, {precision}: times as fast as {name}", times, "times", least=least)


def _goal(text: str, row: Result | None, name: str, *, least: float = -math.inf, most: float = math.inf) -> Result:
    """The goal that a figure of a row is within a bound."""
    text += f", at most {most:g}" if most < math.inf else f", at least {least:g}"
    figure = row.get(name) if row else None
    if figure is None:
        return {"goal": text, "figure": "-", "verdict": "not measured"}
    return {"goal": text, "figure": f"{figure:.4g}", "verdict": "holds" if least <= figure <= most else "does not hold"}
