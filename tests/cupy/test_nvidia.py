"""NVIDIA's headers and library, where they are installed: they know the numbers and take the descriptors."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from chains.backends.cupy.device import cublas
from chains.backends.cupy.device.cublas import EPILOGUES, CublasLt
from chains.backends.cupy.device.interface import Epilogue, Gemm


def nvidia_files(pattern: str) -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    return sorted(path for folder in [*folders, Path("/usr/local/cuda")] for path in folder.glob(pattern))


def header_values(*names: str) -> dict[str, int]:
    """The enumerators of NVIDIA's headers, of the first of each name that is found."""
    values: dict[str, int] = {}
    for name in names:
        files = [
            *nvidia_files(f"*/include/{name}"),
            *nvidia_files(f"include/{name}"),
            *nvidia_files(f"targets/*/include/{name}"),
        ]
        if not files:
            pytest.skip(f"{name} is not on this computer")
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", files[0].read_text(), flags=re.S)
        for enumerator, value in re.findall(r"\b(CU\w+)\s*=\s*([^,}]+)", text):
            try:
                values[enumerator] = eval(value, {}, dict(values))
            except (NameError, SyntaxError):
                continue  # of an enumeration that is of no interest here
    return values


def test_values_are_those_of_the_header():
    values = header_values("cublasLt.h")
    assert {name: values[f"CUBLASLT_EPILOGUE_{name.upper()}"] for name in EPILOGUES} == EPILOGUES
    attributes = ("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "EPILOGUE_AUX_POINTER", "EPILOGUE_AUX_LD")
    constants = ("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "AUX_POINTER", "AUX_LD")
    for attribute, constant in zip(attributes, constants, strict=True):
        assert values[f"CUBLASLT_MATMUL_DESC_{attribute}"] == getattr(cublas, constant)
    for constant in ("MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK"):
        assert values[f"CUBLASLT_MATMUL_PREF_{constant}"] == getattr(cublas, constant)
    alignments = tuple(values[f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{matrix}_BYTES"] for matrix in "ABCD")
    assert alignments == cublas.MIN_ALIGNMENTS
    assert values["CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE"] == cublas.IN_WORKSPACE


def test_values_are_those_of_cublas_header():
    values = header_values("cublas_api.h")
    names = {"float32": "32F", "tf32": "32F_FAST_TF32", "bf16": "32F_FAST_16BF"}
    assert {name: values[f"CUBLAS_COMPUTE_{text}"] for name, text in names.items()} == cublas.COMPUTE
    assert values["CUBLAS_COMPUTE_64F"] == cublas.COMPUTE_DOUBLE
    statuses = ("INVALID_VALUE", "ARCH_MISMATCH", "NOT_SUPPORTED")
    assert tuple(values[f"CUBLAS_STATUS_{name}"] for name in statuses) == cublas.REFUSALS
    assert (values["CUBLAS_OP_N"], values["CUBLAS_OP_T"]) == (0, 1)


def test_types_are_those_of_the_header():
    values = header_values("library_types.h")
    assert values["CUDA_R_16BF"] == cublas.BFLOAT16_TYPE
    assert (values["CUDA_R_32F"], values["CUDA_R_64F"]) == tuple(cublas.TYPES.values())


@cache
def real_library() -> ctypes.CDLL | None:
    files = [*nvidia_files("*/lib/libcublasLt.so.*"), *nvidia_files("lib64/libcublasLt.so.*")]
    return ctypes.CDLL(str(files[0])) if files else None


@pytest.fixture
def real():
    if real_library() is None:
        pytest.skip("libcublasLt is not on this computer")
    return CublasLt("float32", real_library())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", EPILOGUES)
def test_the_library_takes_the_descriptors(real, kind, half):
    """Which needs no GPU; what was set is what it says."""
    gemm = Gemm(np.dtype(np.float32), (5, 3, 7), (256, 512, 768), (6, 7, 3), (False, True), False, half)
    description = real._description(gemm, Epilogue(kind, 1024, 2048, 128))

    def found(descriptor, attribute, kind):
        value, size = kind(), ctypes.c_size_t()
        function = getattr(descriptor.library, f"cublasLt{descriptor.kind}GetAttribute")
        assert (
            function(
                descriptor.pointer, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(size)
            )
            == 0
        )
        assert size.value == ctypes.sizeof(value)
        return value.value

    numbers = [(0, ctypes.c_int32), (1, ctypes.c_int32), (3, ctypes.c_int32), (4, ctypes.c_int32), (7, ctypes.c_uint32)]
    numbers += [(8, ctypes.c_uint64), (11, ctypes.c_uint64), (12, ctypes.c_int64)]
    assert [found(description, *pair) for pair in numbers] == [68, 0, 1, 0, EPILOGUES[kind], 1024, 2048, 128]
    layouts = [
        [
            found(layout, *pair)
            for pair in ((0, ctypes.c_uint32), (2, ctypes.c_uint64), (3, ctypes.c_uint64), (4, ctypes.c_int64))
        ]
        for layout in real._layouts(gemm)
    ]
    factor = 14 if half else 0
    assert layouts == [[factor, 7, 3, 3], [factor, 7, 5, 7], [0, 3, 5, 6]]


def test_the_library_takes_the_preferences(real):
    preference = cublas.Descriptor(real_library(), "MatmulPreference")
    preference.set(cublas.MAX_WORKSPACE_BYTES, ctypes.c_uint64(1 << 20))
    preference.set(cublas.REDUCTION_SCHEME_MASK, ctypes.c_uint32(cublas.IN_WORKSPACE))
    for attribute in cublas.MIN_ALIGNMENTS:
        preference.set(attribute, ctypes.c_uint32(16))
    with pytest.raises(RuntimeError, match="cublasLtMatmulPreferenceSetAttribute failed with the status 7"):
        preference.set(cublas.MAX_WORKSPACE_BYTES, ctypes.c_uint32(1))  # it is 64 bits wide
    assert ctypes.sizeof(cublas.Heuristic) == 96
