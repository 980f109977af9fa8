"""The problems of `benchmarks.gpu` trained by chains: times, commands, memory, streams."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu.backends import FLOAT, backend_name, convolver, device_of
from benchmarks.gpu.problems import Problem, Result, Setting, problem, timing
from chains import SGD, Conv, Dense, SquaredLoss, minimize, relu, train
from chains.backends.cupy import streaming
from chains.backends.cupy.binding import DeviceBinding
from chains.backends.cupy.device.interface import Gemm, Work
from chains.backends.cupy.fused_program import FusedProgram
from chains.network import executables
from chains.network.call import Call
from chains.network.network import network_of
from chains.training.batches import ArrayBatches
from chains.training.optimizer_state import begin
from chains.training.steps import UNLIMITED_STEPS, ArraySteps

LONG = 15.0  # seconds of measuring after which a problem is not run again
SHOWN = 12  # commands of a profile
WIDTHS = (4096, 64)  # of networks on streamed data: where computing and where copying takes longer


class Trainer:
    """A problem in training: parameters on the GPU, data there too or `streamed` from the host."""

    def __init__(self, given: Problem, name: str, setting: Setting, *, streamed: bool = False) -> None:
        self.problem, self.device = given, device_of(name, setting)
        self.device.refused.clear()
        self.net = given.net(backend_name(name, setting))
        self.p = self.device.array(self.net.init(seed=0))
        place = np.asarray if streamed else self.device.array
        data, objective = executables.problem(
            Call(network_of(self.net), {"x": place(given.x), "t": place(given.t), "loss": given.loss})
        )
        step = executables.training_step(network_of(self.net), self.p, objective, given.optimizer)
        with mock.patch.object(streaming, "MEMORY_SHARE", -1.0 if streamed else 1.0):
            batches = ArrayBatches(data, objective, given.batch, drop_last=True)
            self.steps = ArraySteps(batches, step, {"p": self.p}, given.optimizer, begin(given.optimizer, self.p))
        self.loss = np.nan

    def epochs(self, count: int | None = None) -> float:
        """The seconds of these epochs, with their shuffles; the losses are read at the end of each."""
        count = self.problem.epochs if count is None else count
        start, done = time.perf_counter(), 0
        while done < count:
            self.steps.advance(count - done, UNLIMITED_STEPS)
            if self.steps.finished:
                losses = self.steps.take()
                self.loss, done = losses[-1], done + len(losses)
        return time.perf_counter() - start

    @property
    def binding(self) -> DeviceBinding:
        """The step's program on a full batch."""
        feed = self.steps._parts[0].feed
        binding = (feed._steps._step if isinstance(feed, streaming.StreamedFeed) else feed)._binding
        assert isinstance(binding, DeviceBinding)
        return binding

    @property
    def path(self) -> str:
        """How a step runs: by how many blocks or commands, and whether as a graph."""
        compiled, text = self.binding.compiled, f"{len(self.binding.work)} commands"
        if isinstance(compiled, FusedProgram):
            blocks = compiled.blocks(self.problem.batch)
            text = "all steps by one block" if compiled.tiling.alone else f"one kernel by {blocks} blocks, {text}"
        return f"{text}; NOT CAPTURED" if self.device.refused["graph"] else text

    def accuracy(self) -> float | None:
        if self.problem.test is None:
            return None
        x, t = self.problem.test
        y = self.net(x, self.p, out=np.empty((len(x), *self.net.output_shape), FLOAT))
        return float((y.argmax(1) == t).mean())


def measure(key: str, name: str, setting: Setting) -> Result:
    """The best seconds of up to three runs of the problem's epochs, after a first one, which gives loss and accuracy."""
    given = problem(key, setting)
    trainer = Trainer(given, name, setting)
    first = trainer.epochs()
    convolving = convolver(trainer.device) if any(isinstance(layer, Conv) for layer in given.layers) else ""
    note = "; ".join(filter(None, (trainer.path, convolving, given.note)))
    result: Result = {"loss": float(trainer.loss), "first": first, "note": note, "accuracy": trainer.accuracy()}
    times = [trainer.epochs()]
    while len(times) < (1 if setting.tiny else 3) and sum(times) < LONG:
        times.append(trainer.epochs())
    rate = given.steps * given.step().flops(given.batch) / min(times) / 1e12
    return result | timing(min(times), given.steps) | {"TFLOP/s": rate}


def members(count: int, setting: Setting) -> Result:
    """The seconds of a training of an ensemble that shares its data, by `train`, beginning and end included."""
    given = problem("ensemble", setting)
    device, net = device_of("float32", setting), given.net(backend_name("float32", setting))
    x, t = device.array(given.x), device.array(given.t)
    times, loss = [], np.nan
    for _ in range(3):
        p = device.array(net.init_many(3 if setting.tiny else count))
        begin = time.perf_counter()
        history = train(net, p, x, t, given.loss, given.optimizer, epochs=given.epochs, progress=False)
        times.append(time.perf_counter() - begin)
        loss = history.latest("loss")
    return {"loss": loss} | timing(min(times[1:]), given.steps)


def bfgs(key: str, iterations: int, name: str, setting: Setting) -> Result:
    """The seconds of a fit by BFGS of the whole data set of a problem; parameters and curvature stay on the device."""
    given = problem(key, setting)
    if name == "native":
        place, net = np.asarray, given.net("native")
    else:
        place, net = device_of(name, setting).array, given.net(backend_name(name, setting))
    objective = net.objective(place(given.x), place(given.t), given.loss)
    times, result = [], None
    for _ in range(2):
        begin = time.perf_counter()
        result = minimize(objective, place(net.init(seed=0)), "BFGS", maxiter=3 if setting.tiny else iterations, progress=False)
        times.append(time.perf_counter() - begin)
    assert result is not None
    return {"loss": float(result.fun), "note": f"{result.nit} iterations"} | timing(min(times), max(1, result.nit))


