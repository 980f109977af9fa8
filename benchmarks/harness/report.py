"""Results as aligned text and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import date
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


def save_json(path: str, machine: dict[str, Any], tables: Sequence[Table], program: str = "python -m benchmarks") -> None:
    """Write everything measured: seconds a unit of every round, the judge's answer, criteria, machine, day and command."""
    content = {
        "machine": machine,
        "date": date.today().isoformat(),
        "command": " ".join([program, *sys.argv[1:]]),
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
