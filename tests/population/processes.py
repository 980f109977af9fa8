"""Run by several processes: each has its own subjects, and all get the fit of all subjects."""

import numpy as np
import pytest
from mpi4py import MPI

from chains.population import Proportional
from tests.mpi import check_equal
from tests.population.cases import closed_form

comm = MPI.COMM_WORLD
model, x, y, number = closed_form(Proportional(0.02))
mine = number % comm.size == comm.rank
theta = model.init()
whole = model.objective(x, y, number)(theta)
own = model.objective(x[mine], y[mine], number[mine], comm=comm)
for name, found, wanted in zip(("value", "gradient"), own(theta), whole, strict=True):
    check_equal(comm, name, found, wanted, 1e-9)
alone, fit = model.fit(x, y, number), model.fit(x[mine], y[mine], number[mine], comm=comm)
check_equal(comm, "minimum", fit.theta, alone.theta, 1e-3)
check_equal(comm, "errors", [*fit.standard_errors().values()], [*alone.standard_errors().values()], 1e-3)
assert len(fit.effects) == np.unique(number[mine]).size
with pytest.raises((ValueError, RuntimeError), match="`y` has shape"):
    model.objective(x[mine], y[mine][comm.rank :], number[mine], comm=comm)
