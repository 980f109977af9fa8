"""Assembly to machine code in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import llvmlite
import llvmlite.binding as llvm

from chains.backends.native.llvm import cache as files
from chains.backends.native.llvm.target import Processor

# Part of the name of cached code: raise the number whenever the same assembly gives other code.
PIPELINE = (
    "6: dead branches removed, loops rotated (passes of level 2 where vectorized), code of level 2, small code without "
    "strength reduction"
)

_locks = {"linking": Lock(), "making": Lock()}
if hasattr(os, "register_at_fork"):  # another thread may have held the locks
    os.register_at_fork(after_in_child=lambda: _locks.update(linking=Lock(), making=Lock()))
    _llvm: Any = getattr(llvm.ffi.lib, "_lock", None)  # llvmlite's lock: a fork waits until no thread is inside LLVM
    if _llvm is not None:
        os.register_at_fork(
            before=_llvm.__enter__,
            after_in_parent=lambda: _llvm.__exit__(None, None, None),
            after_in_child=lambda: _llvm.__exit__(None, None, None),
        )
_numbers = count()
_made: WeakValueDictionary[str, Code] = WeakValueDictionary()  # by name


@cache
def _linker(processor: Processor) -> llvm.LLJIT:
    # JITLink keeps all of an object's sections together, within reach of each other's 32-bit offsets.
    return llvm.create_lljit_compiler(processor.machine(), use_jit_link=True)


def code_name(processor: Processor, *parts: str) -> str:
    """The name for the code of these texts on this processor, by this version of LLVM."""
    versions = f"{llvmlite.__version__} {llvm.llvm_version_info}"
    return files.key(*parts, processor.cpu, processor.features, versions, PIPELINE)


def machine_code(
    text: str, functions: Sequence[str], processor: Processor, *, vectorize: bool = False, small: bool = False,
    straight: bool = False,
) -> Code:  # fmt: skip
    """The machine code of a module, whose `functions` can be called. Modules of the same text share it.

    `small` modules, which compute little, are compiled without strength reduction. `straight` ones keep their order.
    """
    name = code_name(processor, text, str(vectorize), str(small), str(straight), *functions)
    with _locks["making"]:
        found = _known(name, functions, processor)
        if found is None:
            machine = processor.machine()
            with strength_reduction(not (small and processor.is_x86)), scheduling(not straight):
                code = machine.emit_object(optimised(text, machine, vectorize))
            files.store(name, code)
            found = _made[name] = Code(name, code, functions, processor, cached=False)
        return found


def known_code(name: str, functions: Sequence[str], processor: Processor) -> Code | None:
    """The machine code of this name, if this process or the disk has it; else None."""
    with _locks["making"]:
        return _known(name, functions, processor)


def assembly(text: str, processor: Processor, small: bool, straight: bool = False) -> str:
    """The processor's assembly of a module, for people to read."""
    machine = processor.machine()
    with strength_reduction(not (small and processor.is_x86)), scheduling(not straight):
        return machine.emit_assembly(optimised(text, machine, vectorize=False))


@contextmanager
def strength_reduction(wanted: bool) -> Iterator[None]:
    """Whether LLVM replaces products of loop counters by sums, which takes a third of the time that code takes.

    x86 adds two registers and a constant in an address, so most loops are as fast without. Long loops of multiply-adds are not:
    Intel's processors split those whose operand is at such an address.
    """
    with _option("-disable-lsr=true", "-disable-lsr=false", wanted=not wanted):
        yield


@contextmanager
def scheduling(wanted: bool) -> Iterator[None]:
    """Whether LLVM orders the instructions of a block anew.

    In a long block it computes one sum after another, and keeps what all of them read on the stack.
    """
    with _option("-enable-misched=false", "-enable-misched=true", wanted=not wanted):
        yield


@contextmanager
def _option(during: str, after: str, wanted: bool) -> Iterator[None]:
    """A setting of LLVM for a while, if it is `wanted`. Settings are the process's, and others may use LLVM."""
    if wanted:
        llvm.set_option("chains", during)
    try:
        yield
    finally:
        if wanted:
            llvm.set_option("chains", after)


def _known(name: str, functions: Sequence[str], processor: Processor) -> Code | None:
    found = _made.get(name)
    if found is None and (code := files.load(name)) is not None:
        found = _made[name] = Code(name, code, functions, processor, cached=True)
    return found


def optimised(text: str, machine: llvm.TargetMachine, vectorize: bool) -> llvm.ModuleRef:
    """The module after a few passes, which remove branches that are never taken and move the tests of loops to their ends."""
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = vectorize
    options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    if vectorize:
        passes = builder.getModulePassManager()
    else:
        passes = llvm.create_new_module_pass_manager()
        passes.add_sccp_pass()
        passes.add_loop_rotate_pass()
        passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return module


class Code:
    """The machine code of a module, `cached` if it comes from the disk. It lives as long as this object."""

    def __init__(self, name: str, code: bytes, functions: Sequence[str], processor: Processor, *, cached: bool) -> None:
        self.name = name
        self.cached = cached
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for function in functions:
            library.export_symbol(function)
        with _locks["linking"]:
            self._library = library.link(_linker(processor), f"chains{next(_numbers)}")
        self._addresses: dict[str, int] = {}  # kept, since asking LLVM takes longer than binding a program

    def address(self, name: str) -> int:
        """The address of a function."""
        found = self._addresses.get(name)
        if found is None:
            found = self._addresses[name] = self._library[name]
        return found
