"""The processor that code is compiled for: vector width, registers, LLVM's name and features."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

# For this process, which an emulator may run: `platform.machine` names the computer's processor, differently on each system.
ARM = llvm.get_process_triple().startswith(("aarch64", "arm64"))

HALVES = ("znver4",)  # LLVM's names of processors whose units for vectors are 32 bytes wide, though registers have 64


@dataclass(frozen=True)
class Processor:
    """The processor's facts for kernels: the `width` of a vector register in bytes, and the number of these registers."""

    kind: str
    width: int
    registers: int
    cpu: str
    features: str

    @property
    def is_x86(self) -> bool:
        return self.kind in ("sse2", "avx2", "avx512")

    @property
    def splits_vectors(self) -> bool:
        """Whether it works on a vector in two halves, one after the other, and has all its registers for halves too."""
        return self.width == 64 and self.cpu in HALVES

    def lanes(self, itemsize: int) -> int:
        return self.width // itemsize

    def machine(self, triple: str | None = None) -> llvm.TargetMachine:
        """LLVM's code generator for this processor, and for this system or that of a `triple`.

        On Windows code calls functions by their whole addresses: JITLink makes no stubs there for those beyond two GiB.
        """
        triple = triple or llvm.get_process_triple()
        model = "large" if "windows" in triple else "small"
        target = llvm.Target.from_triple(triple)
        return target.create_target_machine(cpu=self.cpu, features=self.features, opt=2, reloc="pic", codemodel=model)


@cache
def processor(kind: str | None = None) -> Processor:
    """The processor of this computer, or an instruction set that it also has: "avx512", "avx2", "sse2" or "neon".

    Without a choice, the environment variable CHAINS_SIMD decides, else the widest available is taken. Raises ValueError for
    an unknown instruction set and for one that this processor lacks.
    """
    kind = kind or os.environ.get("CHAINS_SIMD") or None
    host, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
    if ARM:
        choices = {"neon": Processor("neon", 16, 32, host, features.flatten())}
    else:
        choices = {"sse2": Processor("sse2", 16, 16, "x86-64", "")}
        if features.get("avx2") and features.get("fma"):
            choices["avx2"] = Processor("avx2", 32, 16, "haswell", "+prfchw")  # Haswell ignores it
        if all(features.get(name) for name in ("avx512f", "avx512dq", "avx512bw", "avx512vl")):
            choices["avx512"] = Processor("avx512", 64, 32, host, features.flatten())
        elif "avx2" in choices:
            choices["avx2"] = Processor("avx2", 32, 16, host, features.flatten())
    if kind is None:
        kind = list(choices)[-1]
    if kind not in choices:
        raise ValueError(f"the instruction set {kind!r} is not available on this CPU: choose one of {', '.join(choices)}")
    return choices[kind]
