"""Cycles of the innermost loops of AVX2 kernels, by the port models of llvm-mca: ``python -m benchmarks.studies.ports``.

Needs `llvm-mca` of LLVM 16 or newer (Debian: llvm-19) and a processor with AVX2. Caches, memory and the rest of a kernel are
no part of the model.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import numpy as np

from chains import Chain, Conv, Dense, tanh
from chains.backends.native import NativeBackend
from chains.network import record
from chains.network.network import network_of

PROCESSORS = {"Zen 3": "znver3", "Haswell": "haswell", "Skylake": "skylake", "Alder Lake": "alderlake"}
RUNS = 400
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


def main() -> int:
    tool = next((path for path in map(shutil.which, TOOLS) if path), None)
    if tool is None:
        print("llvm-mca is not here: install LLVM's tools, such as Debian's llvm-19")
        return 1
    print(f"| kernel, float32 | multiply-adds | two a cycle | {' | '.join(PROCESSORS)} |\n|{' --- |' * (3 + len(PROCESSORS))}")
    for name, (net, function, multiply_adds) in KERNELS.items():
        loop = next(body for body in loops_of(net, function, name) if _multiply_adds(body) == multiply_adds)
        cycles = [f"{_cycles(tool, loop, cpu):.1f}" for cpu in PROCESSORS.values()]
        print(f"| {name} | {multiply_adds} | {multiply_adds / 2:.1f} | {' | '.join(cycles)} |", flush=True)
    return 0


def loops_of(net: Chain, function: str, kernel: str) -> list[list[str]]:
    """The innermost loops in the gradient's functions of this beginning; those with a division if the kernel is tanh."""
    program = record.vjp(network_of(net), np.dtype("float32"), training=True)
    found, name, body, label = [], "", [], ""
    for line in NativeBackend(threads=1, simd="avx2").listing(program).splitlines():
        if begun := re.match(r"(\S+):", line):
            body, label = [], begun[1]
            name = name if label.startswith(".L") else label
            continue
        body.append(line)
        jump = re.match(r"\s+(j\w+|ret\w*|call\w*)\s*(\S*)", line)
        if jump and jump[2] == label and name.startswith(function):
            found.append(body)
        if jump:
            body, label = [], ""
    return [body for body in found if any("vdivps" in line for line in body) == (kernel == "tanh")]


def _multiply_adds(body: list[str]) -> int:
    return sum("vfmadd" in line for line in body)


def _cycles(tool: str, body: list[str], cpu: str) -> float:
    text = "\n".join([".Lloop:", *(re.sub(r"\.LBB\w+", ".Lloop", line) if re.match(r"\s+j", line) else line for line in body)])
    command = [tool, "-mtriple=x86_64", f"-mcpu={cpu}", f"-iterations={RUNS}"]
    output = subprocess.run(command, input=text + "\n", capture_output=True, text=True, check=True).stdout
    total = re.search(r"Total Cycles:\s+(\d+)", output)
    assert total, output
    return int(total[1]) / RUNS


if __name__ == "__main__":
    sys.exit(main())
