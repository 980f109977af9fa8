"""NVIDIA's headers, where they are installed: the numbers and signatures that are used are theirs."""

from __future__ import annotations

import ctypes
import inspect
import re

import numpy as np
import pytest

from chains.backends.cupy.device import cublas, cuda
from chains.backends.cupy.device.interface import Gemm
from tests.cupy import nvrtc
from tests.cupy.headers import header, header_values


def test_values_are_those_of_cublas_header():
    values = header_values("cublas_api.h")
    names = {"float32": "32F", "tf32": "32F_FAST_TF32"}
    assert {name: values[f"CUBLAS_COMPUTE_{text}"] for name, text in names.items()} == cublas.COMPUTE
    assert values["CUBLAS_COMPUTE_64F"] == cublas.COMPUTE_DOUBLE
    assert (values["CUBLAS_OP_N"], values["CUBLAS_OP_T"]) == (0, 1)


def test_types_are_those_of_the_header():
    values = header_values("library_types.h")
    assert (values["CUDA_R_32F"], values["CUDA_R_64F"]) == tuple(cublas.TYPES.values())


HANDLES = r"cublasHandle_t|cudaStream_t"


def kind_of(parameter: str) -> str:
    """What a parameter of a C function is to a caller: a pointer, or a number of so many bits."""
    if "*" in parameter or "[" in parameter or re.search(HANDLES, parameter):
        return "pointer"
    return "64 bits" if re.search(r"size_t|u?int64_t", parameter) else "32 bits"  # an int, or an enumeration


def kind_given(argument: object) -> str:
    """The same of an argument for ctypes."""
    if isinstance(argument, (ctypes.c_void_p, ctypes.Array)) or type(argument).__name__ == "CArgObject":
        return "pointer"
    assert isinstance(argument, ctypes._SimpleCData)
    return f"{8 * ctypes.sizeof(argument)} bits"


class Noting:
    """A library that notes the kinds of arguments of each function."""

    def __init__(self) -> None:
        self.seen = {}

    def __getattr__(self, name):
        def call(*arguments):
            self.seen[name] = [kind_given(argument) for argument in arguments]
            return 0

        return call


def test_options_for_the_compiler_are_cupys(monkeypatch):
    """What CuPy, where it is installed, gives to NVRTC beside what the backend asks for; it needs no GPU for that."""
    compiler = pytest.importorskip("cupy", reason="CuPy is not installed").cuda.compiler
    given = []

    class Program:
        def __init__(self, *rest, **settings):
            pass

        def compile(self, options=(), log_stream=None):
            given.append(options)
            return b"", {}

    module = type("Module", (), {"load": lambda self, code: None, "_set_mapping": lambda self, mapping: None})
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    monkeypatch.setattr(compiler, "_NVRTCProgram", Program)
    monkeypatch.setattr(compiler, "_get_nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch: (f"-arch=sm_{arch}", "cubin"))
    monkeypatch.setattr(compiler, "function", type("function", (), {"Module": module}))
    compiler._compile_module_with_cache("", options=(nvrtc.STANDARD,), arch="90", backend="nvrtc")
    assert sorted(given[-1]) == sorted([*nvrtc.OPTIONS, "-arch=sm_90"])
    assert f'options=("{nvrtc.STANDARD}",)' in inspect.getsource(cuda.raw_module)


def test_functions_are_called_by_their_signatures():
    """The number of arguments of each function, and whether each is a pointer or of 32 or 64 bits."""
    text, library = header("cublas_api.h"), Noting()
    gemm = Gemm(np.dtype(np.float32), (4, 4, 4), (256, 512, 768), (4, 4, 4), (False, False), False)
    multiplies = cublas.Cublas("float32", library)
    multiplies.start(multiplies.call(gemm), 1, 256, 512)
    assert {"cublasGemmEx", "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasCreate_v2"} == library.seen.keys()
    for name, given in library.seen.items():
        declared = re.search(rf"CUBLASWINAPI\s+{name}\s*\((.*?)\)\s*;", text, re.S)
        assert declared, f"no header declares {name}"
        assert given == [kind_of(parameter) for parameter in declared[1].split(",")], name
