"""CUDA C compiled without a GPU, by NVIDIA's run-time compiler or by nvcc, whichever is installed; as CuPy has it compiled."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
STANDARD = "--std=c++17"  # what the backend asks for
OPTIONS = (STANDARD, "-ftz=true", "--device-as-default-execution-space")  # what CuPy adds, beside the architecture


@dataclass(frozen=True)
class Usage:
    """What a kernel needs, as ptxas says: registers, bytes of stack and of spills a thread; bytes of shared memory a block."""

    registers: int
    stack: int
    spills: int
    shared: int


def cubin(text: str, architecture: str) -> bytes:
    """The machine code of a text. Raises AssertionError with the compiler's messages where it has errors."""
    return compiled(text, architecture)[0]


def compiled(text: str, architecture: str) -> tuple[bytes, dict[str, Usage]]:
    """The machine code of a text, and what each of its kernels needs."""
    library = _library()
    code, log = _by_nvcc(text, architecture) if library is None else _by_nvrtc(library, text, architecture)
    return code, usage(log)


def usage(log: str) -> dict[str, Usage]:
    """What ptxas says of each kernel."""
    result = {}
    for name, rest in re.findall(r"Compiling entry function '(\w+)' for(.*?)(?=Compiling entry function|\Z)", log, re.S):
        found = {word: re.search(rf"(\d+) {word}", rest) for word in ("registers", "bytes stack frame", "bytes smem")}
        numbers = [int(match[1]) if match else 0 for match in found.values()]
        spills = sum(int(number) for number in re.findall(r"(\d+) bytes spill", rest))
        result[name] = Usage(numbers[0], numbers[1], spills, numbers[2])
    return result


def available() -> bool:
    return _library() is not None or shutil.which("nvcc") is not None


def version() -> list[int]:
    """The version of NVRTC, of two numbers; of nvcc, none."""
    library, numbers = _library(), (ctypes.c_int * 2)()
    if library is None:
        return []
    library.nvrtcVersion(ctypes.byref(numbers, 0), ctypes.byref(numbers, ctypes.sizeof(ctypes.c_int)))
    return list(numbers)


@cache
def _library() -> ctypes.CDLL | None:
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            if "builtins" not in path.name and "alt" not in path.name:
                for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(builtins))  # NVRTC opens it by its name alone
                return ctypes.CDLL(str(path))
    return None


def _by_nvrtc(library: ctypes.CDLL, text: str, architecture: str) -> tuple[bytes, str]:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None) == 0
    options = [option.encode() for option in (*OPTIONS, f"-arch={architecture}", "--ptxas-options=-v")]
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, code)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw, log.value.decode()


def _by_nvcc(text: str, architecture: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernels.cu"), Path(folder, "kernels.cubin")
        source.write_text(text)
        command = ["nvcc", *OPTIONS[:2], "-Xptxas", "-v", f"-arch={architecture}", "-cubin", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return target.read_bytes(), done.stderr
