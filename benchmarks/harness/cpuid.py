"""A processor that denies vectors wider than AVX2 to libraries loaded later, such as YNNPACK in JAX, held by no variable."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path


def hold_to_avx2() -> bool:
    """Whether this worked: it takes Linux on x86-64, a processor that can trap CPUID, and a C compiler."""
    compiler = shutil.which("cc")
    if platform.system() != "Linux" or platform.machine() != "x86_64" or compiler is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "cpuid.so"
        source = Path(__file__).with_name("cpuid.c")
        if subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=False).returncode:
            return False  # the compiler has said why, such as that there are no headers
        return bool(ctypes.CDLL(str(library)).hold_to_avx2() == 0)  # stays loaded without its file
