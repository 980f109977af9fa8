"""What a call of an exported network takes from C: ``python -m benchmarks.studies.export``.

``--libtorch`` measures libtorch too, ``--derivatives`` only the functions of derivatives, in float64.

The network is 4-32-16-4, for one sample, as machine code for each level of x86-64 that there is, and as C99 source compiled
by gcc and clang.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import chains
from chains import Chain, Dense, tanh

HERE = Path(__file__).parent
HARNESS = HERE.parents[1] / "harness"
MAKE = HERE.parents[2] / "examples" / "export" / "make.py"


def measure(folder: Path, target: str, suffix: str, *compiler: str) -> None:
    """Print what the network of a file of this kind takes."""
    subprocess.run(
        [sys.executable, MAKE, folder, "--target", target, "--suffix", suffix], check=True, stdout=subprocess.DEVNULL
    )
    model = folder / f"model{suffix}"
    subprocess.run(
        [*compiler, f"-I{folder}", f"-I{HARNESS}", HERE / "object.c", model, "-lm", "-o", folder / "bench"], check=True
    )
    print(f"{' '.join(compiler)}, {model.stat().st_size:,} bytes: ", end="", flush=True)
    subprocess.run([folder / "bench"], check=True)


def derivatives(folder: Path, target: str, suffix: str, *compiler: str) -> None:
    """Print what derivatives by the inputs take, of a network whose parameters are part of the code."""
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
    model = folder / f"model{suffix}"
    chains.export(
        net, model, net.init(0, dtype="float64"), dtype="float64", derivatives=("jvp", "jacobian", "hessian"), target=target
    )
    work = ["-DWORK=, work"] if "void *work" in (folder / "model.h").read_text() else []
    subprocess.run(
        [*compiler, *work, f"-I{folder}", f"-I{HARNESS}", HERE / "derivatives.c", model, "-lm", "-o", folder / "bench"],
        check=True,
    )
    print(f"{' '.join(compiler)}, {model.stat().st_size:,} bytes: ", end="", flush=True)
    subprocess.run([folder / "bench"], check=True)


def libtorch(folder: Path) -> None:
    """Print what libtorch takes. Compiling it takes a minute."""
    import torch

    root = Path(torch.__file__).parent
    include = [f"-I{root / path}" for path in ("include", "include/torch/csrc/api/include")]
    libraries = [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    command = ["g++", "-O1", "-std=c++20", *include, HERE / "libtorch.cpp", *libraries, "-o", folder / "torch"]
    subprocess.run(command, check=True)
    subprocess.run([folder / "torch"], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libtorch", action="store_true", help="compare with libtorch, which takes a minute to compile")
    parser.add_argument("--targets", default="x86-64-v3", help="targets to run here, with commas")
    parser.add_argument("--derivatives", action="store_true", help="measure jvp, Jacobian and Hessian in float64")
    given = parser.parse_args()
    run = derivatives if given.derivatives else measure
    with tempfile.TemporaryDirectory() as name:
        for target in given.targets.split(","):
            run(Path(name), target, ".o", "gcc", "-O2")
        run(Path(name), "native", ".c", "gcc", "-std=gnu99", "-O2", "-march=haswell")
        if shutil.which("clang"):
            run(Path(name), "native", ".c", "clang", "-std=gnu99", "-O3", "-march=haswell")
        if given.libtorch:
            libtorch(Path(name))
