"""What `export` writes: which files, which symbols, headers that compilers take; and what it refuses."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

import chains
from chains import Adam, BatchNorm, Chain, Conv, Dense, Embedding, Flatten, MaxPool, SquaredLoss, activation, tanh
from chains.exporting.libraries import archive
from chains.exporting.targets import TARGETS, targets_of
from tests.exporting.support import interface, loaded, object_code
from tests.tools import tool

NET = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
POOLED = Chain(Conv(1, 2, 3), MaxPool(3, stride=1), Flatten(), Dense(32, 2), input_shape=(1, 8, 8))
LINUX = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "riscv64")


def undefined(path):
    return subprocess.run([tool("nm"), "-u", str(path)], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.few(2)
@pytest.mark.parametrize("target", LINUX)
def test_nothing_is_undefined_and_little_is_long(target, tmp_path):
    (path, *_) = chains.export(NET, tmp_path / "model.o", target=target, header=False, fortran=False)
    nm = "llvm-nm" if target in ("aarch64", "riscv64") else "nm"
    found = subprocess.run([tool(nm), "-u", str(path)], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
    assert path.stat().st_size <= 100_000


def test_linkers_leave_out_what_is_not_called(tmp_path):
    chains.export(NET, tmp_path / "model.o", loss=SquaredLoss(), optimizer=Adam(1e-3))
    (tmp_path / "main.c").write_text(
        '#include "model.h"\nfloat p[772], x[4], y[4];\nint main(void) { model_forward(1, x, p, y); return 0; }\n'
    )
    for option, names in (("--no-gc-sections", {"model_forward", "model_step"}), ("--gc-sections", {"model_forward"})):
        program = tmp_path / "program"
        command = [tool("cc"), f"-Wl,{option}", f"-I{tmp_path}", tmp_path / "main.c", tmp_path / "model.o", "-o", program]
        subprocess.run(command, check=True)
        found = subprocess.run([tool("nm"), program], capture_output=True, text=True, check=True).stdout.split()
        assert {"model_forward", "model_step"} & set(found) == names


def test_powers_and_sines_need_no_library(tmp_path):
    net = Chain(Dense(3, 4, chains.sine), Dense(4, 2, chains.activation("power", lambda x: (x * x + 1.0) ** 1.3)))
    (path, *_) = chains.export(net, tmp_path / "model.o", loss=SquaredLoss(), optimizer=Adam(1e-3), target="x86-64-v3")
    assert undefined(path) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("target", [name for name in TARGETS if name not in LINUX])
def test_code_is_written_for_every_target(target):
    code = object_code(interface(NET), target)
    magic = {"macho": b"\xcf\xfa\xed\xfe", "coff": b"\x64\x86", "wasm": b"\0asm", "elf": b"\x7fELF"}
    assert code.startswith(magic[targets_of(target)[0].format])
    assert len(code) < 150_000


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_code_with_loops_is_written_for_every_target(target):
    net = Chain(chains.RNN(2, 3), input_shape=(4, 2))
    assert object_code(interface(net, loss=SquaredLoss(), optimizer=Adam(1e-3)), target)


def test_files_lie_beside_each_other(tmp_path):
    written = chains.export(NET, tmp_path / "net.o", target="x86-64-v2,x86-64-v3,riscv64", name="net")
    assert [path.name for path in written] == ["net-x86-64.o", "net-riscv64.o", "net.h", "net.f90"]
    assert all(path.stat().st_size for path in written)
    assert [path.name for path in chains.export(NET, tmp_path / "one.o", header=False, fortran=False)] == ["one.o"]


def test_names_from_a_file_end_no_comment(tmp_path):
    square = activation("*/\nint other;\n/*", lambda x: x * x)
    for name in ("model.c", "model.o"):
        chains.export(Chain(Dense(2, 3, square)), tmp_path / name)
    for name in ("model.c", "model.h", "model.f90"):
        (line,) = [line for line in (tmp_path / name).read_text().splitlines() if "int other" in line]
        assert line.startswith(("/* Chain(", "! Chain("))
        assert "*/ int other" not in line


def test_headers_are_c_and_cxx_and_fortran(tmp_path):
    net = Chain(Dense(4, 3), BatchNorm(3))
    chains.export(net, tmp_path / "model.o", loss=SquaredLoss(), optimizer=Adam(1e-3), target="x86-64-v2")
    text = (tmp_path / "model.h").read_text()
    assert "#define MODEL_N_PARAMS 21" in text
    assert "#define MODEL_0_BIAS 12  /* (3) */" in text
    assert (
        "void model_vjp(ptrdiff_t n, const float *x, const float *p, const float *state, const float *dy, float *g, float *dx"
        in text
    )
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    subprocess.run([tool("gcc"), *flags, "-std=c99", "-xc", str(tmp_path / "model.h")], check=True)
    subprocess.run([tool("g++"), *flags, "-xc++", str(tmp_path / "model.h")], check=True)
    subprocess.run([tool("gfortran"), "-Wall", "-Werror", "-fsyntax-only", "model.f90"], cwd=tmp_path, check=True)


def test_parameters_and_state_may_be_part_of_the_code(tmp_path):
    net = Chain(Dense(4, 3, tanh), BatchNorm(3), Dense(3, 2))
    p, state = net.init(0), net.init_state()
    state += 0.5
    functions = loaded(interface(net, p=p, state=state))
    assert [argument.name for argument in functions.interface.calls[0].arguments] == ["x", "y"]
    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    with chains.num_threads(1):
        np.testing.assert_array_equal(functions("forward", 7, x=x)["y"], net(x, p, state=state))
    chains.export(net, tmp_path / "model.h.o", p, state=state)


@pytest.mark.parametrize(
    ("p", "dtype", "kind"), [("float64", None, "double"), ("float64", "float32", "float"), (None, None, "float")]
)
def test_arrays_have_the_type_of_the_parameters_unless_it_is_given(p, dtype, kind, tmp_path):
    chains.export(NET, tmp_path / "model.c", None if p is None else NET.init(0, dtype=p), dtype=dtype)
    assert f"void model_forward(ptrdiff_t n, const {kind} *x" in (tmp_path / "model.h").read_text()


@pytest.mark.few(2)
@pytest.mark.parametrize("gradient", ["parameters", "inputs", "both", None])
def test_gradients_are_those_asked_for(gradient):
    functions = loaded(interface(NET, gradient=gradient, loss=SquaredLoss()))
    names = {call.name: [each.name for each in call.arguments if each.changed] for call in functions.interface.calls}
    wanted = {"parameters": ["g"], "inputs": ["dx"], "both": ["g", "dx"], None: []}[gradient]
    assert names == {"forward": ["y"], **({"vjp": wanted} if wanted else {}), "loss": wanted}
    p, rng = NET.init(0), np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 3, 4)).astype(np.float32)
    if wanted:
        found = functions("vjp", 3, x=x, p=p, dy=dy)
        g, dx = NET.vjp(p, x, dy)
        for name, array in {"g": g, "dx": dx}.items():
            if name in found:
                np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_images_and_large_products_take_a_workspace():
    for net in (
        Chain(Conv(2, 3, 5), Flatten(), Dense(3 * 576, 5), input_shape=(2, 28, 28)),
        Chain(Dense(784, 300, tanh), Dense(300, 9)),
    ):
        functions = loaded(interface(net))
        assert functions.interface.workspace
        assert functions.number("work_bytes", 10) > 60_000
        p = net.init(0)
        for n in (1, 20):
            x = np.random.default_rng(0).normal(size=(n, *net.input_shape)).astype(np.float32)
            with chains.num_threads(1):
                np.testing.assert_array_equal(functions("forward", n, x=x, p=p)["y"], net(x, p))


def test_levels_of_x86_share_a_file(tmp_path):
    made = interface(NET, loss=SquaredLoss())
    functions = loaded(made, "x86-64-v2,x86-64-v3,x86-64-v4")
    p, x = NET.init(0), np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    with chains.num_threads(1):
        np.testing.assert_array_equal(functions("forward", 50, x=x, p=p)["y"], NET(x, p))


def test_libraries_can_be_linked(tmp_path):
    chains.export(NET, tmp_path / "libmodel.a")
    (tmp_path / "main.c").write_text('#include "libmodel.h"\nint main(void) { return model_n_params() == 756 ? 0 : 1; }\n')
    subprocess.run([tool("gcc"), "main.c", "-L.", "-lmodel", "-o", "main"], cwd=tmp_path, check=True)
    subprocess.run([str(tmp_path / "main")], check=True)
    (path, *_) = chains.export(NET, tmp_path / "model.so", NET.init(0))
    assert ctypes.CDLL(str(path)).model_n_params() == 756
    assert undefined(path) == []


def test_an_archive_is_what_ar_writes(tmp_path):
    path = tmp_path / "some.a"
    path.write_bytes(
        archive("some", object_code(interface(NET, gradient=None), "x86-64-v2"), ["model_forward", "model_version"])
    )
    listed = subprocess.run([tool("nm"), "-s", str(path)], capture_output=True, text=True, check=True).stdout
    assert "model_forward in some.o" in listed
    assert "model_version in some.o" in listed


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"path": "model.obj"}, ValueError, "`path`.*must end with"),
        ({"net": 3}, TypeError, "`net`"),
        ({"name": "2d"}, ValueError, "`name`.*a name in C"),
        ({"gradient": "all"}, ValueError, "`gradient`"),
        ({"target": "x86-64-v9"}, ValueError, "unknown `target`.*x86-64-v3"),
        ({"target": "cortex-m3"}, ValueError, r"unknown `target` \(='cortex-m3'\).*export C99 source, such as 'model.c'$"),
        ({"path": "model.c", "target": "cortex-m4"}, ValueError, "`target` .*leave it out for C source"),
        ({"target": []}, TypeError, "`target`"),
        ({"dtype": "int8"}, TypeError, "`dtype`"),
        ({"p": np.zeros(3, np.float32)}, ValueError, "`p` must have shape"),
        ({"p": np.full(NET.n_params, np.nan)}, ValueError, "`p` must be finite, got nan"),
        ({"optimizer": Adam(1e-3)}, TypeError, "`loss` is missing"),
        ({"loss": SquaredLoss(), "optimizer": Adam(1e-3), "p": NET.init(0)}, ValueError, "leave one of them out"),
        ({"path": "model.wasm"}, ValueError, "no files '.wasm'"),
        ({"header": 1}, TypeError, "`header`"),
        ({"derivatives": "jacobian"}, TypeError, "`derivatives` .*a tuple of names"),
        ({"derivatives": ("jacobain",)}, ValueError, "`derivatives`.*did you mean .jacobian."),
        ({"net": Chain(Embedding(5, 3), input_shape=(2,)), "derivatives": ("jvp",)}, TypeError, "ids.*leave `derivatives` out"),
        ({"net": POOLED, "derivatives": ("hessian",)}, NotImplementedError, "max pools.*1.MaxPool"),
    ],
)
def test_what_does_not_fit_is_refused(changed, error, message, tmp_path):
    given = {"net": NET, "path": "model.o"} | changed
    path = tmp_path / given.pop("path")
    with pytest.raises(error, match=message):
        chains.export(given.pop("net"), path, **given)
    assert list(tmp_path.iterdir()) == []
