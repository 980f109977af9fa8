"""Whether a backend does what the other parts of the package rely on: `check_backend`."""

from __future__ import annotations

import fnmatch
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from chains import layers
from chains.activations import gelu, tanh
from chains.backends import Backend, Cupy, UnsupportedOperationError
from chains.backends import backend as find_backend
from chains.chain import Chain
from chains.layers import Dense
from chains.losses import CrossEntropyLoss, Loss, SquaredLoss
from chains.network import record
from chains.network.network import network_of
from chains.optimizers import SGD, Adam
from chains.penalties import L2Penalty
from chains.program.operations import Operation
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import concrete
from chains.support.messages import counted, listed, shown
from chains.testing.operation_programs import FAMILIES, any_batch, any_images, operation_programs, products, random_arrays, wide
from chains.testing.programs import filled
from chains.training.train import train

BATCHES = (1, 5)
# For faults of some sizes only: blocks, tiles and vectors that are full, that lack one row, and that have one too many.
ALL_BATCHES = (*range(1, 266), *(size + more for size in (512, 1024) for more in (-1, 0, 1)))
IMAGES = (*range(1, 34), 63, 64, 65, 127, 128, 129)  # the same for images, which take longer
WIDEST_CLAIM = 0.01  # of `rounding`: with more, wrong results would pass
LONG = 10.0  # the error of a network or a training, as a multiple of the rounding of a short computation
SEED = 2**63 + 2  # of trainings: as large as those of members, and no number of float64


@dataclass(frozen=True)
class Row:
    """The result of one check: the cases that passed, those that the backend refuses by name, and what went wrong.

    `worst` is the largest error as a share of what the backend claims.
    """

    check: str
    passed: int = 0
    refused: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    worst: float = 0.0


