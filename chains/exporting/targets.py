"""The processors and systems of exported code: LLVM's names for them, and the requirements of their calling conventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from chains.backends.native.llvm.target import Processor, processor
from chains.support.messages import meant

KIB = 1 << 10


@dataclass(frozen=True)
class Target:
    """The processor and system of some code.

    `processor` has the facts that kernels need. `stack` is the number of bytes that a function may take of its caller's stack;
    functions that need more take a workspace. `bits` are those of an address. Targets of one `family` share a file, which finds
    its processor at run time. `abi` is LLVM's name for a calling convention.
    """

    name: str
    family: str
    triple: str
    processor: Processor
    stack: int = 64 * KIB
    bits: int = 64
    reloc: str = "pic"
    abi: str = ""

    def machine(self) -> llvm.TargetMachine:
        """LLVM's code generator for it."""
        _load()
        target = llvm.Target.from_triple(self.triple)
        cpu, features = self.processor.cpu, self.processor.features
        return target.create_target_machine(
            cpu=cpu, features=features, opt=2, reloc=self.reloc, codemodel="default", abiname=self.abi
        )

    @property
    def runs_here(self) -> bool:
        """Whether this computer runs its code."""
        if self.family == "native":
            return True
        try:
            return self.triple == llvm.get_process_triple() and bool(processor(self.processor.kind))
        except ValueError:  # for an instruction set that this processor lacks
            return False

    @property
    def is_microcontroller(self) -> bool:
        """Whether memory is that of a microcontroller."""
        return self.triple.startswith("thumb")

    @property
    def format(self) -> str:
        """The format of object files: "elf", "macho", "coff" or "wasm"."""
        for word, name in (("apple", "macho"), ("windows", "coff"), ("wasm", "wasm")):
            if word in self.triple:
                return name
        return "elf"


def _x86(name: str, system: str, triple: str, level: int, stack: int = 64 * KIB) -> Target:
    """A level of x86-64's psABI."""
    kind, width, registers = {2: ("sse2", 16, 16), 3: ("avx2", 32, 16), 4: ("avx512", 64, 32)}[level]
    return Target(name, f"{system}x86-64", triple, Processor(kind, width, registers, f"x86-64-v{level}", ""), stack)


_SCALAR = 8  # registers of four numbers, for code for processors without vectors
LINUX, WINDOWS = "x86_64-unknown-linux-gnu", "x86_64-pc-windows-msvc"
_NEON = Processor("neon", 16, 32, "generic", "+neon")
_RISCV = Processor("riscv64", 16, _SCALAR, "generic-rv64", "+m,+a,+f,+d,+c")
_RISCV_VECTOR = Processor("riscv64v", 16, 32, "generic-rv64", "+m,+a,+f,+d,+c,+v")  # vectors of at least 128 bits
_WASM = Processor("wasm", 16, 16, "generic", "+simd128")
_ALL = [
    *(_x86(f"x86-64-v{level}", "", LINUX, level) for level in (2, 3, 4)),
    Target("aarch64", "aarch64", "aarch64-unknown-linux-gnu", _NEON),
    Target("riscv64", "riscv64", "riscv64-unknown-linux-gnu", _RISCV, abi="lp64d"),
    Target("riscv64-v", "riscv64-v", "riscv64-unknown-linux-gnu", _RISCV_VECTOR, abi="lp64d"),
    Target("wasm32", "wasm32", "wasm32-unknown-unknown", _WASM, stack=16 * KIB, bits=32, reloc="static"),
    Target("macos-arm64", "macos-arm64", "arm64-apple-macosx11.0.0", Processor("neon", 16, 32, "apple-m1", "")),
    # A function that takes a page of the stack there calls a function of the compiler's runtime.
    *(_x86(f"windows-x86-64-v{level}", "windows-", WINDOWS, level, stack=3 * KIB) for level in (2, 3, 4)),
]
for _name in ("cortex-m4", "cortex-m7"):
    _cortex = Processor(_name, 16, _SCALAR, _name, "")
    _ALL.append(Target(_name, _name, "thumbv7em-unknown-none-eabihf", _cortex, stack=KIB, bits=32, reloc="static"))
TARGETS = {target.name: target for target in _ALL}


def targets_of(names: str | Sequence[str]) -> list[Target]:
    """The targets of these names, or of one text with commas. For other names, raises ValueError with a list of the targets."""
    given = names.split(",") if isinstance(names, str) else names
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(name, str) for name in given):
        raise TypeError(f"`target` (={names!r}) must be a name or several, such as 'native' or 'x86-64-v3,aarch64'")
    return list({name.strip(): _target(name.strip()) for name in given}.values())


def _target(name: str) -> Target:
    if name == "native":
        return host()
    if name not in TARGETS:
        if name.startswith("cortex"):  # of which no other has the instructions
            wanted = "cortex-m4 and cortex-m7; for other microcontrollers, export C99 source, such as 'model.c'"
            raise ValueError(f"unknown `target` (={name!r}): there is machine code for {wanted}")
        known = ["native", *TARGETS]
        raise ValueError(f"unknown `target` (={name!r}): choose one of {', '.join(map(repr, known))}{meant(name, known)}")
    return TARGETS[name]


def host() -> Target:
    """This computer, with the instruction set that the native backend takes."""
    triple, own = llvm.get_process_triple(), processor()
    stack = 3 * KIB if "windows" in triple else 64 * KIB
    return Target("native", "native", triple, own, stack=stack)


@cache
def _load() -> None:
    """Initialise LLVM for all processors, not only for this one."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for the instruction cpuid of x86
