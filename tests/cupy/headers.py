"""NVIDIA's headers, where wheels or a toolkit have installed them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest


def nvidia_files(pattern: str) -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    return sorted(path for folder in [*folders, Path("/usr/local/cuda")] for path in folder.glob(pattern))


def header_file(name: str) -> Path:
    """The first header of NVIDIA's of this name that is found."""
    files = [*nvidia_files(f"*/include/{name}"), *nvidia_files(f"include/{name}"), *nvidia_files(f"targets/*/include/{name}")]
    if not files:
        pytest.skip(f"{name} is not on this computer")
    return files[0]


def header(name: str) -> str:
    """The text of a header of NVIDIA's, without comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", header_file(name).read_text(), flags=re.S)


def header_values(*names: str) -> dict[str, int]:
    """The enumerators of NVIDIA's headers."""
    values: dict[str, int] = {}
    for name in names:
        text = header(name)
        for enumerator, value in re.findall(r"\b(CU\w+)\s*=\s*([^,}]+)", text):
            try:
                values[enumerator] = eval(value, {}, dict(values))
            except (NameError, SyntaxError):
                continue  # of an enumeration that is of no interest here
    return values
