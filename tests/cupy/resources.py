"""What launches ask of a GPU beside what it has: registers, shared memory, threads and blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.source.commands import Kernel, Launch
from tests.cupy.nvrtc import Usage

SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}  # that a block may have
REGISTERS = 1 << 16  # of a multiprocessor, and so of a block
SPILL_BYTES = 128  # a thread, at most, around calls of functions of CUDA: there are some, whatever the registers
FEW_BYTES, FEW_REGISTERS = 32, 64  # with fewer registers, ptxas itself saves a few bytes for more threads side by side
CALLED = r"\b(pow|sin|cos|erf)f?\("  # functions that ptxas does not put in place
REGISTER_UNIT = 8  # registers a thread are handed out in such units
WARP = 32


def launches(compiled: Compiled, batch: int) -> list[Launch]:
    return [step for step, _ in compiled.at(batch) if isinstance(step, Launch) and step.grid(batch) is not None]


def excess(launch: Launch, batch: int, usage: Usage, architecture: str) -> list[str]:
    """What a launch asks for that a GPU does not have."""
    grid = launch.grid(batch)
    assert grid is not None
    threads = launch.block[0] * launch.block[1]
    warps = -(-threads // WARP)
    registers = warps * WARP * -(-usage.registers // REGISTER_UNIT) * REGISTER_UNIT
    bounds = re.search(rf"KERNEL(?:_OF\((\d+), \d\))? {launch.kernel.name}\(", launch.kernel.text)
    assert bounds is not None
    shared = usage.shared + launch.shared
    limits = {
        "threads": (threads, min(1024, int(bounds[1] or 256))),
        "registers": (registers, REGISTERS),
        "bytes of shared memory": (shared, SHARED_BYTES[architecture]),
        "blocks": (grid[0], (1 << 31) - 1),
        "rows of blocks": (grid[1], (1 << 16) - 1),
        "parameters": (sum(8 if "*" in kind else 4 for kind in launch.kernel.parameters), 4096),
    }
    return [
        f"{launch.kernel.name} at batch {batch}: {number:,} {what} of {most:,}"
        for what, (number, most) in limits.items()
        if not 1 <= number <= most and not (what == "bytes of shared memory" and number == 0)
    ]


def spilling(kernels: Iterable[Kernel], usages: dict[str, Usage]) -> dict[str, Usage]:
    """Kernels that spill more bytes than they may: in float32 any, but for calls of functions and ptxas's own choice.

    Those that add up what blocks have summed, "sums", spill none at all.

    Numbers in float64 take two registers each, and kernels of whole programs are at their bound with them.
    """
    most = {}
    for kernel in kernels:
        few = FEW_BYTES if usages[kernel.name].registers < FEW_REGISTERS and not kernel.name.startswith("sums_") else 0
        most[kernel.name] = SPILL_BYTES if re.search(CALLED, kernel.text) else few
        if "double" in ",".join(kernel.parameters):
            most[kernel.name] = 2 * SPILL_BYTES
    return {name: used for name, used in usages.items() if used.spills > most[name]}


def too_much(compiled: Iterable[Compiled], batches: Iterable[int], usages: dict[str, Usage], architecture: str) -> list[str]:
    """What any launch of these programs asks for that a GPU does not have, at any of the batch sizes."""
    pairs = [(each, batch) for each in compiled for batch in batches]
    found = [(launch, batch) for each, batch in pairs for launch in launches(each, batch)]
    return [text for launch, batch in found for text in excess(launch, batch, usages[launch.kernel.name], architecture)]
