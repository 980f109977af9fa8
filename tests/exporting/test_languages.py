"""The examples of `examples/export` in each language, built and run: all print what Python computes.

Targets of other processors run in qemu's user mode. What is not installed is skipped.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tools import emulator_fault, tool

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "export"
CROSS = {"aarch64": "qemu-aarch64", "riscv64": "qemu-riscv64"}


def run(folder, *command):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def made(folder, target="native", suffix=".o"):
    """The example network in a folder with the examples; what they are to print."""
    for file in EXAMPLES.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return run(folder, sys.executable, EXAMPLES / "make.py", folder, "--target", target, "--suffix", suffix)


def same(printed, wanted):
    """Whether the numbers are the same, but for rounding."""
    np.testing.assert_allclose([float(n) for n in printed.split()], [float(n) for n in wanted.split()], atol=2e-4)
    return True


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".o", ".c"])
def test_c(suffix, tmp_path):
    gcc = tool("gcc")
    wanted = made(tmp_path, suffix=suffix)
    run(tmp_path, gcc, "-std=c99", "-Wall", "-Werror", "main.c", f"model{suffix}", "-lm", "-o", "main")
    assert same(run(tmp_path, tmp_path / "main"), wanted)


def test_cxx(tmp_path):
    gxx = tool("g++")
    wanted = made(tmp_path)
    run(tmp_path, gxx, "-std=c++17", "-Wall", "-Werror", "main.cpp", "model.o", "-o", "main")
    assert same(run(tmp_path, tmp_path / "main"), wanted)


def test_fortran_with_openmp(tmp_path):
    gfortran = tool("gfortran")
    wanted = made(tmp_path)
    run(tmp_path, gfortran, "-fopenmp", "-Wall", "-Werror", "model.f90", "main.f90", "model.o", "-o", "main")
    assert same(run(tmp_path, "env", "OMP_NUM_THREADS=3", tmp_path / "main"), wanted)


def test_cmake(tmp_path):
    cmake, build = tool("cmake"), tmp_path / "build"
    wanted = made(tmp_path)
    build.mkdir()
    for name in ("model.o", "model.h", "parameters.h"):
        shutil.copy(tmp_path / name, build)
    run(tmp_path, cmake, "-S", ".", "-B", "build")
    run(tmp_path, cmake, "--build", "build")
    assert same(run(tmp_path, build / "main"), wanted)


def test_webassembly(tmp_path):
    node, _ = tool("node"), tool("wasm-ld")
    wanted = made(tmp_path, "wasm32", ".wasm")
    assert same(run(tmp_path, node, "main.mjs"), wanted)


def test_julia(tmp_path):
    julia, _ = tool("julia"), tool("cc")
    wanted = made(tmp_path, suffix=".so")
    assert same(run(tmp_path, julia, "main.jl"), wanted)


def test_numba(tmp_path):
    pytest.importorskip("numba")
    wanted = made(tmp_path, suffix=".so")
    assert same(run(tmp_path, sys.executable, "with_numba.py"), wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", CROSS)
def test_other_processors(target, tmp_path):
    qemu, gcc = CROSS[target], f"{target}-linux-gnu-gcc"
    if reason := emulator_fault((gcc, "-static"), (qemu,)):
        pytest.skip(reason)
    wanted = made(tmp_path, target)
    run(tmp_path, gcc, "-static", "main.c", "model.o", "-o", "main")
    assert same(run(tmp_path, qemu, tmp_path / "main"), wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize(("processor", "suffix"), [("cortex-m4", ".o"), ("cortex-m4", ".c"), ("cortex-m7", ".o")])
def test_microcontrollers_train(processor, suffix, tmp_path):
    tool("arm-none-eabi-gcc"), tool("qemu-system-arm")
    example = runpy.run_path(str(EXAMPLES / "cortex/make.py"))
    printed = example["run"](example["build"](tmp_path, processor, suffix), processor).splitlines()
    found, wanted = ([float(n) for n in re.findall(r"-?\d+\.\d+", text)] for text in (printed[0], example["expected"]()))
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    counts = {line.split(":")[0]: int(line.split()[1]) for line in printed[1:4]}
    assert 500 < counts["forward"] < counts["vjp"] < counts["step"]
