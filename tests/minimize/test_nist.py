"""Fits of NIST's data sets end at the certified sums of squares, from both published starts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies import nist
from benchmarks.studies.nist_data import PROBLEMS
from chains import minimize

# Starts from which BFGS ends elsewhere, or does so depending on rounding; SciPy's fails from seven of them.
HARD = {("MGH10", 1), ("Bennett5", 1), ("Bennett5", 2), ("MGH17", 1)} | {(f"Lanczos{k}", n) for k in (1, 2, 3) for n in (1, 2)}


@pytest.mark.parametrize("method", ["BFGS", "LM"])
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning", "ignore:the parameters have sizes")
def test_both_starts_end_at_the_certified_value(name, method):
    problem = PROBLEMS[name]
    function = nist.objective(problem)
    for number, start in enumerate(problem.starts, 1):
        if method == "BFGS" and (name, number) in HARD:
            continue
        found = minimize(function, np.array(start, float), method, gtol=0.0, progress=False)
        assert nist.digits(problem, function, found.x) >= nist.SOLVED, number
        assert found.message == "the precision of the values is reached"


def test_a_gradient_that_is_not_the_functions_is_no_lack_of_precision():
    found = minimize(lambda p: (float(p @ p), -2.0 * p), np.ones(2))
    assert not found.success
    assert found.message == "no lower value was found along the line, though the gradient promises one"


@pytest.mark.parametrize("method", ["BFGS", "L-BFGS"])
def test_points_whose_gradient_is_nan_are_not_reached(method):
    """Also where their values are lower."""

    def bowl(p):
        return float(p @ p), np.where(abs(p) < 0.5, np.nan, 2.0 * p)

    found = minimize(bowl, np.array([2.0, 3.0]), method)
    assert np.isfinite(found.jac).all()
    assert found.fun < 13.0


class WrongJacobian:
    """The bowl p'p / 2, whose gradient has the wrong sign."""

    def __call__(self, p):
        return self.value(p), -p

    def value(self, p):
        return 0.5 * float(p @ p)

    def normal_equations(self, p):
        return self.value(p), -p, np.eye(len(p))


def test_a_jacobian_that_is_not_the_functions_is_no_lack_of_precision():
    found = minimize(WrongJacobian(), np.ones(2), "LM")
    assert not found.success
    assert found.message == "no lower value was found at any damping, though the model promises one"


@pytest.mark.parametrize("method", ["BFGS", "L-BFGS"])
def test_a_badly_scaled_valley(method):
    """Rosenbrock's function of parameters of 1e4 and 1e-4: a warning says what would help."""
    optimize = pytest.importorskip("scipy.optimize")
    scales = np.array([1e-4, 1e4])
    with pytest.warns(UserWarning, match=r"sizes from 0.0001 to 1.2e\+04.*bounds in their layer.*frozen `Scale`") as warned:
        found = minimize(
            lambda p: (optimize.rosen(p * scales), optimize.rosen_der(p * scales) * scales), [-1.2e4, 1e-4], method, ftol=0.0
        )
    assert [each.filename for each in warned] == [__file__]
    assert found.success
    assert found.fun < 1e-15


def test_the_table_is_printed(capsys):
    pytest.importorskip("scipy")
    nist.main(["Misra1a", "--perturbed", "1", "--methods", "BFGS", "MINPACK", "--backend", "numpy"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "| solved of 2 | published | 2 | 2 |"
    assert lines[-2] == "| solved of 1 | perturbed | 1 | 1 |"
