"""Networks as functions of CasADi: values and derivatives beside CasADi's own symbols, and solvers that use them."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chains import GRU, LSTM, BatchNorm, CausalConv, Chain, Dense, Embedding, MaxPool, Parallel, Residual, tanh
from chains.interop import to_casadi
from chains.layers.stepwise import joined
from chains.network.network import network_of
from chains.network.stepping import Stepping
from chains.testing import check_gradients

ca = pytest.importorskip("casadi")
pytest.importorskip("llvmlite", reason="the library needs llvmlite")
if not any(shutil.which(name) for name in ("ld.lld", "cc", "gcc", "clang", "ld")):
    pytest.skip("no linker is installed", allow_module_level=True)

NET = Chain(Dense(4, 12, tanh), Dense(12, 7, tanh), Dense(7, 3))
P = NET.init(np.random.default_rng(0), "float64")


def symbols(groups, samples, free):
    """The network in CasADi's symbols, with the arguments of the function."""
    views = NET.views(P)
    names = [("x", groups[0], samples), *(("given", each, samples) for each in groups[1:])]
    arguments = [ca.MX.sym(*each) for each in names]
    p = ca.MX.sym("p", NET.n_params)
    h = ca.vertcat(*arguments)
    for k in range(3):
        weight, bias = ca.DM(views[f"{k}.weight"]).T, ca.DM(views[f"{k}.bias"])
        if free:
            of_weight, of_bias = NET.layout[2 * k], NET.layout[2 * k + 1]
            weight = ca.reshape(p[of_weight.start : of_weight.stop], *reversed(of_weight.shape))
            bias = p[of_bias.start : of_bias.stop]
        h = weight @ h + ca.repmat(bias, 1, samples)
        h = ca.tanh(h) if k < 2 else h
    arguments += [p] if free else []
    return ca.Function("F", arguments, [h], [each.name() for each in arguments], ["y"])


@pytest.fixture(scope="module")
def plain():
    return to_casadi(NET, P)


@pytest.mark.parametrize("free", [False, True], ids=["baked", "free"])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("groups", [(4,), (3, 1)], ids=str)
def test_values_and_derivatives_are_those_of_symbols(groups, samples, free):
    F = to_casadi(NET, None if free else P, given=sum(groups[1:]), samples=samples)
    wanted, rng = symbols(groups, samples, free), np.random.default_rng(0)
    pairs = [(F, wanted), *((f(F), f(wanted)) for f in (ca.Function.jacobian, lambda f: f.forward(1), lambda f: f.reverse(1)))]
    if not free:
        pairs += [(f(F), f(wanted)) for f in (lambda f: f.reverse(1).jacobian(), lambda f: f.jacobian().jacobian())]
    for found, oracle in pairs:
        assert found.class_name() == "External"
        assert (found.name_in(), found.name_out()) == (oracle.name_in(), oracle.name_out())
        sizes = [(found.size_in(k), found.nnz_in(k)) for k in range(found.n_in())]
        values = [rng.normal(size=size) if stored else ca.DM(*size) for size, stored in sizes]
        if free:
            values[len(groups)] = P
        for a, b in zip(found.call(values), oracle.call(values), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a.full(), b.full(), rtol=0, atol=1e-12)


def test_bits_are_those_of_the_network(plain):
    x = np.random.default_rng(1).normal(size=(20, 4))
    np.testing.assert_array_equal(plain.map(20)(x.T).full().T, [NET(each[None], P)[0] for each in x])
    np.testing.assert_array_equal(to_casadi(NET, P, samples=20)(x.T).full().T, NET(x, P))
    np.testing.assert_array_equal(to_casadi(NET)(x[0], P).full()[:, 0], NET(x[:1], P)[0])


def test_networks_with_state_and_sequences():
    rng = np.random.default_rng(0)
    net = Chain(Dense(4, 6, tanh), BatchNorm(6), Dense(6, 2))
    p, state = net.init(0, dtype="float64"), net.init_state(dtype="float64") + 0.5
    x = rng.normal(size=(1, 4))
    np.testing.assert_array_equal(to_casadi(net, p, state)(x[0]).full()[:, 0], net(x, p, state=state)[0])
    with pytest.raises(ValueError, match="`state` is missing"):
        to_casadi(net, p)
    net = Chain(GRU(2, 3), Dense(3, 2), input_shape=(5, 2))
    p, x = net.init(0, dtype="float64"), rng.normal(size=(1, 5, 2))
    F = to_casadi(net, p)
    np.testing.assert_array_equal(F(x.ravel()).full()[:, 0], net(x, p)[0])
    np.testing.assert_allclose(F.jacobian()(x.ravel(), 0).full(), net.input_jacobian(p, x)[0].reshape(2, 10), atol=1e-13)


