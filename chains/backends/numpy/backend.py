"""The reference backend: a program as a list of NumPy calls that write into given arrays.

`NumpyBackend.bind` makes the arrays of every view and turns each operation into one or more calls with all
arguments fixed; a run is a loop over these calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from chains.backends.base import Arrays, Backend, Binding, UnsupportedOperationError, aligned, caller_arrays
from chains.backends.numpy.formulas import UFUNCS, Register, scalar_call, schedule
from chains.backends.numpy.images import Workspace, convolve, convolve_input, convolve_weight, pool, pool_input
from chains.lazy import lazy
from chains.program.operations import (
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Copy,
    Fill,
    Gather,
    Map,
    MatMul,
    Operation,
    Pool,
    PoolInput,
    Random,
    Reduce,
    ScatterAdd,
)
from chains.program.program import Program
from chains.program.scratch import ALIGNMENT
from chains.program.view import View, concrete

Call = Callable[[], Any]


class NumpyBackend(Backend):
    """Runs programs with NumPy's ufuncs and matrix products, in one Python thread."""

    name = "numpy"

    def __init__(self) -> None:
        self._scratch_bytes: WeakKeyDictionary[Program, dict[int, int]] = WeakKeyDictionary()

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> NumpyBinding:
        scratch = aligned(self.scratch_bytes(program, batch)) if scratch is None else scratch
        return NumpyBinding(program, batch, arrays, scratch)

    def scratch_bytes(self, program: Program, batch: int) -> int:
        known = self._scratch_bytes.setdefault(program, {})
        if batch not in known:  # the temporary arrays of formulas are known once all calls are made
            known[batch] = NumpyBinding(program, batch, {}, None).scratch_bytes
        return known[batch]

    def running(self) -> AbstractContextManager[object]:
        return np.errstate(all="ignore")  # infinities and NaN are results here, as on every other backend


class NumpyBinding(Binding):
    """A program bound to arrays: `calls`, to be made in order. Without `scratch`, only to find out how much is needed."""

    def __init__(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None) -> None:
        self.program = program
        self.batch = batch
        self.arrays = caller_arrays(program, batch, arrays)
        self.scratch_bytes = program.scratch.nbytes(batch)
        self._counting = scratch is None
        self._scratch = aligned(self.scratch_bytes) if scratch is None else scratch
        self._arrays: dict[View, np.ndarray] = {}
        self._temporaries: dict[tuple[Any, ...], np.ndarray] = {}
        self._squeezed: dict[int, np.ndarray] = {}
        self._last_use = {view.buffer: operation for operation in program.operations for view in operation.views}
        self.calls: list[Call] = []
        for operation in program.operations:
            self.calls += _lower(self, operation)

    def run(self) -> None:
        for call in self.calls:
            call()

    def __call__(self) -> None:
        with np.errstate(all="ignore"):
            self.run()

    def array(self, view: View) -> np.ndarray:
        """The array of a view; the same object each time, by which NumPy knows an operation to be in place."""
        if view not in self._arrays:
            self._arrays[view] = self._made(view)
        return self._arrays[view]

    def _made(self, view: View) -> np.ndarray:
        buffer, size = view.buffer, view.dtype.itemsize
        if buffer.role == "scratch":
            base, offset = self._scratch, self.program.scratch.offset(buffer, self.batch)
        else:
            base, offset = self.arrays[buffer.name], 0
        shape = concrete(view.shape, self.batch)
        strides = tuple(stride * size for stride in view.strides)
        return np.ndarray(shape, view.dtype, base, offset + view.offset * size, strides)

    def squeezed(self, array: np.ndarray, ndim: int) -> np.ndarray:
        """`array` without the first of `ndim` axes, whose length is 1; the same object each time."""
        if array.ndim < ndim:
            return array
        return self._squeezed.setdefault(id(array), array.reshape(array.shape[1:]))

    def dies(self, view: View, operation: Operation) -> bool:
        """Whether `operation` is the last to use the view's buffer, and uses it once."""
        if view.buffer.role != "scratch" or self._last_use[view.buffer] is not operation:
            return False
        return sum(other.buffer is view.buffer for other in operation.views) == 1

    def temporary(self, shape: tuple[int, ...], dtype: Any, number: int = 0) -> np.ndarray:
        """An array for use within one operation; different numbers are different arrays."""
        dtype = np.dtype(dtype)
        key = (shape, dtype, number)
        if key not in self._temporaries:
            start = self.scratch_bytes
            self.scratch_bytes += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
            if self._counting:
                self._temporaries[key] = np.empty(shape, dtype)
            else:
                self._temporaries[key] = np.ndarray(shape, dtype, self._scratch, start)
        return self._temporaries[key]

    @lazy
    def workspace(self) -> np.ndarray:
        """Bytes for use within one convolution or pool: as many as the one that wants most."""
        nbytes = max(Workspace(operation, self).nbytes for operation in self.program.operations)
        return self.temporary((nbytes,), np.uint8)


_longest_ones: dict[np.dtype[Any], np.ndarray] = {}


