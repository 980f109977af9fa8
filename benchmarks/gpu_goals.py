"""What the GPU backend is to reach on an H200, and what it did: each goal with its figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Result = dict[str, Any]
ROUNDED = ("tf32",)  # precisions, as they stand in the names of rows
MODES = ("graph", "channels-last", "eager", "compile")  # of PyTorch
Find = Callable[..., Result | None]


def goals(results: Sequence[Result]) -> list[Result]:
    """Each goal, its figure, and whether it holds; "not measured" where a row is missing."""

    def find(problem: str, who: str, precision: str = "") -> Result | None:
        """The fastest of a problem's rows whose name begins so, or None; of those at this precision, if one is named."""
        rows = [r for r in results if r["problem"] == problem and r["who"].startswith(who) and "failed" not in r]
        rows = [r for r in rows if not precision or precision == next((p for p in ROUNDED if p in r["who"]), "float32")]
        return min(rows, key=lambda r: r.get("seconds", 0.0), default=None)

    found = [
        _below("matrix_exp: us a step of 10,000 samples", find("matrix_exp", "chains"), "us_a_step", 25.0),
        _times("matrix_exp", find, "PyTorch eager", 20.0),
        _times("matrix_exp", find, "PyTorch graph", 2.0),
        _times("mnist_mlp", find, "PyTorch graph", 10.0),
        _below("lenet5: seconds for 10 epochs", find("lenet5", "chains"), "seconds", 0.25),
        _above("lenet5: accuracy", find("lenet5", "chains"), "accuracy", 0.97),
        _below("rosetta_cnn: seconds an epoch", find("rosetta_cnn", "chains"), "seconds", 0.4),
        *(_times("rosetta_cnn", find, "PyTorch", 1.0, precision) for precision in ("float32", "tf32")),
    ]
    for problem in ("wide", "wider", "wider_relu"):
        for precision in ("float32", "tf32"):
            row = find(problem, f"chains {precision}")
            found.append(_above(f"{problem}, {precision}: share of cuBLAS's rate", row, "value", 0.85))
    every = [r for r in results if r["problem"] == "allocations"]
    worst = max((r for r in every if "value" in r), key=lambda r: r["value"], default=None)
    whole = worst if all("value" in r for r in every) else None
    found.append(_below("device allocations in steady steps, the most of all problems", whole, "value", 0.0))
    for who in ("chains copies back", "chains data streamed"):
        for row in [r for r in results if r["problem"] == "overlap" and r["who"].startswith(who)] or [None]:
            name = row["who"].removeprefix("chains ") if row else who.removeprefix("chains ")
            found.append(_below(f"{name}: time over that of the largest part", row, "value", 1.1))
    return found


def _times(problem: str, find: Find, peer: str, least: float, precision: str = "float32") -> Result:
    """How many times as fast as a peer, at the same precision."""
    modes = [f"{peer} {precision}"] if " " in peer else [f"{peer} {mode} {precision}" for mode in MODES]
    ours = find(problem, "chains", precision)
    rows = [row for mode in modes if (row := find(problem, mode))]
    text = f"{problem}, {precision}: times as fast as {peer}{'' if ' ' in peer else chr(39) + 's best mode'}"
    if ours is None or not rows:
        return _goal(text, None, least, above=True)
    return _goal(text, min(row["seconds"] for row in rows) / ours["seconds"], least, above=True)


def _below(text: str, row: Result | None, name: str, most: float) -> Result:
    return _goal(text, None if row is None else row.get(name), most, above=False)


def _above(text: str, row: Result | None, name: str, least: float) -> Result:
    return _goal(text, None if row is None else row.get(name), least, above=True)


def _goal(text: str, figure: float | None, bound: float, above: bool) -> Result:
    wanted = f"{'at least' if above else 'at most'} {bound:g}"
    if figure is None:
        return {"goal": f"{text}, {wanted}", "figure": "-", "verdict": "not measured"}
    holds = figure >= bound if above else figure <= bound
    return {"goal": f"{text}, {wanted}", "figure": f"{figure:.4g}", "verdict": "holds" if holds else "does not hold"}
