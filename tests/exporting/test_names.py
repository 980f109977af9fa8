"""The names of exported functions, constants and files: unique in every language, within its limits, or refused."""

from __future__ import annotations

import re
import subprocess

import pytest

import chains
from chains import BatchNorm, Chain, Dense, Equations, Layer
from chains.exporting.names import MAX_LINE, MAX_NAME, check_lengths, constants
from tests.tools import tool


class Named(Layer):
    """A layer with parameters of any names, which the output does not depend on."""

    def __init__(self, *names):
        self.names = names

    def declare(self, d):
        for size, name in enumerate(self.names, 1):
            d.param(name, (size,), "zeros")
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        ops.copy(y, x)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.copy(dx, dy)
        for name in self.names:
            ops.fill(getattr(g, name), 0.0)


def compiled(folder, net, **settings):
    """The header's constants and the module's, from files that compilers take."""
    chains.export(net, folder / "model.c", **settings)
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c99", "-fsyntax-only"]
    subprocess.run([tool("gcc"), *flags, str(folder / "model.c")], check=True)
    module = (folder / "model.f90").read_text()
    assert max(map(len, module.splitlines())) <= MAX_LINE
    words = re.findall(r"\w+", re.sub(r"!.*", "", module))
    assert max(map(len, words)) <= MAX_NAME
    header = dict(re.findall(r"^#define (\w+) (\d+)", (folder / "model.h").read_text(), re.M))
    fortran = dict(re.findall(r"parameter :: at_(\w+) = (\d+)", module))
    assert {name.lower(): str(int(at) - 1) for name, at in fortran.items()}.items() <= {
        name.lower(): at for name, at in header.items()
    }.items()
    return header


COLLIDING = {
    "case": ("k", "K"),
    "dots": ("u_0", "u.0", "u-0"),
    "a number that is taken": ("k", "K", "k_2"),
    "the module's own": ("h", "n_params"),
    "other alphabets": ("σ", "τ"),
    "one that ends a comment": ("a*/b", "a\nb"),
    "long": ("a" * 200, "b" + "a" * 199, "a" * 199 + "b"),
}


@pytest.mark.parametrize("names", COLLIDING.values(), ids=COLLIDING)
def test_constants_of_all_parameters_differ(names, tmp_path):
    net = Chain(Named(*names), input_shape=(2,))
    header = compiled(tmp_path, net)
    starts = {entry.start for entry in net.layout}
    assert starts <= {int(at) for at in header.values()}
    assert len({name.lower() for name in header}) == len(header) >= len(names) + 1


def test_equations_with_a_small_and_a_capital_letter(tmp_path):
    rhs = Equations(lambda y, k, K: -k * y / (K + y), ("y",), parameters={"k": 1.5, "K": 2.0})
    header = compiled(tmp_path, Chain(rhs))
    assert header["MODEL_0_K"] == "0"
    assert header["MODEL_0_K_2"] == "1"
    assert "#define MODEL_0_K_2 1  /* (), of 0.K */" in (tmp_path / "model.h").read_text()


def test_constants_are_none_of_the_macros_of_c():
    assert constants("m", ["pi", "k"], []) == ["m_pi_3", "m_k"]  # M_PI_2 is half of it
    assert constants("model", ["pi", "k"], []) == ["model_pi", "model_k"]


def test_names_stay_where_nothing_is_in_their_way():
    names = ["0.weight", "0.bias", "1.cell.recurrent"]
    assert constants("model", names, ["h", "n_params"]) == ["model_0_weight", "model_0_bias", "model_1_cell_recurrent"]
    assert constants("m", ["k", "K", "k_2"], []) == ["m_k", "m_k_3", "m_k_2"]


@pytest.mark.parametrize("length", [14, 20, 43])
def test_a_long_name_is_written_in_several_lines(length, tmp_path):
    name = ("net" * 20)[:length]
    net = Chain(Dense(3, 2), BatchNorm(2))
    settings = {"loss": chains.SquaredLoss(), "derivatives": ("jacobian", "hessian")}
    compiled(tmp_path, net, name=name, **settings)
    subprocess.run([tool("gfortran"), "-Wall", "-Werror", "-fsyntax-only", "model.f90"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("name", ["n" * 46, "n" * 500, "c_double", "ISO_C_BINDING"])
def test_a_name_that_fortran_cannot_have_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"`name` .* must "):
        chains.export(Chain(Dense(3, 2)), tmp_path / "model.c", name=name, derivatives=("hessian",))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ['q"uote.c', "line\nbreak.c", "back\\slash.c", "tab\t.o"])
def test_a_file_that_c_cannot_include_is_refused(file, tmp_path):
    with pytest.raises(ValueError, match=r"`path` .* since C includes its header by name"):
        chains.export(Chain(Dense(3, 2)), tmp_path / file)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [252, 500])
def test_a_file_name_that_is_too_long_is_refused(length, tmp_path):
    """That of the module is longer by two than that of the source."""
    with pytest.raises(ValueError, match=r"`path` must be shorter: the file '.*' would have more than 255 bytes"):
        chains.export(Chain(Dense(3, 2)), tmp_path / ("m" * length + ".c"))
    assert not list(tmp_path.iterdir())
    check_lengths("path", [tmp_path / ("m" * 251 + ".f90")])
