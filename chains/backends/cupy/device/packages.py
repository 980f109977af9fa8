"""What to install, in messages: what fits the CuPy that is there."""

from __future__ import annotations

VERSIONS = (12, 13)  # of CUDA, for which there are extras; the extra without a number is the last one's


def cuda_of_cupy() -> int | None:
    """The version of CUDA, such as 13, that the installed CuPy was built for; None if there is no CuPy that works."""
    try:
        from cupy.cuda import driver

        return int(driver.get_build_version()) // 1000
    except Exception:  # whatever a broken installation raises
        return None


def extra(name: str) -> str:
    """The advice to install this package's extra "cuda" or "cudnn"."""
    found = cuda_of_cupy()
    if found in VERSIONS:
        return f"install the extra {name}{found} (in a checkout, pip install -e '.[{name}{found}]')"
    other = ", ".join(f"{name}{version} for CUDA {version}" for version in VERSIONS)
    return f"install the extra {name} (in a checkout, pip install -e '.[{name}]'; {other}, which nvidia-smi shows)"


def package(name: str) -> str:
    """The advice to install a package of NVIDIA's, whose name ends with the version of CUDA."""
    found = cuda_of_cupy()
    if found is not None:
        return f"pip install {name}-cu{found}"
    return f"pip install {' or '.join(f'{name}-cu{version}' for version in VERSIONS)}, by CuPy's CUDA version"
