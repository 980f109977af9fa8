"""Compiles the kernels of `benchmarks.gpu` and of the tests' cases beforehand, without a GPU.

    python -m benchmarks.gpu.kernels kernels-sm90.tar.xz --arch 90

The rows run in full size on a device that computes nothing and notes the text of each module. NVRTC compiles these texts, each
once, with CuPy's options, but those that the file has already. The file holds texts and machine code.

On the GPU's machine, `unpack` asks the CuPy there for the name of each text in its cache, and writes the machine code under
that name: names depend on CuPy's version and on where CuPy and CUDA's headers are installed. `watch` counts, in one process,
the modules that CuPy finds there.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu import ladder
from benchmarks.gpu.problems import Result, Setting
from benchmarks.gpu.rows import Row, rows
from chains.backends import registry
from chains.backends.cupy import CupyBackend
from chains.backends.cupy.device.cuda import raw_module
from chains.backends.cupy.device.interface import Gemm, Work
from chains.backends.cupy.source.c_source import prelude
from chains.backends.cupy.source.commands import Kernel
from chains.backends.cupy_settings import Cupy
from chains.support import memory
from tests import harness
from tests.cupy import emulated, nvrtc

Texts = dict[str, str]  # of modules, with what first needed them
OURS = prelude("").partition("\n")[0]  # what texts of this package begin with
MANIFEST = "manifest.json"


# The texts


class NotingDevice(emulated.EmulatedDevice):
    """A GPU that computes nothing, and notes the texts of modules. Its memory is all zeros."""

    def __init__(self, settings: Cupy, note: Callable[[str], None]) -> None:
        super().__init__(settings=settings)
        self.name, self._note = "cuda", note
        self.library.queue = lambda *work: None

    def empty(self, shape: tuple[int, ...], dtype: Any) -> emulated.DeviceArray:
        self.refuse("allocation of memory")
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        block = np.zeros(nbytes + emulated.ROOM, np.uint8)
        start = -block.ctypes.data % emulated.ROOM
        return block[start : start + nbytes].view(kind).reshape(shape).view(emulated.DeviceArray)

    def compile(self, text: str, kernels: Sequence[Kernel]) -> dict[str, Any]:
        self._note(text)
        return {kernel.name: kernel for kernel in kernels}

    def launch(self, *given: Any, **settings: Any) -> Work:
        return _nothing

    def product(self, gemm: Gemm) -> Work:
        return _nothing

    def seconds(self, work: Work, repeats: int = 5) -> float:
        return 0.0


def _nothing() -> None:
    pass


@contextmanager
def noting(note: Callable[[str], None], cudnn: bool) -> Iterator[None]:
    """Until the end, the GPU is one that notes texts. `cudnn`: whether there is a cuDNN."""

    def made(settings: Cupy = Cupy()) -> CupyBackend:  # noqa: B008 - it never changes
        if settings.convolutions == "cudnn" and not cudnn:
            raise ValueError("no cuDNN is noted in this pass")
        own = Cupy(settings.precision, "own")
        backend = CupyBackend(NotingDevice(settings if cudnn else own, note))
        memory.add_memory(backend.on_device.device, backend.on_device)
        return backend

    known = {"cupy": made, **{name: registry._BACKENDS[name] for name in ("auto", "native", "numpy")}}
    with (
        mock.patch.object(registry, "_cupy", made),
        mock.patch.object(registry, "_BACKENDS", known),
        mock.patch.object(registry, "_loaded", {}),
        mock.patch.object(memory, "_OTHERS", []),
        mock.patch.object(memory, "_PROMISED", {}),
        mock.patch.object(harness, "_nets", {}),  # networks know their backends
        mock.patch.object(ladder, "near", return_value=0.0),  # nothing is computed, and each step is to go on
    ):
        yield


def texts_of(chosen: Sequence[Row], say: Callable[[str], None], cudnn: bool = False) -> Texts:
    """The texts of the modules that the rows need, the most important ones first."""
    found: Texts = {}
    for row in chosen:
        known, start, failed = len(found), time.monotonic(), ""
        with noting(lambda text, row=row: found.setdefault(text, str(row)) and None, cudnn):
            try:
                row.work(Setting())
            except Exception as error:  # what it compiled before is noted
                failed = f", until {type(error).__name__}: {error}"
        say(f"{len(found) - known:5} modules, {time.monotonic() - start:5.1f} s: {row}{failed}")
    return found


def by_worth(found: Texts) -> list[str]:
    """The texts of timed rows, then those of cases, each first in float32."""
    return sorted(found, key=lambda text: (found[text].startswith("correct"), "double" in text))


# The file


def compiled(text: str, arch: str) -> bytes:
    """The machine code, or nothing where a compiler reports an error."""
    try:
        return nvrtc.cubin(text, f"sm_{arch}")
    except AssertionError as error:
        print(f"cannot be compiled: {error}\n{text}", file=sys.stderr)
        return b""


def write(file: Path, texts: Sequence[str], codes: Sequence[bytes], arch: str) -> None:
    """Write texts and their machine code to one file, whole or not at all."""
    manifest = {"arch": arch, "nvrtc": nvrtc.version(), "modules": len(texts)}
    part = file.with_name(f"{file.name}.part")
    with tarfile.open(part, "w:xz") as archive:
        _add(archive, MANIFEST, json.dumps(manifest).encode())
        for number, text in enumerate(texts):
            _add(archive, f"{number}.cu", text.encode())
        for number, code in enumerate(codes):
            _add(archive, f"{number}.cubin", code)
    part.replace(file)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def read(file: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What `write` wrote: the manifest, and machine code by text."""
    with tarfile.open(file, "r:xz") as archive:
        parts = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    manifest = json.loads(parts[MANIFEST])
    return manifest, {parts[f"{k}.cu"].decode(): parts[f"{k}.cubin"] for k in range(manifest["modules"])}