def test_a_step_has_the_values_of_net_step_and_exact_derivatives():
    cells = LSTM(2, 3, return_sequences=True, initial_state="parameter"), Dense(3, 2, tanh), GRU(2, 2), Dense(2, 1)
    net = Chain(*cells, input_shape=(6, 2))
    p, rng = net.init(1, dtype="float64"), np.random.default_rng(0)
    x, carried = rng.normal(size=(2, 2)), rng.normal(size=(2, 8))
    F = to_casadi(net, p, step=True, samples=2)
    assert str(F) == "F:(x[2x2],carried[8x2])->(y[1x2],new_carried[8x2]) MXFunction"
    for found, wanted in zip(F(x.T, carried.T), net.step(x, p, carried), strict=True):
        np.testing.assert_array_equal(found.full().T, wanted)
    z, v = ca.MX.sym("z", 20), rng.normal(size=18)
    out = ca.vertcat(*(ca.vec(each) for each in F(ca.reshape(z[:4], 2, 2), ca.reshape(z[4:], 8, 2))))
    gradient = ca.gradient(ca.dot(v, out), z)
    f = ca.Function("f", [z], [out, gradient, ca.jacobian(out, z), ca.hessian(ca.dot(v, out), z)[0]])
    at = np.concatenate([x.ravel(), carried.ravel()])
    values, gradients = (
        np.concatenate([(a - b).full() / 2e-5 for a, b in pairs], axis=1)
        for pairs in zip(*(list(zip(f(at + e)[:2], f(at - e)[:2], strict=True)) for e in 1e-5 * np.eye(20)), strict=True)
    )
    _, found, jacobian, hessian = (each.full() for each in f(at))
    np.testing.assert_allclose(jacobian, values, atol=1e-9)
    np.testing.assert_allclose(found[:, 0], jacobian.T @ v, atol=1e-13)
    np.testing.assert_allclose(hessian, gradients, atol=1e-9)


def test_a_step_of_convolutions_has_the_values_of_net_step():
    net = Chain(Residual(CausalConv(2, 2, 3, tanh, dilation=2)), CausalConv(2, 1, 2), input_shape=(6, 2))
    p, rng = net.init(1, dtype="float64"), np.random.default_rng(0)
    x, carried = rng.normal(size=(1, 2)), rng.normal(size=(1, net.n_carried))
    F = to_casadi(net, p, step=True)
    for found, wanted in zip(F(x.T, carried.T), net.step(x, p, carried), strict=True):
        np.testing.assert_array_equal(found.full().T, wanted)
    jacobian = np.concatenate([each.full() for each in F.jacobian()(x.T, carried.T, 0, 0)[1::2]])  # by what is carried
    shifts = (F(x.T, carried.T + e[:, None]) for e in 1e-6 * np.eye(net.n_carried))
    values = np.array([np.concatenate([each.full()[:, 0] for each in shift]) for shift in shifts])
    base = np.concatenate([each.full()[:, 0] for each in F(x.T, carried.T)])
    np.testing.assert_allclose(jacobian, (values - base).T / 1e-6, atol=1e-5)


def test_the_pullback_of_a_step():
    net = Chain(LSTM(2, 2, return_sequences=True, initial_state="parameter"), GRU(2, 3), Dense(3, 2), input_shape=(4, 2))
    one = Stepping(network_of(net)).network
    check_gradients(Chain(joined(one.declaration.layer, one.input_shape), input_shape=(2 + 7,)), backends=["numpy"])


def test_the_pullback_of_a_step_of_convolutions():
    """Of layers next to each other too, whose pullbacks are not in the opposite order of their forward passes."""
    beside = Parallel(CausalConv(2, 3, 2), LSTM(2, 2, return_sequences=True), axis=-1)
    around = Residual(CausalConv(5, 5, 3, tanh, dilation=2), shortcut=GRU(5, 5, return_sequences=True))
    net = Chain(beside, around, CausalConv(5, 1, 1), input_shape=(4, 2))
    one = Stepping(network_of(net)).network
    assert net.n_carried == 2 + 4 + 20 + 5
    check_gradients(Chain(joined(one.declaration.layer, one.input_shape), input_shape=(2 + 31,)), backends=["numpy"])


