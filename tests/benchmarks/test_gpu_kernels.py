"""Kernels compiled beforehand: the texts that rows need, the file, and the names that CuPy's cache gives them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from benchmarks.gpu import kernels
from benchmarks.gpu.rows import rows
from tests.cupy.support import needs_nvrtc

TEXTS = [f'{kernels.OURS}\n#endif\nextern "C" __global__ void none{k}() {{}}\n' for k in range(3)]
CODES = [b"\x7fELF" + bytes([k]) * 50 for k in range(3)]


def chosen(*names):
    return [row for row in rows() if str(row) in names]


def test_texts_are_those_of_the_rows():
    """Of a row that fails, those before; a text that two rows need is noted once, for the first of them."""
    said = []
    some = chosen("ladder: network, one-kernel", "ladder: convolution, float32", "ladder: convolution, cudnn")
    found = kernels.texts_of([*some, *some], said.append)
    assert [(str(row), list(found.values()).count(str(row))) for row in some] == [
        ("ladder: network, one-kernel", 1), ("ladder: convolution, float32", 1), ("ladder: convolution, cudnn", 0)
    ]  # fmt: skip
    assert all(text.startswith(kernels.OURS) for text in found)
    assert "no cuDNN" in said[2]
    kernels.texts_of(some, said.append, cudnn=True)
    assert "until" not in said[-1]


def test_the_most_important_texts_come_first():
    found = {"double b": "correct: b", "float b": "correct: b", "double a": "lenet5: a", "float a": "lenet5: a"}
    assert kernels.by_worth(found) == ["float a", "double a", "float b", "double b"]


def test_the_file_has_all_of_it(tmp_path):
    file = tmp_path / "kernels.tar.xz"
    kernels.write(file, TEXTS, CODES, "90")
    manifest, codes = kernels.read(file)
    assert codes == dict(zip(TEXTS, CODES, strict=True))
    assert manifest | {"nvrtc": None} == {"arch": "90", "nvrtc": None, "modules": 3}


@needs_nvrtc
def test_a_module_is_compiled_once(tmp_path, monkeypatch, capsys):
    """The second time it is in the file; for another architecture it is not."""
    monkeypatch.setattr(kernels, "rows", lambda: chosen("ladder: kernels"))
    monkeypatch.setattr(kernels, "ProcessPoolExecutor", lambda count, context: ThreadPoolExecutor(count))  # which start sooner
    file = str(tmp_path / "kernels.tar.xz")
    for arch, known in (("90", 0), ("90", 1), ("80", 0)):
        assert kernels.main([file, "--arch", arch, "--processes", "1"]) == 0
        text = capsys.readouterr().out
        assert f"{known} modules are in the file already" in text
        assert f"1 of 1 modules are in {file}" in text
    manifest, codes = kernels.read(tmp_path / "kernels.tar.xz")
    assert (manifest["arch"], len(codes)) == ("80", 1)


@pytest.fixture
def cupy(monkeypatch):
    """CuPy as on a GPU of sm_90, up to the loading of modules: "loaded" lists their machine code."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    from cupy._core import raw
    from cupy.cuda import compiler

    loaded = []

    class Module(cupy.cuda.function.Module):
        def load(self, code):
            loaded.append(code)

        def _set_mapping(self, mapping):
            pass

        def get_function(self, name):
            return name

    monkeypatch.setattr(compiler, "_get_arch", lambda: "90")
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: (f"-arch=sm_{arch}", "cubin"))
    monkeypatch.setattr(compiler, "_kernel_cache_backend", compiler._kernel_cache_backend)
    monkeypatch.setattr(compiler, "function", SimpleNamespace(Module=Module))
    monkeypatch.setattr(raw, "_get_raw_module", raw._get_raw_module.__wrapped__)  # whose results are kept by device
    monkeypatch.setattr(cupy, "loaded", loaded, raising=False)
    monkeypatch.setattr(cupy.cuda, "Device", lambda: SimpleNamespace(compute_capability="90"))
    return cupy


@needs_nvrtc
def test_cupy_finds_what_was_unpacked(cupy, tmp_path, monkeypatch):
    """CuPy compiles nothing that was in the file, and the rest; both are counted."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    file, code = tmp_path / "kernels.tar.xz", kernels.compiled(TEXTS[0], "90")
    kernels.write(file, TEXTS[:1], [code], "90")
    assert kernels.unpack(file, tmp_path / "cache").startswith("1 modules of sm_90 are in CuPy's cache")
    found = kernels.watch()
    for text in TEXTS[:2]:
        kernels.raw_module(cupy, text).compile()
    assert found == {"hit": 1, "miss": 1}
    assert cupy.loaded[0] == code
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_kernels_for_another_gpu_are_left_out(cupy, tmp_path):
    file = tmp_path / "kernels.tar.xz"
    kernels.write(file, TEXTS, CODES, "80")
    assert "they are for sm_80, and this GPU is of sm_90" in kernels.unpack(file, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_cupy_with_another_cache_is_told(cupy, tmp_path, monkeypatch):
    """Nothing ends because of it: kernels are then compiled on the GPU's machine."""
    file = tmp_path / "kernels.tar.xz"
    kernels.write(file, TEXTS, CODES, "90")
    monkeypatch.delattr(cupy.cuda.compiler, "_kernel_cache_backend")
    said = kernels.unpack(file, tmp_path / "cache")
    assert said.startswith("no kernels are unpacked: AttributeError: ")
    assert kernels.unpack(tmp_path / "missing", tmp_path).startswith("no kernels are unpacked: FileNotFoundError: ")