# CuPy's cache


class _NamedError(Exception):
    """CuPy has asked its cache for a name."""


def unpack(file: Path, folder: Path) -> str:
    """Fill CuPy's cache in `folder`, which `CUPY_CACHE_DIR` is to name, and say in a sentence how many modules it got.

    It needs CuPy and a GPU, which gets no modules of another architecture. Where it fails, the sentence says so.
    """
    try:
        import cupy

        manifest, codes = read(file)
        arch, version = cupy.cuda.Device().compute_capability, list(cupy.cuda.nvrtc.getVersion())
        if arch != manifest["arch"]:
            return f"no kernels are unpacked: they are for sm_{manifest['arch']}, and this GPU is of sm_{arch}"
        with naming() as name:
            fill(folder, {name(text): code for text, code in codes.items()})
    except Exception as error:  # CuPy's cache has no public names, and kernels can be compiled where they run
        return f"no kernels are unpacked: {type(error).__name__}: {error}"
    other = "" if version == manifest["nvrtc"] else f"; compiled by NVRTC {manifest['nvrtc']}, where CuPy has {version}"
    return f"{len(codes)} modules of sm_{arch} are in CuPy's cache{other}"


def unpacking(file: Path, folder: Path, setting: Setting) -> Result:
    """`unpack`, as a row of the benchmark."""
    return {"note": unpack(file, folder)}


def fill(folder: Path, codes: dict[str, bytes]) -> None:
    """Write machine code by name, as CuPy's cache does."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, code in codes.items():
        (folder / name).write_bytes(hashlib.sha1(code).hexdigest().encode() + code)


@contextmanager
def naming() -> Iterator[Callable[[str], str]]:
    """A function that gives the name of a text in CuPy's cache. Nothing is compiled meanwhile."""
    import cupy
    from cupy.cuda import compiler

    asked: list[str] = []

    class Asked(compiler._KernelCacheBackend):  # type: ignore[misc]
        def load(self, name: str) -> bytes | None:
            asked.append(name)
            raise _NamedError

        def save(self, name: str, cubin: bytes, source: str) -> None:
            pass

    def name(text: str) -> str:
        try:
            raw_module(cupy, text).compile()
        except _NamedError:
            return asked.pop()
        raise RuntimeError("CuPy has compiled a module without a look at its cache")

    with mock.patch.object(compiler, "_kernel_cache_backend", Asked()):
        yield name


