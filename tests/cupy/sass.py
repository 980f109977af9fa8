"""Machine code of kernels, read without a GPU: how many instructions the inner loops take for what they compute.

``python -m tests.cupy.sass`` prints a table for the benchmark's networks. Needs NVRTC or nvcc, and nvdisasm (the package
nvidia-cuda-nvdisasm, or a toolkit).
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import chains
from chains import SGD, Adam, Chain, Conv, CrossEntropyLoss, Dense, Flatten, MaxPool, MSELoss, SquaredLoss, relu, tanh
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused.fused import fused_program
from chains.backends.cupy.fused.many_steps import for_many_steps
from chains.backends.cupy.fused.tiling_policy import tiling_of
from chains.backends.cupy.source.commands import Source
from chains.program.program import Program
from tests.cupy import nvrtc
from tests.cupy.resources import SHARED_BYTES

MULTIPROCESSORS = 132
TOUCHING = r"LD|LDG|ST|STG|ATOM|ATOMG|RED|REDG|LDGSTS|UBLKCP|UTMALDG|UTMASTG"  # the GPU's memory
ADDING = r"(FFMA2?|DFMA|HFMA2|FADD|DADD|FMUL|DMUL)\b"  # what computes


@dataclass(frozen=True)
class Inner:
    """An innermost loop: its instructions, those among them that add or multiply, those that go to memory.

    `words` of 32 bits are what a store to the GPU's memory takes at most, `all_words` what all take together.
    """

    instructions: int
    products: int
    loads: int
    stores: int
    words: int
    all_words: int

    @property
    def a_product(self) -> float:
        """Instructions for each that adds or multiplies."""
        return self.instructions / self.products if self.products else float("inf")

    @property
    def a_word(self) -> float:
        """Instructions for each float32 number that is stored, where all are results."""
        return self.instructions / self.all_words if self.all_words else float("inf")

    @property
    def an_element(self) -> float:
        """Instructions for each float32 number of a result that is stored."""
        return self.instructions / self.words if self.words else float("inf")


@cache
def disassembler() -> str | None:
    """Where nvdisasm is, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    files = [path for folder in folders for path in folder.glob("*/bin/nvdisasm")]
    return shutil.which("nvdisasm") or next(map(str, files), None)


def listing(code: bytes) -> dict[str, list[str]]:
    """The lines of each kernel: labels and instructions."""
    program = disassembler()
    assert program is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([program, "-c", file.name], check=True, capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    for name, body in re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|^\s*\.section|\Z)", text, re.M | re.S):
        found[name] = [line.strip() for line in body.splitlines() if re.match(r"\s*/\*[0-9a-f]{4,}\*/|\.L_", line)]
    return found


def inner_loops(lines: list[str]) -> Iterator[Inner]:
    """The loops that hold no other loop; not the last instruction of a kernel, which leads to itself."""
    code, labels = [], {}
    for line in lines:
        if line.startswith(".L_"):
            labels[line.rstrip(":")] = len(code)
        else:
            code.append(re.sub(r"/\*.*?\*/", "", line).strip())
    loops = []
    for last, text in enumerate(code):
        target = re.search(r"\bBRA.*?`\((\.L_\w+)\)", text)
        if target and labels.get(target[1], last) < last:
            loops.append((labels[target[1]], last))
    for first, last in loops:
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops):
            body = code[first : last + 1]
            counts = [sum(bool(re.search(kind, text)) for text in body) for kind in (ADDING, r"LD[GS]", r"ST[GS]")]
            widths = [
                int(width or 32) // 32 for text in body for width in re.findall(r"\bSTG\.E(?:\.\w+)*?(?:\.(64|128))?\b", text)
            ]
            yield Inner(len(body), *counts, max(widths, default=0), sum(widths))


def busiest(lines: list[str]) -> Inner | None:
    """The inner loop that multiplies and adds most."""
    return max(inner_loops(lines), key=lambda loop: (loop.products, -loop.instructions), default=None)


def _small() -> tuple[Program, int]:
    return Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)).program(MSELoss(), Adam(1e-3)), 10_000


def _digits() -> tuple[Program, int]:
    return Chain(Dense(784, 30, chains.σ), Dense(30, 10, chains.σ)).program(SquaredLoss(), SGD(3.0)), 10


def _images() -> tuple[Program, int]:
    layers = Conv(1, 6, 5, relu), MaxPool(2), Conv(6, 16, 5, relu), MaxPool(2), Flatten(), Dense(256, 10)
    return Chain(*layers, input_shape=(1, 28, 28)).program(CrossEntropyLoss(), Adam(2e-3), target_shape=()), 2048


EXAMPLES = {
    "matrix_exp": (_small, "one kernel"),
    "mnist_mlp": (_digits, "one kernel"),
    "matrix_exp, many steps": (_small, "many steps"),
    "mnist_mlp, many steps": (_digits, "many steps"),
    "matrix_exp, kernels": (_small, "kernels"),
    "lenet5": (_images, "kernels"),
}


def kernels(name: str, room: int = SHARED_BYTES["sm_90"]) -> Source:
    """The kernels of a network of the benchmark: of a step as one kernel or several, or of many steps."""
    make, kind = EXAMPLES[name]
    program, batch = make()
    if kind == "kernels":
        return Compiled(program).source
    made = fused_program(program, tiling_of(program, batch), room)
    assert made is not None
    if kind == "one kernel":
        return made.source
    source, many = Source(), for_many_steps(made, batch, room, MULTIPROCESSORS)
    assert many is not None
    many.training(source, {"x": np.dtype(np.float32), "t": np.dtype(np.float32)})
    return source


def machine_code(name: str, architecture: str = "sm_90") -> dict[str, list[str]]:
    """By kernel of a network: its lines."""
    source = kernels(name)
    found = listing(nvrtc.cubin(source.text(wide=False), architecture))
    return {kernel.name: found[kernel.name] for kernel in source.kernels.values()}


def loops(lines: Mapping[str, list[str]]) -> dict[str, tuple[int, Inner | None]]:
    """By kernel: the number of its instructions, and its busiest inner loop."""
    return {name: (sum(not line.startswith(".") for line in body), busiest(body)) for name, body in lines.items()}


def waits(lines: list[str]) -> bool:
    """Whether a kernel waits for the one before it before it jumps, touches memory or lets the next one begin.

    It must not read by a cache that need not see what was written while the kernel was there.
    """
    code = [re.sub(r"/\*.*?\*/", "", line).strip() for line in lines if not line.startswith(".L_")]
    wait = next((place for place, text in enumerate(code) if text.startswith("ACQBULK")), len(code))
    early = any(re.search(rf"\b({TOUCHING}|BRA|EXIT|CALL|PREEXIT)\b", text) for text in code[:wait])
    return wait < len(code) and not early and not any(re.search(r"\bLDG\b.*\.CONSTANT\b", text) for text in code)


if __name__ == "__main__":
    heads = "in all", "inner loop", "+ and x", "loads", "stores", "a + or x", "a number"
    print(f"{'network':22}{'kernel':20}", *(f"{head:>10}" for head in heads))
    for network in EXAMPLES:
        for kernel, (count, loop) in loops(machine_code(network)).items():
            numbers = () if loop is None else (loop.instructions, loop.products, loop.loads, loop.stores)
            shares = () if loop is None else (loop.a_product, loop.an_element)
            print(f"{network:22}{kernel:20}", *(f"{n:10}" for n in (count, *numbers)), *(f"{n:10.2f}" for n in shares))
