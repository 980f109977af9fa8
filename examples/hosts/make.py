"""Copy the Fortran programs of this folder and write the network that they call.

python examples/hosts/make.py build
"""

import argparse
import shutil
from pathlib import Path

import chains
from chains import SGD, Chain, Dense, SquaredLoss, tanh
from chains.interop import to_torch

net = Chain(Dense(5, 32, tanh), Dense(32, 32, tanh), Dense(32, 1))
p = net.init(seed=0)


def make(folder: Path, torch: bool = False) -> None:
    """Write a project of CMake and fpm with the network; and the network for libtorch."""
    shutil.copytree(Path(__file__).parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    chains.export(net, folder / "libclosure.a", name="closure", loss=SquaredLoss(), optimizer=SGD(0.05, momentum=0.9))
    (folder / "libclosure.f90").rename(folder / "src" / "closure.f90")
    p.tofile(folder / "parameters.bin")
    if torch:
        from torch import jit, zeros

        jit.trace(to_torch(net, p), zeros(16, 5)).save(str(folder / "closure.pt"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", action="store_true", help="the network for libtorch too, closure.pt")
    given = parser.parse_args()
    make(given.folder, given.torch)
    print(f"{p.size} parameters")