def problem(F, horizon):
    """Ten steps that lead the plant x + .1 F(x, u) to the origin, with bounded controls."""
    states, controls = ca.MX.sym("s", 3, horizon + 1), ca.MX.sym("u", 1, horizon)
    following = states[:, :-1] + 0.1 * F(ca.vertcat(states[:, :-1], controls))
    gaps = ca.vec(following - states[:, 1:])
    cost = ca.sumsqr(states) + 0.1 * ca.sumsqr(controls)
    z = ca.vertcat(ca.vec(states), ca.vec(controls))
    bounds = np.full(z.numel(), np.inf)
    bounds[-horizon:] = 0.7
    lower = -bounds
    start = [1.0, -0.5, 0.3]
    lower[:3] = start
    bounds = bounds.copy()
    bounds[:3] = start
    return {"x": z, "f": cost, "g": gaps}, {"lbx": lower, "ubx": bounds, "lbg": 0, "ubg": 0, "x0": 0}


SOLVERS = {
    "ipopt": {"ipopt": {"print_level": 0, "sb": "yes", "tol": 1e-10}, "print_time": False},
    "sqpmethod": {
        "qpsol": "qrqp", "qpsol_options": {"print_iter": False, "print_header": False, "print_info": False},
        "print_time": False, "print_header": False, "print_iteration": False, "print_status": False, "tol_du": 1e-10,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("vectorised", [False, True], ids=["map", "samples"])
def test_solvers_take_exact_hessians(name, vectorised, plain):
    horizon = 10
    if vectorised:
        F, wanted = to_casadi(NET, P, samples=horizon), symbols((4,), horizon, False)
    else:
        F, wanted = plain.map(horizon), symbols((4,), 1, False).map(horizon)
    results = []
    for each in (F, wanted):
        nlp, bounds = problem(each, horizon)
        solver = ca.nlpsol("solver", name, nlp, SOLVERS[name])
        found = solver(**bounds)
        assert solver.stats()["success"]
        results.append((found["x"].full(), solver.stats()["iter_count"], solver.get_function("nlp_hess_l")))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-8)
    assert results[0][1] == results[1][1]  # the same steps: the Hessian of the Lagrangian is exact
    z, multipliers = np.random.default_rng(0).normal(size=results[0][0].size), np.linspace(-1, 1, 30)
    hessians = [each(z, [], 1, multipliers).full() for *_, each in results]
    np.testing.assert_allclose(hessians[0], hessians[1], atol=1e-12)


def test_parameters_of_a_solver_can_be_those_of_the_network():
    F, x, p = to_casadi(NET), ca.MX.sym("x", 4), ca.MX.sym("p", NET.n_params)
    nlp = {"x": x, "p": p, "f": ca.sumsqr(F(x, p) - 0.1) + 0.01 * ca.sumsqr(x)}
    solver = ca.nlpsol("solver", "ipopt", nlp, SOLVERS["ipopt"])
    for seed in range(2):
        own = NET.init(seed, dtype="float64")
        found = solver(p=own, x0=0)["x"].full()[:, 0]
        gradient = NET.vjp(own, found[None], 2 * (NET(found[None], own) - 0.1))[1][0] + 0.02 * found
        np.testing.assert_allclose(gradient, 0, atol=1e-8)


def test_what_is_not_there_is_refused(capfd):
    F, x, p = to_casadi(NET), ca.MX.sym("x", 4), ca.MX.sym("p", NET.n_params)
    hessian = ca.Function("h", [x, p], [ca.hessian(ca.sum1(F(x, p)), p)[0]])
    with pytest.raises(RuntimeError):
        hessian(np.zeros(4), P)
    assert "F has no second derivatives with respect to its parameters p: pass p to to_casadi" in capfd.readouterr().err
    baked = to_casadi(NET, P)
    with pytest.raises(RuntimeError, match="jac_adj1_F"):
        baked.reverse(1).jacobian().jacobian()


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, r"`given` \(=4\) must be less than .* 4", lambda: to_casadi(NET, P, given=4)),
        (ValueError, "no recurrent layer", lambda: to_casadi(NET, P, step=True)),
        (ValueError, r"`given` \(=1\) must be left out with `step`", lambda: to_casadi(NET, P, step=True, given=1)),
        (ValueError, "`samples`", lambda: to_casadi(NET, P, samples=0)),
        (ValueError, "must end with .so", lambda: to_casadi(NET, P, path="model.o")),
        (ValueError, "must be a name in C", lambda: to_casadi(NET, P, name="2x")),
        (ValueError, r"`name` \(='double'\) must be a name in C, and no keyword", lambda: to_casadi(NET, P, name="double")),
        (ValueError, r"`p` must have shape \(175,\)", lambda: to_casadi(NET, P[:-1])),
        (ValueError, "`p` must be finite", lambda: to_casadi(NET, P * np.nan)),
        (ValueError, "must be of one system", lambda: to_casadi(NET, P, target="x86-64-v2,aarch64")),
        (TypeError, "are ids", lambda: to_casadi(Chain(Embedding(5, 3), input_shape=(2,)))),
        (NotImplementedError, "MaxPool", lambda: to_casadi(Chain(MaxPool(3, stride=1), input_shape=(1, 8, 8)))),
    ],
)
def test_bad_arguments_are_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_nan_goes_through(plain):
    assert np.isnan(plain([np.nan, 0, 0, 0]).full()).all()
    assert np.isnan(plain.jacobian()([np.nan, 0, 0, 0], 0).full()).any()


