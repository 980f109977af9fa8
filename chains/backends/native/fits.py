"""Fits by Levenberg-Marquardt in machine code: threads take the members, one after another."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np

from chains.backends.base import Arrays, Fitter, aligned
from chains.backends.native.binding import NativeBinding
from chains.backends.native.runtime.epoch import PLACE
from chains.backends.native.runtime.levenberg_marquardt import FIT, NUMBERS, block_rows, fit_code
from chains.backends.native.runtime.shared import runtime, worker_pool
from chains.program.program import Program

_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
VECTORS = ("d", "scaled", "scale", "slope", "sizes", "squares")


def matrix_shape(n: int) -> tuple[int, int]:
    """The rows of the matrix of `n` parameters, and the numbers of a row."""
    rows, lanes = block_rows()
    size = -(-n // rows) * rows
    return size, -(-(size + 1) // lanes) * lanes


class NativeFitter(Fitter):
    """The two programs of a fit on data, with the memory of each thread that was used before and is idle."""

    def __init__(
        self, bind: Callable[[int, Program, Arrays], NativeBinding], threads: Callable[[], int], model: Program, value: Program,
        shared: Arrays, own: Arrays,
    ) -> None:  # fmt: skip
        self._bind, self._threads = bind, threads
        self._programs, self._shared, self._own = (model, value), shared, own
        self._idle: dict[tuple[int, bool], list[_Lane]] = {}

    def start(self, p: np.ndarray, low: np.ndarray, high: np.ndarray, settings: dict[str, float]) -> NativeFits:
        number, alone = self._threads(), len(p) > 1
        idle = self._idle.setdefault((number, alone), [])
        lanes: list[_Lane] = []
        while len(lanes) < min(number, len(p)):
            try:
                lanes.append(idle.pop())
            except IndexError:
                bind = partial(self._bind, number)
                lanes.append(_Lane(bind, *self._programs, self._shared, self._own, p.shape[1], alone=alone))
        return NativeFits(lanes, idle, number, p, low, high, settings)


class NativeFits:
    """The descents of the rows of `p`, which move. `settings` are the numbers of `FIT` by name.

    A thread computes a member alone, so that its bits are the same whichever members there are. A single member is computed by
    all threads together, with these bits too.
    """

    def __init__(
        self, lanes: list[_Lane], idle: list[_Lane], threads: int, p: np.ndarray, low: np.ndarray, high: np.ndarray,
        settings: dict[str, float],
    ) -> None:  # fmt: skip
        self.p, self._start, self._low, self._high = p, p.copy(), low, high
        self.g, self._largest = np.zeros(p.shape), np.zeros(p.shape)
        self._numbers = np.zeros((len(p), len(NUMBERS)))
        self._lanes, self._idle, self._threads = lanes, idle, threads
        self._words = np.array([lane.words for lane in lanes])
        for name, number in settings.items():
            self._words.view(np.float64 if FIT.types[name].is_float else np.int64)[:, FIT.positions[name]] = number
        moved = self._moved()
        for lane, words in zip(lanes, self._words, strict=True):
            lane.place(words, moved)
        self._share, self._alone = (_PARALLEL(runtime().address(name)) for name in ("parallel", "serial"))

    def close(self) -> None:
        """Give the memory of the threads back; nothing is computed afterwards."""
        self._idle += self._lanes
        self._lanes = []

    def _moved(self) -> dict[str, np.ndarray]:
        """The rows of a member, by name in `FIT`."""
        return {
            "at": self.p, "largest": self._largest, "found": self.g, "start": self._start, "low": self._low, "high": self._high,
            "numbers": self._numbers,
        }  # fmt: skip

    @property
    def value(self) -> np.ndarray:
        return self._numbers[:, NUMBERS.index("value")].copy()

    @property
    def status(self) -> np.ndarray:
        return self._numbers[:, NUMBERS.index("status")].astype(int)

    @property
    def iterations(self) -> np.ndarray:
        return self._numbers[:, NUMBERS.index("iterations")].astype(int)

    @property
    def calls(self) -> np.ndarray:
        return self._numbers[:, NUMBERS.index("calls")].astype(int)

    def advance(self, members: np.ndarray, iterations: int) -> None:
        """Do at most `iterations` iterations of each of these members (int64)."""
        members, following = np.ascontiguousarray(members, np.int64), np.zeros(1, np.int64)
        FIT.write(
            self._words, iterations=iterations, next=following.ctypes.data, count=len(members), members=members.ctypes.data
        )
        worker_pool().ensure(self._threads)
        lanes = min(len(self._lanes), len(members))
        share = self._share if lanes > 1 else self._alone  # alone: the threads are free for the programs
        share(worker_pool().address, fit_code().address("fits"), self._words.ctypes.data, lanes)


class _Lane:
    """The memory of a thread, and both programs bound to it."""

    def __init__(
        self, bind: Callable[[Program, Arrays], NativeBinding], model: Program, value: Program, shared: Arrays, own: Arrays,
        n: int, *, alone: bool,
    ) -> None:  # fmt: skip
        size, ld = matrix_shape(n)
        p, g, matrix = _zeros(n), _zeros(n), _zeros(size * ld).reshape(size, ld)
        matrix[range(n, size), range(n, size)] = 1.0
        model_value, trial_value, factor = np.zeros(()), np.zeros(()), _zeros(size * ld)
        vectors = {name: _zeros(ld) for name in VECTORS}
        here = {**shared, **{name: rows[0] for name, rows in own.items()}, "p": p}
        bindings = []
        for program, outs in (
            (model, {"g": g, "matrix": matrix, "value": model_value}),
            (value, {"value": trial_value}),
        ):
            arrays = {name: array for name, array in {**here, **outs}.items() if name in program.buffers}
            bindings.append(bind(program, arrays))
            bindings[-1].set_alone(alone)
        of_model, of_value = bindings
        self.words = FIT.pack(
            run=of_model.run_address, words=of_model.words_address, run_value=of_value.run_address,
            value_words=of_value.words_address, p=p.ctypes.data, g=g.ctypes.data, matrix=matrix.ctypes.data,
            model_value=model_value.ctypes.data, trial_value=trial_value.ctypes.data, n=n, size=size, ld=ld,
            factor=factor.ctypes.data, **{name: vector.ctypes.data for name, vector in vectors.items()},
        )  # fmt: skip
        places = []
        for binding in bindings:
            for name, rows in own.items():
                if name in binding.addresses:
                    first, stride = rows.ctypes.data, rows.strides[0]
                    places += [PLACE.pack(word=word, first=first, stride=stride) for word in binding.slots(name)]
        self.fixed = np.array(places, np.int64).reshape(-1, PLACE.size)
        self._keep = bindings, p, g, matrix, model_value, trial_value, factor, vectors

    def place(self, words: np.ndarray, rows_of: Arrays) -> None:
        """Let the rows of a member go to these words of the thread."""
        moved = [
            PLACE.pack(word=words.ctypes.data + 8 * FIT.positions[name], first=rows.ctypes.data, stride=rows.strides[0])
            for name, rows in rows_of.items()
        ]
        self._places = np.concatenate([np.array(moved, np.int64), self.fixed])
        FIT.write(words, places=self._places.ctypes.data, place_count=len(self._places))


def _zeros(count: int) -> np.ndarray:
    numbers = aligned(8 * count).view(np.float64)
    numbers[:] = 0.0
    return numbers
