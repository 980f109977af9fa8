"""A step of the Fortran program of `examples/hosts`: ``python -m benchmarks.studies.hosts [--libtorch] [--onnxruntime]``.

Every rank has one thread and the same number of members, so that the time of a step would be the same on all counts of ranks.
ONNX Runtime is called from Python, and only for the network: its packages have no C headers.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness.machine import describe

EXAMPLE = Path(__file__).parents[2] / "examples" / "hosts" / "make.py"


def build(folder: Path, libtorch: bool) -> dict[str, list[str]]:
    """The programs, with their first arguments."""
    runpy.run_path(str(EXAMPLE))["make"](folder, libtorch)
    found = {"chains": [str(folder / "build" / "host"), str(folder)]}
    torch = []
    if libtorch:
        torch = [f"-DTORCH={Path(importlib.util.find_spec('torch').origin).parent}"]
        found["libtorch"] = [str(folder / "build" / "host_libtorch"), str(folder)]
    subprocess.run(["cmake", "-S", ".", "-B", "build", *torch], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "build"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return found


def onnxruntime(folder: Path, members: int, steps: int) -> None:
    """Print what the network takes by ONNX Runtime, as the Fortran programs do, with no time of a step."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "closure.onnx", options)
    name = session.get_inputs()[0].name
    x = np.zeros((8 * members, 5), np.float32)
    for _ in range(3):
        session.run(None, {name: x})
    start = time.perf_counter()
    for _ in range(steps):
        session.run(None, {name: x})
    seconds = time.perf_counter() - start
    text = Path("/proc/self/smaps_rollup").read_text()
    resident, shared = (int(re.search(rf"^{key}:\s+(\d+)", text, re.M)[1]) / 1000 for key in ("Rss", "Pss"))
    print(f"{float('nan')} {1e6 * seconds / steps:.3f} {resident:.1f} {shared:.1f}")


def measure(command: list[str], ranks: int, members: int, steps: int) -> tuple[float, ...]:
    """Microseconds of a step and of the network, megabytes resident and in proportion: of the slowest and the largest rank."""
    mpiexec = Path(str(shutil.which("mpif90"))).with_name("mpiexec")  # of the same MPI
    count = members if "--session" in command else members * ranks
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [mpiexec, "-n", str(ranks), *command, str(count), str(steps)],
        env=environment, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    printed = np.array(re.findall(r"nan|\d*\.\d+", done.stdout), float).reshape(-1, 4)  # by each rank, or by the first
    return tuple(printed.max(axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--members", type=int, default=64, help="members of a rank; each has 8 columns")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--libtorch", action="store_true", help="the program with libtorch too, which takes a minute to compile"
    )
    parser.add_argument("--onnxruntime", action="store_true", help="the network by ONNX Runtime in Python too")
    parser.add_argument("--session", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.session:
        folder, members, steps = given.session
        onnxruntime(Path(folder), int(members), int(steps))
        return
    if shutil.which("mpif90") is None or shutil.which("cmake") is None:
        print("The programs need mpif90 and cmake, which are not installed.")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = build(folder, given.libtorch)
        if given.onnxruntime:
            example = runpy.run_path(str(EXAMPLE))
            from chains.interop import to_onnx

            to_onnx(example["net"], example["p"], path=folder / "closure.onnx")
            programs["ONNX Runtime, Python"] = [sys.executable, "-m", "benchmarks.studies.hosts", "--session", str(folder)]
        print(describe())
        print(f"{8 * given.members} columns a rank, one thread a rank, medians of {given.rounds} rounds\n")
        print(f"{'':22}{'ranks':>6}{'us a step':>12}{'of network':>12}{'MB resident':>13}{'in proportion':>15}")
        for ranks in given.ranks:
            rounds = [
                {name: measure(command, ranks, given.members, given.steps) for name, command in programs.items()}
                for _ in range(given.rounds)
            ]
            for name in programs:
                step, network, resident, shared = (median(column) for column in zip(*(r[name] for r in rounds), strict=True))
                print(
                    f"{name:22}{ranks:6}{'-' if np.isnan(step) else f'{step:.1f}':>12}"
                    f"{network:12.1f}{resident:13.1f}{shared:15.1f}"
                )


if __name__ == "__main__":
    main()
