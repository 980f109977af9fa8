"""The reference backend: a program as a list of NumPy calls that write into given arrays.

`NumpyBackend.bind` makes the arrays of every view and turns each operation into one or more calls with all
arguments fixed; a run is a loop over these calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from chains.backends.base import Arrays, Backend, Binding, UnsupportedOperationError
from chains.backends.ufuncs import UFUNCS, Register, scalar_call, schedule
from chains.operations import Copy, Fill, Gather, Map, MatMul, Operation, Random, Reduce, ScatterAdd
from chains.program import Program
from chains.scratch import ALIGNMENT
from chains.view import View, concrete

Call = Callable[[], Any]


class NumpyBackend(Backend):
    """Runs programs with NumPy's ufuncs and matrix products, in one Python thread."""

    name = "numpy"

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> NumpyBinding:
        return NumpyBinding(program, batch, arrays, scratch)

    def running(self) -> AbstractContextManager[object]:
        return np.errstate(all="ignore")  # infinities and NaN are results here, as on every other backend


class NumpyBinding(Binding):
    """A program bound to arrays: `calls`, to be made in order."""

    def __init__(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None) -> None:
        self.program = program
        self.batch = batch
        self.arrays = dict(arrays)
        for name, buffer in program.buffers.items():
            if buffer.data is not None:
                self.arrays[name] = buffer.data
            elif name == "inverse_batch":
                self.arrays[name] = np.array(1.0 / batch, program.dtype)
            elif name not in self.arrays:
                self.arrays[name] = np.empty(concrete(buffer.shape, batch), buffer.dtype)
        self._scratch = aligned(program.scratch.nbytes(batch)) if scratch is None else scratch
        self._temporaries: dict[tuple[Any, ...], np.ndarray] = {}
        self._ones = np.ones(0, program.dtype)
        self.calls: list[Call] = []
        for operation in program.operations:
            self.calls += _lower(self, operation)

    def run(self) -> None:
        for call in self.calls:
            call()

    def array(self, view: View) -> np.ndarray:
        """The array of a view."""
        buffer, size = view.buffer, view.dtype.itemsize
        if buffer.role == "scratch":
            base, offset = self._scratch, self.program.scratch.offset(buffer, self.batch)
        else:
            base, offset = self.arrays[buffer.name], 0
        shape = concrete(view.shape, self.batch)
        strides = tuple(stride * size for stride in view.strides)
        return np.ndarray(shape, view.dtype, base, offset + view.offset * size, strides)

    def temporary(self, shape: tuple[int, ...], dtype: Any, number: int = 0) -> np.ndarray:
        """An array for use within one operation; different numbers are different arrays."""
        key = (shape, np.dtype(dtype), number)
        if key not in self._temporaries:
            self._temporaries[key] = np.empty(shape, dtype)
        return self._temporaries[key]

    def ones(self, length: int) -> np.ndarray:
        if len(self._ones) < length:
            self._ones = np.ones(length, self.program.dtype)
        return self._ones[:length]