def watch() -> Counter[str]:
    """From now on, count the modules of this process that CuPy's cache has ("hit") or has not ("miss").

    What is compiled for a kernel of CuPy itself is a "miss of CuPy's"; no file of this package has it.
    """
    from cupy.cuda import compiler

    found: Counter[str] = Counter()

    class Watched(compiler._DiskKernelCacheBackend):  # type: ignore[misc]
        def load(self, name: str) -> bytes | None:
            code = super().load(name)
            if code is not None:
                found["hit"] += 1
            return code

        def save(self, name: str, cubin: bytes, source: str) -> None:
            found["miss" if source.startswith(OURS) else "miss of CuPy's"] += 1
            super().save(name, cubin, source)

    compiler._set_kernel_cache_backend(Watched())
    return found


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.kernels", description="Compiles the kernels of benchmarks.gpu without a GPU."
    )
    parser.add_argument("file", type=Path, help="to write, a .tar.xz")
    parser.add_argument("--arch", default="90", help="compute capability of the GPU (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="that compile (%(default)s)")
    parser.add_argument("--problems", nargs="+", metavar="PROBLEM", help="all by default")
    parser.add_argument("--minutes", type=float, default=30.0, help="to compile; then the rest is left out (%(default)s)")
    parser.add_argument("--cudnn", action="store_true", help="also the kernels that remain where cuDNN does convolutions")
    options = parser.parse_args(arguments)
    own = [row for row in rows() if row.peer == "chains"]
    known = list(dict.fromkeys(row.problem for row in own))
    if unknown := set(options.problems or known) - set(known):
        parser.error(f"`--problems` (={min(unknown)!r}) must be one of {', '.join(known)}")
    if not nvrtc.available():
        parser.error("neither NVRTC nor nvcc is on this computer")
    start, say = time.monotonic(), partial(print, flush=True)
    chosen = [row for row in own if row.problem in (options.problems or known)]
    found = texts_of(chosen, say)
    if options.cudnn:
        found |= texts_of(chosen, say, cudnn=True)
    texts = by_worth(found)
    say(f"{len(texts)} modules after {time.monotonic() - start:.0f} s")
    made = _compiled(texts, options, say)
    write(options.file, list(made), list(made.values()), options.arch)
    say(
        f"{len(made)} of {len(texts)} modules are in {options.file}, {options.file.stat().st_size / 2**20:.1f} MiB, "
        f"{sum(map(len, made.values())) / 2**20:.1f} MiB of machine code; {time.monotonic() - start:.0f} s"
    )
    return 0 if len(made) == len(texts) else 1


def _compiled(texts: Sequence[str], options: Any, say: Callable[[str], None]) -> dict[str, bytes]:
    """The machine code of the texts, of as many as there is time for: from the file, or compiled."""
    known = _known(options.file, options.arch)
    codes = {text: known[text] for text in texts if text in known}
    left, end = [text for text in texts if text not in codes], time.monotonic() + 60 * options.minutes
    say(f"{len(codes):5} modules are in the file already")
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for start in range(0, len(left), 100):
            if time.monotonic() > end:
                break
            part = left[start : start + 100]
            codes |= zip(part, pool.map(partial(compiled, arch=options.arch), part, chunksize=5), strict=True)
            say(f"{len(codes):5} of {len(texts)} modules are compiled")
    return {text: codes[text] for text in texts if codes.get(text)}


def _known(file: Path, arch: str) -> dict[str, bytes]:
    """What the file, if any, has for this architecture by this version of NVRTC."""
    if not file.exists():
        return {}
    manifest, codes = read(file)
    return codes if (manifest["arch"], manifest["nvrtc"]) == (arch, nvrtc.version()) else {}


if __name__ == "__main__":
    sys.exit(main())
