"""The programs in C, compiled by each compiler that there is, as functions of Python."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
EIGEN = [Path(folder) / "include/eigen3" for folder in ("/usr", "/usr/local", "/opt/homebrew")]  # where its headers may be
BY_EIGEN = ("dense", "single", "digits", "equation", "normal")  # the programs that `eigen.cpp` has too
MARCH = {16: "native", 8: "haswell"}  # by the floats in a vector


@dataclass(frozen=True)
class Compiler:
    """A C compiler: its name, and the words that call it."""

    name: str
    command: tuple[str, ...]

    @property
    def version(self) -> str:
        done = subprocess.run([*self.command, "--version"], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[0]


def compilers(clang: Sequence[str] = ()) -> list[Compiler]:
    """The GCC and the clang of this computer, or the clang of these words; a clang of the package ziglang will do."""
    found = [Compiler("gcc", ("gcc",))] if shutil.which("gcc") else []
    words = tuple(clang)
    if not words and shutil.which("clang"):
        words = ("clang",)
    if not words and importlib.util.find_spec("ziglang"):
        words = (sys.executable, "-m", "ziglang", "cc")
    return [*found, Compiler("clang", words)] if words else found


def eigen() -> Path | None:
    """The folder of Eigen's headers, if there is one, and a compiler for them."""
    known = [folder for folder in EIGEN if (folder / "Eigen" / "Dense").exists()]
    return known[0] if known and shutil.which("g++") else None


@dataclass(frozen=True)
class Builder:
    """Compiles into a folder, for one vector width."""

    folder: Path
    floats: int  # in a vector
    compilers: tuple[Compiler, ...]
    libraries: tuple[str, ...] = ()  # of Python that take part

    def library(self, source: Path, compiler: Compiler, *options: str) -> ctypes.CDLL:
        """A shared library of one source; the one that the folder has, if nothing has changed."""
        command = [*compiler.command, f"-march={MARCH[self.floats]}", *options, "-fPIC", "-c"]
        texts = b"".join(path.read_bytes() for path in (source, *sorted(HERE.glob("*.h"))))
        digest = hashlib.sha256(repr(command).encode() + texts).hexdigest()[:16]
        path = self.folder / f"{source.stem}-{digest}.so"
        if not path.exists():
            # Linked without -ffast-math: GCC would add code that rounds subnormal numbers to zero in the whole process.
            compiled = path.with_suffix(".o")
            subprocess.run([*command, str(source), "-o", str(compiled)], check=True)
            subprocess.run([*compiler.command, "-shared", str(compiled), "-o", str(path), "-lm", "-lpthread"], check=True)
        return ctypes.CDLL(str(path))

    def programs(self, name: str) -> dict[str, ctypes.CDLL]:
        """A program by hand, the one in plain C, by each compiler, and the one in C++ on Eigen's matrices."""
        found = {}
        for kind, source, define in (("by hand", name, [f"-DWIDTH={self.floats}"]), ("plain C", "plain", [])):
            for compiler in self.compilers:
                found[f"{kind}, {compiler.name}"] = self.library(HERE / f"{source}.c", compiler, "-O3", "-ffast-math", *define)
        if name in BY_EIGEN and (folder := eigen()) is not None:
            options = ("-std=c++17", "-O3", "-ffast-math", "-DNDEBUG", f"-I{folder}")
            found["Eigen, g++"] = self.library(HERE / "eigen.cpp", Compiler("g++", ("g++",)), *options)
        return found

    @property
    def loops(self) -> ctypes.CDLL:
        """The loops that call a function of one sample."""
        return _loops(self)


@cache
def _loops(builder: Builder) -> ctypes.CDLL:
    return builder.library(HERE / "loops.c", builder.compilers[0], "-O2")


def function(library: ctypes.CDLL, name: str, result: Any = None) -> Any:
    """A function of a library. Arrays among its arguments become their addresses, integers 64 bits long."""
    called = library[name]
    called.restype = result

    def convert(argument: Any) -> Any:
        if isinstance(argument, np.ndarray):
            return ctypes.c_void_p(argument.ctypes.data)
        return ctypes.c_long(argument) if isinstance(argument, int) else argument

    return lambda *arguments: called(*map(convert, arguments))


def aligned(array: np.ndarray, size: int | None = None) -> np.ndarray:
    """A flat copy at a multiple of 64 bytes, with zeros up to this size."""
    size = array.size if size is None else size
    memory = np.zeros(size * array.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + size * array.itemsize].view(array.dtype)
    copy[: array.size] = array.reshape(-1)
    return copy
