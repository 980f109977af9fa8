"""What the GPU backend gives, on one GPU: ``python -m benchmarks.gpu`` checks everything against NumPy, then measures.

Only CuPy, NumPy and this project are needed; PyTorch has rows where it is installed with CUDA. Without a GPU, the script
says so and measures nothing. ``--quick`` makes the problems small, to see whether all of it works.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import chains
from benchmarks import gpu_torch, matrix_exp
from chains import (
    SGD,
    Adam,
    Chain,
    Conv,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
    SquaredLoss,
    backends,
    relu,
    tanh,
    σ,
)
from chains.backends.cupy.bfloat16 import LARGE, is_large
from chains.backends.cupy.device import Gemm
from chains.backends.cupy.products import product
from chains.layers.base import Layer
from chains.operations import MatMul
from chains.program import Program
from chains.steps import ArraySteps

PRECISIONS = ("float32", "tf32", "bf16")
CONVOLUTIONS = tuple(f"{name}-{how}" for name in ("cupy", "cupy-tf32") for how in ("products", "cudnn", "cudnn-timed"))


@dataclass(frozen=True)
class Problem:
    """A network to train; `goal` is what issue and README ask of it, in words."""

    name: str
    layers: tuple[Layer, ...]
    input_shape: tuple[int, ...]
    loss: Any
    optimizer: Any
    x: np.ndarray
    t: np.ndarray
    batch: int
    goal: str
    epochs: int = 1
    test: tuple[np.ndarray, np.ndarray] | None = None

    def net(self, backend: str = "cupy") -> Chain:
        return Chain(*self.layers, input_shape=self.input_shape, backend=backend)


def problems(quick: bool) -> list[Problem]:
    """The problems of the table, a thousandth as large and long where `quick`."""
    rng = np.random.default_rng(0)

    def images(samples: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
        samples = 4 if quick else samples
        return rng.random((samples, *shape), np.float32), rng.integers(0, 10, samples)

    p = matrix_exp.problem(40 if quick else 10_000, "float32")
    digits, labels, test = _digits(quick)
    flat, one_hot = digits.reshape(len(digits), -1), np.eye(10, dtype=np.float32)[labels]
    photos, classes = images(50_000, 3, 32, 32)
    small = Adam(1e-3)
    lenet = (
        Conv(1, 6, 5, relu), MaxPool(2), Conv(6, 16, 5, relu), MaxPool(2), Flatten(),
        Dense(256, 120, relu), Dense(120, 84, relu), Dense(84, 10),
    )  # fmt: skip
    rosetta = (
        Conv(3, 50, 3, relu, padding=1), Conv(50, 50, 3, relu, padding=1), MaxPool(2), Dropout(0.25),
        Conv(50, 100, 3, relu, padding=1), Conv(100, 100, 3, relu, padding=1), MaxPool(2), Dropout(0.25),
        Flatten(), Dense(6400, 512, relu), Dropout(0.5), Dense(512, 10),
    )  # fmt: skip
    table = [
        Problem("matrix_exp, Adam step on 10,000 samples", (Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)), (4,),
                chains.MSELoss(), small, p.x, p.t, len(p.x), "at most 25 us a step; 20x PyTorch eager, 2x its graphs", 1000),
        Problem("mnist_mlp, batch 10", (Dense(784, 30, σ), Dense(30, 10, σ)), (784,), SquaredLoss(), SGD(3.0), flat, one_hot,
                10, "10x PyTorch's graphs"),
        Problem("lenet5, batch 2,048, 10 epochs", lenet, (1, 28, 28), CrossEntropyLoss(), Adam(2e-3), digits, labels,
                min(2048, len(digits)), "at most 0.25 s in all, accuracy at least .97", 10, test),
        Problem("rosetta_cnn, batch 64, 10 epochs", rosetta, (3, 32, 32), CrossEntropyLoss(), SGD(0.01, momentum=0.9), photos,
                classes, min(64, len(photos)), "at most 4 s in all", 10),
    ]  # fmt: skip
    return [replace(problem, epochs=1) for problem in table] if quick else table


def large_problems(quick: bool) -> list[Problem]:
    """Networks that are nearly all products: of benchmarks/wide.py, and larger ones with relu and with tanh."""
    rng, goal = np.random.default_rng(0), "85% of cuBLAS's rate"
    inputs, hidden, batch = (16, 32, 16) if quick else (2048, 4096, 1024)
    x, t = rng.standard_normal((batch, inputs), np.float32), rng.integers(0, 10, batch)
    wide = (Dense(inputs, hidden, relu), Dense(hidden, hidden, relu), Dense(hidden, 10))
    width = 32 if quick else 8192
    square = rng.standard_normal((width, width), np.float32)
    squares = [
        Problem(f"wider, {width}^2, {f}, batch {width}", (Dense(width, width, f), Dense(width, width)), (width,), SquaredLoss(),
                SGD(1e-3), square, square, width, goal, 5)
        for f in (relu, tanh)
    ]  # fmt: skip
    return [
        Problem(f"wide, {inputs}-{hidden}-{hidden}-10, batch {batch}", wide, (inputs,), CrossEntropyLoss(), SGD(1e-3), x, t,
                batch, goal, 20),
        *squares,
    ]  # fmt: skip


def _digits(quick: bool) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """MNIST where it is at hand, else noise of its shape, which takes as long and teaches nothing."""
    try:
        (x, t), (xv, tv) = chains.data.load_mnist()
    except (OSError, ValueError) as error:
        print(f"MNIST is not at hand ({error}): noise of its shape is used, and accuracies mean nothing")
        rng = np.random.default_rng(1)
        x, t = rng.integers(0, 256, (60_000, 28, 28), np.uint8), rng.integers(0, 10, 60_000)
        xv, tv = x[:10_000], t[:10_000]
    x, xv = (images.reshape(-1, 1, 28, 28).astype(np.float32) / 255.0 for images in (x, xv))
    return (x[:24], t[:24], (xv[:24], tv[:24])) if quick else (x, t, (xv, tv))


def check(name: str, report: Callable[[str], None], only: str = "") -> bool:
    """The cases of the tests' harness with `only` in their names, on the backend `name` against NumPy in float64.

    Returns whether all agree.
    """
    from tests.harness import CASES, ROUNDING

    worst = {np.float32: (0.0, ""), np.float64: (0.0, "")}
    cases = [case for case in CASES if only in str(case)]
    for case in cases:
        problem = case.problem(70)
        wanted = problem.value_and_grad("numpy", np.float64)
        for dtype in worst:
            found = problem.value_and_grad(name, dtype)
            error = max(_error(a, b) for a, b in zip(found, wanted, strict=True))
            error /= 10 * ROUNDING[np.dtype(dtype)]
            worst[dtype] = max(worst[dtype], (error, str(case)))
    for dtype, (error, case) in worst.items():
        report(f"  {np.dtype(dtype)}: {len(cases)} cases, largest error {error:.2f} of what is allowed ({case})")
    return all(error <= 1.0 for error, _ in worst.values())


def _error(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted)
    difference = float(np.max(np.abs(found - wanted), initial=0.0))
    return difference / max(1.0, float(np.max(np.abs(wanted), initial=0.0))) if np.isfinite(difference) else np.inf


class Trainer:
    """A problem being trained on a place: the data, the parameters and the losses lie there."""

    def __init__(self, problem: Problem, backend: str, place: Any) -> None:
        self.problem, self.net, self.place = problem, problem.net(backend), place
        self.p = place.array(self.net.init(seed=0))
        data, objective = self.net.problem(place.array(problem.x), place.array(problem.t), problem.loss, None, None)
        step = self.net.training_step(self.p, objective, problem.optimizer)
        self.steps = ArraySteps(
            data, step, {"p": self.p}, problem.optimizer,
            batch_size=problem.batch, drop_last=False, seed=0, optimizer_state=None,
        )  # fmt: skip

    def epochs(self, count: int) -> float:
        """The seconds that so many epochs take, with their shuffles; the losses are read at the end of each."""
        start, done = time.perf_counter(), 0
        while done < count:
            done += len(self.steps.epochs(count - done, True, None))
        return time.perf_counter() - start

    def accuracy(self) -> float | None:
        if self.problem.test is None:
            return None
        x, t = self.problem.test
        y = self.net(self.place.array(x), self.p)
        return float((np.asarray(y.get() if hasattr(y, "get") else y).argmax(1) == t).mean())


def measure(problem: Problem, backend: str, place: Any, report: Callable[[str], None]) -> float:
    """Seconds for the problem's epochs, the best of three after a warm-up; the first of these trains from the start."""
    trainer = Trainer(problem, backend, place)
    first = trainer.epochs(problem.epochs)
    accuracy = trainer.accuracy()
    best = min(trainer.epochs(problem.epochs) for _ in range(3))
    steps = problem.epochs * trainer.steps.per_epoch
    text = f"  chains {backend}: {best:.4g} s, {best / steps * 1e6:.1f} us a step (first time, with compiling, {first:.3g} s)"
    report(text + (f", accuracy {accuracy:.4f} after {problem.epochs} epochs" if accuracy is not None else ""))
    return best


