"""One vector width for all contestants, whatever the processor has: ``python -m benchmarks --simd avx2``.

Libraries read these variables while they are loaded, so the benchmark starts itself anew with them.
"""

from __future__ import annotations

import os
import sys

from benchmarks.harness.cpuid import hold_to_avx2

WIDTHS = {
    "avx2": {
        "CHAINS_SIMD": "avx2",
        "OPENBLAS_CORETYPE": "Haswell",  # NumPy's and SciPy's products
        "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch's own kernels and those that torch.compile writes
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # PyTorch's convolutions
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",  # PyTorch's products
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",  # JAX
    }
}
WIDER = {"avx2": ("AVX512", "X86_V4")}  # beginnings of NumPy's names for what is wider


def held_to(width: str) -> dict[str, str]:
    """The environment variables that hold chains and its peers to a vector width."""
    from numpy._core._multiarray_umath import __cpu_dispatch__ as known

    variables = dict(WIDTHS[width])
    flags = os.environ.get("XLA_FLAGS", "")
    if variables["XLA_FLAGS"] not in flags:
        variables["XLA_FLAGS"] = f"{flags} {variables['XLA_FLAGS']}".strip()
    else:
        variables["XLA_FLAGS"] = flags
    wider = [name for name in known if name.startswith(WIDER[width])]
    if wider:
        variables["NPY_DISABLE_CPU_FEATURES"] = " ".join(wider)
    return variables


def hold_to(width: str) -> bool:
    """Start this program anew, with the same arguments, unless its environment holds everybody to the width already.

    Returns whether the processor denies what is wider too, so that libraries without a variable are held (``cpuid.py``).
    """
    variables = held_to(width)
    if any(os.environ.get(name) != value for name, value in variables.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], {**os.environ, **variables})
    return hold_to_avx2()
