"""Static libraries, and shared libraries and WebAssembly modules, which need a linker."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chains.exporting.targets import Target


def archive(name: str, code: bytes, symbols: Sequence[str]) -> bytes:
    """A static library of one object file, as ``ar`` writes it, with the table of symbols that linkers require (System V's)."""
    texts = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    place = 8 + 60 + _even(4 + 4 * len(symbols) + len(texts))
    index = len(symbols).to_bytes(4, "big") + place.to_bytes(4, "big") * len(symbols) + texts
    return b"!<arch>\n" + _member("/", index) + _member(f"{name[:11]}.o/", code)


def _even(length: int) -> int:
    return length + length % 2


def _member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)


def linked(code: bytes, symbols: Sequence[str], target: Target, suffix: str) -> bytes:
    """A shared library (".so") or a WebAssembly module (".wasm") of an object file.

    Raises ValueError if the target has none, or no linker is found; OSError if the linker fails.
    """
    formats = {".so": "elf", ".wasm": "wasm"}
    if target.format != formats[suffix]:
        raise ValueError(f"there are no files {suffix!r} for the `target` {target.name!r}: choose '.o' or '.a'")
    command = _wasm_linker(symbols) if suffix == ".wasm" else _linker(target)
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "code.o"), Path(folder, f"code{suffix}")
        source.write_bytes(code)
        done = subprocess.run([*command, "-o", str(result), str(source)], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{command[0]} failed: {done.stderr.strip()}")
        return result.read_bytes()


def _wasm_linker(symbols: Sequence[str]) -> list[str]:
    found = shutil.which("wasm-ld")
    if found is None:
        raise ValueError("a file '.wasm' needs the linker wasm-ld (LLVM's lld), which was not found")
    return [found, "--no-entry", "--export=__heap_base", *(f"--export={symbol}" for symbol in symbols)]


def _linker(target: Target) -> list[str]:
    own = target.triple.split("-")[0] == platform.machine()
    names = ["ld.lld", *(["cc", "gcc", "clang", "ld"] if own else []), f"{target.triple.split('-')[0]}-linux-gnu-gcc"]
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return [found, "-shared", *([] if name in ("ld.lld", "ld") else ["-nostdlib"])]
    raise ValueError(f"a file '.so' for {target.name!r} needs a linker, and none of {', '.join(names)} was found")
