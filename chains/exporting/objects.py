"""Object files: the functions of an interface compiled for targets of one family, linked into one module of LLVM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from chains.backends.native.llvm.jit import optimised, scheduling
from chains.exporting.dispatch import dispatcher
from chains.exporting.entry import Planned, adapted, baked_symbol
from chains.exporting.freestanding import freestanding
from chains.exporting.interface import Interface, ScratchBytes
from chains.exporting.libraries import archive, linked
from chains.exporting.targets import Target, targets_of
from chains.exporting.timing import forward_seconds
from chains.program.scratch import ALIGNMENT
from chains.version import __version__

ATTRIBUTES = "attributes #0 = {"


class Objects:
    """An interface as object files for some targets. Raises UnsupportedOperationError if an operation has no code."""

    def __init__(self, interface: Interface, targets: Sequence[Target]) -> None:
        self._planned = {target: [Planned(call, target) for call in interface.calls] for target in targets}
        workspace = any(each.wants_workspace for calls in self._planned.values() for each in calls)
        self.interface = replace(interface, workspace=workspace, scratch=self._scratch(targets))

    @property
    def families(self) -> dict[str, list[Target]]:
        """The targets that share a file, by the name of their family."""
        families: dict[str, list[Target]] = {}
        for target in self._planned:
            families.setdefault(target.family, []).append(target)
        return families

    def code(self, targets: Sequence[Target]) -> bytes:
        """The object file for targets of one family."""
        base = targets[0]
        machine = base.machine()
        module = _parsed(adapted(self._numbers(targets), base))
        for target in targets:
            for each in self._planned[target]:
                text = self._text(each, target, several=len(targets) > 1)
                module.link_in(optimised(text, target.machine(), vectorize=False))
        for each in self.linked_in(targets):
            module.link_in(each)
        public = set(self.symbols)
        for thing in (*module.functions, *module.global_variables):
            if thing.name not in public and not thing.is_declaration and thing.name not in KEPT:
                thing.linkage = "internal"
        passes = llvm.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2)))
        if base.format == "elf":
            module = _parsed(DEFINITION.sub(r'\g<0> section ".text.\1"', str(module)))
        straight = any(each.straight for target in targets for each in self._planned[target])
        # By default LLVM does not reorder instructions for WebAssembly, but it does once the setting was changed.
        with scheduling(not straight and base.format != "wasm"):
            return machine.emit_object(module)

    def linked_in(self, targets: Sequence[Target]) -> Iterator[llvm.ModuleRef]:
        """The code around the functions of the targets."""
        if len(targets) > 1:
            yield _parsed(adapted(dispatcher(self.interface, targets), targets[0]))

    @property
    def symbols(self) -> list[str]:
        """The names of all functions that callers see."""
        name = self.interface.name
        return [
            f"{name}_{end}"
            for end in (
                *(call.name for call in self.interface.calls), *self.interface.sizes, *self.interface.work_bytes, "version",
            )
        ]  # fmt: skip

    def _text(self, planned: Planned, target: Target, several: bool) -> str:
        symbol = f"{self.interface.name}_{planned.call.name}"
        text = freestanding(planned.text(self.interface, f"{symbol}_{target.processor.kind}" if several else symbol))
        if several:  # the target of each function
            text = text.replace(ATTRIBUTES, f'{ATTRIBUTES} "target-cpu"="{target.processor.cpu}"')
        return text

    def _numbers(self, targets: Sequence[Target]) -> str:
        """The functions that return numbers, and the vectors that are part of the code."""
        return "\n".join(self._number_lines(targets))

    def _number_lines(self, targets: Sequence[Target]) -> Iterator[str]:
        interface, size = self.interface, f"i{targets[0].bits}"
        name = interface.name
        for end, count in interface.sizes.items():
            yield f"define {size} @{name}_{end}() #0 {{\n  ret {size} {count}\n}}"
        for end, bytes_for in replace(interface, scratch=self._scratch(targets)).work_bytes.items():
            yield f"define {size} @{name}_{end}({size} %n) #0 {{"
            yield f"  %grown = mul {size} %n, {bytes_for.growth}\n  %bytes = add {size} %grown, {bytes_for.fixed}"
            yield f"  ret {size} %bytes\n}}"
        text = f"chains {__version__}, {', '.join(target.name for target in targets)}".encode()
        yield f"@{name}_version_text = internal constant [{len(text) + 1} x i8] {characters(text + bytes(1))}"
        yield f"define ptr @{name}_version() #0 {{\n  ret ptr @{name}_version_text\n}}"
        for vector, array in interface.baked.items():
            data = array.tobytes()
            place = f"@{baked_symbol(interface, vector)} = hidden constant [{len(data)} x i8]"
            yield f"{place} {characters(data)}, align {ALIGNMENT}"
        if targets[0].format == "coff":
            yield "@_fltused = weak_odr global i32 0"  # code with floats refers to it there
        yield f'{ATTRIBUTES} nounwind "frame-pointer"="none" }}'

    def _scratch(self, targets: Sequence[Target]) -> dict[str, ScratchBytes]:
        """The longest scratch memory of each function on these targets."""
        needs: dict[str, list[ScratchBytes]] = {}
        for target in targets:
            for each in self._planned[target]:
                needs.setdefault(each.call.name, []).append(each.scratch.length)
        return {name: ScratchBytes.largest(several) for name, several in needs.items()}


KEPT = ("_fltused",)
# A function of LLVM up to its section: in sections of their own, linkers leave out functions that are never called.
DEFINITION = re.compile(r"^define [^@\n]*@([\w.]+)\([^\n]*#\d+(?=[^#\n]* \{$)", re.MULTILINE)
_ESCAPES = np.array([f"\\{byte:02x}" for byte in range(256)], "S3")  # of each byte, in LLVM's notation


def characters(data: bytes) -> str:
    """Bytes in LLVM's notation."""
    return f'c"{_ESCAPES[np.frombuffer(data, np.uint8)].tobytes().decode("ascii")}"'


def _parsed(text: str) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text)
    module.verify()
    return module


def compiled_files(
    interface: Interface, path: Path, target: str | Sequence[str]
) -> tuple[Interface, str, dict[Path, bytes], Callable[[Sequence[int]], list[float]] | None]:
    """The interface of the compiled code, the names of its targets, and the contents of a file for each family of targets.

    The last part is a function for the time of a forward pass, if one of the object files runs on this computer.
    """
    targets = targets_of(target)
    objects = Objects(interface, targets)
    contents: dict[Path, bytes] = {}
    seconds = None
    for family, members in objects.families.items():
        place = path if len(objects.families) == 1 else path.with_name(f"{path.stem}-{family}{path.suffix}")
        code = objects.code(members)
        if path.suffix == ".a":
            code = archive(interface.name, code, objects.symbols)
        elif path.suffix != ".o":
            code = linked(code, objects.symbols, members[0], path.suffix)
        elif any(each.runs_here for each in members):
            seconds = partial(forward_seconds, objects.interface, code)
        contents[place] = code
    return objects.interface, ", ".join(each.name for each in targets), contents, seconds
