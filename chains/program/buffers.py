"""The buffers of a program that is being recorded: the caller's, private ones, constants and settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from chains.expr import Expr, key_of
from chains.program.settings import evaluate, numbers_of, symbolic
from chains.program.view import Batch, Buffer, Shape, View, c_strides
from chains.support.messages import shown

T = TypeVar("T")


class Buffers:
    """Makes the buffers of a program whose arrays, except ids, have this type. `parallel`: see `Recorder`."""

    def __init__(self, dtype: Any, parallel: bool) -> None:
        self.dtype = np.dtype(dtype)
        self.parallel = parallel
        self._buffers: dict[str, View] = {}
        self._constants: dict[str, list[View]] = {}
        self._numbers: list[float] = []  # the settings when the program is recorded
        self._settings: dict[Any, tuple[View, Expr]] = {}
        self._label = ""

    def external(self, name: str, shape: tuple[int, ...], *, role: str, batched: bool = False, dtype: Any = None) -> View:
        """A buffer that the caller of the program provides. The same name always gives the same view."""
        if name not in self._buffers:
            self._buffers[name] = self._view(name, role, shape, batched, dtype)
        return self._buffers[name]

    def scratch(self, name: str, shape: tuple[int, ...], *, batched: bool = True) -> View:
        """Private memory, live from the first operation that uses it to the last.

        Parameters
        ----------
        name, shape : str, tuple of int
            The name, for people, and the shape of one sample or, unless `batched`, of the array.
        batched : bool
            Whether each sample has such an array.
        """
        if not isinstance(shape, (tuple, list)):
            raise TypeError(f"scratch: the shape of `{name}` (={shown(shape)}) must be a tuple such as (3,)")
        label = f"{self._label}.{name}" if self._label else name
        return self._view(label, "scratch", shape, batched)

    def constant(self, name: str, data: np.ndarray) -> View:
        """Numbers that are part of the program.

        Parameters
        ----------
        name, data : str, array
            The name, for people, and the numbers.
        """
        data = np.ascontiguousarray(data, dtype=self.dtype).reshape(np.shape(data))
        used = self._constants.setdefault(name, [])
        for view in used:
            if view.buffer.data is not None and np.array_equal(view.buffer.data, data):
                return view
        used.append(self._view(f"constant {name}" + f" {len(used) + 1}" * bool(used), "constant", data.shape, data=data))
        return used[-1]

    def symbolic(self, thing: T) -> T:
        """`thing` with symbols for its settings. Symbols that formulas use become inputs of the program.

        One call has all things with settings, a tuple, in the order in which runs are given their numbers.
        """
        numbers = numbers_of(thing)
        assert not (numbers and self._numbers), f"settings of {thing!r} are numbered behind others: give both in one call"
        twin = symbolic(thing, len(self._numbers))
        self._numbers += numbers
        return twin

    def _setting(self, node: Expr, dtype: np.dtype[Any]) -> View:
        """The scalar that holds the value of an expression of settings."""
        key = (key_of(node), dtype)
        if key not in self._settings:
            text = f"({node})" if node.operands else repr(node)
            same = sum(view.buffer.name.startswith(text) for view, _ in self._settings.values())
            number = np.array(evaluate(node, self._numbers), dtype)
            view = self._view(f"{text} {same + 1}" if same else text, "input", (), dtype=dtype, data=number)
            self._settings[key] = view, node
        return self._settings[key][0]

    @property
    def inverse_batch(self) -> View:
        """The number 1 / batch size; of the whole batch, where it is divided among processes."""
        return self.external("inverse_total" if self.parallel else "inverse_batch", (), role="input")

    def _view(
        self, name: str, role: str, shape: tuple[int, ...], batched: bool = False, dtype: Any = None, data: Any = None
    ) -> View:
        full: Shape = (Batch(), *shape) if batched else shape
        return View(Buffer(name, role, np.dtype(dtype or self.dtype), full, data), full, c_strides(full))

    @contextmanager
    def label(self, label: str) -> Iterator[None]:
        """A context: operations and scratch buffers recorded inside have this label when the program is printed.

        Parameters
        ----------
        label : str
            The label.
        """
        before, self._label = self._label, label
        yield
        self._label = before
