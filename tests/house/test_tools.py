"""Programs that are missing, too old or broken skip a test with a sentence."""

from __future__ import annotations

import pytest

from tests import tools


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that puts a program of shell on the path, which has no other."""
    monkeypatch.setenv("PATH", str(tmp_path))
    tools.fault.cache_clear()

    def make(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    yield make
    tools.fault.cache_clear()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("echo cmake version 3.16.3", ""),
        ("echo cmake version 3.4.1", "cmake is older than 3.16"),
        ("echo no number", "cmake is older than 3.16"),
        ("echo bad library >&2; exit 127", "cmake does not work here: bad library"),
        ("exit 1", "cmake does not work here: it ended with 1"),
        (None, "cmake is not installed"),
    ],
)
def test_what_is_said_of_a_program(text, wanted, program):
    if text is not None:
        program("cmake", text)
    assert tools.fault("cmake") == wanted
    if wanted:
        with pytest.raises(pytest.skip.Exception, match=wanted):
            tools.tool("cmake")
    else:
        assert tools.tool("cmake").endswith("/cmake")


def test_an_emulator_that_does_not_run_the_programs(program):
    program("some-gcc", "echo some-gcc 12.2")
    program("some-emulator", '[ "$1" = --version ] && exit 0; echo unknown instruction >&2; exit 132')
    wanted = "programs of some-gcc do not run in some-emulator: unknown instruction"
    assert tools.emulator_fault(("some-gcc", "-static"), ("some-emulator",)) == wanted
    assert tools.emulator_fault(("other-gcc",), ("some-emulator",)) == "other-gcc is not installed"
