"""What `benchmarks.gpu` checks and measures of this project on a GPU, or on the emulated one where all is to be tiny."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu_problems import NoGpuError, Problem, Setting, problem, timing
from chains import SGD, Adam, Chain, Conv, Dense, SquaredLoss, backends, relu, tanh, train
from chains.backends import Cupy
from chains.backends.cupy import CupyBackend, streaming
from chains.backends.cupy.binding import DeviceBinding
from chains.backends.cupy.device.interface import Device, Gemm
from chains.backends.cupy.fused_program import FusedProgram
from chains.training.optimizer_state import begin
from chains.training.steps import UNLIMITED_STEPS, ArraySteps

Result = dict[str, Any]
PRECISIONS = ("float32", "tf32")
WAYS: dict[str, str | Cupy] = {  # the settings of the backend, by name
    "float32": "cupy",
    "tf32": Cupy("tf32"),
    **{f"{'tf32-' * (p == 'tf32')}own": Cupy(p, "own") for p in ("float32", "tf32")},
    **{f"{'tf32-' * (p == 'tf32')}cudnn": Cupy(p, "cudnn") for p in ("float32", "tf32")},
    **{f"{'tf32-' * (p == 'tf32')}cudnn-tuned": Cupy(p, "cudnn", tune=True) for p in ("float32", "tf32")},
}
CONVOLUTIONS = tuple(way for way in WAYS if "own" in way or "cudnn" in way)
KERNELS = {"one-kernel": True, "kernel-by-kernel": False}  # ways to run a program that tiles can go through
FLOAT = np.dtype(np.float32)
LONG = 15.0  # seconds of measuring after which a problem is not run again


def backend_name(way: str, setting: Setting) -> str | Cupy:
    """The backend for one of `WAYS` or of `KERNELS`."""
    if setting.tiny:
        tiny = {"one-kernel": way, "tf32": "emulated-tf32"}
        return tiny.get(way, "emulated-cudnn" if "cudnn" in way else "emulated")
    return WAYS.get(way, f"cupy-{way}")


def device_of(precision: str, setting: Setting) -> Device:
    """The GPU at this precision. Raises ValueError where there is none."""
    if setting.tiny:
        from tests.cupy import emulated

        emulated.register(backends._BACKENDS)
    else:
        for way, chosen in KERNELS.items():
            backends._BACKENDS.setdefault(f"cupy-{way}", partial(_either_way, chosen))
    return backends.backend(backend_name(precision, setting)).on_device.device  # type: ignore[attr-defined]


def _either_way(fused: bool) -> CupyBackend:
    return CupyBackend(backends.backend("cupy").on_device.device, fused)  # type: ignore[attr-defined]


def facts(setting: Setting) -> dict[str, str]:
    """The machine as text by heading. Raises NoGpuError, saying what is missing, where no GPU can be used."""
    try:
        device_of("float32", setting)
    except ValueError as error:
        raise NoGpuError(str(error)) from error
    if setting.tiny:
        return {"gpu": "emulated by the processor: no figure means anything"}
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "gpu": f"{properties['name'].decode()}, {properties['totalGlobalMem'] / 2**30:.0f} GiB",
        "cuda": f"runtime {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()}, CuPy {cupy.__version__}",
    }


# Correctness

PARTS = 12  # of the tests' cases


def check_cases(part: int, way: str, setting: Setting, only: Sequence[str] = ()) -> Result:
    """A part of the cases of the tests' harness against NumPy in float64: the largest error as a share of what is allowed.

    `only` are the names of those to check, if not all.
    """
    from tests.harness import CASES

    cases = CASES[part :: PARTS * (40 if setting.tiny else 1)]
    return _checked([case for case in cases if not only or str(case) in only], way, setting)


def check_convolutions(way: str, setting: Setting) -> Result:
    """The cases with convolutions, these done in a certain way."""
    from tests.harness import CASES

    cases = [case for case in CASES if "Conv" in str(case)]
    return _checked(cases[:1] if setting.tiny else cases, way, setting)


def _checked(cases: Sequence[Any], way: str, setting: Setting) -> Result:
    from tests.harness import ROUNDING

    device, worst, name, wrong = device_of(way, setting), 0.0, "none", {}
    for case in cases:
        data = case.problem(70)
        wanted = data.value_and_grad("numpy", np.float64)
        for dtype in (np.float32, np.float64):
            try:
                found = data.value_and_grad(backend_name(way, setting), dtype)
            except Exception:  # one case that cannot be done leaves the others
                wrong[str(case)] = f"{np.dtype(dtype)}: {traceback.format_exc()}"
                continue
            error = max(relative(a, b) for a, b in zip(found, wanted, strict=True)) / (10 * ROUNDING[np.dtype(dtype)])
            if not error <= worst:
                worst, name = error, f"{case}, {np.dtype(dtype)}"
            if not error <= 1.0:
                wrong[str(case)] = f"{np.dtype(dtype)}: {error:.3g} times the error that is allowed"
    note = f"{len(cases)} cases, {_convolving(device)}; largest error at {name}"
    told = "".join(f"; {each}: {text.rstrip().splitlines()[-1]}" for each, text in wrong.items())
    return {"value": worst, "holds": not wrong, "note": note + told} | ({"wrong": wrong} if wrong else {})


def _convolving(device: Device) -> str:
    return f"convolutions by {device.convolutions or 'products and kernels of our own'}"


def check_training(setting: Setting) -> Result:
    """Training from data on the GPU, streamed to it and from a source; outputs in pieces: against NumPy in float64."""
    device, rng = device_of("float32", setting), np.random.default_rng(0)
    x, t = rng.standard_normal((90, 5)), rng.standard_normal((90, 3))
    net = Chain(Dense(5, 8, tanh), Dense(8, 3), backend="numpy")

    def run(p: Any, **settings: Any) -> Any:
        source = settings.pop("source", False)
        data = ([(x[k : k + 16], t[k : k + 16]) for k in range(0, 90, 16)], None) if source else (x, t)
        rest = {} if source else {"batch_size": 16, "shuffle": False}
        train(net, p, *data, SquaredLoss(), Adam(0.01), epochs=3, **rest)
        return p

    wanted = run(net.init(dtype=np.float64))
    errors = {"data there": relative(on_host(device, run(_parameters(net, device))), wanted)}
    with mock.patch.object(streaming, "MEMORY_SHARE", -1.0):
        errors["streamed"] = relative(on_host(device, run(_parameters(net, device))), wanted)
    errors["from a source"] = relative(on_host(device, run(_parameters(net, device), source=True)), wanted)
    errors["outputs"] = relative(net(x, device.array(wanted), out=np.empty((90, 3))), net(x, wanted))
    worst = max(errors, key=errors.__getitem__)
    return {"value": errors[worst] / 1e-11, "holds": errors[worst] <= 1e-11, "note": f"largest error {worst}"}


def relative(found: Any, wanted: Any) -> float:
    """The largest error, relative to the largest number; infinite where one is not finite."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted)
    difference = float(np.max(np.abs(found - wanted), initial=0.0))
    return difference / max(1.0, float(np.max(np.abs(wanted), initial=0.0))) if np.isfinite(difference) else np.inf


