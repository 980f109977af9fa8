"""Backends from elsewhere: registered under a name, found by entry points, or passed as they are."""

from __future__ import annotations

import copy
import importlib.metadata
import pickle
import warnings
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import chains
from chains import Chain, Dense, SquaredLoss, tanh, train
from chains.backends import Backend, FallbackWarning, NumpyBackend, UnsupportedOperationError, register, registry
from chains.backends.numpy.lowerings import LOWERINGS
from chains.program import operations as ops
from chains.testing import check_backend, check_gradients, listing, usable_backends

X, T = np.ones((4, 3)), np.zeros((4, 2))


class Counting(NumpyBackend):
    """NumPy, with products that are counted."""

    name = "counting"
    products = 0

    @property
    def functions(self):
        return {ops.MatMul: self._product}

    def _product(self, memory, operation):
        out, a, b = (memory.array(view) for view in operation.views)

        def call():
            self.products += 1
            out[...] = a @ b + (out if operation.accumulate else 0)

        return [call]


class Products(NumpyBackend):
    """Matrix products and nothing else."""

    name = "products"
    lowered = (ops.MatMul, ops.Copy)


@pytest.fixture
def door(monkeypatch):
    """The registry, which is as before afterwards."""
    for name in ("_BACKENDS", "_loaded", "_registered"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    registry._distributed.cache_clear()
    yield registry
    registry._distributed.cache_clear()


def net_on(backend):
    return Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend)


def test_an_instance_runs_the_programs_of_a_network():
    mine = Counting()
    net = net_on(mine)
    p = net.init(seed=0, dtype=np.float64)
    np.testing.assert_array_equal(net(X, p), net_on("numpy")(X, p))
    assert mine.products == 2
    train(net, p, X, T, SquaredLoss(), chains.SGD(0.1), epochs=2, batch_size=2)
    assert mine.products > 10


@pytest.mark.parametrize("thing", [Counting(), Counting, lambda: Counting()], ids=["instance", "class", "function"])
def test_a_registered_backend_has_a_name(door, thing):
    register("mine", thing)
    assert isinstance(chains.backends.backend("mine"), Counting)
    assert chains.backends.backend("mine") is chains.backends.backend("mine")
    assert "mine" in usable_backends()
    net = net_on("mine")
    assert net(X, net.init(dtype=np.float64)).shape == (4, 2)
    assert "mine" in check_gradients(Dense(2, 2), backends=["mine", "numpy"]).backends
    assert "matmul" in listing(net.program(), "mine")


def test_the_checks_of_layers_use_registered_backends(door):
    register("mine", mine := Counting())
    assert check_gradients(Dense(2, 2)).backends[-1] == "mine"
    assert mine.products


def test_a_name_can_be_registered_again(door):
    register("mine", first := Counting())
    net = net_on("mine")
    net(X, net.init(dtype=np.float64))
    register("mine", second := Counting())
    other = net_on("mine")
    other(X, other.init(dtype=np.float64))
    assert (first.products, second.products) == (2, 2)


@pytest.mark.parametrize("name", ["", "a b", "torch:cuda", 3, None, "numpy", "auto", "cupy", "native"])
def test_names_that_cannot_be_used_are_refused(door, name):
    with pytest.raises(ValueError, match="`name`"):
        register(name, Counting())


@pytest.mark.parametrize("thing", [3, "numpy", None, dict, ops.MatMul], ids=str)
def test_what_is_no_backend_is_refused(door, thing):
    with pytest.raises(TypeError, match="`backend`"):
        register("mine", thing)


def test_a_function_that_makes_no_backend_is_named(door):
    register("mine", lambda: 3)
    with pytest.raises(TypeError, match="the backend 'mine' is 3"):
        net_on("mine")


def test_unknown_names_are_refused_with_the_known_ones(door):
    register("mine", Counting())
    with pytest.raises(ValueError, match=r"unknown `backend` \(='mime'\).*'mine'.*did you mean"):
        net_on("mime")
    with pytest.raises(ValueError, match=r"unknown `backend` \(=.*Counting.*pass an instance, as in backend=Counting\(\)"):
        net_on(Counting)
    with pytest.raises(ValueError, match=r"choose one of 'auto'.*'torch:cuda'.*given by chains.backends.register\(\)$"):
        net_on("elsewhere")


def test_a_library_without_the_device_is_refused_with_names_that_work():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"'torch' cannot be used on the device 'cpuu': there is 'torch:cpu'"):
        net_on("torch:cpuu")


@pytest.mark.parametrize("value", ["tests.backends.test_door:Counting", "tests.backends.test_door:INSTANCE"])
def test_a_distribution_names_its_backends_by_entry_points(door, monkeypatch, value):
    entry = EntryPoint("theirs", value, "chains.backends")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == "chains.backends" else [])
    assert isinstance(chains.backends.backend("theirs"), Counting)
    assert "theirs" in usable_backends()
    with pytest.raises(ValueError, match="'theirs'"):
        net_on("unknown")


INSTANCE = Counting()


def test_an_entry_point_that_cannot_be_imported_says_so(door, monkeypatch):
    entry = EntryPoint("theirs", "missing_package.module:Backend", "chains.backends")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    with pytest.raises(ValueError, match=r"`backend` \(='theirs'\) cannot be imported from 'missing_package"):
        net_on("theirs")
    assert "theirs" not in usable_backends()


