"""Programs written by hand against chains: ``python -m benchmarks.studies.by_hand``.

The programs in C are for fixed networks: vectors of AVX-512 or AVX2, samples or features in lanes, whatever makes them fast;
and in plain C, with the library's tanhf. GCC and clang compile them with -O3 -march=native -ffast-math. All contestants of a
row compute the same thing, which is compared first. They take turns; shown is the fastest turn of each, and its ratio to
chains' first row. Eigen (C++), ONNX Runtime, JAX and PyTorch take part on one thread where they are installed and have the
row. At the end are the lines of the page's tables. `--json FILE` adds the rows to a file of results, for the page's chart.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import charts, simd
from benchmarks.harness.machine import describe
from benchmarks.harness.report import save_json
from benchmarks.harness.timing import Row as Result
from benchmarks.harness.timing import Table
from benchmarks.studies.by_hand import peers
from benchmarks.studies.by_hand.builds import Builder, compilers, eigen
from benchmarks.studies.by_hand.rows import ROWS, Row

KINDS = ("chains", "by hand", "plain C", "Eigen", "ONNX Runtime", "JAX", "PyTorch")  # how the names of contestants begin


def hold_to(width: str) -> None:
    """Start this program anew with the variables that hold chains to a vector width."""
    variables = simd.held_to(width)
    if any(os.environ.get(name) != value for name, value in variables.items()):
        command = [sys.executable, "-m", "benchmarks.studies.by_hand", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **variables})


def measured(row: Row, rounds: int) -> dict[str, float]:
    """Print a row, and return the seconds of each contestant: the answers are compared, then all take turns."""
    wanted = row.contestants[0].answer()
    wrong = {}
    for each in row.contestants:
        found = each.answer()
        tolerance = row.of_libraries if each.name.startswith(KINDS[4:]) else row.tolerance
        if not abs(found / wanted - 1.0) <= tolerance:
            wrong[each.name] = f"  WRONG: {found!r}, not {wanted!r}"
    best = dict.fromkeys((each.name for each in row.contestants), float("inf"))
    for number in range(rounds):
        for each in row.contestants[:: -1 if number % 2 else 1]:
            each.start()
            begin = time.perf_counter()
            each.run()
            best[each.name] = min(best[each.name], (time.perf_counter() - begin) / each.count)
    print(f"\n{row.title}, us")
    first = best[row.contestants[0].name]
    for name, seconds in best.items():
        print(f"    {name:36} {1e6 * seconds:10.4g} {seconds / first:8.2f}{wrong.get(name, '')}", flush=True)
    return best


def page_line(title: str, best: dict[str, float]) -> str:
    """A row of the page's table: the fastest of each kind in microseconds, and by hand / chains."""
    found = kinds(best)
    ratio = f"{found['by hand'] / found['chains']:.2f}".lstrip("0") if {"chains", "by hand"} <= found.keys() else ""
    times = [f"{1e6 * found[kind]:,.3g}" if found.get(kind, 1.0) < 1e-3 else _long(found.get(kind)) for kind in KINDS]
    return " | ".join(["", title, *times[:2], ratio, *times[2:], ""]).strip()


def _long(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:,.0f}"


def kinds(best: dict[str, float]) -> dict[str, float]:
    """The fastest of each kind, in seconds of three digits."""
    found: dict[str, float] = {}
    for kind in KINDS:
        times = [seconds for name, seconds in best.items() if name.startswith(kind)]
        if times:
            found[kind] = float(f"{min(times):.2e}")
    return found


def store(path: Path, facts: dict[str, Any], tables: list[Table]) -> None:
    """Write these rows to a file of results; those of other keys stay."""
    kept = list(charts.read(path).values()) if path.exists() else []
    keys = {table.key for table in tables}
    merged = {table.key: table for table in (*(each for each in kept if each.key not in keys), *tables)}
    save_json(str(path), facts, [merged[key] for key in ROWS if key in merged], "python -m benchmarks.studies.by_hand")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"all by default: {', '.join(ROWS)}")
    parser.add_argument("--simd", choices=list(simd.WIDTHS), help="hold everybody to this vector width")
    parser.add_argument("--clang", type=shlex.split, default=(), help="words that call clang: 'python -m ziglang cc'")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--libraries", nargs="*", choices=peers.LIBRARIES, help="of Python; all that are installed by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the rows to this file of results")
    parser.add_argument("--keep", type=Path, help="a folder that keeps what is compiled")
    given = parser.parse_args()
    if given.simd:
        hold_to(given.simd)
    found = tuple(compilers(given.clang))
    facts = describe(sgemm=False)
    print(f"{facts['cpu']}; held to {given.simd or 'nothing'}; {facts['system']}")
    print("\n".join(each.version for each in found))
    with tempfile.TemporaryDirectory() as folder:
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
        libraries = peers.installed() if given.libraries is None else tuple(given.libraries)
        builder = Builder(given.keep or Path(folder), 8 if given.simd else 16, found, libraries)
        lines, tables = [], []
        for name in given.rows or ROWS:
            row = ROWS[name](builder)
            best = measured(row, given.rounds)
            lines.append(page_line(row.title, best))
            tables.append(Table(name, row.title, "call", "", [Result(kind, [each]) for kind, each in kinds(best).items()]))
    print("", f"| | {' | '.join([*KINDS[:2], 'by hand / chains', *KINDS[2:]])} |", *lines, sep="\n")
    for name in sorted(peers.LIBRARIES.keys() - set(peers.installed())):
        print(f"{peers.LIBRARIES[name]} is not installed, and took no part.")
    if eigen() is None:
        print("Eigen's headers, or g++, are missing: it took no part.")
    if given.json:
        store(given.json, facts, tables)


if __name__ == "__main__":
    main()
