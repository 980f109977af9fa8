"""`python -m benchmarks.studies.steps`: every operation of a step has a time."""

from __future__ import annotations

import platform

import pytest

from benchmarks.problems import matrix_exp

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from benchmarks.peers.chains_dense import network, settings
from benchmarks.studies import steps
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan.passes import plan_of


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="time stamps are those of x86-64")
def test_every_operation_has_a_time(monkeypatch):
    monkeypatch.setattr(steps, "STEPS", 20)
    problem = matrix_exp.problem(60, "float32")
    program = network(problem, "native").program(*settings(problem), dtype=problem.dtype)
    found = steps.times(problem, None)
    assert all(0 < taken < 1e7 for _, taken in found)
    plan = plan_of(program, processor())
    in_registers = {str(fused) for segment in plan.segments for step in segment.steps for fused in step.fused}
    assert {str(operation) for operation, _ in found} == {str(each) for each in program.operations} - in_registers
