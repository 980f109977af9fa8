"""What a step of each problem takes at least on an H200, whatever the code: its operations and its bytes, beside the goals.

Operations are those of products and convolutions, two for each multiply-add. Bytes are those of arrays that the step is given
and that it changes, each read once, and written once where it changes; of those that a step makes for itself, none. Where they
fit into the second-level cache, the memory bounds nothing. The rates are NVIDIA's, without sparsity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import gpu_launches
from benchmarks.gpu_goals import goals
from benchmarks.gpu_problems import PROBLEMS, Problem, Setting, problem
from benchmarks.gpu_rates import CACHE_BYTES, MEMORY_RATE, RATES, SHARED_BYTES
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused.tiling_policy import suits, tiling_of
from chains.backends.cupy.fused_program import fused_program
from chains.backends.cupy.source.commands import Launch
from chains.program.operations import BatchMatMul, Convolve, ConvolveInput, ConvolveWeight, MatMul, Operation
from chains.program.program import Program
from chains.program.view import View, concrete


@dataclass(frozen=True)
class Floor:
    """A step: its commands, operations and bytes."""

    commands: int
    operations: float
    nbytes: float

    def seconds(self, precision: str) -> float:
        """The least that it can take."""
        travelling = self.nbytes if self.nbytes > CACHE_BYTES else 0.0
        return max(self.operations / RATES[precision], travelling / MEMORY_RATE)


def operations_of(operation: Operation, batch: int) -> int:
    """Two for each multiply-add of a product or a convolution; 0 for other operations."""

    def elements(view: View) -> int:
        return math.prod(concrete(view.shape, batch))

    if isinstance(operation, (MatMul, BatchMatMul)):
        inner = concrete(operation.ins[0].shape, batch)[-1]
        return 2 * elements(operation.outs[0]) * inner
    if isinstance(operation, (Convolve, ConvolveInput, ConvolveWeight)):
        (out,), (first, second) = operation.outs, operation.ins
        y, w = {Convolve: (out, second), ConvolveInput: (first, second), ConvolveWeight: (second, out)}[type(operation)]
        return 2 * elements(y) * elements(w) // concrete(w.shape, batch)[0]
    return 0


def floor_of(program: Program, batch: int) -> Floor:
    """What a step of the program takes at a batch size."""
    nbytes = 0
    for buffer in program.buffers.values():
        times = {"input": 1, "constant": 1, "output": 1, "state": 2}.get(buffer.role, 0)
        nbytes += times * buffer.nbytes * (batch if buffer.batched else 1)
    steps = [step for step, _ in compiled_for(program, batch).at(batch)]
    commands = sum(not isinstance(step, Launch) or step.grid(batch) is not None for step in steps)
    return Floor(commands, sum(operations_of(operation, batch) for operation in program.operations), nbytes)


def compiled_for(program: Program, batch: int) -> Compiled:
    """The commands of a step, without cuDNN: as one kernel, where it is that."""
    fused = fused_program(program, tiling_of(program, batch), SHARED_BYTES) if suits(program) else None
    return fused or Compiled(program)


def step_of(given: Problem) -> Program:
    return given.net("numpy").program(given.loss, given.optimizer, target_shape=given.t.shape[1:])


def lines(setting: Setting, keys: Sequence[str] = tuple(PROBLEMS)) -> Iterator[str]:
    """A row for each problem, and beneath it its goals and launches."""
    yield f"{'problem':13}{'batch':>7}{'commands':>10}{'GFLOP':>10}{'MB':>9}" + "".join(
        f"{f'us, {name}':>13}" for name in RATES
    )
    wanted = [goal["goal"] for goal in goals([])]
    for key in keys:
        given = problem(key, setting)
        program = step_of(given)
        floor = floor_of(program, given.batch)
        times = "".join(f"{floor.seconds(name) * 1e6:13.1f}" for name in RATES)
        numbers = f"{floor.operations / 1e9:10.4g}{floor.nbytes / 1e6:9.4g}"
        yield f"{key:13}{given.batch:7}{floor.commands:10}{numbers}{times}"
        yield from (f"{'':13}goal: {text}" for text in wanted if text.split(":")[0].split(",")[0] == key)
        yield f"{'':13}{gpu_launches.HEAD}"
        yield from (f"{'':13}{line}" for line in gpu_launches.lines(compiled_for(program, given.batch), given.batch))