def aligned(nbytes: int) -> np.ndarray:
    """Uninitialised bytes that start at a multiple of `ALIGNMENT`."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]


def _lower(binding: NumpyBinding, operation: Operation) -> list[Call]:
    """The calls that carry out one operation."""
    try:
        lower = _LOWERINGS[type(operation)]
    except KeyError:
        raise UnsupportedOperationError(
            f"backend 'numpy' cannot run the operation `{operation.name}` of {operation.label}"
        ) from None
    return lower(binding, operation)


def _matmul(binding: NumpyBinding, operation: MatMul) -> list[Call]:
    out, a, b = (binding.array(view) for view in operation.views)
    calls: list[Call] = []
    if not _is_blas(a):
        a = _copied(binding, a, 0, calls)
    if not _is_blas(b):
        b = _copied(binding, b, 1, calls)
    if out.flags.c_contiguous and not operation.accumulate:
        return [*calls, partial(a.dot, b, out)]
    product = binding.temporary(out.shape, out.dtype, 2)
    calls.append(partial(a.dot, b, product))
    return [*calls, partial(np.add, out, product, out) if operation.accumulate else partial(np.copyto, out, product)]


def _is_blas(matrix: np.ndarray) -> bool:
    """Whether BLAS takes the matrix as it is, as it stands or transposed."""
    (rows, columns), size = matrix.strides, matrix.itemsize
    return (columns == size and rows >= size * matrix.shape[1]) or (rows == size and columns >= size * matrix.shape[0])


def _copied(binding: NumpyBinding, matrix: np.ndarray, number: int, calls: list[Call]) -> np.ndarray:
    copy = binding.temporary(matrix.shape, matrix.dtype, number)
    calls.append(partial(np.copyto, copy, matrix))
    return copy


def _map(binding: NumpyBinding, operation: Map) -> list[Call]:
    outs, ins = [binding.array(view) for view in operation.outs], [binding.array(view) for view in operation.ins]
    if all(view.ndim == 0 for view in operation.views):
        return [scalar_call(operation.formula, outs, ins)]
    conflicts = [[_conflict(out, view) for view in operation.ins] for out in operation.outs]
    known = {j: ins[j] for j, view in enumerate(operation.ins) if view.buffer.name == "inverse_batch"}
    shapes = [array.shape for array in ins]
    plan = schedule(operation.formula, binding.program.dtype, shapes, outs[0].shape, conflicts, known)

    def array(register: Register) -> np.ndarray:
        if register.kind == "const":
            return np.asarray(register.value)
        if register.kind == "temp":
            dtype = np.bool_ if register.boolean else binding.program.dtype
            return binding.temporary(register.shape, dtype, register.number)
        return (ins if register.kind == "in" else outs)[register.number]

    calls: list[Call] = []
    for step in plan.steps:
        target, sources = array(step.target), [array(source) for source in step.sources]
        if step.operation == "copy":
            calls.append(partial(np.copyto, target, sources[0]))
        elif step.operation == "where":
            condition, chosen, other = sources
            if other is not target and not (step.sources[2].kind == "in" and _is_same(target, other)):
                calls.append(partial(np.copyto, target, other))
            calls.append(partial(np.copyto, target, chosen, "same_kind", condition))
        else:
            calls.append(partial(UFUNCS[step.operation], *sources, target))
    return calls


def _conflict(out: View, view: View) -> str:
    if out.buffer is not view.buffer:
        return "apart"
    return "same" if out == view else "across"


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.ctypes.data == b.ctypes.data and a.strides == b.strides and a.shape == b.shape


def _reduce(binding: NumpyBinding, operation: Reduce) -> list[Call]:
    out, a = binding.array(operation.outs[0]), binding.array(operation.ins[0])
    missing = a.ndim - out.ndim
    axes = tuple(k for k in range(a.ndim) if k < missing or out.shape[k - missing] != a.shape[k])
    rows = max(axes, default=-1) + 1  # the leading axes summed away, where these are all
    if operation.kind == "max":
        return [partial(np.maximum.reduce, a, axes, None, out.reshape(_kept(a, axes)), True)]
    if not axes:
        return [partial(np.copyto, out, a)]
    if a.flags.c_contiguous and out.flags.c_contiguous and out.size > 1:
        # A product with ones costs half of np.add.reduce on small arrays.
        if axes == tuple(range(rows)):
            matrix = a.reshape(-1, out.size)
            return [partial(binding.ones(len(matrix)).dot, matrix, out.reshape(-1))]
        if axes == tuple(range(a.ndim - len(axes), a.ndim)):
            matrix = a.reshape(out.size, -1)
            return [partial(matrix.dot, binding.ones(matrix.shape[1]), out.reshape(-1))]
    if a.flags.c_contiguous and a.size <= 4096 and out.size == 1:
        return [partial(a.reshape(-1).dot, binding.ones(a.size), out.reshape(()))]
    return [partial(np.add.reduce, a, axes, None, out.reshape(_kept(a, axes)), True)]


def _kept(a: np.ndarray, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of `a` with length 1 along `axes`."""
    return tuple(1 if k in axes else length for k, length in enumerate(a.shape))


def _gather(binding: NumpyBinding, operation: Gather) -> list[Call]:
    out, table, index = (binding.array(view) for view in operation.views)
    return [partial(np.take, table, index, 0, out, "clip")]  # "clip": with "raise", NumPy buffers the result


def _scatter_add(binding: NumpyBinding, operation: ScatterAdd) -> list[Call]:
    out, index, source = (binding.array(view) for view in operation.views)
    return [partial(np.add.at, out, index, source)]


def _random(binding: NumpyBinding, operation: Random) -> list[Call]:
    out, key = (binding.array(view) for view in operation.views)
    bits = np.random.Philox(key=[0, 0])
    generator, state = np.random.Generator(bits), bits.state
    counter, philox_key = state["state"]["counter"], state["state"]["key"]
    counter[1] = operation.draw
    numbers = out if out.dtype == np.float32 and out.flags.c_contiguous else np.empty(out.shape, np.float32)

    def draw() -> None:
        philox_key[0], counter[2] = key[0], key[1]
        bits.state = state
        generator.random(dtype=np.float32, out=numbers)

    return [draw] if numbers is out else [draw, partial(np.copyto, out, numbers)]


def _copy(binding: NumpyBinding, operation: Copy) -> list[Call]:
    out, a = (binding.array(view) for view in operation.views)
    return [partial(np.copyto, out, a, "same_kind")]


def _fill(binding: NumpyBinding, operation: Fill) -> list[Call]:
    return [partial(binding.array(operation.outs[0]).fill, operation.value)]


_LOWERINGS: dict[type[Operation], Callable[..., list[Call]]] = {
    MatMul: _matmul,
    Map: _map,
    Reduce: _reduce,
    Gather: _gather,
    ScatterAdd: _scatter_add,
    Random: _random,
    Copy: _copy,
    Fill: _fill,
}
