"""C99 source computes what NumPy computes, for all layers, losses and optimisers, as any C compiler takes it."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from zlib import crc32

import numpy as np
import pytest

from chains import GRU, SGD, Adam, BatchNorm, Chain, Dense, Dropout, Embedding, Flatten, Layer, Softmax, SquaredLoss, tanh
from chains.exporting.c_operations import C99, Context, lines_of
from chains.exporting.c_source import CSource
from chains.exporting.header import header_text
from chains.expr import trace
from chains.program.operations import Operation
from chains.program.recorder import Recorder
from tests.exporting.support import Functions, by_numpy, data, interface, whole_calls
from tests.harness import ACTIVATION_CASES, LAYERS, LOSS_CASES, OPTIMIZERS, OWN_LAYERS, PENALTY_CASES
from tests.tools import tool

pytestmark = pytest.mark.few(4)

CASES = [*LAYERS, *OWN_LAYERS, *ACTIVATION_CASES, *(c for c in (*LOSS_CASES, *PENALTY_CASES) if not c.weighted)]
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-shared", "-fPIC"]


def built(made, folder, *flags):
    """The functions of an interface, compiled by gcc."""
    source = CSource(made)
    (folder / "model.h").write_text(header_text(source.interface, "tests"))
    (folder / "model.c").write_text(source.text("model.h"))
    subprocess.run([tool("gcc"), *FLAGS, *flags, "model.c", "-o", "model.so", "-lm"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "model.so"))
    return Functions(source.interface, lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the options are for x86")
@pytest.mark.parametrize(("simd", "length"), [("x86-64-v3", 32), ("x86-64-v4", 64)])
def test_gcc_makes_vectors_of_functions(simd, length, tmp_path):
    """Of both layers' tanh, as of the products before them: comparisons that may raise exceptions are left alone otherwise."""
    source = CSource(interface(Chain(Dense(4, 32, tanh), Dense(32, 48, tanh)), gradient=None))
    (tmp_path / "model.c").write_text(source.text(None))
    options = ["-std=c99", "-O2", "-ftree-vectorize", f"-march={simd}", "-mprefer-vector-width=512", "-fopt-info-vec", "-c"]
    done = subprocess.run([tool("gcc"), *options, "model.c"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.count(f"loop vectorized using {length} byte vectors") >= 4, done.stderr


def compare(functions, n, arrays, error):
    """Raise AssertionError unless every function fills what NumPy fills, but for an error relative to the largest entry."""
    for call in whole_calls(functions.interface):
        found, wanted = functions(call.name, n, **arrays), by_numpy(call, n, arrays)
        assert found.keys() & wanted.keys()
        for name in found.keys() & wanted.keys():
            numbers = wanted[name].reshape(found[name].shape)
            assert abs(found[name] - numbers).max(initial=0.0) <= error * scale(numbers), (call.name, name)


def compare_in_float32(functions, exact, n, arrays):
    """Likewise with the numbers of an interface in float64: NumPy's own rounding in float32 is as large as that of C.

    Where it is larger than usual, as in sums whose terms cancel, that of C may be too.
    """
    for call, call64 in zip(whole_calls(functions.interface), whole_calls(exact), strict=True):
        found, numpy, wanted = functions(call.name, n, **arrays), by_numpy(call, n, arrays), by_numpy(call64, n, arrays)
        assert found.keys() & wanted.keys()
        for name in found.keys() & wanted.keys():
            numbers = wanted[name].reshape(found[name].shape)
            rounding = abs(numpy[name] - wanted[name]).max(initial=0.0)
            assert abs(found[name] - numbers).max(initial=0.0) <= max(1e-6 * scale(numbers), 2.0 * rounding), (call.name, name)


def scale(numbers):
    """The largest entry, or 1."""
    return max(1.0, abs(numbers).max(initial=0.0))


# A case whose functions take single samples: GCC warned of memory that no sample fills.
@pytest.mark.few(4, always=lambda case: case.name == "GroupNorm-one-group")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_numpy(case, tmp_path):
    dtype = ("float32", "float64")[crc32(case.name.encode()) % 2]
    loss = {"loss": case.loss, "target_shape": case.problem(1).t.shape[1:], "penalty": case.penalty}
    functions = built(interface(case.net(), dtype, **loss), tmp_path)
    for n in (1, 100):
        batch, arrays = data(case, n, dtype)
        if dtype == "float32":
            compare_in_float32(functions, interface(case.net(), "float64", **loss), batch, arrays)
        else:
            compare(functions, batch, arrays, 1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "dtype"), [("LSTM-two-steps", "float32"), ("RNN-bidirectional", "float32"), ("ODE-leapfrog", "float64")]
)
def test_tiles_of_two_samples_would_make_gcc_warn(name, dtype, tmp_path):
    """At the level that most users compile with, where it unrolls their loops."""
    (case,) = [case for case in CASES if case.name == name]
    loss = {"loss": case.loss, "target_shape": case.problem(1).t.shape[1:]}
    built(interface(case.net(), dtype, **loss), tmp_path, "-O2")


class Largest(Layer):
    """The largest entry along the first axis."""

    def declare(self, d):
        d.output((1, *d.input[1:]))

    def forward(self, ops, x, y, p, s):
        ops.max(y, x)


def test_no_parameters_as_part_of_the_code(tmp_path):
    net = Chain(Largest(), Flatten(), Softmax(), input_shape=(2, 3))
    functions = built(interface(net, "float64", p=np.empty(0), gradient=None), tmp_path)
    x = np.random.default_rng(0).normal(size=(5, 2, 3))
    np.testing.assert_allclose(functions("forward", 5, x=x)["y"], net(x, np.empty(0)), rtol=1e-15)


@pytest.mark.parametrize("name", ["Adam", "Nesterov"])
def test_steps_are_those_of_numpy(name, tmp_path):
    optimizer = OPTIMIZERS[name]
    net = Chain(Dense(3, 5, tanh), BatchNorm(5), Dropout(0.3), Dense(5, 2))
    functions = built(interface(net, "float64", loss=SquaredLoss(), optimizer=optimizer), tmp_path)
    rng = np.random.default_rng(0)
    for n in (2, 70):
        arrays = {"x": rng.normal(size=(n, 3)), "t": rng.normal(size=(n, 2)), "p": rng.normal(size=net.n_params)}
        arrays |= {"moments": rng.uniform(size=optimizer.n_states * net.n_params), "state": rng.uniform(0.5, 2.0, net.n_state)}
        arrays |= {"dy": arrays["t"], "step": np.array(3.0), "random": np.array([3, 7], np.uint64)}
        compare(functions, n, arrays, 1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.01), Adam(0.01, sparse="lazy")], ids=str)
