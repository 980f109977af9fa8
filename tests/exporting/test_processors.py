"""Kernels for NEON and RISC-V, in qemu: the forward pass and gradients of the harness's cases against NumPy."""

from __future__ import annotations

import subprocess
from zlib import crc32

import numpy as np
import pytest

from chains.backends.numpy.backend import NumpyBackend
from chains.exporting.header import ctype, header_text
from tests.exporting.support import data, interface, tool, whole_calls
from tests.harness import ACTIVATION_CASES, LAYERS, LOSS_CASES

from chains.exporting.objects import Objects  # isort: skip
from chains.exporting.targets import targets_of  # isort: skip

pytestmark = pytest.mark.few(1)

CASES = [*LAYERS, *ACTIVATION_CASES, *(case for case in LOSS_CASES if not case.weighted)]
BATCHES = (1, 37)
CLOSE = {"float32": 5e-5, "float64": 2e-12}


def types_of(case):
    return ("float32", "float64")[crc32(case.name.encode()) % 2]


class Program:
    """A C program that calls functions of object files on arrays that it reads, and writes what they fill."""

    def __init__(self, folder):
        self.folder, self.objects, self.calls = folder, [], []
        self.head, self.body = [], []
        self.arrays = []

    def add(self, made, n, arrays):
        """Have all functions of an interface called."""
        for call in whole_calls(made):
            names = []
            for argument in call.arguments:
                shape = (n, *argument.shape) if argument.batched else argument.shape
                size = int(np.prod(shape, dtype=int))
                if argument.role != "output":
                    self.arrays.append(np.ascontiguousarray(arrays[argument.name], argument.dtype).reshape(-1))
                names.append((argument, size))
            lines = []
            for k, (argument, size) in enumerate(names):
                kind = ctype(argument.dtype)
                lines.append(f"{kind} *a{k} = malloc({max(size, 1)} * sizeof({kind}));")
                if argument.role != "output":
                    lines.append(f"read(a{k}, {size} * sizeof({kind}));")
            given = [f"a{k}" for k in range(len(names))]
            if made.workspace:
                lines.append(f"void *work = malloc({made.name}_work_bytes({n}));")
                given.append("work")
            text = f"{made.name}_{call.name}({', '.join([str(n), *given])});"
            if call.value is not None:
                kind = ctype(call.value.dtype)
                lines += [f"{kind} value = {text}", f"write(&value, sizeof({kind}));"]
            else:
                lines.append(text)
            for k, (argument, size) in enumerate(names):
                if argument.changed:
                    lines.append(f"write(a{k}, {size} * sizeof({ctype(argument.dtype)}));")
            self.body += ["{", *lines, "}"]
            self.calls.append((made, call, n, arrays))

    def run(self, gcc, qemu, *sources):
        main = [
            "#include <stdio.h>\n#include <stdlib.h>",
            *self.head,
            "static void read(void *a, size_t n) { if (fread(a, 1, n, stdin) != n) exit(1); }",
            "static void write(const void *a, size_t n) { if (fwrite(a, 1, n, stdout) != n) exit(1); }",
            "int main(void)\n{",
            *self.body,
            "}",
        ]
        (self.folder / "main.c").write_text("\n".join(main))
        subprocess.run([gcc, "-O1", "-static", "main.c", *sources, "-o", "main"], cwd=self.folder, check=True)
        given = b"".join(array.tobytes() for array in self.arrays)
        return subprocess.run([qemu, "./main"], cwd=self.folder, input=given, capture_output=True, check=True).stdout


def compare(program, printed):
    """Raise AssertionError unless the program has printed what NumPy computes."""
    place = 0
    for made, call, n, arrays in program.calls:
        buffers = call.program.buffers
        given = {name: np.array(array, buffers[name].dtype) for name, array in arrays.items() if name in buffers}
        binding = NumpyBackend().bind(call.program, n, given)
        with np.errstate(all="ignore"):
            binding()
        shapes = [("value", call.value.dtype, ())] if call.value else []
        shapes += [(a.name, a.dtype, (n, *a.shape) if a.batched else a.shape) for a in call.arguments if a.changed]
        for name, dtype, shape in shapes:
            size = int(np.prod(shape, dtype=int)) * dtype.itemsize
            found = np.frombuffer(printed[place : place + size], dtype).reshape(shape)
            place += size
            if (wanted := binding.arrays.get(name)) is not None:
                wanted = wanted.reshape(shape)
                scale = max(1.0, abs(wanted).max(initial=0.0))
                assert abs(found - wanted).max(initial=0.0) <= CLOSE[dtype.name] * scale, (made.network, call.name, name)
    assert place == len(printed)


@pytest.mark.parametrize("target", ["aarch64", "riscv64"])
def test_kernels_compute_what_numpy_computes(target, tmp_path, request):
    qemu, gcc = tool(f"qemu-{target}"), tool(f"{target}-linux-gnu-gcc")
    program, sources = Program(tmp_path), []
    for number, case in enumerate(CASES if request.config.getoption("--all-cases") else CASES[::16]):
        dtype = types_of(case)
        loss = {"loss": case.loss, "target_shape": case.problem(1).t.shape[1:]}
        made = interface(case.net(), dtype, name=f"case{number}", **loss)
        objects = Objects(made, targets := targets_of(target))
        (tmp_path / f"case{number}.o").write_bytes(objects.code(targets))
        sources.append(f"case{number}.o")
        (tmp_path / f"case{number}.h").write_text(header_text(objects.interface, target))
        program.head.append(f'#include "case{number}.h"')
        for n in BATCHES:
            batch, arrays = data(case, n, dtype)
            program.add(objects.interface, batch, arrays)
    compare(program, program.run(gcc, qemu, *sources))
