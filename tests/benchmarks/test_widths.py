"""`python -m benchmarks --simd avx2`: libraries that are loaded with its variables use no wider vectors."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import simd
from benchmarks.harness.cpuid import hold_to_avx2

WIDTHS = """
import json, numpy, threadpoolctl
found = {"numpy": numpy.show_config(mode="dicts")["SIMD Extensions"]["found"]}
numpy.ones((2, 2)) @ numpy.ones((2, 2))
found["blas"] = [info.get("architecture") for info in threadpoolctl.threadpool_info() if info["internal_api"] == "openblas"]
from chains.backends.native.backend import NativeBackend
found["chains"] = NativeBackend().processor.kind
try:
    import torch
    found["torch"] = torch.backends.cpu.get_cpu_capability()
except ImportError:
    pass
print(json.dumps(found))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX2 is of x86-64")
def test_nobody_is_wider_than_asked_for():
    pytest.importorskip("threadpoolctl")
    pytest.importorskip("llvmlite")
    variables = simd.held_to("avx2")
    command = [sys.executable, "-W", "ignore", "-c", WIDTHS]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env={**os.environ, **variables}, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert not [name for name in found["numpy"] if name.startswith(simd.WIDER["avx2"])]
    assert set(found["blas"]) <= {"Haswell", "Zen", None}
    assert found["chains"] == "avx2"
    assert found.get("torch", "AVX2") in ("AVX2", "DEFAULT")


DENIED = """
from benchmarks.harness.cpuid import hold_to_avx2
held = hold_to_avx2()
import json, threading
found = {"held": held}
def load():  # threads inherit it
    import numpy, threadpoolctl
    found["numpy"] = numpy.show_config(mode="dicts")["SIMD Extensions"]["found"]
    numpy.ones((2, 2)) @ numpy.ones((2, 2))
    found["blas"] = [info.get("architecture") for info in threadpoolctl.threadpool_info() if info["internal_api"] == "openblas"]
thread = threading.Thread(target=load)
thread.start()
thread.join()
print(json.dumps(found))
"""


def test_the_processor_denies_what_is_wider():
    pytest.importorskip("threadpoolctl")
    command = [sys.executable, "-W", "ignore", "-c", DENIED]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    if not found["held"]:
        pytest.skip("CPUID cannot be trapped here, or there is no C compiler")
    assert not [name for name in found["numpy"] if name.startswith(simd.WIDER["avx2"])]
    assert set(found["blas"]) <= {"Haswell", "Zen", None}


def test_without_a_compiler_that_works_nothing_is_denied(monkeypatch):
    which = shutil.which
    monkeypatch.setattr("benchmarks.harness.cpuid.shutil.which", lambda name: which("false"))
    assert not hold_to_avx2()


def test_variables_of_the_caller_are_kept(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=there")
    flags = simd.held_to("avx2")["XLA_FLAGS"]
    assert flags == "--xla_dump_to=there --xla_cpu_max_isa=AVX2"
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert simd.held_to("avx2")["XLA_FLAGS"] == flags
