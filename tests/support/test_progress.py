"""Progress: a bar on terminals, a few lines in logs, and a notice where compiling takes long."""

from __future__ import annotations

import re
import sys
import time

import numpy as np
import pytest

import chains
from chains import Adam, Chain, Dense, SquaredLoss, backends, tanh, train
from chains.support import progress
from chains.support.progress import Progress, notice
from tests.waiting import eventually

NET = Chain(Dense(3, 4, tanh), Dense(4, 2), backend="numpy")
X, T = np.random.default_rng(0).normal(size=(20, 3)), np.zeros((20, 2))


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(progress, "on_terminal", lambda: True)


def minimizers():
    objective = NET.objective(X, T, SquaredLoss())
    p = NET.init(dtype=np.float64)
    return {
        "chains": lambda **rest: chains.minimize(objective, p, "L-BFGS", maxiter=30, **rest),
        "SciPy": lambda **rest: objective.minimize(p, "L-BFGS-B", **rest),
    }


# Logs


def test_a_log_gets_a_line_at_the_end(capsys):
    train(NET, NET.init(), X, T, SquaredLoss(), Adam(), epochs=300, batch_size=5, progress=True)
    text = capsys.readouterr().err
    assert re.match(r"1200/1200 steps, \d+ s, epoch=300/300, loss=", text)
    assert text.count("\n") == 1
    assert "\r" not in text


@pytest.mark.parametrize(("every", "count"), [(-1.0, 6), (1e9, 1)])
def test_a_log_gets_lines_now_and_then(every, count, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", every)
    with Progress(True, 5, "file") as bar:
        for k in range(5):
            bar.show({"loss": str(k)})
            bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == count
    assert re.fullmatch(r"5/5 files, \d+ s, loss=4", lines[-1])


def test_nothing_without_a_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    for wanted in (None, True, False):
        with Progress(wanted, None, "step") as bar:
            bar.update()
            assert not bar.begun
    with notice("compiling"):
        pass


# Minimisation


@pytest.mark.parametrize("name", ["chains", "SciPy"])
def test_minimisation_tells_how_far_it_is(name, capsys):
    pytest.importorskip("scipy")
    run = minimizers()[name]
    plain = run(progress=False)
    assert run().x.tobytes() == plain.x.tobytes()
    assert capsys.readouterr().err == ""
    shown = run(progress=True)
    assert shown.x.tobytes() == plain.x.tobytes()
    assert shown.nfev == plain.nfev
    text = capsys.readouterr().err
    assert text.startswith(f"{plain.nit}/30 iterations" if name == "chains" else f"{plain.nfev} evaluations")
    assert f"value={plain.fun:.6g}" in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("name", ["chains", "SciPy"])
def test_a_bar_of_minimisation_on_terminals(name, capsys, terminal, monkeypatch):
    pytest.importorskip("scipy")
    for delay, shown in ((60.0, False), (0.0, True)):
        for module in ("chains.minimize.minimize", "chains.objectives.minimize_with_scipy"):
            monkeypatch.setattr(sys.modules[module], "BAR_DELAY_SECONDS", delay)
        minimizers()[name]()
        assert ("value=" in capsys.readouterr().err) == shown


@pytest.mark.parametrize("name", ["chains", "SciPy"])
def test_another_progress_is_refused(name):
    pytest.importorskip("scipy")
    with pytest.raises(TypeError, match=r"`progress` \(='yes'\)"):
        minimizers()[name](progress="yes")


def test_a_bar_of_minimisation_is_closed_by_an_error(capsys):
    def fails(p):
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        chains.minimize(fails, np.zeros(2), progress=True)


# What takes long


def test_a_notice_of_what_takes_long(capsys, terminal, monkeypatch):
    monkeypatch.setattr(progress, "NOTICE_SECONDS", 0.02)
    shown = []
    with notice("compiling"):
        assert eventually(lambda: shown.append(capsys.readouterr().err) or "".join(shown) == "compiling ...")
    assert capsys.readouterr().err == "\r\033[K"


def test_no_notice_of_what_is_quick(capsys, terminal):
    with notice("compiling"):
        pass
    assert capsys.readouterr().err == ""


def test_no_notice_in_a_log(capsys, monkeypatch):
    monkeypatch.setattr(progress, "NOTICE_SECONDS", 0.0)
    with notice("compiling"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_compiling_is_announced(capsys, terminal, monkeypatch):
    native = pytest.importorskip("chains.backends.native.compiled")
    machine_code, shown = native.machine_code, []

    def slowly(*arguments, **settings):
        assert eventually(lambda: shown.append(capsys.readouterr().err) or "".join(shown).endswith("..."))
        return machine_code(*arguments, **settings)

    monkeypatch.setenv("CHAINS_CACHE", "off")  # another test may have left the code there
    monkeypatch.setattr(progress, "NOTICE_SECONDS", 0.02)
    monkeypatch.setattr(native, "machine_code", slowly)
    program = NET.program(SquaredLoss())
    assert backends.native.NativeBackend(threads=1).compile(program).code
    text = "".join(shown) + capsys.readouterr().err
    assert text.startswith(f"compiling 'gradient' for this processor: {len(program.operations)} operations ...")
    assert text.endswith("\r\033[K")