def profile(key: str, name: str, setting: Setting) -> Result:
    """The commands of a step that take the longest, each between two events, with microseconds.

    By itself, a command takes longer than within a graph by what its launch costs. Where one launch does many steps, there is
    one command.
    """
    trainer = Trainer(problem(key, setting), name, setting)
    trainer.epochs(1)
    times = [(trainer.device.seconds(work, 3) * 1e6, _name(work)) for work in trainer.binding.work]
    text = ", ".join(f"{name} {microseconds:.1f}" for microseconds, name in sorted(times, reverse=True)[:SHOWN])
    return {"value": sum(each for each, _ in times), "note": f"us, of {len(times)} commands: {text}", "commands": times}


def _name(work: Work) -> str:
    """The name of a kernel, or of the function that starts a product or a convolution."""
    function = work.func if isinstance(work, partial) else work
    return str(getattr(function, "name", getattr(function, "__name__", type(function).__name__)))


def allocations(key: str, streamed: bool, setting: Setting) -> Result:
    """How often training asks for memory of the GPU, from the pool or beyond it, and for pinned memory, after some epochs."""
    trainer = Trainer(problem(key, setting), "float32", setting, streamed=streamed)
    trainer.epochs(3)
    patch, device = mock.patch.object, trainer.device
    made = [patch(device, name, wraps=getattr(device, name)) for name in ("empty", "array", "pinned")]
    asked: Counter[str] = Counter()
    with made[0] as empty, made[1] as array, made[2] as pinned, nullcontext() if setting.tiny else _counting(asked):
        trainer.epochs(2)
    counts = Counter(arrays=empty.call_count + array.call_count, pinned=pinned.call_count) + asked
    steps = 2 * trainer.problem.steps // trainer.problem.epochs
    return {"value": float(counts.total()), "note": f"in {steps} steps; {dict(counts)}"}


def _counting(asked: Counter[str]) -> Any:
    """A hook that counts what CuPy's pool of device memory gives, and what it takes from the device."""
    import cupy

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc]
        name = "counting"

        def malloc_preprocess(self, **about: Any) -> None:
            asked["from the pool"] += 1

        def alloc_preprocess(self, **about: Any) -> None:
            asked["from the device"] += 1

    return Hook()


def both_processors(setting: Setting) -> Result:
    """Products on the CPU and on the GPU at once, as a multiple of the longer of both alone."""
    device = device_of("float32", setting)
    sizes = (16, 24) if setting.tiny else (2000, 6000)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((sizes[0],) * 2, FLOAT)
    b = device.array(rng.standard_normal((sizes[1],) * 2, FLOAT))
    out, address = device.empty(b.shape, FLOAT), device.address(b)
    multiply = device.product(
        Gemm(FLOAT, (sizes[1],) * 3, (device.address(out), address, address), (sizes[1],) * 3, (False, False), False)
    )

    def seconds(cpu: int, gpu: int) -> float:
        done = device.event()
        begin = time.perf_counter()
        with device.running():
            for _ in range(gpu):
                multiply()
            device.main.record(done)
            for _ in range(cpu):
                a @ a
            done.wait()
        return time.perf_counter() - begin

    for run in ((1, 1), (1, 1)):
        seconds(*run)
    alone, both = [min(seconds(*run) for _ in range(3)) for run in ((10, 0), (0, 10))], min(seconds(10, 10) for _ in range(3))
    note = f"ten products of {sizes[0]} on the CPU {alone[0] * 1e3:.3g} ms, of {sizes[1]} on the GPU {alone[1] * 1e3:.3g} ms"
    return {"seconds": both, "value": both / max(alone), "note": note}


def streamed(width: int, setting: Setting) -> Result:
    """An epoch on data of the host, as a multiple of the longest of its parts: an epoch on the GPU's data, and the copies."""
    inputs, batch, steps = (6, 4, 5) if setting.tiny else (2048, 1024, 64)
    width = min(width, 8) if setting.tiny else width
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((batch * steps, inputs), FLOAT), rng.standard_normal((batch * steps, 10), FLOAT)
    layers = (Dense(inputs, width, relu), Dense(width, width, relu), Dense(width, 10))
    given = Problem(layers, (inputs,), SquaredLoss(), SGD(1e-5), x, t, batch)
    computing, both = (Trainer(given, "float32", setting, streamed=flag) for flag in (False, True))
    order = rng.permutation(len(x))
    batches = streaming.HostToDevice(both.device, {"x": ((batch, inputs), FLOAT), "t": ((batch, 10), FLOAT)})

    def copy() -> float:
        start = time.perf_counter()
        for k in range(steps):
            room, part = batches.room(), order[k * batch : (k + 1) * batch]
            x.take(part, 0, room["x"], "clip")
            t.take(part, 0, room["t"], "clip")
            batches.send()
            batches.wait()
            batches.release()
        batches.finish()
        return time.perf_counter() - start

    with both.device.running():
        copying = min(copy() for _ in range(4))
    for trainer in (computing, both):
        trainer.epochs(2)
    computed, seconds = (min(trainer.epochs() for _ in range(3)) for trainer in (computing, both))
    note = f"alone: computing {computed * 1e3:.3g} ms, gathering and copying {copying * 1e3:.3g} ms"
    return {"seconds": seconds, "value": seconds / max(computed, copying), "note": note, "loss": float(both.loss)}
