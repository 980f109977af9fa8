"""A GPU whose kernels are refused: an array library runs the programs, with one warning; without one, the reason is raised."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from chains import Adam, Chain, Dense, Dropout, SquaredLoss, tanh, train
from chains.backends import ArrayBackend, UnsupportedOperationError, registry
from tests.cupy import fake_cupy
from tests.cupy.support import needs_compiler
from tests.harness import assert_close

pytestmark = needs_compiler
RNG = np.random.default_rng(3)
X, T = RNG.normal(size=(20, 3)).astype(np.float32), RNG.normal(size=(20, 2)).astype(np.float32)
LOSS = SquaredLoss()


def missing():
    raise ValueError("the array library cannot be used")


def refusing(monkeypatch, error, *others):
    def get_function(self, name):
        raise error

    cupy = fake_cupy.install(monkeypatch)
    monkeypatch.setattr(fake_cupy.RawModule, "get_function", get_function)
    monkeypatch.setattr(registry, "GPU_LIBRARIES", others)
    return cupy


def net_on(backend):
    return Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 2), backend=backend)


def called(backend):
    net = net_on(backend)
    return net.value_and_grad(net.init(seed=0), X, T, LOSS, mode="train", seed=2)[1]


def trained(backend):
    net = net_on(backend)
    p = net.init(seed=0)
    train(net, p, X, T, LOSS, Adam(1e-2), epochs=3, batch_size=6, seed=1)
    return p


def members(backend):
    net = net_on(backend)
    rows = net.init_many(2, seed=0)
    train(net, rows, X, T, LOSS, Adam(1e-2), epochs=2, batch_size=6, seed=[1, 2])
    return rows


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CuPy failed to load libnvrtc.so.12: OSError"), TypeError("error: identifier is undefined")],
    ids=["missing", "wrong"],
)
@pytest.mark.parametrize("use", [called, trained, members])
def test_an_array_library_runs_the_programs_with_one_warning(monkeypatch, use, error):
    wanted = use("numpy")
    refusing(monkeypatch, error, missing, lambda: ArrayBackend("numpy"))
    with pytest.warns(RuntimeWarning) as told:
        found = use("cupy")
    assert [str(each.message) for each in told] == [
        f"numpy runs what the GPU backend cannot, which is slower: backend 'cupy' cannot compile its kernels: "
        f"{type(error).__name__}: {error}"
    ]
    assert told[0].filename == __file__
    assert_close(found, wanted, 1e-5)
    with warnings.catch_warnings(action="error"):
        use("cupy")


def test_an_operation_that_is_lacking_is_run_too(monkeypatch):
    from chains.backends.cupy import compiler

    wanted = called("numpy")
    refusing(monkeypatch, RuntimeError(), lambda: ArrayBackend("numpy"))
    for table in (compiler.LOWERINGS,):
        monkeypatch.setattr(compiler, "LOWERINGS", {kind: each for kind, each in table.items() if kind.__name__ != "MatMul"})
    with pytest.warns(RuntimeWarning, match="which is slower: .*`matmul`"):
        found = called("cupy")
    assert_close(found, wanted, 1e-5)


def test_without_a_library_the_reason_is_raised(monkeypatch):
    refusing(monkeypatch, RuntimeError("no nvrtc"), missing)
    with pytest.raises(UnsupportedOperationError, match="cannot compile its kernels: RuntimeError: no nvrtc"):
        called("cupy")


def test_mistakes_of_users_stay_errors(monkeypatch):
    refusing(monkeypatch, RuntimeError("no nvrtc"), lambda: ArrayBackend("numpy"))
    net = net_on("cupy")
    with pytest.raises(ValueError, match="`x`"), warnings.catch_warnings(action="error"):
        net(X[:, :2], net.init(seed=0))


def test_memory_that_is_lacking_is_no_reason_to_go_on_elsewhere(monkeypatch):
    refusing(monkeypatch, MemoryError("no room"), lambda: ArrayBackend("numpy"))
    with pytest.raises(MemoryError, match="no room"):
        called("cupy")
