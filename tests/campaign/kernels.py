"""Kernels of the GPU backend compiled for GPUs that are not there: whether any launch asks for more than a device has.

Each attempt is a program of the tests' harness, of the GPU's benchmark or of `chains.models`, kernel by kernel or as one
kernel, in a type, for an architecture. Registers, spills and shared memory are what ptxas says. Needs NVRTC or nvcc.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from unittest import mock

import numpy as np

from benchmarks.gpu import problems as benchmark
from benchmarks.gpu.problems import PROBLEMS, Setting
from chains import Chain, CrossEntropyLoss, models
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused.loops import LoopShare
from chains.backends.cupy.fused.tiling_policy import loop_samples, suits, tiling_of
from chains.backends.cupy.fused_program import fused_program
from chains.network import record
from chains.network.network import network_of
from chains.program.program import Program
from tests.campaign import running
from tests.cupy import nvrtc
from tests.cupy.resources import SHARED_BYTES, spilling, too_much
from tests.cupy.support import gradient_program
from tests.harness import CASES

BATCHES = (1, 7, 64, 1000, 60_000)
MODELS = {  # each kind of block once: further ones are the same kernels
    "resnet": lambda: models.resnet((1, 1, 1, 1), 10, (3, 64, 64), backend="numpy"),
    "densenet": lambda: models.densenet((1, 1, 1, 1), 10, (3, 64, 64), backend="numpy"),
}
seen: Counter[str] = Counter()  # the most registers, and all spills, by architecture


@cache
def _problem(key: str) -> benchmark.Problem:
    """A problem of the benchmark with data of zeros."""

    def images(setting: object, name: str, load: object, shape: tuple[int, ...], sample: tuple[int, ...]) -> object:
        zeros = np.zeros((shape[0], *sample), np.float32), np.zeros(shape[0], np.int64)
        return zeros, zeros, ""

    def noise(samples: int, shape: tuple[int, ...], classes: int) -> object:
        return np.zeros((samples, *shape), np.float32), np.zeros(samples, np.int64)

    with mock.patch.object(benchmark, "_images", images), mock.patch.object(benchmark, "_noise", noise):
        return PROBLEMS[key](Setting())


def programs(dtype: type[np.floating]) -> Iterator[tuple[str, object]]:
    """The names of all programs, and what makes each."""
    for key in PROBLEMS:
        yield f"step of {key}", lambda key=key: _step(key, dtype)
    for name, net in MODELS.items():
        yield f"gradient of {name}", lambda net=net: _model(net(), dtype)
    for case in CASES:
        yield f"gradient of {case}", lambda case=case: gradient_program(case, dtype)
        yield f"pullback of {case}", lambda case=case: record.vjp(network_of(case.net()), dtype, False)


def _step(key: str, dtype: type[np.floating]) -> Program:
    return _problem(key).step(dtype)


def _model(net: Chain, dtype: type[np.floating]) -> Program:
    return record.gradient(network_of(net), record.Criterion(CrossEntropyLoss(), ()), dtype, True)


def missing() -> str:
    return "" if nvrtc.available() else "install NVRTC (pip install 'cuda-toolkit[nvrtc]') or nvcc, which compile the kernels"


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    dtype = (np.float32, np.float64)[int(rng.integers(2))]
    architecture = str(rng.choice(nvrtc.ARCHITECTURES))
    every = list(programs(dtype))
    few = len(PROBLEMS) + len(MODELS) if rng.random() < 0.1 else len(every)  # the benchmarks and models come first
    name, make = every[int(rng.integers(few))]
    batch = int(rng.choice(BATCHES)) if rng.random() < 0.5 else None
    return checked(name, make(), dtype, architecture, batch)  # type: ignore[operator]


def checked(name: str, program: Program, dtype: type[np.floating], architecture: str, batch: int | None) -> str:
    """What came of a program, as one kernel for a batch size, if given. Raises AssertionError where too much is asked for."""
    fused = None
    if batch is not None and suits(program):
        fused = fused_program(program, tiling_of(program, batch), SHARED_BYTES[architecture], forced=True)
    share = None if batch is None else LoopShare(loop_samples(batch), SHARED_BYTES[architecture], forced=True)
    kind, compiled = ("kernel by kernel", Compiled(program, loops=share)) if fused is None else ("one kernel", fused)
    code, usages = nvrtc.compiled(compiled.text(1), architecture)
    assert code
    problems = too_much([compiled], BATCHES if fused is None else (batch or 1,), usages, architecture)
    spills = spilling(compiled.source.kernels.values(), usages)
    problems += [f"{kernel} spills {used.spills} bytes" for kernel, used in spills.items()]
    assert not problems, f"{name}, {np.dtype(dtype)}, {architecture}, {kind}: {'; '.join(problems)}"
    for kernel, used in usages.items():
        what = f"{architecture}, {kernel.rstrip('0123456789_')}: most registers"
        seen[what] = max(seen[what], used.registers)
        seen[f"{architecture}: bytes of spills"] += used.spills
    return f"{architecture}, {kind}"


def notes() -> list[str]:
    return [f"{what} {number}" for what, number in sorted(seen.items())]


if __name__ == "__main__":
    sys.exit(running.main(attempt, notes, missing=missing))