def _parameters(net: Chain, device: Device) -> Any:
    return device.array(net.init(seed=0, dtype=np.float64))


def near(found: Any, wanted: Any, tolerance: float) -> float:
    """The error of an array, as `relative` has it. Raises AssertionError where it is larger than `tolerance`."""
    error = relative(found, wanted)
    if not error <= tolerance:
        raise AssertionError(f"an error of {error:.3g}, where {tolerance:.3g} is allowed: {found!r} instead of {wanted!r}")
    return error


def on_host(device: Device, array: Any) -> np.ndarray:
    """A copy of an array of the device."""
    result = np.empty(array.shape, array.dtype)
    device.assign(result, array)
    return result


# Training


class Trainer:
    """A problem being trained: parameters on the GPU, and the data, unless they are to be `streamed`."""

    def __init__(self, given: Problem, precision: str, setting: Setting, *, streamed: bool = False) -> None:
        self.problem, self.device = given, device_of(precision, setting)
        self.device.refused.clear()
        self.net = given.net(backend_name(precision, setting))
        self.p = self.device.array(self.net.init(seed=0))
        place = np.asarray if streamed else self.device.array
        data, objective = self.net.problem(place(given.x), place(given.t), given.loss, None, None)
        self.step = self.net.training_step(self.p, objective, given.optimizer)
        with mock.patch.object(streaming, "MEMORY_SHARE", -1.0 if streamed else 1.0):
            self.steps = ArraySteps(
                data, self.step, {"p": self.p}, given.optimizer,
                batch_size=given.batch, drop_last=given.drop_last, seed=0, optimizer_state=begin(given.optimizer, self.p),
            )  # fmt: skip
        self.loss = np.nan

    def epochs(self, count: int | None = None) -> float:
        """The seconds that so many epochs take, with their shuffles; the losses are read at the end of each."""
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
    def way(self) -> str:
        """How a step runs: as one kernel or as how many commands, as a graph or not."""
        compiled, refused = self.binding.compiled, self.device.refused
        text = f"{len(self.binding.work)} commands"
        if isinstance(compiled, FusedProgram):
            whole = getattr(self.steps._parts[0].feed, "_whole", None)  # what does all steps in one launch
            count = (whole or compiled).blocks(self.problem.batch)
            blocks = "one block" if count == 1 else f"{count} blocks"
            text = f"all steps by {blocks}" if whole is not None else f"one kernel by {blocks}, {text}"
        parts = [text, *(["NOT CAPTURED"] if refused["graph"] else [])]
        return "; ".join(parts)

    def accuracy(self) -> float | None:
        if self.problem.test is None:
            return None
        x, t = self.problem.test
        y = self.net(x, self.p, out=np.empty((len(x), *self.net.output_shape), FLOAT))
        return float((y.argmax(1) == t).mean())


