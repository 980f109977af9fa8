"""Products with epilogues and bfloat16 factors on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Chain, Dense, relu
from tests.cupy.products import HALF, HALF_NETS, NETS, gradient
from tests.cupy.support import on_gpu
from tests.harness import assert_close, assert_same_bits, run_program


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("precision", ["cupy", "cupy-tf32", "cupy-bf16"])
@pytest.mark.parametrize("net", [*NETS.values(), *HALF_NETS.values()])
def test_networks_on_the_gpu(net, precision, large):
    """Near NumPy's results by the error of the factors; twice the same bits, eagerly and as a graph."""
    program, arrays = gradient(net)
    wanted = run_program(program, "numpy", 20, arrays)
    found, again = (run_program(program, precision, 20, arrays, runs=runs) for runs in (1, 3))
    assert_same_bits(found, again)
    for name in wanted:
        assert_close(
            found[name], wanted[name], {"cupy": 1e-5, "cupy-tf32": 8 * 2.0**-11, "cupy-bf16": 8 * HALF}[precision], name
        )


@pytest.mark.gpu
@on_gpu
def test_relu_of_zero_and_nan_on_the_gpu():
    """What cublasLt's documentation leaves open: relu's slope at 0 is 0 here, and NaN stays NaN."""
    net = Chain(Dense(64, 64, relu), Dense(64, 64))
    program, arrays = gradient(net)
    arrays["x"][3] = 0.0
    net.views(arrays["p"])["0.bias"][...] = 0.0
    wanted, found = (run_program(program, name, 20, arrays) for name in ("numpy", "cupy"))
    assert_close(found["g"], wanted["g"], 1e-5)
    arrays["x"][5, 7] = np.nan
    assert np.isnan(run_program(program, "cupy", 20, arrays)["value"])