def cublas_seconds(device: Any, program: Program, batch: int) -> float:
    """What all products of a program take by themselves, each of its sizes, layouts and types, at the device's precision."""
    numbers: dict[tuple[int, bool], Any] = {}
    seconds: dict[tuple[Any, ...], float] = {}
    total = 0.0

    def address(rows: int, columns: int, half: bool) -> int:
        key = (rows * columns, half)
        if key not in numbers:
            array = np.random.default_rng(len(numbers)).standard_normal(rows * columns, np.float32)
            numbers[key] = device.array((array.view(np.uint32) >> 16).astype(np.uint16) if half else array)
        return int(device.address(numbers[key]))

    for operation in program.operations:
        if not isinstance(operation, MatMul):
            continue
        step, half = product(operation), device.precision == "bf16" and batch >= LARGE and is_large(operation)
        (rows, columns, inner), turned = step.sizes(batch), (step.a.transposed, step.b.transposed)
        key = (rows, columns, inner, turned, half, operation.accumulate)
        if key not in seconds:
            out = device.empty((rows, columns), np.float32)
            addresses = (device.address(out), address(rows, inner, half), address(inner, columns, half))
            leading = (columns, rows if turned[0] else inner, inner if turned[1] else columns)
            gemm = Gemm(out.dtype, (rows, columns, inner), addresses, leading, turned, operation.accumulate, half)
            seconds[key] = _seconds(device, device.product(gemm), out)
        total += seconds[key]
    return total


