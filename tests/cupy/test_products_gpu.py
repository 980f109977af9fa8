"""Products on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Chain, Dense, SquaredLoss, backends, relu, tanh
from chains.backends import Cupy
from chains.network import record
from chains.network.network import network_of
from tests.cupy.support import on_gpu
from tests.harness import assert_close, assert_same_bits, run_program

NETS = {
    "relu": Chain(Dense(4, 8, relu), Dense(8, 8, relu), Dense(8, 4)),
    "positions": Chain(Dense(4, 8, relu), Dense(8, 4, relu), input_shape=(3, 4)),
    "branches": Chain(Dense(4, 8, tanh), chains.Residual(Dense(8, 8, relu)), Dense(8, 4, relu)),
    "unaligned": Chain(Dense(3, 7, relu), Dense(7, 5, relu), Dense(5, 3)),
}


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("settings", [Cupy(), Cupy("tf32")], ids=str)
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_networks_on_the_gpu(net, settings, monkeypatch):
    """Near NumPy's results by the error of the factors; twice the same bits, eagerly and as a graph."""
    monkeypatch.setitem(backends.registry._BACKENDS, "settings", lambda: backends.backend(settings))
    monkeypatch.setattr(backends.registry, "_loaded", {})
    rng = np.random.default_rng(0)
    program = record.gradient(network_of(net), record.Criterion(SquaredLoss(), net.output_shape), np.float32, True)
    arrays = {"p": rng.normal(0.0, 0.5, net.n_params), "x": rng.normal(size=(20, *net.input_shape))}
    arrays["t"] = rng.normal(size=(20, *net.output_shape))
    wanted = run_program(program, "numpy", 20, arrays)
    found, again = (run_program(program, "settings", 20, arrays, runs=runs) for runs in (1, 3))
    assert_same_bits(found, again)
    for name in wanted:
        assert_close(found[name], wanted[name], 1e-5 if settings.precision == "float32" else 8 * 2.0**-11, name)
