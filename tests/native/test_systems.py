"""Windows and macOS: the code of programs and threads there is written and looked at, not run."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from functools import cache

import pytest

from chains import Adam, Chain, CrossEntropyLoss, Dense, LayerNorm, sine, tanh

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

import llvmlite.binding as llvm

from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm import target
from chains.backends.native.llvm.emit import Module
from chains.backends.native.llvm.jit import optimised
from chains.backends.native.llvm.target import Processor
from chains.backends.native.runtime import workers
from chains.backends.native.runtime.epoch import gather, write_lane, write_steps
from chains.exporting.targets import TARGETS
from tests.tools import tool

AVX2 = Processor("avx2", 32, 16, "haswell", "")
SYSTEMS = {  # name: triple, processor, `sys.platform`
    "windows": ("x86_64-pc-windows-msvc", AVX2, "win32"),
    "macos": ("x86_64-apple-macosx11.0.0", AVX2, "darwin"),
    "macos-arm64": ("arm64-apple-macosx11.0.0", TARGETS["macos-arm64"].processor, "darwin"),
}
WAITING = {"win32": {"Sleep", "SwitchToThread"}, "darwin": {"usleep", "sched_yield"}}
MATHS = {
    "pow",
    "powf",
    "sin",
    "cos",
    "sinf",
    "cosf",
    "__sincos_stret",
    "__sincosf_stret",
}  # of C's library; the last two are Apple's
MEMORY = {"memcpy", "memset", "memmove", "bzero", "__bzero"}


@pytest.fixture(params=SYSTEMS)
def system(request, monkeypatch):
    undefined_by(), described_by()  # which are looked for as on this system
    TARGETS["macos-arm64"].machine()  # which has LLVM know all processors
    triple, processor, platform = SYSTEMS[request.param]
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(target, "ARM", processor.kind == "neon")
    return triple, processor, platform


@cache
def undefined_by():
    return tool("llvm-nm"), "-u"


@cache
def described_by():
    return tool("llvm-objdump"), "--section-headers", "--reloc"


def code_of(text, processor, triple, vectorize=False):
    machine = processor.machine(triple)
    return machine.emit_object(optimised(text, machine, vectorize))


def undefined(code, folder):
    """The symbols that an object file asks for, without the underscore of macOS, and what `objdump` says of the file."""
    path = folder / "code.o"
    path.write_bytes(code)
    names, about = (
        subprocess.run([*command, str(path)], capture_output=True, text=True, check=True).stdout
        for command in (undefined_by(), described_by())
    )
    prefix = "_" if "mach-o" in about else ""
    return {name.removeprefix(prefix) for name in re.findall(r"^ *(?:U )?(\S+)$", names, re.M) if name != "U"}, about


def test_programs_ask_for_what_a_system_has(system, tmp_path):
    triple, processor, _ = system
    net = Chain(Dense(8, 40, tanh), LayerNorm(40), Dense(40, 12, sine), Dense(12, 3))
    text = compile_program(net.program(CrossEntropyLoss(), Adam()), processor, 2, False).text
    names, about = undefined(code_of(text, processor, triple), tmp_path)
    assert names <= MATHS | MEMORY | {"_fltused"}  # which is a word of Microsoft's, not called
    if "windows" in triple:
        assert ".pdata" not in about  # tables for exceptions, by places that JITLink does not know
        assert "IMAGE_REL_AMD64_ADDR64" in about
        assert "IMAGE_REL_AMD64_REL32" not in about  # libraries may be further away than that


def test_threads_ask_for_what_a_system_has(system, tmp_path):
    triple, processor, platform = system
    there = runpy.run_path(workers.__file__)
    module = Module()
    for write in (there["write_threads"], write_steps, write_lane):
        write(module)
    names, about = undefined(code_of(module.text(), processor, triple, True), tmp_path)
    assert WAITING[platform] <= names <= WAITING[platform] | MEMORY | {"_fltused"}
    if "windows" in triple:
        assert ".pdata" not in about
        assert "IMAGE_REL_AMD64_REL32" not in about


def test_registers_that_belong_to_the_caller_are_kept():
    """Six to fifteen of those of vectors, and two more for integers, on Windows alone."""
    net = Chain(Dense(8, 40, tanh), Dense(40, 3))
    text = compile_program(net.program(CrossEntropyLoss(), Adam()), AVX2, 1, False).text
    kept = {}
    for name, triple in (("windows", SYSTEMS["windows"][0]), ("linux", "x86_64-unknown-linux-gnu")):
        machine = AVX2.machine(triple)
        assembly = machine.emit_assembly(optimised(text, machine, False))
        (body,) = re.findall(r"^tile_0_0:.*?^\s+retq", assembly, re.M | re.S)
        kept[name] = {f"xmm{k}" for k in range(16) if re.search(rf"movaps\s+%xmm{k}, -?\d*\(%r[sb]p\)", body)}
    assert {f"xmm{k}" for k in range(6, 16)} <= kept["windows"]
    assert not kept["linux"] & {f"xmm{k}" for k in range(6, 16)}


def test_names_of_arm_do_not_matter(monkeypatch):
    """Windows says ARM64, and an emulator of another processor tells the computer's."""
    assert llvm.get_process_triple().startswith(("aarch64", "arm64")) == target.ARM
    monkeypatch.setattr(target, "ARM", True)
    assert target.processor.__wrapped__().kind == "neon"


def test_gathering_is_not_bound_to_a_system(tmp_path):
    text = gather("i64", "f64")
    for triple, processor, _ in SYSTEMS.values():
        TARGETS["macos-arm64"].machine()
        names, _ = undefined(code_of(text, processor, triple, True), tmp_path)
        assert names <= MEMORY | {"_fltused"}
