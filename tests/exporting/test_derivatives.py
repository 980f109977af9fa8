"""Exported derivatives by the inputs: those of JAX, with the bits of the native backend; and what they need."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest

import chains
from chains import GRU, LSTM, BatchNorm, CausalConv, Chain, Dense, relu, tanh
from tests.exporting.support import compare, data, interface, loaded
from tests.exporting.test_c_source import built
from tests.exporting.test_c_source import compare as compare_c
from tests.exporting.test_files import undefined
from tests.harness import LAYERS
from tests.tools import tool

ALL = ("jvp", "jacobian", "hessian")
NET = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
REFUSED = ("MaxPool-overlapping", "MaxPool-padded", "MaxPool-signal", "Conv-relu-MaxPool-overlapping")
REFUSED += ("SteadyState", "SteadyState-fixed-point", "SteadyState-anderson")
CASES = [case for case in LAYERS if case.name not in REFUSED and case.net().input_shape and "Embedding" not in case.name]


def random_arrays(net, n, seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    shapes = {"x": net.input_shape, "dx": net.input_shape, "v": net.output_shape, "dy": net.output_shape}
    return {name: rng.normal(size=(n, *shape)).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(40))
def test_derivatives_are_those_of_jax(seed):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    functions = {
        "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "softplus": jax.nn.softplus, "silu": jax.nn.silu, "sin": jnp.sin,
        "gelu": lambda z: jax.nn.gelu(z, approximate=False), "identity": lambda z: z,
    }  # fmt: skip
    rng = np.random.default_rng(seed)
    widths = rng.integers(1, 33, rng.integers(2, 6)).tolist()
    names = rng.choice([*functions], len(widths) - 1).tolist()
    net = Chain(*(Dense(*pair, name) for *pair, name in zip(widths[:-1], widths[1:], names, strict=True)))
    p = net.init(seed, dtype="float64")
    p += 0.3 * rng.normal(size=p.shape)
    arrays = {name: array for name, array in random_arrays(net, 3, seed).items() if name != "dy"}
    x, dx, v = arrays.values()
    views = net.layout.views(p)
    exported = loaded(interface(net, "float64", derivatives=ALL, gradient=None))
    found = {name: exported(name, 3, p=p, **arrays) for name in ALL}

    def forward(x):
        for number, name in enumerate(names):
            x = functions[name](x @ views[f"{number}.weight"] + views[f"{number}.bias"])
        return x

    with jax.enable_x64(True):
        wanted = {
            "dy": np.stack([jax.jvp(forward, (jnp.array(a),), (jnp.array(b),))[1] for a, b in zip(x, dx, strict=True)]),
            "J": np.stack([jax.jacobian(forward)(jnp.array(each)) for each in x]),
            "H": np.stack([jax.hessian(lambda a, v=v: v @ forward(a))(jnp.array(each)) for each, v in zip(x, v, strict=True)]),
        }
    for name, output in zip(ALL, wanted, strict=True):
        scale = max(1.0, abs(wanted[output]).max())
        np.testing.assert_allclose(found[name][output], wanted[output], rtol=0, atol=1e-12 * scale)
    np.testing.assert_array_equal(found["hessian"]["H"], found["hessian"]["H"].swapaxes(1, 2))


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_are_those_of_the_native_backend(case):
    dtype = ("float32", "float64")[crc32(case.name.encode()) % 2]
    net = case.net()
    functions = loaded(interface(net, dtype, gradient=None, derivatives=ALL))
    for n in (1, 13):  # no more than the smallest tile
        batch, arrays = data(case, n, dtype)
        arrays |= {name: array for name, array in random_arrays(net, batch, 0, dtype).items() if name in ("dx", "v")}
        compare(functions, batch, arrays)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_c_source_computes_what_numpy_computes(case, tmp_path):
    net = case.net()
    functions = built(interface(net, "float64", gradient=None, derivatives=ALL), tmp_path)
    batch, arrays = data(case, 5, "float64")
    arrays |= {name: array for name, array in random_arrays(net, batch, 0).items() if name in ("dx", "v")}
    compare_c(functions, batch, arrays, 1e-12)


@pytest.mark.parametrize("sizes", [(2, 9, 7), (9, 8, 1), (3, 2), (12, 64, 64, 15)])
def test_jacobians_are_those_of_the_network_by_both_ways(sizes):
    net = Chain(*(Dense(*pair, relu) for pair in pairwise(sizes)))
    p, arrays = net.init(0, dtype="float64"), random_arrays(net, 70, 0)
    found = loaded(interface(net, "float64", derivatives=ALL))("jacobian", 70, p=p, x=arrays["x"])
    np.testing.assert_allclose(found["J"], net.input_jacobian(p, arrays["x"]), rtol=1e-12, atol=1e-13)


def test_arguments_are_the_same_where_a_derivative_is_zero():
    net = Chain(Dense(3, 2))
    functions, arrays = loaded(interface(net, "float64", derivatives=ALL)), random_arrays(net, 2, 0)
    names = {call.name: [each.name for each in call.arguments] for call in functions.interface.calls}
    assert names["jvp"] == ["x", "p", "dx", "dy"]
    assert names["jacobian"] == ["x", "p", "J"]
    assert names["hessian"] == ["x", "p", "v", "H"]
    found = functions("hessian", 2, p=net.init(0, dtype="float64"), x=arrays["x"], v=arrays["v"])
    np.testing.assert_array_equal(found["H"], np.zeros((2, 3, 3)))


def test_files_need_no_library_and_no_workspace(tmp_path):
    (path, *_) = chains.export(NET, tmp_path / "model.o", NET.init(0), dtype="float64", derivatives=ALL)
    assert undefined(path) == []
    header = (tmp_path / "model.h").read_text()
    assert "void model_jvp(ptrdiff_t n, const double *x, const double *dx, double *dy);" in header
    assert "void model_jacobian(ptrdiff_t n, const double *x, double *J);" in header
    assert "void model_hessian(ptrdiff_t n, const double *x, const double *v, double *H);" in header
    subprocess.run([tool("gfortran"), "-Wall", "-Werror", "-fsyntax-only", "model.f90"], cwd=tmp_path, check=True)


def test_state_and_baked_parameters():
    net = Chain(Dense(4, 6, tanh), BatchNorm(6), Dense(6, 2))
    p, state, arrays = net.init(0, dtype="float64"), net.init_state(dtype="float64"), random_arrays(net, 5, 0)
    state += 0.5
    free = loaded(interface(net, "float64", derivatives=ALL))
    baked = loaded(interface(net, "float64", p=p, state=state, derivatives=ALL))
    wanted = free("jacobian", 5, x=arrays["x"], p=p, state=state)["J"]
    np.testing.assert_array_equal(baked("jacobian", 5, x=arrays["x"])["J"], wanted)
    np.testing.assert_allclose(wanted, net.input_jacobian(p, arrays["x"], state=state), rtol=1e-12, atol=1e-13)


STEPS = {
    "recurrent": (LSTM(3, 4, return_sequences=True), Dense(4, 5, tanh), GRU(5, 2), Dense(2, 3)),
    "convolutions": (CausalConv(3, 2, 3, tanh, dilation=2), CausalConv(2, 3, 2, tanh), GRU(3, 2), Dense(2, 3)),
}


@pytest.mark.parametrize("made", ["object", "C99"])
@pytest.mark.parametrize("layers", STEPS.values(), ids=STEPS)
def test_jacobians_of_steps_make_that_of_a_sequence(layers, made, tmp_path):
    net = Chain(*layers, input_shape=(6, 3))
    p, x = net.init(1, dtype="float64"), np.random.default_rng(0).normal(size=(7, 6, 3))
    given = interface(net, "float64", derivatives=("jacobian",))
    functions = loaded(given) if made == "object" else built(given, tmp_path)
    carried, chained = np.zeros((7, net.n_carried)), []  # derivatives of the carried states by the inputs of each step so far
    for step in range(6):
        taken = {"x": x[:, step].copy(), "p": p, "carried": carried}
        jacobian, found = functions("stream_jacobian", 7, **taken)["J"], functions("stream", 7, **taken)
        assert jacobian.shape == (7, 3 + net.n_carried, 3 + net.n_carried)
        last = [*(jacobian[:, :3, 3:] @ each for each in chained), jacobian[:, :3, :3]]
        chained = [*(jacobian[:, 3:, 3:] @ each for each in chained), jacobian[:, 3:, :3]]
        carried = found["new_carried"]
    wanted = net.input_jacobian(p, x)  # (batch, outputs, steps, inputs)
    np.testing.assert_allclose(np.stack(last, axis=2), wanted, rtol=1e-11, atol=1e-13)
