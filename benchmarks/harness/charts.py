"""The site's charts, drawn from stored results: ``python -m benchmarks --plot``.

A stored result is a file of ``benchmarks/results``, written by ``--json``. A bar is the median of a row, of several rows the
fastest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import Any

from benchmarks.harness.report import duration
from benchmarks.harness.timing import Row, Table

RESULTS = Path(__file__).parents[1] / "results"
COLOURS = {
    "chains": "#c2410c", "JAX": "#2563eb", "PyTorch": "#7c3aed", "scikit-learn": "#64748b", "NumPy": "#a8a29e",
    "by hand": "#0f172a", "plain C": "#475569", "Eigen": "#0e7490", "ONNX Runtime": "#15803d",
    "diffrax": "#0e7490", "optimistix": "#0e7490", "CasADi": "#15803d", "L4CasADi": "#7c3aed",
}  # fmt: skip
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "chains", "font.family": "sans-serif", "font.size": 10}


@dataclass(frozen=True)
class Times:
    """A chart of times: for each table a group of bars, a bar for each contestant, on a logarithmic axis."""

    file: str  # of the results
    tables: Sequence[str]  # keys
    contestants: dict[str, str]  # how a row's name begins, and what the chart calls it

    def draw(self, path: Path) -> None:
        content = stored(self.file)
        lines: list[tuple[str, float | None, str]] = []  # text, seconds, colour
        for key in self.tables:
            table = content[key]
            lines.append((table.title, None, "black"))
            for prefix, name in self.contestants.items():
                if row := _fastest(table, prefix):
                    lines.append((name, row.median, colour(name)))
        axes = _axes(len(lines), machine(self.file))
        for y, (name, seconds, shade) in enumerate(lines):
            if seconds is None:
                axes.text(0.0, y, name, transform=axes.get_yaxis_transform(), fontweight="bold", va="center")
            else:
                weight = "bold" if name.startswith("chains") else "normal"
                axes.barh(y, seconds, color=shade, height=0.72)
                axes.text(seconds * 1.15, y, duration(seconds).replace("us", "µs"), va="center", fontweight=weight)
        axes.set_yticks([y for y, line in enumerate(lines) if line[1]], [line[0] for line in lines if line[1]])
        times = [line[1] for line in lines if line[1]]
        powers = range(round(log10(min(times)) - 0.5), round(log10(max(times)) + 0.5) + 1)
        axes.set_xticks([10.0**k for k in powers], [_POWERS[k] for k in powers])
        axes.set_xlim(min(times) / 2.0, max(times) * 6.0)
        axes.minorticks_off()
        _save(axes, path)


@dataclass(frozen=True)
class Ratios:
    """A chart of ratios: for each table, how many times as long as chains the best mode of each peer takes."""

    rows: Sequence[tuple[str, str]]  # file and key
    peers: Sequence[str]

    def draw(self, path: Path) -> None:
        tables = [stored(file)[key] for file, key in self.rows]
        axes = _axes(len(tables), "times as long as chains takes")
        longest = 1.0
        for y, table in enumerate(tables):
            own = _best(table, "chains")
            times = {peer: row.median / own.median for peer in self.peers if (row := table.best(peer))}
            longest = max(longest, *times.values())
            axes.plot([1.0, max(times.values())], [y, y], color="#e2e8f0", linewidth=2, zorder=1)
            for peer, ratio in times.items():
                axes.scatter(ratio, y, s=45, color=colour(peer), zorder=2)
            text = ", ".join(f"{peer} {ratio:.{0 if ratio > 9.95 else 1}f}" for peer, ratio in times.items())
            axes.text(max(times.values()) * 1.25, y, text, va="center", fontsize=9)
        axes.axvline(1.0, color=COLOURS["chains"], linewidth=2)
        axes.text(1.0, -0.9, "chains", color=COLOURS["chains"], fontweight="bold", ha="center")
        axes.set_yticks(range(len(tables)), [table.title for table in tables])
        axes.set_xlim(0.8, longest * 60.0)
        axes.set_xticks([1, 10, 100], ["1", "10", "100"])
        axes.minorticks_off()
        _save(axes, path)


_POWERS = {
    -8: "10 ns",
    -7: "0.1 µs",
    -6: "1 µs",
    -5: "10 µs",
    -4: "100 µs",
    -3: "1 ms",
    -2: "10 ms",
    -1: "100 ms",
    0: "1 s",
    1: "10 s",
}
_DENSE = ("matrix_exp_10000_step", "matrix_exp_200_step", "matrix_exp_1_step", "mnist_mlp_step")
_MODES = {
    "chains native": "chains, native", "chains numpy": "chains, NumPy", "NumPy by hand": "NumPy by hand",
    "PyTorch compile whole step": "PyTorch, whole step compiled", "PyTorch compile": "PyTorch, loss compiled",
    "PyTorch channels-last": "PyTorch, channels-last", "PyTorch eager": "PyTorch, eager",
    "JAX scan": "JAX, scan over steps", "JAX jit": "JAX, jit", "scikit-learn": "scikit-learn",
}  # fmt: skip
CHARTS = {
    "speed": Times("dense", _DENSE, {
        "chains native": "chains", "JAX scan": "JAX, scan over steps",
        "PyTorch compile whole step": "PyTorch, whole step compiled", "scikit-learn": "scikit-learn"}),
    "modes": Times("dense", _DENSE, _MODES),
    "modes-avx2": Times("dense-avx2", _DENSE, _MODES),
    "images": Times("images", ("lenet5", "rosetta_cnn", "wide"), _MODES),
    "calls": Times("latency", ("latency_float32",), {
        "chains native, objective": "chains, native, objective",
        "chains native, value_and_grad": "chains, native, value_and_grad",
        "chains numpy": "chains, NumPy, objective", "NumPy by hand": "NumPy by hand",
        "PyTorch compile whole gradient": "PyTorch, whole gradient compiled", "PyTorch eager": "PyTorch, eager",
        "JAX jit": "JAX, jit"}),
    "by-hand": Times("by_hand", (
        "matrix_exp_10000", "matrix_exp_200", "matrix_exp_1", "mnist_mlp", "forward", "images", "equation", "members", "normal",
    ), {kind: kind for kind in ("chains", "by hand", "plain C", "Eigen", "ONNX Runtime", "JAX", "PyTorch")}),
    "models": Ratios((
        ("ude", "ude"), ("events", "events"), ("steady", "steady"), ("sde", "sde_1"), ("sde", "sde_1024"),
        ("burgers", "burgers_1e-4"), ("burgers", "helmholtz_1e-4"), ("fits", "fits_alone"), ("fits", "fits_together"),
        ("ensemble", "ensemble_shared"), ("recurrent", "recurrent_GRU_1"), ("recurrent", "recurrent_GRU_32"),
        ("attention", "attention"), ("control", "control_forward"), ("control", "control_Hessian"),
    ), ("JAX", "PyTorch", "diffrax", "optimistix", "CasADi", "L4CasADi")),
}  # fmt: skip


def stored(name: str) -> dict[str, Table]:
    """The tables of a file of results, by key."""
    return read(RESULTS / f"{name}.json")


def read(path: Path) -> dict[str, Table]:
    """The same for a file anywhere."""
    content = json.loads(path.read_text())
    tables = [
        Table(each["key"], each["title"], each["unit"], each.get("judged", ""), [Row(**row) for row in each["rows"]])
        for each in content["tables"]
    ]
    return {table.key: table for table in tables}


def machine(name: str) -> str:
    """The processor and the day of a file of results."""
    content = json.loads((RESULTS / f"{name}.json").read_text())
    return f"{content['machine']['cpu'].replace('2 cores usable of 2', '2 cores')}; {content['date']}"


def colour(name: str) -> str:
    """That of the library whose name comes first."""
    return next(shade for library, shade in COLOURS.items() if name.startswith(library))


def draw(folder: Path) -> list[Path]:
    """Draw all charts as SVG files. Raises ImportError where matplotlib is not installed."""
    import matplotlib

    paths = [folder / f"{name}.svg" for name in CHARTS]
    with matplotlib.rc_context(STYLE):
        for path, chart in zip(paths, CHARTS.values(), strict=True):
            chart.draw(path)
    return paths


def _fastest(table: Table, name: str) -> Row | None:
    """Of the rows of this name, in any number of threads: `NAME` or `NAME, ...`."""
    rows = [row for row in table.rows if f"{row.name},".startswith(f"{name},") and row.seconds]
    return min(rows, key=lambda row: row.median, default=None)


def _best(table: Table, prefix: str) -> Row:
    row = table.best(prefix)
    if row is None:
        raise ValueError(f"{table.key} has no row of {prefix}")
    return row


def _axes(lines: float, title: str) -> Any:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(7.0, 0.7 + 0.24 * lines), layout="constrained").subplots()
    axes.set_title(title, fontsize=9, loc="right", color="#475569")
    axes.set_xscale("log")
    axes.set_ylim(lines - 0.3, -0.8)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e2e8f0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return axes


def _save(axes: Any, path: Path) -> None:
    axes.figure.savefig(path, metadata={"Date": None, "Creator": None})
