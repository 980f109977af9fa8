"""CUDA C compiled without a GPU, by NVIDIA's run-time compiler or by nvcc, whichever is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90")


def cubin(text: str, architecture: str) -> bytes:
    """The machine code of a text. Raises AssertionError with the compiler's messages where it has errors."""
    library = _library()
    return _by_nvcc(text, architecture) if library is None else _by_nvrtc(library, text, architecture)


def available() -> bool:
    return _library() is not None or shutil.which("nvcc") is not None


@cache
def _library() -> ctypes.CDLL | None:
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            if "builtins" not in path.name and "alt" not in path.name:
                return ctypes.CDLL(str(path))
    return None


def _by_nvrtc(library: ctypes.CDLL, text: str, architecture: str) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(f"-arch={architecture}".encode(), b"-std=c++17")
    status = library.nvrtcCompileProgram(program, 2, options)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, code)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


def _by_nvcc(text: str, architecture: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernels.cu"), Path(folder, "kernels.cubin")
        source.write_text(text)
        command = ["nvcc", "-std=c++17", f"-arch={architecture}", "-cubin", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return target.read_bytes()
