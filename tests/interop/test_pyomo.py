"""Networks as grey boxes of Pyomo: values, Jacobians, Hessians, and Ipopt where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from chains import BatchNorm, Chain, Dense, tanh
from chains.interop import to_pyomo

pytest.importorskip("pyomo")
pytest.importorskip("scipy")

NET = Chain(Dense(3, 8, tanh), Dense(8, 2))
P = NET.init(0, dtype="float64")


@pytest.mark.parametrize("samples", [1, 3])
def test_values_and_derivatives(samples):
    model = to_pyomo(NET, P, samples=samples)
    x, v = np.random.default_rng(0).normal(size=(samples, 3)), np.random.default_rng(1).normal(size=(samples, 2))
    assert model.n_inputs() == 3 * samples == len(set(model.input_names()))
    assert model.n_outputs() == 2 * samples == len(set(model.output_names()))
    model.set_input_values(x.ravel())
    model.set_output_constraint_multipliers(v.ravel())
    np.testing.assert_array_equal(model.evaluate_outputs(), NET(x, P).ravel())
    jacobian, hessian = model.evaluate_jacobian_outputs().toarray(), model.evaluate_hessian_outputs().toarray()
    assert np.array_equal(np.tril(hessian), hessian)
    hessian += np.tril(hessian, -1).T
    for k, step in enumerate(1e-5 * np.eye(3 * samples)):
        ends, slopes = [], []
        for sign in (1, -1):
            model.set_input_values(x.ravel() + sign * step)
            ends.append(model.evaluate_outputs())
            slopes.append(v.ravel() @ model.evaluate_jacobian_outputs().toarray())
        np.testing.assert_allclose(jacobian[:, k], (ends[0] - ends[1]) / 2e-5, atol=1e-9)
        np.testing.assert_allclose(hessian[k], (slopes[0] - slopes[1]) / 2e-5, atol=1e-9)


def test_ipopt_takes_exact_hessians():
    pytest.importorskip("cyipopt")
    import pyomo.environ as pyo
    from pyomo.contrib.pynumero.asl import AmplInterface
    from pyomo.contrib.pynumero.interfaces.external_grey_box import ExternalGreyBoxBlock

    if not AmplInterface.available():
        pytest.skip("PyNumero's library of AMPL is not installed")
    problem = pyo.ConcreteModel()
    problem.box = ExternalGreyBoxBlock()
    problem.box.set_external_model(to_pyomo(NET, P))
    x, y = problem.box.inputs, problem.box.outputs
    problem.limit = pyo.Constraint(expr=y["y1"] >= 0.1)
    problem.cost = pyo.Objective(expr=(y["y0"] - 0.3) ** 2 + 0.1 * sum(x[name] ** 2 for name in x))
    found = pyo.SolverFactory("cyipopt").solve(problem, options={"hessian_approximation": "exact", "tol": 1e-10})
    assert found.solver.termination_condition == "optimal"
    point = np.array([[x[f"x{k}"].value for k in range(3)]])
    value = NET(point, P)[0]
    np.testing.assert_allclose(value, [y["y0"].value, y["y1"].value], atol=1e-9)
    assert value[1] >= 0.1 - 1e-8
    J = NET.input_jacobian(P, point)[0]
    gradient = 2 * (value[0] - 0.3) * J[0] + 0.2 * point[0]
    multiplier = gradient @ J[1] / (J[1] @ J[1])  # of the limit, where it holds with equality
    np.testing.assert_allclose(gradient, (multiplier if abs(value[1] - 0.1) < 1e-6 else 0) * J[1], atol=1e-6)


def test_bad_arguments_are_refused():
    model = to_pyomo(NET, P)
    assert repr(model) == f"GreyBox({NET!r}, samples=1)"
    with pytest.raises(ValueError, match=r"`input_values` has shape \(2,\): wanted \(3,\)"):
        model.set_input_values([1, 2])
    with pytest.raises(ValueError, match="`samples`"):
        to_pyomo(NET, P, samples=0)
    with pytest.raises(ValueError, match="`p` must be finite"):
        to_pyomo(NET, np.full_like(P, np.inf))
    with pytest.raises((TypeError, ValueError), match="state"):
        to_pyomo(net := Chain(Dense(3, 2), BatchNorm(2)), net.init(0))