def _seconds(device: Any, work: Callable[[], object], out: Any, times: int = 20) -> float:
    """What work takes, the best of five; `out` is read at the end, which waits for it."""
    best, host = np.inf, np.empty(1, np.float32)
    for _ in range(5):
        with device.running():
            device.assign(host, out.reshape(-1)[:1])
            start = time.perf_counter()
            for _ in range(times):
                work()
            device.assign(host, out.reshape(-1)[:1])
        best = min(best, (time.perf_counter() - start) / times)
    return float(best)


def large(problem: Problem, names: dict[str, Any], report: Callable[[str], None]) -> None:
    """A step of a network that is nearly all products at each precision, with epilogues and without, beside cuBLAS alone."""
    for name, device in names.items():
        program = problem.net(name).program(problem.loss, problem.optimizer, target_shape=problem.t.shape[1:])
        flops, alone = program.flops(problem.batch), cublas_seconds(device, program, problem.batch)
        report(f"  cuBLAS alone, {name}: {alone * 1e3:.2f} ms for the products of a step, {flops / alone / 1e12:.1f} TFLOP/s")
        for epilogues in (True, False):
            device.epilogues = epilogues
            device.refused.clear()
            trainer = Trainer(problem, name, device)
            trainer.epochs(2)
            best = min(trainer.epochs(problem.epochs) for _ in range(3)) / problem.epochs
            text = f"  chains {name} {'with' if epilogues else 'without'} epilogues: {best * 1e3:.2f} ms a step, "
            refused = ", ".join(f"{count} {kind}" for kind, count in device.refused.items())
            refused = f"; not done by cublasLt: {refused}" if refused else ""
            report(text + f"{flops / best / 1e12:.1f} TFLOP/s, {alone / best:.0%} of cuBLAS's{refused}")
        device.epilogues = True