def test_many_solvers_share_a_library():
    F = to_casadi(NET, P, samples=10)
    solvers = []
    for k in range(4):
        nlp, bounds = problem(F, 10)
        solvers.append(ca.nlpsol(f"solver{k}", "ipopt", nlp, SOLVERS["ipopt"]))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda solver: [solver(**bounds)["x"].full() for _ in range(3)], solvers))
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])
    x = np.random.default_rng(0).normal(size=(4, 400))
    np.testing.assert_array_equal(to_casadi(NET, P).map(400, "thread", 2)(x), to_casadi(NET, P).map(400)(x))


def test_generated_code_links_the_library(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    F = to_casadi(NET, P, name="plant", path=tmp_path / "libplant.so")
    x, v = ca.MX.sym("x", 4), ca.MX.sym("v", 3)
    G = ca.Function("G", [x, v], [F(x), ca.jacobian(F(x), x), ca.hessian(ca.dot(v, F(x)), x)[0]])
    generator = ca.CodeGenerator("generated.c", {"main": True})
    generator.add(G)
    generator.generate(f"{tmp_path}/")
    subprocess.run(
        ["gcc", "-O1", "generated.c", "-o", "generated", "-L.", "-lplant", "-lm", f"-Wl,-rpath,{tmp_path}"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    values = np.random.default_rng(0).normal(size=7)
    done = subprocess.run(
        [tmp_path / "generated", "G"], input=" ".join(map(repr, values.tolist())), capture_output=True, text=True, check=True
    )
    printed = [float(each) for each in re.findall(r"\S+", done.stdout)]
    wanted = [each for array in G(values[:4], values[4:]) for each in array.full().ravel("F")]
    np.testing.assert_allclose(printed, wanted, rtol=1e-4)


def test_headers_declare_the_symbols(tmp_path):
    to_casadi(NET, P, name="plant", path=tmp_path / "plant.so", given=1)
    header = (tmp_path / "plant.h").read_text()
    assert "int jac_adj1_plant(const double **arg, double **res, long long *iw, double *w, int mem);" in header
    if shutil.which("gcc"):
        (tmp_path / "use.c").write_text('#include "plant.h"\nint main(void) { return (int)plant_n_in() - 2; }\n')
        subprocess.run(["gcc", "-Wall", "-Werror", "use.c", "./plant.so", "-o", "use"], cwd=tmp_path, check=True)
        subprocess.run(["./use"], cwd=tmp_path, check=True)


def test_several_levels_and_wide_networks():
    net = Chain(Dense(4, 64, tanh), Dense(64, 64, tanh), Dense(64, 4))  # whose functions need a workspace
    p, x, v = net.init(0, dtype="float64"), *np.random.default_rng(0).normal(size=(2, 4))
    F = to_casadi(net, p, target="x86-64-v2,x86-64-v3" if platform.machine() == "x86_64" else "native")
    np.testing.assert_allclose(F(x).full()[:, 0], net(x[None], p)[0], rtol=1e-12)
    found = F.reverse(1).jacobian()(x, 0, v, 0)[0].full()
    wanted = np.einsum("o,oij->ij", v, net.derivatives(p, x[None], full=True)[2][0])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
