"""The problems, and who takes part in each."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import chains
from benchmarks.harness.machine import blas_modes
from benchmarks.harness.timing import Contestant as Stepper
from benchmarks.peers.chains_dense import network, settings
from benchmarks.problems import matrix_exp
from benchmarks.problems.dense import Problem, initial, value_and_grad
from benchmarks.studies.by_hand import peers
from benchmarks.studies.by_hand.builds import Builder, aligned, function
from chains import GRU, ODE, Adam, Chain, Conv, Dense, MaxPool, MSELoss, SquaredLoss, relu, tanh

PADDED = 768  # the parameters of 4-32-16-4 by hand, a multiple of every vector
DIGITS, HIDDEN = (784, 30, 10), 1_000  # sizes; steps of a run
MEMBERS, SAMPLES = 1_000, 64
CALLS = 100  # from Python, of one sample
Others = Callable[[np.ndarray, np.ndarray], Iterable[peers.Peer]]  # of the parameters and the outputs


@dataclass(frozen=True)
class Contestant:
    """`run()` does `count` of what is measured; `answer` is what it has computed, after a run from the start."""

    name: str
    count: int
    start: Callable[[], None]
    run: Callable[[], Any]
    answer: Callable[[], float]


@dataclass(frozen=True)
class Row:
    """A problem with its contestants. Answers may differ by `tolerance`, relatively, those of libraries by `of_libraries`."""

    title: str
    contestants: list[Contestant]
    tolerance: float
    of_libraries: float = 1e-5


# Training steps


def dense(builder: Builder, samples: int, threads: int) -> Row:
    """Steps of Adam on full batches of 4-32-16-4."""
    problem, count = matrix_exp.problem(samples, "float32"), max(10, min(10_000, 200_000 // samples))
    found = [_trained("chains, `train`", problem, threads, count)]
    programs = builder.programs("single" if samples == 1 else "dense")
    for name, library in programs.items():
        if threads == 1 or name.startswith("by hand"):
            found.append(_stepped(name, function(library, "train", ctypes.c_double), problem, threads, count))
    found += [_of_stepper(each, problem, count) for each in (peers.steps(builder.libraries, problem) if threads == 1 else ())]
    plural = "s" * (threads > 1)
    title = f"4-32-16-4, {samples:,} sample{'s' * (samples > 1)}, a step of Adam, {threads} thread{plural}"
    alone = samples == 1  # a loss near zero; libraries compute Adam's corrections in float32
    return Row(title, found, 1e-5 if alone else 1e-7, 1e-3 if alone else 1e-5)


def _of_stepper(each: Stepper, problem: Problem, count: int) -> Contestant:
    """Another library. Its steps in a call are a multiple of its chunk; its answer is judged by its own rounding."""
    count = -(-count // each.chunk) * each.chunk

    def start() -> None:
        each.prepare()
        each.start()

    judged = _judged(problem, start, partial(each.run, 100), each.result)
    return Contestant(each.name, count, start, partial(each.run, count), judged)


def _trained(name: str, problem: Problem, threads: int, count: int) -> Contestant:
    net, (loss, optimizer), p = network(problem, "native"), settings(problem), problem.p.copy()

    def start() -> None:
        chains.set_num_threads(threads)
        p[...] = problem.p

    def run(epochs: int = count) -> None:
        chains.train(net, p, problem.x, problem.t, loss, optimizer, epochs=epochs, progress=False)

    return Contestant(name, count, start, run, _judged(problem, start, partial(run, 100), lambda: p))


def _judged(problem: Problem, start: Any, run: Callable[[], Any], found: Callable[[], np.ndarray]) -> Callable[[], float]:
    """The loss of the parameters after a short run, in float64."""

    def answer() -> float:
        start()
        run()
        return float(value_and_grad(problem, found())[0])

    return answer


def _stepped(name: str, train: Any, problem: Problem, threads: int, count: int) -> Contestant:
    x, t, p = aligned(problem.x), aligned(problem.t), aligned(problem.p, PADDED)
    moments, powers = aligned(np.zeros(2 * PADDED, np.float32)), np.ones(2)

    def start() -> None:
        p[: problem.p.size], moments[...], powers[...] = problem.p, 0.0, 1.0

    def run(steps: int = count) -> None:
        train(steps, problem.samples, threads, x, t, p, moments, powers)

    return Contestant(name, count, start, run, _judged(problem, start, partial(run, 100), lambda: p[: problem.p.size]))


def digits(builder: Builder, samples: int, count: int) -> Row:
    """Steps of ten samples of 784-30-10, drawn anew from `samples`."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(samples, DIGITS[0])).astype(np.float32)
    t = np.eye(DIGITS[2], dtype=np.float32)[rng.integers(0, 10, samples)]
    p = initial(DIGITS, "normal", 0, np.float32) * np.float32(0.2)
    problem = Problem(DIGITS, "sigmoid", "sigmoid", "squared", "sgd", 3.0, x, t, p, 10)
    order = np.concatenate([np.random.default_rng(k).permutation(samples) for k in range(-(-10 * count // samples))])
    found = [_epochs(problem, count)]
    for name, library in builder.programs("digits").items():
        found.append(_descended(name, function(library, "digits", ctypes.c_double), problem, order, count))
    judged = np.concatenate([np.arange(samples), order[samples:]])  # in this order for the answer
    found += [_of_stepper(each, problem, count) for each in peers.batches(builder.libraries, problem, judged)]
    return Row(f"784-30-10, batch 10 of {samples:,}, gradient descent, {count:,} steps in a call, 1 thread", found, 1e-6)


def _epochs(problem: Problem, count: int) -> Contestant:
    net, (loss, optimizer), p = network(problem, "native"), settings(problem), problem.p.copy()
    whole = problem.samples // 10

    def start() -> None:
        chains.set_num_threads(1)
        p[...] = problem.p

    def run(steps: int = count, shuffle: bool = True) -> None:
        chains.train(
            net, p, problem.x, problem.t, loss, optimizer,
            epochs=steps // whole, batch_size=10, shuffle=shuffle, progress=False, check_finite=False,
        )  # fmt: skip

    return Contestant("chains, `train`", count, start, run, _judged(problem, start, partial(run, whole, False), lambda: p))


def _descended(name: str, train: Any, problem: Problem, order: np.ndarray, count: int) -> Contestant:
    x, t, p = aligned(problem.x), aligned(problem.t), aligned(problem.p)
    plain = np.arange(problem.samples)

    def start() -> None:
        p[...] = problem.p

    def run(steps: int = count, order: np.ndarray = order) -> None:
        train(steps, x, t, order, p, ctypes.c_double(problem.rate))

    steps = problem.samples // 10
    return Contestant(name, count, start, run, _judged(problem, start, partial(run, steps, plain), lambda: p))


def ensemble(builder: Builder) -> Row:
    """Steps of 1,000 networks on the same data."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 2)).astype(np.float32)
    t = (np.sin(2 * x[:, :1]) * x[:, 1:]).astype(np.float32)
    net = Chain(Dense(2, 8, tanh), Dense(8, 8, tanh), Dense(8, 1), backend="native")
    begun, count = net.init_many(MEMBERS), 50

    def value(row: np.ndarray) -> float:
        return net.value_and_grad(row, x.astype(np.float64), t.astype(np.float64), MSELoss())[0]

    def contestant(name: str, train: Callable[[np.ndarray], Any]) -> Contestant:
        p = begun.copy()

        def start() -> None:
            chains.set_num_threads(1)
            p[...] = begun

        def answer() -> float:
            start()
            train(p)
            return float(np.mean([value(row) for row in p.astype(np.float64)]))

        return Contestant(name, count, start, lambda: train(p), answer)

    def by_hand(train: Any) -> Callable[[np.ndarray], Any]:
        return lambda p: train(count, MEMBERS, x, t, p, np.zeros(2 * p.size, np.float32))

    def by_chains(p: np.ndarray) -> None:
        chains.train(net, p, x, t, MSELoss(), Adam(1e-3), epochs=count, batch_size=None, progress=False, check_finite=False)

    found = [contestant("chains, `train`", by_chains)]
    for name, library in builder.programs("members").items():
        found.append(contestant(name, by_hand(function(library, "members", ctypes.c_double))))
    named = {each.name: begun[:, each.start : each.stop].reshape(MEMBERS, *each.shape) for each in net.layout}
    for each in peers.members(builder.libraries, x, t, named):
        found.append(contestant(each.name, partial(_moved, each, count)))
    return Row(f"{MEMBERS:,} networks 2-8-8-1, {SAMPLES} samples, a step of Adam of all, 1 thread", found, 1e-6)


def _moved(each: Stepper, steps: int, p: np.ndarray) -> None:
    """Steps of another library, from its own start to these parameters."""
    each.start()
    each.run(steps)
    p[...] = each.result()


# Calls of one sample from C


def forward(builder: Builder) -> Row:
    """The outputs of 4-32-16-4, one sample a call."""
    problem = matrix_exp.problem(1, "float32")
    net, call, count = network(problem, "native"), function(builder.loops, "forwards"), 20_000

    def contestant(name: str, f: Any) -> Contestant:
        x, y, p = problem.x.copy(), np.zeros(4, np.float32), aligned(problem.p)

        def start() -> None:
            x[...] = problem.x

        def answer() -> float:
            start()
            call(f, 1, x, p, y)
            return float(y.sum())

        return Contestant(name, count, start, lambda: call(f, count, x, p, y), answer)

    found = [contestant(name, library.model_forward) for name, library in _exported(builder, net)]
    found += [contestant(name, library.forward) for name, library in builder.programs("single").items()]
    x, y = problem.x, np.zeros((1, 4), np.float32)
    others = [*peers.outputs(builder.libraries, net, x, problem.p, y), *peers.dense_outputs(builder.libraries, problem, x, y)]
    found += [_of_peer(each, y) for each in others]
    return Row("4-32-16-4, the outputs of one sample, called from C", found, 1e-6)


def _exported(builder: Builder, net: Chain, source: bool = True, **settings: Any) -> Iterator[tuple[str, ctypes.CDLL]]:
    """The network as machine code, and as C99 by each compiler at the levels that docs/export.md names."""
    folder = Path(tempfile.mkdtemp(dir=builder.folder))
    target = "native" if builder.floats == 16 else "x86-64-v3"
    chains.export(net, folder / "model.so", dtype="float32", target=target, **settings)
    yield "chains, exported machine code", ctypes.CDLL(str(folder / "model.so"))
    if not source:
        return
    chains.export(net, folder / "model.c", dtype="float32", **settings)
    for compiler in builder.compilers:
        for level in ("-O2", "-O3"):
            library = builder.library(folder / "model.c", compiler, "-std=gnu99", level)
            yield f"chains, exported C99, {compiler.name} {level}", library


def training_step(builder: Builder, begun: int) -> Row:
    """The exported training step of 4-32-16-4, one sample a call, after `begun` steps."""
    problem = matrix_exp.problem(1, "float32")
    net, (loss, optimizer) = network(problem, "native"), settings(problem)
    call, count = function(builder.loops, "steps", ctypes.c_float), 10_000

    def contestant(name: str, f: Any, by_hand: bool) -> Contestant:
        x, t, p = problem.x, problem.t, aligned(problem.p, PADDED)
        moments = aligned(np.zeros(2 * PADDED + 64, np.float32))
        place = np.ones(2)

        def start(at: int = begun) -> None:
            p[: problem.p.size], moments[...] = problem.p, 0.0
            place[...] = (0.9**at, 0.999**at) if by_hand else (at, at)

        def answer() -> float:
            start(0)
            call(f, 100, x, t, p, moments, place)
            return float(np.abs(p[: problem.p.size]).sum())

        return Contestant(name, count, start, lambda: call(f, count, x, t, p, moments, place), answer)

    exported = _exported(builder, net, loss=loss, optimizer=optimizer)
    found = [contestant(name, library.model_step, False) for name, library in exported]
    found += [contestant(name, library.step, True) for name, library in builder.programs("single").items()]
    return Row(f"4-32-16-4, a training step of Adam on one sample, called from C, from step {begun:,} on", found, 1e-6)


def stream(builder: Builder) -> Row:
    """One step of a GRU and a Dense layer."""
    net = Chain(GRU(4, 32), Dense(32, 1), input_shape=(50, 4), backend="native")
    p0 = net.init(0)
    p0 += np.float32(0.1) * np.random.default_rng(1).normal(size=p0.size).astype(np.float32)
    x0 = np.array([0.3, -1.0, 0.5, 0.1], np.float32)
    call, count = function(builder.loops, "streams"), 10_000

    def contestant(name: str, f: Any) -> Contestant:
        x, y, p, carried = x0.copy(), np.zeros(1, np.float32), aligned(p0), aligned(np.zeros(64, np.float32))

        def start() -> None:
            x[...], carried[...] = x0, 0.0

        def answer() -> float:
            start()
            call(f, 10, x, p, y, carried)
            return float(y[0])

        return Contestant(name, count, start, lambda: call(f, count, x, p, y, carried), answer)

    found = [contestant(name, library.model_stream) for name, library in _exported(builder, net)]
    found += [contestant(name, library.stream) for name, library in builder.programs("gru").items()]
    return Row("GRU 4 -> 32 and Dense(32, 1), a step of a sequence, called from C", found, 1e-5)


def _of_peer(each: peers.Peer, y: np.ndarray) -> Contestant:
    """A library that fills `y` when it is called from Python."""

    def answer() -> float:
        y[...] = 0.0
        each.run()
        return float(y.sum())

    def run() -> None:
        for _ in range(CALLS):
            each.run()

    return Contestant(each.name, CALLS, lambda: None, run, answer)


# Outputs of other networks


def images(builder: Builder) -> Row:
    """LeNet-5's convolutions on 256 images."""
    layers = (Conv(1, 6, 5, activation=relu), MaxPool(2), Conv(6, 16, 5, activation=relu), MaxPool(2))
    net = Chain(*layers, input_shape=(1, 28, 28), backend="native")
    x = np.random.default_rng(0).uniform(size=(256, 1, 28, 28)).astype(np.float32)

    def others(p: np.ndarray, y: np.ndarray) -> list[peers.Peer]:
        return [*peers.outputs(builder.libraries, net, x, p, y), *peers.images(builder.libraries, x, p, y)]

    return _outputs(builder, "images", net, x, "LeNet-5's convolutions, 256 images, 1 thread", others)


def equation(builder: Builder) -> Row:
    """A trajectory of 100 steps."""
    rhs = Chain(Dense(2, 5, tanh), Dense(5, 5, tanh), Dense(5, 5, tanh), Dense(5, 2))
    net = Chain(ODE(rhs, [0.0, 1.0], "rk4", steps=100), backend="native")
    x = np.array([[0.5, -0.3]], np.float32)
    title = "100 steps of RK4 of 2-5-5-5-2, one trajectory, 1 thread"
    return _outputs(builder, "equation", net, x, title, lambda p, y: peers.equation(builder.libraries, x, p, y))


def _outputs(builder: Builder, name: str, net: Chain, x: np.ndarray, title: str, others: Others) -> Row:
    p = net.init(0)
    y = np.array(net(x, p))

    def contestant(name: str, run: Callable[[], Any]) -> Contestant:
        def start() -> None:
            chains.set_num_threads(1)
            y[...] = 0.0

        def answer() -> float:
            start()
            run()
            return float(np.abs(y).sum(dtype=np.float64))

        return Contestant(name, 1, start, run, answer)

    found = [contestant("chains, from Python", lambda: net(x, p, out=y))]
    for kind, library in builder.programs(name).items():
        found.append(contestant(kind, partial(function(library, name), len(x), x, p, y)))
    found += [contestant(each.name, each.run) for each in others(p, y)]
    return Row(title, found, 1e-5)


def normal(builder: Builder) -> Row:
    """The normal equations of a least-squares problem."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (SAMPLES, 2))
    t = np.sin(2.0 * x[:, :1]) * x[:, 1:]
    net = Chain(Dense(2, 8, tanh), Dense(8, 8, tanh), Dense(8, 1), backend="native")
    p = net.init(0, dtype="float64")
    objective, n = net.objective(x, t, SquaredLoss()), p.size
    matrix, g = np.zeros((n, n)), np.zeros(n)

    def kept() -> None:
        _, g[...], matrix[...] = objective.normal_equations(p)

    def start() -> None:
        chains.set_num_threads(1)
        blas_modes()[0][1]()  # one thread of BLAS

    def contestant(name: str, run: Callable[[], Any], scale: float) -> Contestant:
        def answer() -> float:
            run()
            return float(np.abs(matrix).sum() + np.abs(g).sum()) * scale

        return Contestant(name, 1, start, run, answer)

    found = [contestant("chains, from Python", kept, SAMPLES)]  # its loss is a mean
    for kind, library in builder.programs("normal").items():
        found.append(contestant(kind, partial(function(library, "normal", ctypes.c_double), x, t, p, matrix, g), 1))
    found += [contestant(each.name, each.run, 1) for each in peers.normal(builder.libraries, x, t, p, matrix, g)]
    return Row(f"normal equations of 2-8-8-1, {SAMPLES} samples, float64, 1 thread", found, 1e-12)


ROWS: dict[str, Callable[[Builder], Row]] = {
    "matrix_exp_10000": lambda builder: dense(builder, 10_000, 1),
    "matrix_exp_10000_threads": lambda builder: dense(builder, 10_000, 2),
    "matrix_exp_200": lambda builder: dense(builder, 200, 1),
    "matrix_exp_200_threads": lambda builder: dense(builder, 200, 2),
    "matrix_exp_1": lambda builder: dense(builder, 1, 1),
    "mnist_mlp": lambda builder: digits(builder, 1_000, 1_000),
    "forward": forward,
    "training_step": lambda builder: training_step(builder, 300),
    "training_step_late": lambda builder: training_step(builder, 100_000),
    "stream": stream,
    "images": images,
    "equation": equation,
    "members": ensemble,
    "normal": normal,
}
