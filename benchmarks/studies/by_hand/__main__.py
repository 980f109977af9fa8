"""Programs written by hand against chains: ``python -m benchmarks.studies.by_hand``.

The programs in C are for fixed networks: vectors of AVX-512 or AVX2, samples or features in lanes, whatever makes them fast;
and in plain C, with the library's tanhf. GCC and clang compile them with -O3 -march=native -ffast-math. All contestants of a
row compute the same thing, which is compared first. They take turns; shown is the fastest turn of each, and its ratio to
chains' first row.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import simd
from benchmarks.harness.machine import describe
from benchmarks.studies.by_hand.builds import Builder, compilers
from benchmarks.studies.by_hand.rows import ROWS, Row


def hold_to(width: str) -> None:
    """Start this program anew with the variables that hold chains to a vector width."""
    variables = simd.held_to(width)
    if any(os.environ.get(name) != value for name, value in variables.items()):
        command = [sys.executable, "-m", "benchmarks.studies.by_hand", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **variables})


def measured(row: Row, rounds: int) -> None:
    """Print a row: its answers are compared, then all take turns."""
    wanted = row.contestants[0].answer()
    wrong = {}
    for each in row.contestants:
        found = each.answer()
        if abs(found / wanted - 1.0) > row.tolerance:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"all by default: {', '.join(ROWS)}")
    parser.add_argument("--simd", choices=list(simd.WIDTHS), help="hold everybody to this vector width")
    parser.add_argument("--clang", type=shlex.split, default=(), help="words that call clang: 'python -m ziglang cc'")
    parser.add_argument("--rounds", type=int, default=30)
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
        builder = Builder(given.keep or Path(folder), 8 if given.simd else 16, found)
        rows = [ROWS[name](builder) for name in given.rows or ROWS]
        for row in rows:
            measured(row, given.rounds)


if __name__ == "__main__":
    main()