def ones(length: int, dtype: np.dtype[Any]) -> np.ndarray:
    """A vector of ones to read; all that were asked for are parts of the longest."""
    longest = _longest_ones.get(dtype)
    if longest is None or len(longest) < length:
        longest = _longest_ones[dtype] = np.ones(length, dtype)
    return longest[:length]


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
    return [*calls, partial(np.add, out, product, out=out) if operation.accumulate else partial(np.copyto, out, product)]


def _is_blas(matrix: np.ndarray) -> bool:
    """Whether BLAS takes the matrix as it is, as it stands or transposed."""
    (rows, columns), size = matrix.strides, matrix.itemsize
    return (columns == size and rows >= size * matrix.shape[1]) or (rows == size and columns >= size * matrix.shape[0])


def _copied(binding: NumpyBinding, matrix: np.ndarray, number: int, calls: list[Call]) -> np.ndarray:
    copy = binding.temporary(matrix.shape, matrix.dtype, number)
    calls.append(partial(np.copyto, copy, matrix))
    return copy


def _map(binding: NumpyBinding, operation: Map) -> list[Call]:
    outs, ins = ([binding.array(view) for view in views] for views in (operation.outs, operation.ins))
    if all(view.ndim == 0 for view in operation.views):
        return [scalar_call(operation.formula, outs, ins)]
    if outs[0].ndim > 1 and outs[0].shape[0] == 1:  # broadcasting costs more than equal shapes
        outs, ins = ([binding.squeezed(array, outs[0].ndim) for array in arrays] for arrays in (outs, ins))
    conflicts = [[_conflict(binding, out, view) for view in operation.ins] for out in operation.outs]
    known = {j: ins[j] for j, view in enumerate(operation.ins) if view.buffer.name == "inverse_batch"}
    dying = {j for j, view in enumerate(operation.ins) if binding.dies(view, operation)}
    shapes = [array.shape for array in ins]
    plan = schedule(operation.formula, binding.program.dtype, shapes, outs[0].shape, conflicts, known, dying)

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
            if other is not target:
                calls.append(partial(np.copyto, target, other))
            calls.append(partial(np.copyto, target, chosen, "same_kind", condition))
        elif step.operation in ("min", "max", "erf"):  # which want `out` by name
            calls.append(partial(UFUNCS[step.operation], *sources, out=target))
        else:
            calls.append(partial(UFUNCS[step.operation], *sources, target))
    return calls


def _conflict(binding: NumpyBinding, out: View, view: View) -> str:
    """How writing `out` touches `view`: see `schedule`. NumPy copies an operand whose memory may reach into the result's."""
    if out == view:
        return "same"
    meet = out.buffer is view.buffer and np.may_share_memory(binding.array(out), binding.array(view))
    return "across" if meet else "apart"


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
            return [partial(ones(len(matrix), a.dtype).dot, matrix, out.reshape(-1))]
        if axes == tuple(range(a.ndim - len(axes), a.ndim)):
            matrix = a.reshape(out.size, -1)
            return [partial(matrix.dot, ones(matrix.shape[1], a.dtype), out.reshape(-1))]
    if a.flags.c_contiguous and a.size <= 4096 and out.size == 1:
        return [partial(a.reshape(-1).dot, ones(a.size, a.dtype), out.reshape(()))]
    return [partial(np.add.reduce, a, axes, None, out.reshape(_kept(a, axes)), True)]


def _kept(a: np.ndarray, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of `a` with length 1 along `axes`."""
    return tuple(1 if k in axes else length for k, length in enumerate(a.shape))


def _gather(binding: NumpyBinding, operation: Gather) -> list[Call]:
    out, table, index = (binding.array(view) for view in operation.views)
    return [partial(np.take, table, index, 0, out, "clip")]  # "clip": with "raise", NumPy buffers the result


def _scatter_add(binding: NumpyBinding, operation: ScatterAdd) -> list[Call]:
    out, index, source = (binding.array(view) for view in operation.views)
    inside = binding.temporary(index.shape, index.dtype)  # `gather` clips too, of which this is the gradient
    return [partial(np.clip, index, 0, len(out) - 1, inside), partial(np.add.at, out, inside, source)]


def _random(binding: NumpyBinding, operation: Random) -> list[Call]:
    out, key = (binding.array(view) for view in operation.views)
    bits = np.random.Philox(key=[0, 0])
    generator, state = np.random.Generator(bits), bits.state
    counter, philox_key = state["state"]["counter"], state["state"]["key"]
    counter[1] = operation.draw
    direct = out.dtype == np.float32 and out.flags.c_contiguous
    numbers = out if direct else binding.temporary(out.shape, np.float32)

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
    Convolve: convolve,
    ConvolveInput: convolve_input,
    ConvolveWeight: convolve_weight,
    Pool: pool,
    PoolInput: pool_input,
    Gather: _gather,
    ScatterAdd: _scatter_add,
    Random: _random,
    Copy: _copy,
    Fill: _fill,
}