def measure(key: str, precision: str, setting: Setting) -> Result:
    """Seconds for the problem's epochs after a first run, whose loss and accuracy are told: the best of up to three.

    Runs that take long are not repeated.
    """
    given = problem(key, setting)
    trainer = Trainer(given, precision, setting)
    first = trainer.epochs()
    convolving = [_convolving(trainer.device)] if any(isinstance(layer, Conv) for layer in given.layers) else []
    notes = [trainer.way, *convolving, *([given.note] if given.note else [])]
    result: Result = {"loss": float(trainer.loss), "first": first, "note": "; ".join(notes)}
    if given.test is not None:
        result["accuracy"] = trainer.accuracy()
    times = [trainer.epochs()]
    while len(times) < (1 if setting.tiny else 3) and sum(times) < LONG:
        times.append(trainer.epochs())
    return result | timing(min(times), given.steps)


def timed(device: Device, work: Callable[[], object], repeats: int = 4) -> float:
    """The least seconds from the call of `work` to the end of all that it asked for; the first run counts too if alone."""
    best, end = np.inf, device.event()
    for _ in range(repeats):
        with device.running():
            start = time.perf_counter()
            work()
            device.main.record(end)
            end.wait()
            best = min(best, time.perf_counter() - start)
    return best


# Memory


def allocations(key: str, streamed: bool, setting: Setting) -> Result:
    """How often steady training asks for memory of the GPU."""
    trainer = Trainer(problem(key, setting), "float32", setting, streamed=streamed)
    trainer.epochs(3)
    with _counted(trainer.device, setting) as count:
        trainer.epochs(2)
    return {"value": float(count[0]), "note": f"in {2 * trainer.problem.steps // trainer.problem.epochs} steps"}


@contextmanager
def _counted(device: Any, setting: Setting) -> Iterator[list[int]]:
    """Counts requests to CuPy's pool and to CUDA."""
    count = [0]
    if setting.tiny:
        before = device.allocations
        yield count
        count[0] = device.allocations - before
        return
    import cupy

    class Hook(cupy.cuda.MemoryHook):
        name = "count"

        def alloc_preprocess(self, **given: Any) -> None:
            count[0] += 1

        def malloc_preprocess(self, **given: Any) -> None:
            count[0] += 1

    with Hook():
        yield count


def async_memory(every: bool, setting: Setting) -> Result:
    """100 batches of the host, with the loss read at every step or a few steps later: seconds, and memory gained."""
    inputs, width, batch, count = (4, 6, 3, 5) if setting.tiny else (512, 2048, 1024, 100)
    device, rng = device_of("float32", setting), np.random.default_rng(0)
    net = Chain(
        Dense(inputs, width, relu), Dense(width, inputs, relu), Dense(inputs, 1), backend=backend_name("float32", setting)
    )
    data = [(rng.standard_normal((batch, inputs), FLOAT), np.ones((batch, 1), FLOAT)) for _ in range(count)]
    p = device.array(net.init(seed=0))
    first, objective = net.problem(*data[0], SquaredLoss(), None, None)
    step = net.training_step(p, objective, SGD(0.005))
    own = {"p": p, "value": device.array(np.zeros((), FLOAT)), "step": device.array(np.zeros(())), **step.settings}
    shared = {name: array for name, array in own.items() if name in step.program.buffers}
    before = _resident(), device.room()
    intake = step.backend.intake(step.backend.bind(step.program, batch, shared), first)

    def all_of_them() -> float:
        unread, loss = 0, np.nan
        with device.running():
            start = time.perf_counter()
            for x, t in data:
                intake.start({"x": x, "t": t})
                unread += 1
                while unread > (0 if every else intake.most_unread):
                    loss, unread = intake.loss(), unread - 1
            queued[0] = time.perf_counter() - start
            while unread:
                loss, unread = intake.loss(), unread - 1
            seconds = time.perf_counter() - start
            intake.finish()
        losses.append(loss)
        return seconds

    queued, losses = [0.0], []
    all_of_them()
    seconds = all_of_them()
    gained = (_resident() - before[0]) / 1e6, (before[1] - device.room()) / 1e6
    note = f"queued after {queued[0]:.4g} s; resident memory gained {gained[0]:.0f} MB, the GPU's {gained[1]:.0f} MB"
    return {"seconds": seconds, "loss": losses[-1], "value": gained[0], "note": note}