def test_pickles_have_the_name_of_a_registered_backend(door):
    register("mine", mine := Counting())
    text = pickle.dumps(net_on(mine))
    assert pickle.loads(text).backend == "mine"
    assert chains.backends.backend(pickle.loads(text).backend) is mine
    del registry._BACKENDS["mine"], registry._loaded["mine"]
    with pytest.raises(ValueError, match=r"unknown `backend`.*'mine'"):
        pickle.loads(text)(X, net_on("numpy").init())


def test_a_backend_without_a_name_is_copied_but_not_pickled():
    net = net_on(Counting())
    assert copy.deepcopy(net).backend is copy.copy(net).backend is net.backend
    with pytest.raises(TypeError, match="cannot be pickled: give it a name"):
        pickle.dumps(net)


def test_a_saved_network_is_loaded_on_an_instance(tmp_path):
    net = net_on(mine := Counting())
    p = net.init(dtype=np.float64)
    chains.save(tmp_path / "m.safetensors", net, p)
    loaded, q, _ = chains.load(tmp_path / "m.safetensors", backend=mine)
    assert loaded.backend is mine
    assert b'"backend": "counting"' in (tmp_path / "m.safetensors").read_bytes().replace(b'":"', b'": "')
    np.testing.assert_array_equal(loaded(X, q), net(X, p))


def test_what_a_backend_lacks_is_refused_by_name():
    net = net_on(Products())
    net_of_products = Chain(Dense(3, 2, bias=False), backend=Products())
    assert net_of_products(X, net_of_products.init(dtype=np.float64)).shape == (4, 2)
    assert "cannot run the operation `map` of 0.Dense" in net.backend.unsupported(net.program())
    with pytest.raises(UnsupportedOperationError, match=r"'products' cannot run the operation `map` of 0.Dense"):
        net(X, net.init(dtype=np.float64))


def test_a_backend_that_claims_nothing_runs_nothing():
    class Nothing(NumpyBackend):
        name = "nothing"
        lowered = frozenset()

    net = Chain(Dense(3, 2, bias=False), backend=Nothing())
    with pytest.raises(UnsupportedOperationError, match=r"'nothing' cannot run the operation `matmul` of 0.Dense"):
        net(X, net.init(dtype=np.float64))


def test_a_slower_backend_runs_what_a_backend_lacks():
    class Partial(Products):
        slower = NumpyBackend()

    net = net_on(Partial())
    p = net.init(dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(FallbackWarning, match=r"numpy runs the program .*cannot run the operation `map`"):
            net(X, p)
    np.testing.assert_array_equal(net_on(Partial())(X, p), net_on("numpy")(X, p))


class WithFunction(NumpyBackend):
    """NumPy, with one entry in `functions`."""

    name = "mine"

    def __init__(self, function, kind=ops.MatMul, slower=None):
        super().__init__()
        self.functions = {kind: function}
        self.slower = slower


def raising(error):
    def function(memory, operation):
        raise error

    return function


def single_rows_only(memory, operation):
    if len(memory.array(operation.outs[0])) > 1:
        raise NotImplementedError("several rows")
    return LOWERINGS[type(operation)](memory, operation)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raising(UnsupportedOperationError("no products")), "no products"),
        (raising(NotImplementedError("too small")), "'mine' cannot run the operation `matmul` of 0.Dense.*: too small"),
        (single_rows_only, "'mine' cannot run the operation `matmul` of 0.Dense.*: several rows"),
    ],
    ids=["unsupported", "not implemented", "several rows"],
)
def test_a_function_that_refuses_an_operation_leaves_the_program_to_the_slower_backend(function, why):
    net, p = net_on(WithFunction(function, slower=NumpyBackend())), net_on("numpy").init(seed=0, dtype=np.float64)
    with pytest.warns(FallbackWarning, match=f"numpy runs the program .*{why}"):
        y = net(X, p)
    np.testing.assert_array_equal(y, net_on("numpy")(X, p))
    assert why.split(": ")[-1] in net.backend.fallback(net.program())
    with pytest.raises(UnsupportedOperationError, match=why):
        net_on(WithFunction(function))(X, p)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("matmul", r"`functions` of backend 'mine' has the key 'matmul'.*operations.MatMul; did you mean `MatMul`\?"),
        (ops.Window, "has the key <class .*Window'>, which must be a class of operations"),
        (3, "has the key 3, which must be a class of operations"),
    ],
)
def test_a_function_for_no_operation_is_refused(kind, message):
    net = net_on(WithFunction(lambda memory, operation: [], kind))
    with pytest.raises(TypeError, match=message):
        net(X, net_on("numpy").init(dtype=np.float64))
    with pytest.raises(AssertionError, match="has the key"):
        check_backend(net.backend, only="operations: copy*")


@pytest.mark.parametrize("result", [None, print, [None], "calls"], ids=str)
def test_a_function_that_returns_no_calls_is_refused(result):
    net = net_on(WithFunction(lambda memory, operation: result))
    with pytest.raises(TypeError, match=r"function of backend 'mine' for the operation `matmul` returned .*must return a list"):
        net(X, net_on("numpy").init(dtype=np.float64))


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="`functions` of backend 'mine' has None for MatMul, not a function"):
        net_on(WithFunction(None))(X, net_on("numpy").init(dtype=np.float64))


def test_types_that_a_backend_lacks_are_refused_by_name():
    class Single(NumpyBackend):
        name = "single"
        dtypes = (np.float32,)

    assert "'single' cannot compute in float64, only in float32" in Single().unsupported(
        net_on("numpy").program(dtype=np.float64)
    )


def test_a_backend_is_abstract():
    with pytest.raises(TypeError, match="bind"):
        Backend()
    assert issubclass(UnsupportedOperationError, NotImplementedError)
