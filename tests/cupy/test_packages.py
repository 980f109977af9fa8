"""What messages say is to be installed: extras that exist, for the CuPy that is there."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

from chains.backends.cupy.device import packages

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def built(monkeypatch):
    """A CuPy that was built for a version of CUDA such as 13000; without one, none."""

    def make(version):
        module = types.ModuleType("cupy")
        module.cuda = types.ModuleType("cupy.cuda")
        module.cuda.driver = types.SimpleNamespace(get_build_version=lambda: version)
        monkeypatch.setitem(sys.modules, "cupy", module if version else None)
        monkeypatch.setitem(sys.modules, "cupy.cuda", module.cuda if version else None)

    return make


@pytest.mark.parametrize("name", ["cuda", "cudnn"])
@pytest.mark.parametrize("version", [12090, 13000])
def test_the_extra_fits_the_cupy_that_is_there(name, version, built):
    built(version)
    major = version // 1000
    assert packages.extra(name) == f"install the extra {name}{major} (in a checkout, pip install -e '.[{name}{major}]')"
    assert packages.package("nvidia-nccl") == f"pip install nvidia-nccl-cu{major}"


@pytest.mark.parametrize("version", [0, 14000])
def test_all_are_named_where_none_is_known_to_fit(version, built):
    built(version)
    text = packages.extra("cuda")
    assert "'.[cuda]'; cuda12 for CUDA 12, cuda13 for CUDA 13, which nvidia-smi shows" in text
    assert set(re.findall(r"cuda\d*\b(?= for|\])", text)) <= EXTRAS.keys()


def test_without_cupy_both_packages_are_named(built):
    built(0)
    assert packages.package("nvidia-nccl") == "pip install nvidia-nccl-cu12 or nvidia-nccl-cu13, by CuPy's CUDA version"


@pytest.mark.parametrize("name", ["cuda", "cudnn"])
def test_the_extra_without_a_number_is_the_newest(name):
    assert EXTRAS[name] == [f"chains-nn[{name}{max(packages.VERSIONS)}]"]
    for version in packages.VERSIONS:
        assert any(re.search(rf"cuda{version}x|-cu{version}\b", requirement) for requirement in EXTRAS[f"{name}{version}"])


def test_the_version_is_cupys_own():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    assert packages.cuda_of_cupy() == cupy.cuda.driver.get_build_version() // 1000
