"""Powers of known numbers in exported code: a training step has those of the decays of its moments."""

from __future__ import annotations

import ctypes
import math
import struct

import numpy as np
import pytest

from chains import Adam, Chain, Dense, MSELoss, tanh, train

pytest.importorskip("llvmlite", reason="object files need llvmlite")

from chains.backends.native.llvm.jit import machine_code
from chains.backends.native.llvm.target import processor
from chains.exporting.freestanding import freestanding
from tests.exporting.support import interface, loaded


@pytest.mark.parametrize("base", [0.9, 0.999, 1.5, 2.0, 1e-300])
def test_powers_of_a_known_base(base):
    digits = f"0x{struct.unpack('<Q', struct.pack('<d', base))[0]:016X}"
    text = f"""
declare double @llvm.pow.f64(double, double)
define double @power(double %y) #0 {{
  %x = call double @llvm.pow.f64(double {digits}, double %y)
  ret double %x
}}
attributes #0 = {{ nounwind }}
"""
    text = freestanding(text)
    assert "@chains.power." in text
    assert "llvm.pow" not in text
    code = machine_code(text, ["power"], processor())
    power = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.address("power"))
    for y in (0.0, -0.0, 1.0, 2.0, 0.5, -3.0, 301.0, 1e3, 12345.678, 1e9, -1e9, math.inf, -math.inf):
        with np.errstate(over="ignore", under="ignore"):
            wanted = float(np.power(base, y))
        assert power(y) == pytest.approx(wanted, rel=4.5e-16, abs=0.0), y
    assert math.isnan(power(math.nan))


def test_steps_are_those_of_training():
    net, rng = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)), np.random.default_rng(0)
    x, t = rng.normal(size=(2, 1, 4)).astype(np.float32)
    p = net.init(0)
    trained, step = p.copy(), loaded(interface(net, loss=MSELoss(), optimizer=Adam(0.01)))
    train(net, trained, x, t, MSELoss(), Adam(0.01), epochs=60, progress=False)
    arrays = {"p": p, "moments": np.zeros(2 * p.size, np.float32), "step": np.zeros(1)}
    for _ in range(60):
        found = step("step", 1, x=x, t=t, **arrays)
        arrays = {name: found[name] for name in arrays}
    np.testing.assert_array_equal(arrays["p"], trained)
