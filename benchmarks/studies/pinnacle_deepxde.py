"""Five problems of PINNacle by `solve` and by DeepXDE: ``python -m benchmarks.studies.pinnacle_deepxde --data FOLDER``.

Both have the same points, network and seconds of one processor. DeepXDE, on PyTorch, takes Adam for a third of the time and
then L-BFGS, as its documentation recommends, or Adam throughout with ``--adam``. Its residuals are the equations as they are
written, without weights. Without `deepxde` and `torch`, only `solve` is run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.pinnacle import WIDTH, solved
from benchmarks.studies.pinnacle_cases import CASES, Case, Context

PI = np.pi
NAMES = ("Burgers1d-C", "Poisson2d-C", "Poisson2d-CG", "Wave1d-C", "NS2d-C")
FIRST = 1.0 / 3.0  # Adam's share of the time
BETWEEN = 20  # iterations of L-BFGS between two looks at the clock


def deepxde_error(name: str, folder: Path, seed: int, seconds: float, share: float) -> tuple[float, int]:
    """The relative L2 error of DeepXDE after these seconds of a processor, `share` of them with Adam; and its iterations."""
    os.environ["DDE_BACKEND"] = "pytorch"
    import deepxde
    import torch

    torch.set_num_threads(1)
    deepxde.config.set_default_float("float64")
    deepxde.config.set_random_seed(seed)
    case = CASES[name](Context(np.random.default_rng(seed), folder))
    places, solution = case.solution
    points = case.terms[0].points
    data = deepxde.data.PDE(
        deepxde.geometry.PointCloud(points), _equation(name, deepxde, torch), _conditions(name, case, deepxde), anchors=points
    )
    sizes = [len(case.coordinates), WIDTH, WIDTH, WIDTH, len(solution)]
    model = deepxde.Model(data, deepxde.nn.FNN(sizes, "tanh", "Glorot normal"))
    end, steps = time.process_time() + seconds, 0
    for optimizer, until in (("adam", end - (1.0 - share) * seconds), ("L-BFGS", end)):
        if time.process_time() >= until:
            continue
        deepxde.optimizers.set_LBFGS_options(maxiter=10**6)
        deepxde.optimizers.LBFGS_options["iter_per_step"] = BETWEEN
        deepxde.optimizers.LBFGS_options["fun_per_step"] = 2 * BETWEEN
        model.compile(optimizer, lr=1e-3 if optimizer == "adam" else None, verbose=0)
        clock = _clock(deepxde, until)
        kwargs = {"iterations": 10**9} if optimizer == "adam" else {}
        model.train(display_every=10**9, verbose=0, callbacks=[clock], **kwargs)
        steps = model.train_state.step
    found, exact = model.predict(places), np.stack([*solution.values()], axis=1)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact)), steps


def _clock(deepxde: Any, until: float) -> Any:
    """A callback that ends the training at this time of the processor."""

    class Clock(deepxde.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self) -> None:
            self.model.stop_training = time.process_time() >= until

    return Clock()


def _equation(name: str, deepxde: Any, torch: Any) -> Callable[[Any, Any], Any]:
    """The residuals of a problem as functions of tensors; coordinates are in the order of the case."""
    sin = torch.sin

    def first(u: Any, x: Any, j: int, i: int = 0) -> Any:
        return deepxde.grad.jacobian(u, x, i=i, j=j)

    def second(u: Any, x: Any, j: int, component: int = 0) -> Any:
        return deepxde.grad.hessian(u, x, component=component, i=j, j=j)

    def burgers(x: Any, u: Any) -> Any:
        return first(u, x, 0) + u * first(u, x, 1) - 0.01 / PI * second(u, x, 1)

    def laplace(x: Any, u: Any) -> Any:
        return second(u, x, 0) + second(u, x, 1)

    def boltzmann(x: Any, u: Any) -> Any:
        a, b = x[:, :1], x[:, 1:]
        source = 10.0 * (17.0 + a * a + b * b) * sin(PI * a) * sin(4.0 * PI * b)
        return second(u, x, 0) + second(u, x, 1) - 64.0 * u + source

    def wave(x: Any, u: Any) -> Any:
        return second(u, x, 0) - 4.0 * second(u, x, 1)

    def flow(x: Any, y: Any) -> Any:
        u, v = y[:, :1], y[:, 1:2]
        moments = [
            u * first(y, x, 0, i) + v * first(y, x, 1, i) + first(y, x, i, 2) - 0.01 * (second(y, x, 0, i) + second(y, x, 1, i))
            for i in (0, 1)
        ]
        return [*moments, first(y, x, 0, 0) + first(y, x, 1, 1)]

    return dict(zip(NAMES, (burgers, laplace, boltzmann, wave, flow), strict=True))[name]


def _conditions(name: str, case: Case, deepxde: Any) -> list[Any]:
    """The conditions of a problem at the points of the case."""
    points = [np.asarray(term.points) for term in case.terms]

    def values(number: int, given: Any, component: int = 0) -> Any:
        column = np.broadcast_to(np.asarray(given, float), len(points[number])).reshape(-1, 1)
        return deepxde.icbc.PointSetBC(points[number], column, component=component)

    if name == "Burgers1d-C":
        return [values(1, -np.sin(PI * points[1][:, 1])), values(2, 0.0)]
    if name == "Poisson2d-C":
        return [values(1, 1.0), values(2, 0.0)]
    if name == "Poisson2d-CG":
        return [values(1, 0.2), values(2, 1.0)]
    if name == "Wave1d-C":
        x = points[1][:, 1]

        def speed(inputs: Any, outputs: Any, _: Any) -> Any:
            return deepxde.grad.jacobian(outputs, inputs, i=0, j=0)

        still = deepxde.icbc.PointSetOperatorBC(points[1], np.zeros((len(x), 1)), speed)
        return [values(1, np.sin(PI * x) + 0.5 * np.sin(4.0 * PI * x)), still, values(2, 0.0)]
    lid = points[1][:, 0]
    return [values(1, 4.0 * lid * (1.0 - lid)), values(1, 0.0, 1), values(2, 0.0), values(2, 0.0, 1), values(3, 0.0, 2)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", choices=[*NAMES, []], help="problems, by default all: " + ", ".join(NAMES)
    )
    parser.add_argument("--data", type=Path, default=Path("ref"), help="the folder of reference solutions")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one processor, for each")
    parser.add_argument("--iterations", type=int, default=10**6, help="the most iterations of `solve`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adam", action="store_true", help="DeepXDE with Adam throughout")
    given = parser.parse_args(arguments)
    there = all(importlib.util.find_spec(each) for each in ("deepxde", "torch"))
    print("| problem | chains | success | iterations | DeepXDE | iterations |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in given.names or NAMES:
        try:
            found = solved(name, given.data, given.seed, given.seconds, given.iterations)
        except FileNotFoundError as error:
            print(f"| {name} | there is no {error.filename}: pass --data | | | | |")
            continue
        other = "deepxde is not installed | "
        if there:
            share = 1.0 if given.adam else FIRST
            with redirect_stdout(sys.stderr):
                error, steps = deepxde_error(name, given.data, given.seed, given.seconds, share)
            other = f"{error:.1e} | {steps}"
        print(f"| {name} | {found.error:.1e} | {'yes' if found.success else 'no'} | {found.iterations} | {other} |", flush=True)


if __name__ == "__main__":
    main()
