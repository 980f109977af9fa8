"""What derivatives of a network cost a solver: ``python -m benchmarks.studies.control``.

Calls of one sample from C through CasADi's external interface, in float64, in microseconds: chains, the same network in
CasADi's symbols (SX and MX, as C compiled by ``gcc -O3 -march=native``), and L4CasADi with PyTorch, where these are installed.
"building" is the time until all four functions can be called, in seconds. The networks are 4-32-16-4, and 4-W-...-W-4 with
2 to 4 hidden layers; ``--widths`` and ``--layers`` choose, ``--limit`` ends compilers that take longer, in seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.studies.control.contestants import CONTESTANTS, KINDS, Library
from chains import Chain, Dense, tanh

HERE = Path(__file__).parent
HARNESS = HERE.parents[1] / "harness"


def measured(driver: Path, library: Library, kind: str, seconds: float) -> tuple[float, float, float] | None:
    """Median and fastest call, and what tells whether the result is right; None where the library has no such function."""
    symbol, result = library.symbols[kind]
    command = [driver, library.path, symbol, str(seconds), str(result)]
    environment = {**os.environ, "LD_LIBRARY_PATH": library.folders, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        return None
    median, fastest, check = map(float, done.stdout.split())
    return median, fastest, check


def compared(net: Chain, folder: Path, driver: Path, names: list[str], seconds: float, limit: float) -> None:
    """Print the rows of a network."""
    p = net.init(0, dtype="float64")
    print(f"\n{net!r}\n{'':12}" + "".join(f"{kind:>22}" for kind in KINDS) + f"{'building, s':>14}")
    checks: dict[str, float] = {}
    for name in names:
        begin = time.perf_counter()
        try:
            library = CONTESTANTS[name](net, p, folder, limit)
        except (ImportError, subprocess.TimeoutExpired) as error:
            print(f"{name:12} {type(error).__name__}: {str(error)[:90]}")
            continue
        building, cells = time.perf_counter() - begin, ""
        for kind in KINDS:
            found = measured(driver, library, kind, seconds)
            if found is None:
                cells += f"{'none':>22}"
                continue
            cells += f"{found[0]:>11.4g} ({found[1]:>.4g})".rjust(22)
            wanted = checks.setdefault(kind, found[2])
            tolerance = 1e-4 if name == "L4CasADi" else 1e-9
            if not np.isclose(found[2], wanted, rtol=tolerance):
                cells += f" wrong: {found[2]} {wanted}"
        print(f"{name:12}{cells}{building:>14.3g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    parser.add_argument("--widths", nargs="*", type=int, default=[16, 64, 128])
    parser.add_argument("--layers", nargs="*", type=int, default=[2, 3, 4])
    parser.add_argument("--seconds", type=float, default=0.2, help="of measurement for each function")
    parser.add_argument("--limit", type=float, default=60, help="seconds that a compiler may take")
    given = parser.parse_args()
    networks = [Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))]
    networks += [
        Chain(Dense(4, width, tanh), *(Dense(width, width, tanh) for _ in range(layers - 1)), Dense(width, 4))
        for layers in given.layers for width in given.widths
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        driver = Path(name, "calls")
        subprocess.run(["gcc", "-O2", f"-I{HARNESS}", HERE / "calls.c", "-ldl", "-lm", "-o", driver], check=True)
        for net in networks:
            compared(net, Path(name), driver, given.contestants, given.seconds, given.limit)


if __name__ == "__main__":
    main()
