"""The state of an optimiser between steps: its initial values, its public form, and checked copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from chains.optimizers import Optimizer
from chains.support.memory import is_elsewhere, memory_of, on_host
from chains.support.messages import counted, listed, shown

State = dict[str, np.ndarray]
COUNTS = ("step", "epoch")


class OptimizerState(Mapping[str, Any]):
    """Arrays by name, read-only: "moments", shape (n_states * n_params,), and the counts "step" and "epoch", shape ().

    Counts include all calls that continued one another. It can be pickled, and given back: ``Updater(optimizer, p, state)``.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {name: _read_only(array) for name, array in arrays.items()}

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping) or self.keys() != other.keys():
            return NotImplemented
        return all(np.array_equal(on_host(array), on_host(other[name])) for name, array in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        self.update()

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TypeError: a state is read-only. The message says where to give a state back."""
        raise TypeError("the state of an optimiser is read-only: give one back as Updater(optimizer, p, state)")

    def __reduce__(self) -> tuple[Any, ...]:
        return OptimizerState, (self._arrays,)

    def __repr__(self) -> str:
        if not self:
            return "<no optimiser's state>"
        moments, steps = self["moments"], counted(int(on_host(self["step"]).max()), "step")
        return f"<an optimiser's state after {steps}: {counted(moments.size, 'moment')} in {moments.dtype}>"


def _read_only(array: Any) -> Any:
    """The same memory; NumPy's arrays refuse to be written to."""
    if isinstance(array, np.ndarray):
        array = array.view()
        array.flags.writeable = False
    return array


def begin(optimizer: Optimizer, p: np.ndarray) -> State:
    """The state before the first step, in the memory of `p`; for an ensemble, with moments and steps for each member."""
    rows, size = p.shape[:-1], p.shape[-1]
    state = {"moments": np.zeros((*rows, optimizer.n_states * size), p.dtype), "step": np.zeros(rows), "epoch": np.zeros(())}
    return {name: memory_of(p).contiguous(array) for name, array in state.items()}


def copied(name: str, state: Any, optimizer: Optimizer, p: np.ndarray) -> State:
    """A copy of `state`, the argument `name`, in the memory of `p`.

    Raises TypeError or ValueError unless it fits the optimiser and the parameters.
    """
    if not isinstance(state, Mapping):
        raise TypeError(
            f"`{name}` must be an optimiser's state, such as `update.state` or `history.optimizer_state`, got {shown(state)}"
        )
    fresh = begin(optimizer, p)
    if state.keys() != fresh.keys():
        raise ValueError(f"`{name}` must hold {listed(map(repr, fresh))}, got {listed(map(repr, state))}")
    for part, wanted in fresh.items():
        array = state[part]
        if not isinstance(array, np.ndarray) and not is_elsewhere(array):
            raise TypeError(f"`{name}[{part!r}]` must be an array, {wanted.dtype} {wanted.shape}, got {shown(array)}")
        if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"`{name}[{part!r}]` must be {wanted.dtype} {wanted.shape} for {optimizer!r} on "
                f"{counted(p.size, 'parameter')} of {p.dtype}, got {array.dtype} {array.shape}"
            )
    for part in COUNTS:
        for count in np.ravel(on_host(state[part])).tolist():
            if not (count >= 0 and count.is_integer()):
                raise ValueError(f"`{name}[{part!r}]` must be a whole number, zero or positive, got {count:g}")
    place = memory_of(p)
    return {part: place.array(state[part] if place.owns(state[part]) else on_host(state[part])) for part in fresh}
