"""Each step of a compiled training step and its floor, on one thread: ``python -m benchmarks.studies.steps --simd avx2``.

Time stamps stand in the code, behind a fence each, so that the steps take a tenth longer in all. The floor of a product is its
operations at the rate of BLAS's sgemm, which `OPENBLAS_CORETYPE=Haswell` holds to AVX2. That of a map with tanh or a sigmoid
is its elements at the rate of the function alone (`elementary.py`). Other steps have none.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.harness.machine import describe, sgemm_rates
from benchmarks.peers.chains_dense import network, settings
from benchmarks.problems import matrix_exp, mnist_mlp
from benchmarks.problems.dense import Problem
from benchmarks.studies import elementary
from chains import sigmoid, tanh
from chains.backends.native.binding import NativeBinding
from chains.backends.native.compiled import FUNCTIONS, CompiledProgram
from chains.backends.native.compiler import Compiler
from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import I64, PTR, Value
from chains.backends.native.llvm.jit import machine_code
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep, Work
from chains.backends.native.plan.passes import plan_of
from chains.program.operations import Map, MatMul, Operation
from chains.program.view import concrete

STEPS, ROUNDS = 1000, 9
MAX_STEPS = 500  # steps of a program that have a place for their ticks
SLOW = {"tanh": tanh, "exp": sigmoid}  # operations of formulas, and the functions that have them here


class TimedCompiler(Compiler):
    """Writes time stamps around all steps. `ticks` holds what each took, in all runs; its first entry is the last stamp."""

    def __init__(self, plan: ExecutionPlan) -> None:
        super().__init__(plan)
        self.ticks = np.zeros(1 + MAX_STEPS, np.int64)
        self.operations: list[Operation] = []

    def _steps(self, steps: Sequence[PlanStep], frame: Frame) -> None:
        for step in steps:
            before = self._stamp(frame)
            super()._steps([step], frame)
            self._note(frame, step, before)

    def _share(self, work: Work, frame: Frame) -> None:
        before = self._stamp(frame)
        super()._share(work, frame)
        self._note(frame, work.steps[0], before)

    def _rest(self, runs: Sequence[tuple[int, int]], steps: Sequence[PlanStep], frame: Frame) -> None:
        before = self._stamp(frame)
        super()._rest(runs, steps, frame)
        self._note(frame, steps[0], before)

    def _stamp(self, frame: Frame) -> Value:
        frame.f.call("llvm.x86.sse2.lfence", None)
        return frame.f.call("llvm.readcyclecounter", I64)

    def _note(self, frame: Frame, step: PlanStep, before: Value) -> None:
        f, now = frame.f, self._stamp(frame)
        self.operations.append(step.operation)
        last, place = (Value(f"inttoptr (i64 {self.ticks.ctypes.data + 8 * k} to ptr)", PTR) for k in (0, len(self.operations)))
        f.store(now, last)
        f.store(f.add(f.load(I64, place), f.binary("sub", now, before)), place)


def times(problem: Problem, width: str | None) -> list[tuple[Operation, float]]:
    """The operations of a training step, and the nanoseconds that each takes, if it runs: the fastest of some rounds."""
    loss, optimizer = settings(problem)
    program = network(problem, "native").program(loss, optimizer, dtype=problem.dtype)
    compiler = TimedCompiler(plan_of(program, processor(width)))
    written = compiler.compiled()
    code = CompiledProgram(written.signature, machine_code(written.text, FUNCTIONS, processor(width)), program.flops(1))
    arrays = {"p": problem.p.copy(), "x": problem.x, "t": problem.t}
    states = {name: buffer for name, buffer in program.buffers.items() if buffer.role == "state" and name != "p"}
    arrays |= {name: np.zeros(concrete(buffer.shape, 1), buffer.dtype) for name, buffer in states.items()}
    binding = NativeBinding(program, code, problem.samples, arrays, 1, None)
    best = np.full(len(compiler.operations), np.inf)
    for _ in range(ROUNDS):
        for name, array in arrays.items():
            if name in states or name == "p":
                array[...] = problem.p if name == "p" else 0
        binding.run()
        compiler.ticks[1:] = 0
        first, start = compiler.ticks[0], time.perf_counter_ns()
        for _ in range(STEPS):
            binding.run()
        seconds = time.perf_counter_ns() - start
        taken = compiler.ticks[1 : 1 + len(best)] / STEPS
        best = np.minimum(best, taken * seconds / (compiler.ticks[0] - first))
    return [(operation, ns) for operation, ns in zip(compiler.operations, best.tolist(), strict=True) if ns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simd", choices=elementary.WIDTHS, help="hold chains to this width; default: the widest there is")
    width = parser.parse_args().simd
    print(*(f"{name:>9}  {fact}" for name, fact in describe().items()), sep="\n")
    rate, kind = sgemm_rates()["1 thread"], processor(width).kind
    slow = {name: elementary.nanoseconds(function, kind, "float32") for name, function in SLOW.items()}

    def floor(operation: Operation, samples: int) -> float | None:
        if isinstance(operation, MatMul):
            return operation.flops(samples) / rate
        names = {each.operation for each in operation.formula.instructions} if isinstance(operation, Map) else set()
        elements = int(np.prod(concrete(operation.outs[0].shape, samples)))
        return next((elements * ns for name, ns in slow.items() if name in names), None)

    for name, problem in (
        ("matrix_exp, 200 samples", matrix_exp.problem(200, "float32")),
        ("mnist_mlp, a step of 10", mnist_mlp.problem(mnist_mlp.BATCH, "float32", None)),
    ):
        print(f"\n| {name}, {kind}, ns | floor | measured | ratio |\n| --- | --- | --- | --- |")
        rows = [(operation, floor(operation, problem.samples), taken) for operation, taken in times(problem, width)]
        for operation, least, taken in rows:
            text = str(operation) if len(str(operation)) < 60 else f"{operation.label}: {operation.outs[0].text} = ..."
            print(f"| {text} | {f'{least:.0f} | {taken:.0f} | {taken / least:.2f}' if least else f'- | {taken:.0f} | -'} |")
        whole = sum(each for _, each, _ in rows if each)
        bound, rest = (sum(taken for _, each, taken in rows if bool(each) == with_floor) for with_floor in (True, False))
        print(f"| all with a floor; the others | {whole:.0f} | {bound:.0f}; {rest:.0f} | {bound / whole:.2f} |")


if __name__ == "__main__":
    main()
