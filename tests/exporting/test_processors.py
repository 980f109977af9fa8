"""Kernels for processors and systems other than this computer's, in emulators: the harness's cases against NumPy.

NEON and RISC-V run as programs of Linux in qemu, Windows's object files in Wine, and those for microcontrollers without a
system, in qemu's boards with a Cortex-M4 and a Cortex-M7.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from chains.exporting.header import ctype, header_text
from tests.exporting.support import by_numpy, data, interface, loaded, whole_calls
from tests.harness import ACTIVATION_CASES, LAYERS, LOSS_CASES
from tests.tools import emulator_fault, tool

from chains.backends.native.support import is_straight  # isort: skip
from chains.exporting.objects import Objects  # isort: skip
from chains.exporting.targets import targets_of  # isort: skip

pytestmark = pytest.mark.few(5)

CASES = [*LAYERS, *ACTIVATION_CASES, *(case for case in LOSS_CASES if not case.weighted)]
BATCHES = (1, 37)
CLOSE = {"float32": 5e-5, "float64": 2e-12}


def type_of(case):
    return ("float32", "float64")[crc32(case.name.encode()) % 2]


CORTEX = Path(__file__).parents[2] / "examples/export/cortex"


@dataclass(frozen=True)
class System:
    """How programs for a target are compiled and run. A program has all cases, or `alone` one.

    `same_as` names the target of this computer whose bits the results have.
    """

    compiler: tuple[str, ...]
    emulator: tuple[str, ...]
    alone: bool = False
    same_as: str = ""


def board(processor: str, machine: str) -> System:
    """A microcontroller without a system, where newlib asks the emulator for files."""
    options = (f"-mcpu={processor}", "-mthumb", "-mfloat-abi=hard", "-mfpu=auto", "--specs=rdimon.specs")
    quiet = ("-nographic", "-monitor", "none", "-serial", "none")
    return System(
        ("arm-none-eabi-gcc", *options, f"-T{CORTEX / 'board.ld'}", str(CORTEX / "start.c")),
        ("qemu-system-arm", "-M", machine, *quiet, "-semihosting", "-kernel"), alone=True,
    )  # fmt: skip


SYSTEMS = {
    "aarch64": System(("aarch64-linux-gnu-gcc", "-static"), ("qemu-aarch64",)),
    "riscv64": System(("riscv64-linux-gnu-gcc", "-static"), ("qemu-riscv64",)),
    "riscv64-v": System(("riscv64-linux-gnu-gcc", "-static"), ("qemu-riscv64", "-cpu", "rv64,v=true,vext_spec=v1.0,vlen=128")),
    "windows-x86-64-v3": System(("x86_64-w64-mingw32-gcc",), ("/usr/lib/wine/wine64",), same_as="x86-64-v3"),
    "cortex-m4": board("cortex-m4", "mps2-an386"),
    "cortex-m7": board("cortex-m7", "mps2-an500"),
}


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
            lines += [f"free({pointer});" for pointer in given]
            self.body += ["{", *lines, "}"]
            self.calls.append((made, call, n, arrays))

    def run(self, system, *sources):
        """What the program writes, on a system for which it is compiled here."""
        compiler, emulator = (tool(each[0]) for each in (system.compiler, system.emulator))
        main = [
            "#include <stdio.h>\n#include <stdlib.h>",
            *self.head,
            "static FILE *given, *found;",
            "static void read(void *a, size_t n) { if (fread(a, 1, n, given) != n) exit(1); }",
            "static void write(const void *a, size_t n) { if (fwrite(a, 1, n, found) != n) exit(1); }",
            "int main(void)\n{",
            'given = fopen("given", "rb"), found = fopen("found", "wb");',
            *self.body,
            "return fclose(found);",
            "}",
        ]
        (self.folder / "main.c").write_text("\n".join(main))
        (self.folder / "given").write_bytes(b"".join(array.tobytes() for array in self.arrays))
        made = [compiler, *system.compiler[1:], "-O1", "main.c", *sources, "-lm", "-o", "main.exe"]
        subprocess.run(made, cwd=self.folder, check=True)
        environment = os.environ | {"WINEPREFIX": str(self.folder / "wine"), "WINEDEBUG": "-all"}
        subprocess.run([emulator, *system.emulator[1:], "./main.exe"], cwd=self.folder, env=environment, check=True)
        return (self.folder / "found").read_bytes()


def from_numpy(made, call, n, arrays):
    """What NumPy computes."""
    return by_numpy(call, n, arrays)


def compare(program, printed, reference, close):
    """Raise AssertionError unless the program has printed what `reference` computes, within these tolerances for each type."""
    place = 0
    for made, call, n, arrays in program.calls:
        arguments = [each for each in call.arguments if each.changed]
        shapes = [("value", call.value.dtype, ())] if call.value else []
        shapes += [(each.name, each.dtype, (n, *each.shape) if each.batched else each.shape) for each in arguments]
        computed = reference(made, call, n, arrays)
        for name, dtype, shape in shapes:
            size = int(np.prod(shape, dtype=int)) * dtype.itemsize
            found = np.frombuffer(printed[place : place + size], dtype).reshape(shape)
            place += size
            if (wanted := computed.get(name)) is not None:
                wanted = wanted.reshape(shape)
                scale = max(1.0, abs(wanted).max(initial=0.0))
                assert abs(found - wanted).max(initial=0.0) <= close[dtype.name] * scale, (made.network, call.name, name)
    assert place == len(printed)


def interface_of_case(case, number):
    loss = {"loss": case.loss, "target_shape": case.problem(1).t.shape[1:]}
    return interface(case.net(), type_of(case), name=f"case{number}", **loss)


def program_of(folder, target, cases):
    """A program that calls all functions of these cases, and the files to compile it with."""
    program, sources = Program(folder), []
    for number, case in enumerate(cases):
        objects = Objects(interface_of_case(case, number), targets := targets_of(target))
        (folder / f"case{number}.o").write_bytes(objects.code(targets))
        sources.append(f"case{number}.o")
        (folder / f"case{number}.h").write_text(header_text(objects.interface, target))
        program.head.append(f'#include "case{number}.h"')
        for n in BATCHES:
            batch, arrays = data(case, n, type_of(case))
            program.add(objects.interface, batch, arrays)
    return program, sources


@pytest.mark.parametrize("target", SYSTEMS)
def test_kernels_compute_what_numpy_computes(target, tmp_path, request):
    system = SYSTEMS[target]
    if reason := emulator_fault(system.compiler, system.emulator):
        pytest.skip(reason)
    cases = CASES if request.config.getoption("--all-cases") else CASES[:: 96 if system.alone else 48]
    if system.alone:  # LLVM 22 ends the process by an assertion there
        cases = [case for case in cases if not re.search("Attention|Transformer", case.name)]
    for each in [[case] for case in cases] if system.alone else [cases]:
        program, sources = program_of(tmp_path, target, each)
        printed = program.run(system, *sources)
        compare(program, printed, from_numpy, CLOSE)
        if system.same_as:
            functions = [loaded(interface_of_case(case, number), system.same_as) for number, case in enumerate(each)]
            here = {made.interface.name: made for made in functions}
            exactly = dict.fromkeys(CLOSE, 0.0)

            def as_here(made, call, n, arrays):  # one sample has separate code here, whose sums go in another order
                return {} if n == 1 and is_straight(call.program) else here[made.name](call.name, n, **arrays)  # noqa: B023

            compare(program, printed, as_here, exactly)