@dataclass(frozen=True)
class Conformance:
    """The table of `check_backend`: a `Row` for each check."""

    backend: str
    rows: tuple[Row, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """What went wrong, a sentence each."""
        return tuple(f"{row.check}: {fault}" for row in self.rows for fault in row.faults)

    @property
    def refused(self) -> tuple[str, ...]:
        """What the backend refuses to run, a sentence each."""
        return tuple(dict.fromkeys(reason for row in self.rows for reason in row.refused))

    def __str__(self) -> str:
        width = max(len(row.check) for row in self.rows)
        lines = [f"backend {self.backend!r}", f"{'check':{width}}  passed  refused  wrong  error / claim"]
        lines += [
            f"{row.check:{width}}  {row.passed:6}  {len(row.refused):7}  {len(row.faults):5}  {row.worst:13.2g}"
            for row in self.rows
        ]
        return "\n".join(
            [*lines, *(f"refused: {reason}" for reason in self.refused), *(f"wrong: {each}" for each in self.faults)]
        )


class Fault(AssertionError):  # noqa: N818 - no error of this package
    """What a check found."""


def check_backend(backend: str | Cupy | Backend, *, only: str = "*") -> Conformance:
    """Check a backend against NumPy: all operations on all kinds of views, networks, training, threads, and bad input.

    Each operation is computed for one sample and for several, in each of the backend's `dtypes`, twice: first after a run on
    other numbers, then with NaN in scratch memory. Results must equal NumPy's within the backend's `rounding`; both runs must
    give the same bits if it claims `same_bits`; and nothing next to a result may change. Products and other operations over the
    samples are also computed for each number of samples up to 265, images for each up to 33, and some with many columns and
    channels. An operation or a view that the backend refuses by an UnsupportedOperationError, with the name of the operation,
    is counted as refused.

    Parameters
    ----------
    backend : Backend, str or backends.Cupy
        The backend, or its name.
    only : str
        A pattern of the names of checks, such as "operations: m*" or "training".

    Returns
    -------
    Conformance
        The table of what passed. ``print`` shows it.

    Raises
    ------
    AssertionError
        If anything is wrong. The message is the table, and a sentence for each fault.
    TypeError, ValueError
        For anything that is no backend, or cannot be used on this computer.
    """
    if not isinstance(backend, (str, Cupy, Backend)):
        raise TypeError(f"`backend` (={shown(backend)}) must be a chains.backends.Backend, or a name")
    found, checks = find_backend(backend), _checks()
    names = fnmatch.filter(checks, only) if isinstance(only, str) else []
    if not names:
        raise ValueError(f"`only` (={shown(only)}) must be a pattern of the names {listed(checks)}")
    table = Conformance(found.name, tuple(_row(name, checks[name](found)) for name in names))
    if table.faults:
        raise AssertionError(str(table))
    return table


Arrays = Mapping[str, np.ndarray]
Checks = Iterator[tuple[str, Callable[[], float]]]  # the name of each case, and a function that returns its error


def _checks() -> Mapping[str, Callable[[Backend], Checks]]:
    """All checks by name."""
    families = {f"operations: {name}": partial(_operations, name) for name in FAMILIES}
    return {"claims": _claims} | families | {
        "sizes": _sizes, "widths": _widths, "images": _images, "networks": _networks, "training": _training,
        "members": _members, "large arrays": _large_arrays, "threads": _threads, "bad input": _bad_input,
    }  # fmt: skip


def _row(name: str, cases: Checks) -> Row:
    row = Row(name)
    for case, check in cases:
        try:
            error = check()
        except UnsupportedOperationError as reason:
            row = replace(row, refused=(*row.refused, str(reason)))
        except Exception as wrong:  # a backend may raise anything; the other cases are still checked
            text = str(wrong) if isinstance(wrong, Fault) else f"{type(wrong).__name__}: {wrong}"
            row = replace(row, faults=(*row.faults, f"{case}: {text}"))
        else:
            row = replace(row, passed=row.passed + 1, worst=max(row.worst, error))
    return row


# Comparisons


def _share(found: Any, wanted: Any, allowed: float, what: str) -> float:
    """The error of a result as a share of what is allowed. Raises Fault if it is more, or if infinities or NaN differ."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if found.shape != wanted.shape:
        raise Fault(f"{what} has shape {found.shape}, not {wanted.shape}")
    finite = np.isfinite(wanted)
    if not np.array_equal(found[~finite], wanted[~finite], equal_nan=True):
        raise Fault(f"{what} differs from NumPy where NumPy has infinities or NaN")
    scale = max(1.0, float(np.max(np.abs(wanted[finite]), initial=0.0)))
    error = float(np.max(np.abs(found[finite] - wanted[finite]), initial=0.0)) / scale
    if not error <= allowed:
        raise Fault(f"{what} differs from NumPy by {error:.2g} of its scale; {allowed:.2g} is allowed")
    return error / allowed


def _same_bits(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], why: str) -> None:
    for name, array in one.items():
        if array.tobytes() != other[name].tobytes():
            raise Fault(f"`{name}` has other bits {why}")


def _run(
    backend: Backend, program: Program, batch: int, arrays: Arrays, fill: int, before: Arrays | None = None
) -> dict[str, np.ndarray]:
    """The results of a program on copies of these arrays, which do not begin where a block of memory does; with `before`, after
    a run on those. Raises Fault if it changes inputs.
    """
    backend = backend.choose(program)
    used = {name: buffer for name, buffer in program.buffers.items() if name in arrays or buffer.role == "output"}
    own = {name: _off_the_start(concrete(buffer.shape, batch), buffer.dtype) for name, buffer in used.items()}
    scratch = filled(backend.scratch_bytes(program, batch), fill)
    for name, array in own.items():
        array[...] = (before or arrays).get(name, np.nan)
    binding = backend.bind(program, batch, own, scratch=scratch)
    with backend.running():
        if before is not None:
            binding.run()
            for name in own:
                binding.arrays[name][...] = arrays.get(name, np.nan)
        binding.run()
    for name, array in arrays.items():
        if used[name].role == "input" and binding.arrays[name].tobytes() != array.tobytes():
            raise Fault(f"`{name}` has other bits after the run, but it is only read")
    return {name: np.array(binding.arrays[name]) for name, buffer in used.items() if buffer.role in ("output", "state")}


def _off_the_start(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    return np.empty(math.prod(shape) + 1, dtype)[1:].reshape(shape)


def _compared(backend: Backend, program: Program, batch: int, allowed: float) -> float:
    """The error of a program as a share of what is allowed, after a run on other numbers, and with NaN in scratch memory."""
    arrays = random_arrays(program, batch)
    wanted = _run(find_backend("numpy"), program, batch, arrays, 0)
    again = _run(backend, program, batch, arrays, 0, random_arrays(program, batch, seed=1))
    poisoned = _run(backend, program, batch, arrays, 0xFF)
    for name in wanted:
        _share(poisoned[name], wanted[name], allowed, f"with NaN in scratch memory before the run, `{name}`")
    if backend.same_bits:
        _same_bits(poisoned, again, "in a second run of a bound program")
    return max((_share(again[name], wanted[name], allowed, f"in a second run, `{name}`") for name in wanted), default=0.0)


def _kinds(backend: Backend) -> Iterator[tuple[np.dtype[Any], float]]:
    """The types of the backend, each with the rounding that it claims."""
    for kind in map(np.dtype, backend.dtypes):
        yield kind, backend.rounding.get(kind.name, np.nan)


# Checks


def _operations(family: str, backend: Backend) -> Checks:
    for dtype, allowed in _kinds(backend):
        for program in operation_programs(family, dtype):
            for batch in BATCHES:
                yield f"{program.name}, {dtype}, batch {batch}", partial(_compared, backend, program, batch, allowed)


def _claims(backend: Backend) -> Checks:
    yield "dtypes", partial(_claimed_dtypes, backend)
    for kind, allowed in _kinds(backend):
        yield f"rounding, {kind}", partial(_claimed_rounding, kind, allowed)


def _claimed_dtypes(backend: Backend) -> float:
    if not backend.dtypes or not set(backend.dtypes) <= set(Backend.dtypes):
        raise Fault(f"`dtypes` (={backend.dtypes!r}) must be numpy.float32, numpy.float64 or both: no network has others")
    return 0.0


def _claimed_rounding(kind: np.dtype[Any], allowed: Any) -> float:
    if not isinstance(allowed, (int, float)) or not 0 < allowed <= WIDEST_CLAIM:
        raise Fault(f"`rounding` of {kind} (={allowed!r}) must be a number above 0, at most {WIDEST_CLAIM}")
    return 0.0


def _sizes(backend: Backend) -> Checks:
    for dtype, allowed in _kinds(backend):
        for program in products(dtype):
            for batch in BATCHES:
                yield f"{program.name}, {dtype}, batch {batch}", partial(_compared_once, backend, allowed, program, batch)
        for program in any_batch(dtype):
            yield f"{program.name}, {dtype}", partial(_compared_over_batches, backend, allowed, program, ALL_BATCHES)


def _widths(backend: Backend) -> Checks:
    for dtype, allowed in _kinds(backend):
        for program in wide(dtype):
            for batch in BATCHES:
                yield f"{program.name}, {dtype}, batch {batch}", partial(_compared_once, backend, allowed, program, batch)


def _images(backend: Backend) -> Checks:
    for dtype, allowed in _kinds(backend):
        for program in any_images(dtype):
            yield f"{program.name}, {dtype}", partial(_compared_over_batches, backend, allowed, program, IMAGES)


def _compared_over_batches(backend: Backend, allowed: float, program: Program, batches: tuple[int, ...]) -> float:
    return max(_compared_once(backend, allowed, program, batch) for batch in batches)


def _compared_once(backend: Backend, allowed: float, program: Program, batch: int) -> float:
    arrays = random_arrays(program, batch)
    wanted, found = (_run(each, program, batch, arrays, 0xFF) for each in (find_backend("numpy"), backend))
    return max(_share(found[name], wanted[name], allowed, f"for {batch} samples, `{name}`") for name in wanted)


def _layers() -> dict[str, tuple[tuple[layers.Layer, ...], tuple[int, ...], Loss]]:
    """Networks that use all operations: their layers, the shape of a sample, and a loss."""
    dense, squared = partial(Dense, activation=tanh), SquaredLoss()
    ode = layers.ODE(layers.Series(dense(3, 3)), times=[0.0, 0.5, 1.0])
    normed = (dense(3, 4), layers.BatchNorm(4), layers.Dropout(0.3), Dense(4, 2))
    return {
        "dense": ((dense(3, 5), Dense(5, 4, gelu), Dense(4, 2)), (3,), squared),
        "classifier": ((dense(3, 5), Dense(5, 4)), (3,), CrossEntropyLoss()),
        "statistics and dropout": (normed, (3,), squared),
        "normalisation": ((layers.LayerNorm(), dense(6, 4), layers.RMSNorm(), layers.Softmax()), (6,), squared),
        "images": (
            (layers.Conv(2, 4, 3, tanh, padding="same", groups=2), layers.MaxPool(2), layers.Conv(4, 2, 2),
             layers.AvgPool(2, stride=1), layers.Flatten()), (2, 6, 8), squared,
        ),
        "transposed convolution": ((layers.ConvTranspose(2, 2, 2, stride=2), layers.GlobalAvgPool()), (2, 3, 3), squared),
        "GRU": ((layers.GRU(3, 4), Dense(4, 2)), (4, 3), squared),
        "LSTM": ((layers.LSTM(3, 2, return_sequences=True, bidirectional=True),), (4, 3), squared),
        "attention": ((layers.Attention(4, 2), layers.LayerNorm()), (3, 4), squared),
        "embedding": ((layers.Embedding(6, 4), layers.GRU(4, 3)), (5,), squared),
        "differential equation": ((ode,), (3,), squared),
        "residual": ((layers.Residual(dense(3, 3)), layers.Parallel(dense(3, 2), layers.Scale())), (3,), squared),
    }  # fmt: skip


def _networks(backend: Backend) -> Checks:
    for name, (parts, shape, loss) in _layers().items():
        net = network_of(Chain(*parts, input_shape=shape, backend="numpy"))
        target = () if isinstance(loss, CrossEntropyLoss) else net.output_shape
        criterion = record.Criterion(loss, target, None, L2Penalty(0.1))
        for dtype, allowed in _kinds(backend):
            for program in (record.gradient(net, criterion, dtype, True), record.vjp(net, dtype=dtype, training=False)):
                yield f"{name}, {program.name}, {dtype}", partial(_compared, backend, program, 5, LONG * allowed)


def _problem(backend: str | Backend, dtype: Any, kind: str) -> tuple[Chain, np.ndarray, np.ndarray, np.ndarray]:
    """A network, its parameters, and data: 23 samples, which leave a smaller last batch."""
    rng, (parts, shape, _) = np.random.default_rng(7), _layers()[kind]
    net = Chain(*parts, input_shape=shape, backend=backend)
    x = rng.integers(0, 6, (23, *shape)) if kind == "embedding" else rng.normal(size=(23, *shape)).astype(dtype)
    return net, net.init(seed=1, dtype=dtype), x, rng.normal(size=(23, *net.output_shape)).astype(dtype)


def _trained(backend: str | Backend, dtype: Any, kind: str, optimizer: Any) -> dict[str, np.ndarray]:
    net, p, x, t = _problem(backend, dtype, kind)
    state: dict[str, Any] = {"state": net.init_state(dtype=dtype)} if net.n_state else {}
    history = train(net, p, x, t, SquaredLoss(), optimizer, epochs=3, batch_size=5, seed=SEED, **state)
    return {"p": p, "the losses": np.asarray(history.loss, np.float64)} | state


def _training(backend: Backend) -> Checks:
    optimizers = {"SGD": SGD(0.05, momentum=0.9), "Adam": Adam(0.01)}
    for dtype, allowed in _kinds(backend):
        for kind in ("dense", "statistics and dropout", "embedding"):
            for name, optimizer in optimizers.items():
                yield f"{kind}, {name}, {dtype}", partial(_compared_training, backend, dtype, kind, optimizer, LONG * allowed)


def _compared_training(backend: Backend, dtype: Any, kind: str, optimizer: Any, allowed: float) -> float:
    wanted, found = (_trained(each, dtype, kind, optimizer) for each in ("numpy", backend))
    error = max(_share(found[name], wanted[name], allowed, f"after three epochs, `{name}`") for name in wanted)
    if backend.same_bits:
        _same_bits(found, _trained(backend, dtype, kind, optimizer), "after the same training again")
    return error


def _members(backend: Backend) -> Checks:
    for dtype, allowed in _kinds(backend):
        for own in (False, True):
            yield f"{'own' if own else 'shared'} data, {dtype}", partial(_compared_members, backend, dtype, LONG * allowed, own)


def _compared_members(backend: Backend, dtype: Any, allowed: float, own: bool) -> float:
    """Networks trained in one call equal networks trained alone; with `own`, each on other data."""
    net, _, x, t = _problem(backend, dtype, "dense")
    rows = net.init_many(3, seed=5, dtype=dtype)
    alone = [row.copy() for row in rows]
    data = [(x + dtype.type(own * number), t) for number in range(len(rows))]
    trained = partial(train, net, loss=SquaredLoss(), optimizer=Adam(0.01), epochs=2, batch_size=5)
    together = tuple(np.stack(arrays) for arrays in zip(*data, strict=True)) if own else (x, t)
    trained(rows, *together, seed=[2] * len(rows))
    for p, mine in zip(alone, data, strict=True):
        trained(p, *mine, seed=2)
    return max(_share(row, p, allowed, f"member {number}") for number, (row, p) in enumerate(zip(rows, alone, strict=True)))


def _large_arrays(backend: Backend) -> Checks:
    for dtype, allowed in _kinds(backend):
        yield f"three calls, {dtype}", partial(_compared_large, backend, dtype, LONG * allowed)


def _compared_large(backend: Backend, dtype: Any, allowed: float) -> float:
    """Arrays above `copied_bytes` of the host are used where they are; each call has others."""
    parts, rng, worst = (Dense(400, 700, tanh), Dense(700, 2)), np.random.default_rng(3), 0.0
    net, wanted = (Chain(*parts, backend=each) for each in (backend, "numpy"))
    p = net.init(seed=0, dtype=dtype)
    for _ in range(3):
        x = rng.normal(size=(120, 400)).astype(dtype)
        worst = max(worst, _share(net(x, p), wanted(x, p), allowed, "the output"))
        p = p * dtype.type(0.9)
    return worst


def _threads(backend: Backend) -> Checks:
    for dtype, allowed in _kinds(backend):
        yield f"four threads, {dtype}", partial(_compared_threads, backend, dtype, LONG * allowed)


def _compared_threads(backend: Backend, dtype: Any, allowed: float) -> float:
    net, p, x, t = _problem(backend, dtype, "dense")
    loss, found, errors = SquaredLoss(), {}, list[Exception]()
    inputs = [x + dtype.type(number) for number in range(4)]
    wanted = [_problem("numpy", dtype, "dense")[0].value_and_grad(p, each, t, loss)[1] for each in inputs]
    start = threading.Barrier(len(inputs))

    def work(number: int) -> None:
        start.wait()
        try:
            found[number] = [net.value_and_grad(p, inputs[number], t, loss)[1] for _ in range(5)]
        except Exception as error:  # which Python would print, and forget
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise Fault(f"{counted(len(errors), 'thread')} of {len(inputs)} raised {type(errors[0]).__name__}: {errors[0]}")
    return max(_share(g, wanted[k], allowed, f"the gradient in thread {k}") for k, all_ in found.items() for g in all_)


@dataclass(frozen=True)
class Unheard(Operation):
    """An operation that no backend knows."""


def _bad_input(backend: Backend) -> Checks:
    for dtype, _ in _kinds(backend):
        good = np.zeros((3, 4), dtype)
        bad = {"a size": good[:2], "a type": good.astype(np.int64), "gaps": np.zeros((3, 8), dtype)[:, ::2]}
        for what, array in bad.items():
            yield f"an array of another sort ({what}), {dtype}", partial(_refused_array, backend, dtype, array)
        yield f"an unknown operation, {dtype}", partial(_refused_operation, backend, dtype)


def _doubling(dtype: Any) -> Recorder:
    ops = Recorder("doubling", dtype)
    x, y = (ops.external(name, (4,), role=role, batched=True) for name, role in (("x", "input"), ("y", "output")))
    ops.map(y, lambda x: 2.0 * x, x)
    return ops


def _refused_array(backend: Backend, dtype: Any, array: np.ndarray) -> float:
    program = _doubling(dtype).finish()
    try:
        backend.choose(program).bind(program, 3, {"x": array})
    except ValueError as error:
        if "x" in str(error):
            return 0.0
        raise Fault(f"the ValueError must name the array, 'x': {error}") from error
    raise Fault("`bind` must raise ValueError: call `caller_arrays` of chains.backends.base")


def _refused_operation(backend: Backend, dtype: Any) -> float:
    ops = _doubling(dtype)
    ops.operations += [Unheard(each.outs, each.ins) for each in ops.operations]
    program = Program(ops.name, ops.dtype, tuple(ops.operations))
    try:
        backend.choose(program).bind(program, 3, {})
    except UnsupportedOperationError as error:
        if "unheard" in str(error):
            return 0.0
        raise Fault(f"the UnsupportedOperationError must name the operation, 'unheard': {error}") from error
    raise Fault("`bind` must raise UnsupportedOperationError")