def convolutions(table: list[Problem], names: Sequence[str], report: Callable[[str], None]) -> bool:
    """The problems with convolutions done in each way: checked where nothing is rounded to TF32, then measured."""
    right = True
    for name in names:
        try:
            place = backends.backend(name).on_device.device  # type: ignore[attr-defined]
        except ValueError as error:
            report(f"  chains {name} was not measured: {error}")
            continue
        report(f"{name}: convolutions by {place.convolutions or 'products and kernels of our own'}")
        right &= "tf32" in name or check(name, report, only="Conv")
        for problem in table:
            report(f"{problem.name} (goal: {problem.goal})")
            measure(problem, name, place, report)
    return right


def allocations(problem: Problem, backend: str, place: Any) -> int:
    """How often steady training asks for memory of the GPU, by a hook on CuPy's allocator."""
    import cupy

    class Count(cupy.cuda.MemoryHook):
        name, calls = "count", 0

        def alloc_preprocess(self, **kwargs: Any) -> None:
            Count.calls += 1

        def malloc_preprocess(self, **kwargs: Any) -> None:
            Count.calls += 1

    trainer = Trainer(problem, backend, place)
    trainer.epochs(3)
    with Count():
        trainer.epochs(2)
    return Count.calls


def run(name: str, place: Any, precise: dict[str, Any], quick: bool, report: Callable[[str], None]) -> bool:
    """All checks and measurements on a backend; whether the checks passed."""
    report("correctness, against NumPy in float64")
    right = check(name, report)
    for problem in problems(quick):
        report(f"{problem.name} (goal: {problem.goal})")
        ours = measure(problem, name, place, report)
        for text, seconds in gpu_torch.rows(problem):
            report(f"  {text}" + (f": {seconds:.4g} s, {seconds / ours:.1f} times ours" if seconds is not None else ""))
    for problem in large_problems(quick):
        report(f"{problem.name} (goal: {problem.goal})")
        large(problem, precise, report)
    report("convolutions done in other ways")
    table = [problem for problem in problems(quick) if any(isinstance(layer, Conv) for layer in problem.layers)]
    return convolutions(table, CONVOLUTIONS, report) and right


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small problems, to see whether all of it works")
    options = parser.parse_args(arguments)
    try:
        runner: Any = backends.backend("cupy")
    except ValueError as error:
        print(f"nothing was measured: {error}")
        return 0
    import cupy

    place = runner.on_device.device
    facts = cupy.cuda.runtime.getDeviceProperties(0)
    versions = f"CUDA runtime {cupy.cuda.runtime.runtimeGetVersion()}, driver {cupy.cuda.runtime.driverGetVersion()}"
    print(f"{facts['name'].decode()}; {versions}; CuPy {cupy.__version__}; NumPy {np.__version__}; chains {chains.__version__}")
    names = {f"cupy-{p}" if p != "float32" else "cupy": None for p in PRECISIONS}
    precise = {name: backends.backend(name).on_device.device for name in names}  # type: ignore[attr-defined]
    right = run("cupy", place, precise, options.quick, print)
    for problem in problems(True)[:3]:
        print(f"allocations in two steady epochs of {problem.name}: {allocations(problem, 'cupy', place)}")
    print("not measured, since not built: copies from and to the host beside computing; one kernel for a whole step")
    print("all correct" if right else "WRONG RESULTS: see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
