"""``python -m chains``: what an installation has."""

from __future__ import annotations

import subprocess
import sys

import pytest

import chains
from chains import __main__ as script
from chains.__main__ import main
from chains.backends import backend


def test_the_package_tells_what_it_is():
    done = subprocess.run([sys.executable, "-W", "error", "-m", "chains"], capture_output=True, text=True, check=True)
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["chains"] == chains.__version__
    assert lines["python"].startswith(sys.version.split()[0])
    assert "numpy" in lines["packages"]
    assert lines["numpy"] == "available"


def test_the_native_backend_tells_its_width_threads_and_cache(capsys, monkeypatch, tmp_path):
    native = pytest.importorskip("chains.backends.native", reason="the native backend needs llvmlite")
    monkeypatch.setenv("CHAINS_CACHE", str(tmp_path))
    assert main(["info"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    processor = backend("native").processor
    assert lines["native"].startswith(f"{processor.kind}, vectors of {processor.width} bytes")
    assert lines["threads"] == str(chains.get_num_threads())
    assert lines["cache"] == f"{tmp_path}: 0 files, 0.0 of 256 MiB"
    monkeypatch.setenv("CHAINS_CACHE", "off")
    assert native.NativeBackend(threads=3).about() == {**backend("native").about(), "threads": "3", "cache": "off"}


def test_a_backend_that_is_missing_says_why(monkeypatch, capsys):
    def missing(name):
        raise ValueError("it needs a GPU")

    monkeypatch.setattr(script, "backend", missing)
    assert main(["info"]) == 0
    assert "cupy      not available: it needs a GPU" in capsys.readouterr().out.splitlines()


def test_a_command_that_fails_says_why_in_a_line(monkeypatch, capsys):
    def fails(given):
        raise ValueError("`path` (='x') is not a file")

    monkeypatch.setattr(script, "print_info", fails)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "python -m chains: `path` (='x') is not a file\n"


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"    {command} " in text for command in ("info", "export"))
