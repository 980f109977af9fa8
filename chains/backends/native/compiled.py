"""Compiled programs: machine code found in this process or on the disk, or else newly compiled.

The fingerprint of a program identifies its code. So no assembly is written for a program that was compiled before: writing
it takes longer than loading the machine code. The disk holds two files for a program: its signature with the name of its
code, and the code itself, which programs of the same assembly share.
"""

from __future__ import annotations

import os
from threading import RLock

from chains.backends.base import UnsupportedOperationError
from chains.backends.native.llvm import cache as files
from chains.backends.native.llvm.cache import compiler_version
from chains.backends.native.llvm.jit import Code, assembly, code_name, known_code, machine_code
from chains.backends.native.llvm.target import Processor
from chains.backends.native.memory_plan import MemoryPlan, Signature
from chains.backends.native.support import unsupported
from chains.program.program import Program, fingerprint
from chains.support.caching import Recent
from chains.support.progress import notice

MAX_MEMORY_PLANS = 16
FUNCTIONS = ("run", "member")
_locks = {"making": RLock()}
_loading = RLock()
if hasattr(os, "register_at_fork"):
    # A fork waits until no thread loads modules: in the child, no thread would finish the loading.
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)
    os.register_at_fork(after_in_child=lambda: _locks.update(making=RLock()))  # another thread may have held the lock


class CompiledProgram:
    """A program compiled for a processor. `work` is the approximate number of operations per sample."""

    def __init__(self, signature: Signature, code: Code, work: int) -> None:
        self.signature = signature
        self.code = code
        self.work = work
        self._plans: Recent[MemoryPlan] = Recent(MAX_MEMORY_PLANS)

    def memory_plan(self, batch: int, threads: int) -> MemoryPlan:
        """The layout of the scratch memory, kept for recent sizes, since a run may be short."""
        return self._plans.get((batch, threads), lambda: MemoryPlan(self.signature, batch, threads, self.work))


MAX_SMALL_OPERATIONS = 30_000  # of a sample; 4-32-16-4 has 4,000, 784-30-10 has 96,000
COMPILED: Recent[CompiledProgram] = Recent(64)  # by program, parts and processor; users keep alive those in use


def compiled_program(
    program: Program, processor: Processor, parts: int, work: int, gathered: bool = False, straight: bool = False
) -> CompiledProgram:
    """The compiled program: of the plan for `parts` threads, `gathered` or `straight` or not (`plan_of`).

    Raises UnsupportedOperationError if the program cannot be compiled.
    """
    reason = unsupported(program)
    if reason is not None:
        raise UnsupportedOperationError(reason)
    kind = str(parts), str(gathered), str(straight)
    name = code_name(processor, "program", fingerprint(program), processor.kind, *kind, compiler_version())

    def make() -> CompiledProgram:
        return _from_disk(name, processor, work) or _made(name, program, processor, parts, work, gathered, straight)

    with _locks["making"]:
        return COMPILED.get(name, make)


def _from_disk(name: str, processor: Processor, work: int) -> CompiledProgram | None:
    """The compiled program that the disk has under this name; None if any of it is missing."""
    found = files.load(name)
    if found is None:
        return None
    signature, code_name = found.decode().split("\n")
    code = known_code(code_name, FUNCTIONS, processor)
    return None if code is None else CompiledProgram(Signature.read(signature), code, work)


def _made(
    name: str, program: Program, processor: Processor, parts: int, work: int, gathered: bool, straight: bool
) -> CompiledProgram:
    """Compile a program, and keep it on the disk under this name."""
    with _loading:
        # About thirty modules write assembly. They are loaded only here: most processes find all their programs on the disk.
        from chains.backends.native.compiler import Compiler
        from chains.backends.native.operations import load_kernels
        from chains.backends.native.plan.passes import plan_of

        load_kernels()
    with notice(f"compiling '{program.name}' for this processor: {len(program.operations):,} operations"):
        plan = plan_of(program, processor, parts, gathered=gathered, straight=straight)
        if plan.parts != parts:
            made = compiled_program(program, processor, plan.parts, work, gathered, straight)
        else:
            written = Compiler(plan).compiled()
            code = machine_code(written.text, FUNCTIONS, processor, small=is_small(program), straight=straight)
            made = CompiledProgram(written.signature, code, work)
    files.store(name, f"{made.signature.text()}\n{made.code.name}".encode())
    return made


def is_small(program: Program) -> bool:
    """Whether a program computes so little for a sample that it should compile fast rather than run a twentieth faster."""
    return program.flops() <= MAX_SMALL_OPERATIONS


def listing_of(program: Program, processor: Processor, parts: int, gathered: bool, passes: bool, straight: bool = False) -> str:
    """LLVM's assembly before optimisation, then the processor's assembly; with `passes`, the plan after each pass."""
    from chains.backends.native.compiler import compile_program
    from chains.backends.native.plan.passes import passes_text

    if passes:
        return passes_text(program, processor, parts, gathered)
    text = compile_program(program, processor, parts, gathered, straight).text
    return f"{program}\n\n{text}\n{assembly(text, processor, is_small(program), straight)}"
