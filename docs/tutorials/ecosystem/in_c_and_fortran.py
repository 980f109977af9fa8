"""
A network in C and Fortran
==========================

A simulator in C or Fortran needs the enthalpy of a gas a million times a second. A network is fitted to it once, in Python.
It becomes an object file that needs no runtime, with a header and a Fortran module.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import chains
from chains import Chain, Dense, SquaredLoss, minimize, tanh

# %%
# The enthalpy of nitrogen from 300 to 1,500 kelvin, in kJ/mol, by NIST's formula (Shomate; webbook.nist.gov, two ranges).


def enthalpy(T):
    low, high = (
        (28.98641, 1.853978, -9.647459, 16.63537, 0.000117, -8.671914),
        (19.50583, 19.88705, -8.598535, 1.369784, 0.527601, -4.935202),
    )
    a, b, c, d, e, f = np.where(T[..., None] < 500, low, high).T
    t = T.T / 1000
    return (a * t + b * t**2 / 2 + c * t**3 / 3 + d * t**4 / 4 - e / t + f).T


T = np.linspace(300.0, 1500.0, 121)[:, None]
x, t = (T - 900.0) / 600.0, enthalpy(T) / 20.0
net = Chain(Dense(1, 6, tanh), Dense(6, 1))
p = minimize(net.objective(x, t, SquaredLoss()), net.init(seed=0, dtype=np.float64), "LM", progress=False).x
print(f"largest error: {20 * np.abs(net(x, p) - t).max():.3f} kJ/mol, of up to {20 * t.max():.1f}")

# %%
# One call writes the object file, the header and the Fortran module. The parameters are part of the code.

folder = Path(tempfile.mkdtemp())
for path in chains.export(net, folder / "gas.o", p, name="gas", dtype="float64", derivatives=("jacobian",)):
    print(path.name, path.stat().st_size, "bytes")

# %%
# A program in C prints enthalpies and, by the exact derivative, heat capacities.

(folder / "main.c").write_text("""
#include <stdio.h>
#include "gas.h"

int main(void) {
    for (int k = 0; k <= 12; k++) {
        double T = 300 + 100 * k, x = (T - 900) / 600, y, slope;
        gas_forward(1, &x, &y);
        gas_jacobian(1, &x, &slope);
        printf("%g %.6f %.6f\\n", T, 20 * y, 1000 * 20 * slope / 600);
    }
}
""")

# %%
# The same in Fortran: the module knows the interfaces.

(folder / "main.f90").write_text("""
program main
  use gas
  implicit none
  real(8) :: x(1, 1), y(1, 1), slope(1, 1, 1)
  integer :: k
  do k = 0, 12
    x = (300 + 100 * k - 900) / 600d0
    call gas_forward(1_8, x, y)
    call gas_jacobian(1_8, x, slope)
    print *, 300 + 100 * k, 20 * y, 1000 * 20 * slope / 600
  end do
end program
""")

tables = {}
for name, compiler in (("C", ["cc", "main.c"]), ("Fortran", ["gfortran", "gas.f90", "main.f90"])):
    if shutil.which(compiler[0]):
        subprocess.run([*compiler, "gas.o", "-o", "main"], cwd=folder, check=True)
        printed = subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout
        tables[name] = np.loadtxt(printed.splitlines())
        here = 20 * net((tables[name][:, :1] - 900) / 600, p)[:, 0]
        print(f"{name}: largest difference from Python {np.abs(tables[name][:, 1] - here).max():.0e}")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
axes[0].plot(T, 20 * t, color="0.6", label="NIST's formula")
axes[1].plot(T, np.gradient(20 * t[:, 0], T[:, 0]) * 1000, color="0.6", label="NIST's formula")
for marker, (name, table) in zip("ox", tables.items(), strict=False):
    axes[0].plot(table[:, 0], table[:, 1], marker, label=name)
    axes[1].plot(table[:, 0], table[:, 2], marker, label=name)
axes[0].set(xlabel="temperature [K]", ylabel="enthalpy [kJ/mol]")
axes[1].set(xlabel="temperature [K]", ylabel="heat capacity [J/(mol K)]")
axes[0].legend()

# %%
# To try next: a training step in C (``loss=``, ``optimizer=``), other processors (``target=``), and
# :doc:`the page on exports </export>`.
