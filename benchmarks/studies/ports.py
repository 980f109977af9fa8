"""Cycles of the innermost loops of kernels, by the port models of llvm-mca: ``python -m benchmarks.studies.ports [--neon]``.

Needs `llvm-mca` of LLVM 16 or newer (Debian: llvm-19), and for AVX2 a processor that has it. Caches, memory and the rest of a
kernel are no part of the model.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np

from chains import Chain, Conv, Dense, tanh
from chains.backends.native import NativeBackend
from chains.backends.native.compiler import Compiler
from chains.backends.native.llvm.jit import optimised
from chains.backends.native.llvm.target import Processor
from chains.backends.native.plan.passes import plan_of
from chains.exporting.targets import TARGETS
from chains.network import record
from chains.network.network import network_of
from chains.program.program import Program

PROCESSORS = {"Zen 3": "znver3", "Haswell": "haswell", "Skylake": "skylake", "Alder Lake": "alderlake"}
NEON = {"Neoverse V2": "neoverse-v2", "Apple M1": "apple-m1"}
JUMP = r"\s+(j\w+|ret\w*|call\w*|bl?(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+, #\d+,)\s*(\S*)"
RUNS = 400
OLDEST = 16  # version of llvm-mca that knows these processors
TOOLS = ("llvm-mca-19", "llvm-mca-18", "llvm-mca-17", "llvm-mca-16", "llvm-mca")

# A kernel: its network, the functions that have its loop, and this loop's multiply-adds.
KERNELS = {
    "dense product, 6 rows x 2 vectors": (Chain(Dense(32, 16)), "tile_", 48),
    "gradient of weights, 5 x 2": (Chain(Dense(32, 16)), "tile_", 10),
    "large product, 6 x 2": (Chain(Dense(600, 600)), "gemm_", 12),
    "convolution 5 x 5, 4 channels x 3 positions": (Chain(Conv(6, 16, 5), input_shape=(6, 12, 12)), "convolve_", 60),
    "its gradient of kernels, 2 channels x 5 taps": (Chain(Conv(6, 16, 5), input_shape=(6, 12, 12)), "convolve_weight_", 20),
    "Winograd's products, 6 channels x 2 tiles": (Chain(Conv(50, 50, 3), input_shape=(50, 34, 34)), "winograd_", 24),
    "Winograd's gradient of kernels, 4 x 2": (Chain(Conv(50, 50, 3), input_shape=(50, 34, 34)), "winograd_weight_", 8),
    "tanh": (Chain(Dense(4, 32, tanh)), "tile_", 8),
}


def _version(tool: str) -> int:
    """The first number of an llvm-mca's version; 0 if it does not say."""
    found = re.search(r"LLVM version (\d+)", subprocess.run([tool, "--version"], capture_output=True, text=True).stdout)
    return int(found[1]) if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--neon", action="store_true", help="code for ARM64, which does four multiply-adds of four numbers a cycle"
    )
    neon = parser.parse_args().neon
    tool = next((path for path in map(shutil.which, TOOLS) if path and _version(path) >= OLDEST), None)
    if tool is None:
        print(f"llvm-mca {OLDEST} or newer is not here: install LLVM's tools, such as Debian's llvm-19")
        return 1
    if neon:
        return _neon(tool)
    print(f"| kernel, float32 | multiply-adds | two a cycle | {' | '.join(PROCESSORS)} |\n|{' --- |' * (3 + len(PROCESSORS))}")
    for name, (net, function, multiply_adds) in KERNELS.items():
        found = loops(NativeBackend(threads=1, simd="avx2").listing(_program(net)), function)
        found = [body for body in found if any("vdivps" in line for line in body) == (name == "tanh")]
        loop = next(body for body in found if _count(body, "vfmadd") == multiply_adds)
        cycles = [f"{_cycles(tool, loop, 'x86_64', cpu):.1f}" for cpu in PROCESSORS.values()]
        print(f"| {name} | {multiply_adds} | {multiply_adds / 2:.1f} | {' | '.join(cycles)} |", flush=True)
    return 0


def _neon(tool: str) -> int:
    """Of the loops with 16 multiply-adds or more: these, their cycles by the model, and the share of four a cycle."""
    print(f"| kernel, float32 | {' | '.join(NEON)} |\n|{' --- |' * (1 + len(NEON))}")
    for name, (net, function, _) in KERNELS.items():
        cells = []
        for cpu in NEON.values():
            target = replace(TARGETS["aarch64"], processor=Processor("neon", 16, 32, cpu, "+neon"))
            written, machine = Compiler(plan_of(_program(net), target.processor)).compiled(), target.machine()
            found = loops(machine.emit_assembly(optimised(written.text, machine, vectorize=False)), function)
            counts = (
                (_count(body, "fmla"), _cycles(tool, body, "aarch64", cpu)) for body in found if _count(body, "fmla") >= 16
            )
            rows = sorted({(count, round(cycles, 1)) for count, cycles in counts}, reverse=True)
            cells.append(", ".join(f"{count}: {cycles} ({count / 4 / cycles:.0%})" for count, cycles in rows))
        print(f"| {name.split(',')[0]} | {' | '.join(cells)} |", flush=True)
    return 0


def _program(net: Chain) -> Program:
    return record.vjp(network_of(net), np.dtype("float32"), training=True)


def loops(assembly: str, function: str) -> list[list[str]]:
    """The innermost loops in functions whose names begin so."""
    found, name, body, label = [], "", [], ""
    for line in assembly.splitlines():
        if begun := re.match(r"(\S+):", line):
            body, label = [], begun[1]
            name = name if label.startswith(".L") else label
            continue
        body.append(line)
        jump = re.match(JUMP, line)
        if jump and jump[2] == label and name.startswith(function):
            found.append(body)
        if jump:
            body, label = [], ""
    return found


def _count(body: list[str], word: str) -> int:
    return sum(word in line for line in body)


def _cycles(tool: str, body: list[str], triple: str, cpu: str) -> float:
    text = "\n".join([".Lloop:", *(re.sub(r"\.LBB\w+", ".Lloop", line) if re.match(JUMP, line) else line for line in body)])
    command = [tool, f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={RUNS}"]
    output = subprocess.run(command, input=text + "\n", capture_output=True, text=True, check=True).stdout
    total = re.search(r"Total Cycles:\s+(\d+)", output)
    assert total, output
    return int(total[1]) / RUNS


if __name__ == "__main__":
    sys.exit(main())
