"""Write the network that the examples of this folder use, with an input and the results that they are to print.

python examples/export/make.py build --target native
"""

import argparse
from pathlib import Path

import numpy as np

import chains
from chains import Chain, Dense, SquaredLoss, tanh

net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
p = net.init(seed=0)
x = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)


def expected() -> str:
    """What every example prints: the sum of the outputs, and those of the gradients of half the sum of their squares."""
    y = net(x, p)
    g, dx = net.vjp(p, x, y)
    return f"{y.sum():.4f} {g.sum():.4f} {dx.sum():.4f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="native")
    parser.add_argument("--suffix", default=".o")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    chains.export(net, given.folder / f"model{given.suffix}", loss=SquaredLoss(), target=given.target)
    numbers = ", ".join(f"{number!r}f" for number in p.tolist())
    (given.folder / "parameters.h").write_text(f"static const float parameters[] = {{{numbers}}};\n")
    (given.folder / "parameters.txt").write_text("\n".join(map(repr, p.tolist())) + "\n")
    print(expected())
