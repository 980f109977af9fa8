"""Second derivatives of networks in CasADi, in every form and shape, against the same networks of its own symbols."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from chains import Chain, Dense, tanh
from chains.exporting.objects import characters
from chains.interop import to_casadi

ca = pytest.importorskip("casadi")
pytest.importorskip("llvmlite", reason="the library needs llvmlite")
if not any(shutil.which(name) for name in ("ld.lld", "cc", "gcc", "clang", "ld")):
    pytest.skip("no linker is installed", allow_module_level=True)


def of_symbols(net, p):
    views = net.views(p)

    def outputs(x):
        for k in range(len(net.layers)):
            bias = ca.repmat(ca.DM(views[f"{k}.bias"]), 1, x.shape[1])
            x = ca.mtimes(ca.DM(views[f"{k}.weight"]).T, x) + bias
            x = ca.tanh(x) if k < len(net.layers) - 1 else x
        return x

    return outputs


FORMS = {
    "jacobian of jacobian": lambda y, x, u, v, w: ca.jacobian(ca.jacobian(y, x), x),
    "gradient of the norm of a jacobian": lambda y, x, u, v, w: ca.gradient(ca.norm_fro(ca.jacobian(y, x)), x),
    "along, along": lambda y, x, u, v, w: ca.jtimes(ca.jtimes(y, x, u), x, v),
    "along, back": lambda y, x, u, v, w: ca.jtimes(ca.jtimes(y, x, u), x, w, True),
    "back, along": lambda y, x, u, v, w: ca.jtimes(ca.jtimes(y, x, w, True), x, v),
    "back, back": lambda y, x, u, v, w: ca.jtimes(ca.jtimes(y, x, w, True), x, v, True),
    "jacobian of along": lambda y, x, u, v, w: ca.jacobian(ca.jtimes(y, x, u), x),
    "jacobian of along by its direction": lambda y, x, u, v, w: ca.jacobian(ca.jtimes(y, x, u), u),
    "jacobian of back": lambda y, x, u, v, w: ca.jacobian(ca.jtimes(y, x, w, True), x),
    "jacobian along": lambda y, x, u, v, w: ca.jtimes(ca.jacobian(y, x), x, v),
    "hessian": lambda y, x, u, v, w: ca.hessian(ca.sumsqr(y), x)[0],
}


@pytest.mark.parametrize(("inputs", "outputs", "samples"), [(3, 1, 1), (1, 3, 1), (3, 3, 2), (2, 5, 1), (1, 1, 2)])
def test_second_derivatives_are_exact_in_every_form(inputs, outputs, samples):
    net = Chain(Dense(inputs, 4, tanh), Dense(4, outputs))
    p, rng = net.init(seed=1, dtype=np.float64), np.random.default_rng(0)
    F, G = to_casadi(net, p, samples=samples), of_symbols(net, p)
    symbols = [ca.MX.sym(name, inputs, samples) for name in "xuv"] + [ca.MX.sym("w", outputs, samples)]
    values = [rng.normal(size=each.shape) for each in symbols]
    for name, form in FORMS.items():
        found, wanted = (ca.Function("f", symbols, [ca.densify(form(y(symbols[0]), *symbols))])(*values).full() for y in (F, G))
        np.testing.assert_allclose(found, wanted, atol=1e-12, err_msg=name)


def test_second_derivatives_by_several_arguments():
    net = Chain(Dense(4, 5, tanh), Dense(5, 2))
    p, rng = net.init(seed=1, dtype=np.float64), np.random.default_rng(0)
    F, G = to_casadi(net, p, given=3), of_symbols(net, p)
    x, q, u, r = (ca.MX.sym(name, size) for name, size in (("x", 1), ("q", 3), ("u", 1), ("r", 3)))
    values = [rng.normal(size=each.shape) for each in (x, q, u, r)]
    along = [ca.jtimes(y, x, u) + ca.jtimes(y, q, r) for y in (F(x, q), G(ca.vertcat(x, q)))]
    by = [ca.horzcat(*(ca.jacobian(y, each) for each in (x, q, u, r))) for y in along]
    found, wanted = (ca.Function("f", [x, q, u, r], [ca.densify(each)])(*values).full() for each in by)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("solver", ["cvodes", "idas"])
def test_sensitivities_of_an_integrator(solver):
    """Forward and adjoint sensitivities of a differential equation whose right side is a network."""
    net = Chain(Dense(2, 6, tanh), Dense(6, 2))
    p = net.init(seed=1, dtype=np.float64)
    x, start = ca.MX.sym("x", 2), ca.MX.sym("start", 2)
    found = []
    for rhs in (to_casadi(net, p), of_symbols(net, p)):
        options = {"abstol": 1e-10, "reltol": 1e-10}
        integrate = ca.integrator("I", solver, {"x": x, "ode": rhs(x)}, 0.0, 1.0, options)
        end = integrate(x0=start)["xf"]
        directions = [ca.jacobian(end, start), ca.gradient(ca.sumsqr(end), start), ca.jtimes(end, start, start)]
        found.append([each.full() for each in ca.Function("s", [start], directions)([0.3, -0.5])])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_bytes_in_the_notation_of_llvm():
    """A table does it: a generator took most of the time to build wide networks."""
    assert characters(bytes(range(256))) == 'c"' + "".join(f"\\{byte:02x}" for byte in range(256)) + '"'
    assert characters(b"") == 'c""'
