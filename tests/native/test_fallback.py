"""The backend "auto" says why it leaves a program to NumPy: in the summary, the listing, and as a warning where asked."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

import chains
from chains import Chain, Dense, SquaredLoss, tanh
from chains.backends import UnsupportedOperationError
from chains.layers import Layer
from chains.testing import listing

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

X, T = np.ones((4, 3)), np.zeros((4, 3))
REASON = "backend 'native' cannot run the operation `map` of 1.Shifted"


class Shifted(Layer):
    """Each feature with the one before it added in place, which nothing but NumPy takes."""

    def declare(self, d):
        d.output(d.input)
        d.temporary("own", d.input)

    def forward(self, ops, x, y, p, s):
        ops.copy(s.own, x)
        ops.map(s.own.slice(1, 1, 3), lambda a, b: a + b, s.own.slice(1, 0, 2), s.own.slice(1, 1, 3))
        ops.copy(y, s.own)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.copy(dx, dy)


def make(backend="auto", layer=None):
    return Chain(Dense(3, 3, tanh), layer or Shifted(), backend=backend)


@pytest.fixture
def said():
    """The warnings, each as often as it is given."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", chains.FallbackWarning)
        yield found


def test_a_warning_for_each_program_once(said):
    net = make()
    p = net.init(dtype=np.float64)
    for _ in range(3):
        net.value_and_grad(p, X, T, SquaredLoss())
        net.value_and_grad(p, X[:2], T[:2], SquaredLoss())
    (warning,) = said
    assert warning.category is chains.FallbackWarning
    assert str(warning.message).startswith(
        f"NumPy runs the program 'gradient', several times slower than machine code: {REASON}"
    )
    assert "cannot be written across an operand" in str(warning.message)
    assert warning.filename == __file__
    net(X, p)
    assert len(said) == 2


def test_nothing_is_said_unasked():
    code = """
import numpy as np
from tests.native.test_fallback import make
net = make()
net(np.ones((4, 3)), net.init())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_it_can_be_an_error():
    net = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error", chains.FallbackWarning)
        with pytest.raises(chains.FallbackWarning, match=r"1\.Shifted"):
            net(X, net.init())


NOT_LOADED = """\
import sys, warnings

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "llvmlite.binding":
            raise {error}

sys.meta_path.insert(0, Finder())
import numpy as np
import chains
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    net = chains.Chain(chains.Dense(3, 2))
    line = sys._getframe().f_lineno - 1
p = net.init()
print(net(np.ones((1, 3)), p).shape, [(each.category.__name__, each.lineno - line) for each in found], found[0].message)
try:
    chains.Chain(chains.Dense(3, 2), backend="native")
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("error", ["OSError('no libLLVM.so')", "MemoryError('no room')", "ImportError('no llvmlite')"])
def test_a_library_that_cannot_be_loaded_is_as_a_missing_one(error):
    code = NOT_LOADED.format(error=error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    auto, native = done.stdout.splitlines()
    reason = error.split("'")[1]
    assert auto.startswith("(1, 2) [('NumpyOnlyWarning', 0)] chains runs on NumPy alone, several times slower, since")
    assert f"llvmlite cannot be imported: {reason}" in auto
    assert native == f"`backend` (='native') needs llvmlite, which cannot be imported: {reason}"


def test_the_summary_tells():
    net = make()
    *_, last = net.summary().split("\n")
    assert last.startswith(f"on NumPy, several times slower: {REASON}")
    assert sum("on NumPy" in line for line in net.summary().split("\n")) == 1
    compiled = make(layer=Dense(3, 3))
    assert "NumPy" not in compiled.summary()
    assert "NumPy" not in make("numpy").summary()


def test_the_summary_tells_of_losses_too():
    class Backwards(chains.Loss):
        def record(self, ops, y, t, w, value, dy):
            SquaredLoss().record(ops, y, t, w, value, dy)
            ops.map(dy.slice(1, 1, 3), lambda a: a, dy.slice(1, 1, 3))
            ops.map(dy.slice(1, 1, 3), lambda a: 2 * a, dy.slice(1, 0, 2))

    net = make(layer=Dense(3, 3))
    assert "NumPy" not in net.summary()
    net.value_and_grad(net.init(), X, T, Backwards())
    assert "of Backwards" in net.summary().split("\n")[-1]


def test_the_listing_tells():
    program = make().program(SquaredLoss())
    assert listing(program).startswith(f"on NumPy: {REASON}")
    assert str(program) in listing(program)
    assert "@run(" in listing(Chain(Dense(3, 2)).program())


def test_native_itself_refuses():
    net = make("native")
    with pytest.raises(UnsupportedOperationError, match=r"`map` of 1\.Shifted"):
        net(X, net.init())
