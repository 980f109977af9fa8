"""Results as aligned text, as JSON and as a bar chart."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from benchmarks.harness.timing import Table, ratio


def text(table: Table) -> str:
    """The table, with ratios to chains' fastest row, then its criteria."""
    best = table.best("chains")
    header = ("", f"time per {table.unit}", "fastest", "x chains", table.judged)
    lines = []
    for row in table.rows:
        if not row.seconds:
            lines.append((row.name, "-", "-", "-", row.note))
            continue
        times = f"{ratio(row, best):.2f}" if best else "-"
        lines.append((row.name, duration(row.median), duration(min(row.seconds)), times, f"{row.judged:.4g}"))
    widths = [max(len(line[k]) for line in [header, *lines]) for k in range(4)]
    shown = [
        f"  {name:{widths[0]}}  {a:>{widths[1]}}  {b:>{widths[2]}}  {c:>{widths[3]}}  {last}"
        for name, a, b, c, last in [header, *lines]
    ]
    return "\n".join([table.title, *shown, *(f"  {criterion}" for criterion in table.criteria)])


def progress_bar(total: int, unit: str) -> tqdm:
    """A bar on the standard error that vanishes when closed; none where that is no terminal."""
    return tqdm(total=total, file=sys.stderr, unit=unit, leave=False, dynamic_ncols=True, disable=None)


def duration(seconds: float) -> str:
    """A time with a fitting unit."""
    if seconds >= 1.0:
        return f"{seconds:.2f} s"
    if seconds >= 0.01:
        return f"{seconds * 1e3:.1f} ms"
    digits = 2 if seconds < 1e-6 else 1 if seconds < 1e-4 else 0
    return f"{seconds * 1e6:,.{digits}f} us"


def save_json(path: str, machine: dict[str, Any], tables: Sequence[Table]) -> None:
    """Write everything measured: seconds a unit of every round, what the judge saw, the criteria."""
    content = {
        "machine": machine,
        "tables": [
            {
                "key": table.key,
                "title": table.title,
                "unit": table.unit,
                "judged": table.judged,
                "rows": [vars(row) for row in table.rows],
                "criteria": [{**vars(criterion), "ok": bool(criterion.ok)} for criterion in table.criteria],
            }
            for table in tables
        ],
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def save_plot(path: str, machine: dict[str, Any], tables: Sequence[Table]) -> None:
    """Draw a bar for every row, on a logarithmic axis. Raises ImportError where matplotlib is not installed."""
    from matplotlib.figure import Figure

    columns = min(2, len(tables))
    lines = -(-len(tables) // columns)
    most = max(sum(bool(row.seconds) for row in table.rows) for table in tables)
    figure = Figure(figsize=(7 * columns, 0.5 + lines * (0.19 * most + 0.6)), layout="constrained")
    figure.suptitle(machine["cpu"], fontsize=9)
    all_axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in all_axes[len(tables) :]:
        axes.remove()
    for axes, table in zip(all_axes, tables, strict=False):
        rows = [row for row in table.rows if row.seconds][::-1]
        names = [row.name for row in rows]
        bars = axes.barh(names, [row.median for row in rows], color=["C1" if n.startswith("chains") else "C0" for n in names])
        axes.bar_label(bars, [duration(row.median) for row in rows], padding=3, fontsize=7)
        axes.set_xscale("log")
        shortest, longest = (pick(row.median for row in rows) for pick in (min, max))
        axes.set_xlim(shortest / 4.0, longest * (longest / shortest) ** 0.2 * 1.5)
        axes.minorticks_off()
        axes.set_title(table.title, fontsize=9, loc="left")
        axes.set_xlabel(f"seconds per {table.unit}", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.savefig(path, dpi=150)
