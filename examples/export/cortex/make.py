"""A network that is trained on a microcontroller: Cortex-M4 and Cortex-M7 in qemu, as an object file and as C99.

python examples/export/cortex/make.py build
"""

import argparse
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import chains
from chains import Adam, Chain, Dense, SquaredLoss, tanh

BOARDS = {"cortex-m4": "mps2-an386", "cortex-m7": "mps2-an500"}
SAMPLES, STEPS = 8, 200
HERE = Path(__file__).parent

net = Chain(Dense(3, 16, tanh), Dense(16, 2))
loss, optimizer = SquaredLoss(), Adam(1e-2)
p = net.init(seed=0)
x = np.random.default_rng(0).normal(size=(SAMPLES, 3)).astype(np.float32)
t = np.stack([x.prod(1), np.sin(x.sum(1))], axis=1)


def expected() -> str:
    """The first line that the device prints, as this computer has it."""
    y = net(x, p)
    g, _ = net.vjp(p, x, y)
    trained = p.copy()
    chains.train(net, trained, x, t, loss, optimizer, epochs=STEPS, batch_size=SAMPLES, shuffle=False)
    first, last = net.loss(p, x, t, loss), net.loss(trained, x, t, loss)
    return f"outputs {y.sum():.5f}, gradients {g.sum():.5f}, loss {first:.6f}, after {STEPS} steps {last:.6f}"


def options_for(processor: str) -> list[str]:
    """The options of the compiler."""
    return [f"-mcpu={processor}", "-mthumb", "-mfloat-abi=hard", "-mfpu=auto", "-O2", "-Wall"]


def model(path: Path, processor: str, p: np.ndarray | None, **settings: Any) -> Path:
    """Write a file `.o` or `.c`. Returns the object file, which is that of the compiler for C99."""
    chains.export(net, path, p, **settings, **({"target": processor} if path.suffix == ".o" else {}))
    if path.suffix == ".o":
        return path
    compiled = path.with_name(f"{path.stem}-c99.o")
    subprocess.run(["arm-none-eabi-gcc", *options_for(processor), "-c", path, "-o", compiled], check=True)
    return compiled


def build(folder: Path, processor: str, suffix: str = ".o") -> Path:
    """Write the network for a processor, and compile the program."""
    folder.mkdir(parents=True, exist_ok=True)
    code = model(folder / f"model{suffix}", processor, None, loss=loss, optimizer=optimizer)
    arrays = {"parameters": p, "x": x, "t": t}
    lines = [f"#define SAMPLES {SAMPLES}", f"#define STEPS {STEPS}", f"#define WORK_BYTES {4096 if suffix == '.o' else 0}"]
    for name, array in arrays.items():
        numbers = ", ".join(f"{number!r}f" for number in array.ravel().tolist())
        lines.append(f"static const float {name}[] = {{{numbers}}};")
    (folder / "data.h").write_text("\n".join(lines) + "\n")
    program = folder / "program.elf"
    options = ["-Wl,-z,noexecstack", "--specs=rdimon.specs", f"-T{HERE / 'board.ld'}", f"-I{folder}"]
    files = [HERE / "main.c", HERE / "start.c", code, "-lm", "-o", program]
    subprocess.run(["arm-none-eabi-gcc", *options_for(processor), *options, *files], check=True)
    return program


def run(program: Path, processor: str) -> str:
    """What the program prints on the board."""
    board = ["-M", BOARDS[processor], "-nographic", "-monitor", "none", "-serial", "none"]
    command = ["qemu-system-arm", *board, "-semihosting", "-icount", "shift=0", "-kernel", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print(f"this computer: {expected()}")
    for processor in BOARDS:
        for suffix in (".o", ".c"):
            place = folder / processor / suffix[1:]
            print(f"{processor}, {suffix}: {run(build(place, processor, suffix), processor)}")
            files = [*place.glob("model*.o"), model(place / f"forward{suffix}", processor, p, gradient=None)]
            subprocess.run(["arm-none-eabi-size", *files], check=True)
