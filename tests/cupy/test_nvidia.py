"""NVIDIA's headers and library, where they are installed: they know the numbers and take the descriptors."""

from __future__ import annotations

import ctypes
import inspect
import re
import subprocess
from functools import cache

import numpy as np
import pytest

from chains.backends.cupy.device import cublas, cuda
from chains.backends.cupy.device.cublas import EPILOGUES, CublasLt
from chains.backends.cupy.device.interface import Epilogue, Gemm
from tests.cupy import emulated, nvrtc
from tests.cupy.fake_cublas import FakeCublasLt
from tests.cupy.headers import header, header_values, nvidia_files


def test_values_are_those_of_the_header():
    values = header_values("cublas_api.h", "cublasLt.h")  # newer ones say some values by names of the first
    assert {name: values[f"CUBLASLT_EPILOGUE_{name.upper()}"] for name in EPILOGUES} == EPILOGUES
    assert values["CUBLASLT_POINTER_MODE_DEVICE"] == cublas.IN_DEVICE
    attributes = ("POINTER_MODE", "TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "EPILOGUE_AUX_POINTER", "EPILOGUE_AUX_LD")
    constants = ("POINTER_MODE", "TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "AUX_POINTER", "AUX_LD")
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
    assert {"float16": values["CUDA_R_16F"], "bfloat16": values["CUDA_R_16BF"]} == cublas.HALF_TYPES
    assert (values["CUDA_R_32F"], values["CUDA_R_64F"]) == tuple(cublas.TYPES.values())


HANDLES = r"cublasLt(Handle|MatmulDesc|MatrixLayout|MatmulPreference)_t|cublasHandle_t|cudaStream_t"


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
    """A library that notes the kinds of arguments of each function, and that does what `own` does."""

    def __init__(self, own: object) -> None:
        self.own, self.seen = own, {}

    def __getattr__(self, name):
        def call(*arguments):
            self.seen[name] = [kind_given(argument) for argument in arguments]
            return getattr(self.own, name)(*arguments) if hasattr(self.own, name) else 0

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
    assert f'options=("{nvrtc.STANDARD}",)' in inspect.getsource(cuda.CudaDevice.loaded)


def test_functions_are_called_by_their_signatures():
    """The number of arguments of each function of both libraries, and whether each is a pointer or of 32 or 64 bits."""
    texts = header("cublasLt.h") + header("cublas_api.h")
    gemm = Gemm(np.dtype(np.float32), (4, 4, 4), (256, 512, 768), (4, 4, 4), (False, False), False)
    lt, plain = Noting(FakeCublasLt()), Noting(object())
    maker = CublasLt("float32", lt)
    plan = maker.plan(gemm, Epilogue("relu_aux_bias", 1024, 2048, 128), maker.algorithms(gemm, Epilogue("bias", 1024))[0])
    lt.own = object()  # the call itself is not to be done
    maker.start(plan, 0, 256)
    multiplies = cublas.Cublas("float32", plain)
    multiplies.start(multiplies.call(gemm), 1, 256, 512)
    seen = lt.seen | plain.seen
    assert {"cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic", "cublasGemmEx", "cublasSetWorkspace_v2"} <= seen.keys()
    del plan
    for name, given in (seen | lt.seen).items():
        declared = re.search(rf"CUBLASWINAPI\s+{name}\s*\((.*?)\)\s*;", texts, re.S)
        assert declared, f"no header declares {name}"
        assert given == [kind_of(parameter) for parameter in declared[1].split(",")], name


@pytest.mark.skipif(emulated.COMPILER is None, reason="no C compiler on this computer")
def test_structures_have_the_sizes_of_the_header(tmp_path):
    """An algorithm, and what the heuristic gives: all of their fields, by the C compiler."""
    text = header("cublasLt.h")
    structures = {"cublasLtMatmulAlgo_t": cublas.Algorithm, "cublasLtMatmulHeuristicResult_t": cublas.Heuristic}
    found = []
    for name in structures:
        body = re.search(rf"typedef struct \{{([^}}]*)\}}\s*{name};", text)
        assert body, name
        found.append(f"typedef struct {{{body[1]}}} {name};")
    status = "typedef int cublasStatus_t;"
    checks = [f'_Static_assert(sizeof({name}) == {ctypes.sizeof(own)}, "{name}");' for name, own in structures.items()]
    fields = {"algo": "algo", "workspaceSize": "workspace_size", "state": "state", "wavesCount": "waves_count"}
    checks += [
        f'_Static_assert(offsetof(cublasLtMatmulHeuristicResult_t, {theirs}) == {getattr(cublas.Heuristic, ours).offset}, "");'
        for theirs, ours in fields.items()
    ]
    source = tmp_path / "sizes.c"
    source.write_text("\n".join(["#include <stdint.h>", "#include <stddef.h>", status, *found, *checks]))
    subprocess.run([emulated.COMPILER, "-fsyntax-only", str(source)], check=True)


@cache
def real_library() -> ctypes.CDLL | None:
    files = [*nvidia_files("*/lib/libcublasLt.so.*"), *nvidia_files("lib64/libcublasLt.so.*")]
    return ctypes.CDLL(str(files[0])) if files else None


@pytest.fixture
def real():
    if real_library() is None:
        pytest.skip("libcublasLt is not on this computer")
    return CublasLt("float32", real_library())


@pytest.mark.parametrize("half", ["", "bfloat16", "float16"])
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
    factor = {"": 0, "bfloat16": 14, "float16": 2}[half]
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
