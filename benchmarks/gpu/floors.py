"""The launches of a step of each problem, and the least time that it takes on an H100 and an H200: by its operations and bytes.

Operations are those of products and convolutions, two for each multiply-add. Bytes are those of arrays that the step is given,
and once more of those that it changes. Where they fit into the second-level cache, they take no time. Rates are NVIDIA's,
without sparsity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

from benchmarks.gpu.goals import goals
from benchmarks.gpu.problems import PROBLEMS, Setting, problem
from chains.backends.cupy import DeviceBackend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused_program import FusedProgram
from chains.backends.cupy.source.commands import Launch
from chains.program.program import Program

MEMORY_RATES = {"H100": 3.35e12, "H200": 4.8e12}  # bytes a second; their other rates are equal
CACHE_BYTES = 50 << 20
RATES = {"float32": 67e12, "tf32": 494.7e12}  # operations a second
SHARED_BYTES = 227 << 10  # of shared memory that a block may have
GAP = 1.2  # microseconds between two launches of a graph: assumed, not measured
BYTES = {"input": 1, "constant": 1, "output": 1, "state": 2}  # how often a step reads or writes a buffer


class AnyConvolution:
    """Stands for cuDNN: it takes every convolution."""

    def workspace(self, convolution: Any) -> int:
        return 0


def compiled_for(program: Program, batch: int, fused: bool | None = None, cudnn: bool = False) -> Compiled:
    """The commands of a step on an H200; `fused` as for the backend."""
    device: Any = SimpleNamespace(shared_bytes=SHARED_BYTES, convolutions=AnyConvolution() if cudnn else None)
    return DeviceBackend(device, fused).commands(program, batch)


def launches(compiled: Compiled, batch: int) -> Counter[str]:
    """The launches, products and convolutions of a step, by kind and layer."""
    found = Counter[str]()
    for command, _ in compiled.at(batch):
        if not isinstance(command, Launch):
            found[f"{type(command).__name__.lower()}: {command.label}"] += 1  # type: ignore[attr-defined]
        elif command.grid(batch) is not None:
            found[f"{command.kernel.name.rpartition('_')[0]}: {command.label}"] += 1
    return found


def bytes_of(program: Program, batch: int) -> int:
    """The bytes that a step reads and writes at least."""
    return sum(BYTES.get(b.role, 0) * b.nbytes * (batch if b.batched else 1) for b in program.buffers.values())


def floor(program: Program, batch: int, precision: str, gpu: str = "H200") -> float:
    """The least microseconds of a step, however it is computed."""
    nbytes = bytes_of(program, batch)
    return 1e6 * max(program.flops(batch) / RATES[precision], nbytes / MEMORY_RATES[gpu] if nbytes > CACHE_BYTES else 0.0)


def counts(program: Program, batch: int) -> str:
    """The launches of a step: by default, kernel by kernel, and with cuDNN, where these differ."""
    default = compiled_for(program, batch)
    number = launches(default, batch).total()
    whole = isinstance(default, FusedProgram) and default.tiling.alone
    texts = ["one launch for all steps" if whole else f"{number} launches, {number * GAP:.0f} us between them (assumed)"]
    ways: dict[str, dict[str, bool]] = {"kernel by kernel": {"fused": False}, "with cuDNN": {"cudnn": True}}
    for text, settings in ways.items():
        other = launches(compiled_for(program, batch, **settings), batch).total()
        texts += [f"{other} {text}"] if other != number else []
    return "; ".join(texts)


def lines(setting: Setting, keys: Sequence[str] = tuple(PROBLEMS)) -> Iterator[str]:
    """For each problem a row, its goals and its launches."""
    ways = list(product(RATES, MEMORY_RATES))
    yield f"{'problem':13}{'batch':>7}{'GFLOP':>10}{'MB':>9}" + "".join(f"{f'us, {name} {gpu}':>18}" for name, gpu in ways)
    wanted = [goal["goal"] for goal in goals([])]
    for key in keys:
        given = problem(key, setting)
        program, batch = given.step(), given.batch
        times = "".join(f"{floor(program, batch, *way):18.1f}" for way in ways)
        yield f"{key:13}{batch:7}{program.flops(batch) / 1e9:10.4g}{bytes_of(program, batch) / 1e6:9.4g}{times}"
        yield from (f"{'':13}goal: {text}" for text in wanted if text.split(":")[0].split(",")[0] == key)
        yield f"{'':13}{counts(program, batch)}"
        found = launches(compiled_for(program, batch), batch)
        yield from (f"{'':13}{count:4} x {name}" for name, count in found.items())