def _resident() -> int:
    """The bytes of the process that are in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


# At once


def _parts(seconds: Mapping[str, float], together: float) -> Result:
    """How long parts take alone, and together as a multiple of the longest."""
    text = ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in seconds.items())
    note = f"alone: {text}; the sum {sum(seconds.values()) * 1e3:.3g} ms"
    return {"seconds": together, "value": together / max(seconds.values()), "note": note}


def both_machines(setting: Setting) -> Result:
    """Ten products on the processor, ten larger ones on the GPU, alone and at once."""
    small, large = (20, 30) if setting.tiny else (2000, 6000)
    device = device_of("float32", setting)
    a, out = np.full((small, small), 1e-3, FLOAT), np.empty((small, small), FLOAT)
    gpu = _square(device, large)

    def processor() -> None:
        for _ in range(10):
            np.matmul(a, a, out=out)

    def graphics() -> None:
        for _ in range(10):
            gpu[0]()

    def both() -> None:
        graphics()
        processor()

    alone = {"processor": timed(device, processor), "GPU": timed(device, graphics)}
    return _parts(alone, timed(device, both))


def _square(device: Device, size: int) -> tuple[Callable[[], object], Any]:
    """A product of square matrices, and its result."""
    a, out = device.array(np.full((size, size), 1e-3, FLOAT)), device.empty((size, size), FLOAT)
    addresses = (device.address(out), device.address(a), device.address(a))
    work = device.product(Gemm(FLOAT, (size,) * 3, addresses, (size,) * 3, (False, False), False))
    return lambda kept=a: work(), out


def copy_back(setting: Setting) -> Result:
    """Ten products, each result copied to the host while the next one is computed."""
    size = 30 if setting.tiny else 6000
    device = device_of("float32", setting)
    slots = [(*_square(device, size), device.pinned((size, size), FLOAT), device.event(), device.event()) for _ in range(2)]

    def run(compute: bool, copy: bool) -> None:
        for k in range(10):
            work, out, pinned, ready, copied = slots[k % 2]
            device.main.wait(copied)
            if compute:
                work()
            device.main.record(ready)
            if copy:
                device.to_device.wait(ready)
                device.to_device.copy(pinned, out)
                device.to_device.record(copied)
        for *_, copied in slots:
            device.main.wait(copied)

    alone = {
        "computing": timed(device, lambda: run(True, False)),
        "copying": timed(device, lambda: run(False, True)),
    }
    return _parts(alone, timed(device, lambda: run(True, True)))


def streamed_training(width: int, setting: Setting) -> Result:
    """An epoch on data of the host against one on data that lie on the GPU, and against gathering and copying alone."""
    inputs, batch, steps = (6, 4, 5) if setting.tiny else (2048, 1024, 64)
    width = min(width, 8) if setting.tiny else width
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((batch * steps, inputs), FLOAT), rng.standard_normal((batch * steps, 10), FLOAT)
    layers = (Dense(inputs, width, relu), Dense(width, width, relu), Dense(width, 10))
    given = Problem(layers, (inputs,), SquaredLoss(), SGD(1e-5), x, t, batch)
    there, streamed = (Trainer(given, "float32", setting, streamed=flag) for flag in (False, True))
    device, order = there.device, rng.permutation(len(x))
    inlet = streaming.Inlet(device, {"x": ((batch, inputs), FLOAT), "t": ((batch, 10), FLOAT)})

    def sending() -> None:
        for k in range(steps):
            room, part = inlet.room(), order[k * batch : (k + 1) * batch]
            x.take(part, 0, room["x"], "clip")
            t.take(part, 0, room["t"], "clip")
            inlet.send()
            inlet.take()
            inlet.taken()

    for trainer in (there, streamed):
        trainer.epochs(2)
    alone = {
        "computing": min(there.epochs() for _ in range(3)),
        "gathering and copying": timed(device, sending),
    }
    inlet.finish()
    result = _parts(alone, min(streamed.epochs() for _ in range(3)))
    return result | {"loss": float(streamed.loss)}