def test_steps_of_an_embedding(optimizer, tmp_path):
    net = Chain(Embedding(7, 3, padding=0), GRU(3, 4), Dense(4, 2), input_shape=(5,))
    functions = built(interface(net, "float64", loss=SquaredLoss(), optimizer=optimizer), tmp_path)
    rng = np.random.default_rng(0)
    for n in (1, 40):
        arrays = {"x": rng.integers(0, 5, (n, 5)), "t": rng.normal(size=(n, 2)), "p": rng.normal(size=net.n_params)}
        arrays |= {"moments": rng.uniform(size=optimizer.n_states * net.n_params), "step": np.array(3.0), "dy": arrays["t"]}
        compare(functions, n, arrays, 1e-12)


def test_parameters_may_be_part_of_the_source(tmp_path):
    net = Chain(Dense(4, 3, tanh), BatchNorm(3), Dense(3, 2))
    p, state = net.init(0), net.init_state()
    functions = built(interface(net, p=p, state=state), tmp_path)
    compare(
        functions, 7, {"x": np.random.default_rng(0).normal(size=(7, 4)), "dy": np.ones((7, 2)), "p": p, "state": state}, 1e-6
    )


WITHOUT_LLVM = """\
import sys
sys.modules["llvmlite"] = None
import chains
net = chains.Chain(chains.Dense(3, 4, chains.tanh), chains.Dense(4, 2), backend="numpy")
chains.export(net, sys.argv[1], loss=chains.SquaredLoss(), optimizer=chains.Adam(1e-3))
"""


def test_source_is_written_without_llvm(tmp_path):
    path = tmp_path / "model.c"
    subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_LLVM, str(path)], check=True)
    assert "model_step" in path.read_text()
    assert path.with_suffix(".h").exists()
    assert path.with_suffix(".f90").exists()


def test_operations_without_c_are_named():
    class Strange(Operation):
        pass

    ops = Recorder("strange", np.float32)
    with pytest.raises(NotImplementedError, match=r"exported C has no operation `strange` \(0\.Odd\): export an object file"):
        lines_of(Strange((ops.external("out", (), role="output"),), (), label="0.Odd"), Context("model"))


def test_numbers_of_formulas_are_written_where_they_are_used():
    lines, names = C99.statements(trace(lambda a: (2.0 * a - 0.5, 3.0)), ["x[i]"], "v", "float")
    assert lines == ["const float v1 = 2.0f * x[i];", "const float v3 = v1 - 0.5f;"]
    assert names == ["v3", "3.0f"]


@pytest.mark.parametrize(("shape", "kind"), [((), "double"), ((3,), "float")])
def test_single_numbers_are_computed_in_double_precision(shape, kind):
    ops = Recorder("a number", np.float32)
    a, out = (ops.external(name, shape, role=role) for name, role in (("a", "input"), ("out", "output")))
    ops.map(out, lambda a: a * a, a)
    assert f"const {kind} v0 = a0 * a0;" in "\n".join(lines_of(ops.operations[0], Context(lambda buffer: buffer.name)))


def test_four_products_are_added_at_once():
    text = CSource(interface(Chain(Dense(6, 5, bias=False)), gradient=None)).text(None)
    assert "y_here[i * 5 + j] += factor0 * p[k * 5 + j] + factor1 * p[(k + 1) * 5 + j]" in text
    assert "y_here[i * 5 + j] += factor0 * p[4 * 5 + j] + factor1 * p[5 * 5 + j];" in text  # what is left of six
