"""Training steps of the members of an ensemble, one member after another."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from chains.backends.base import Arrays, Backend, MemberFeed
from chains.program.program import Program
from chains.support.memory import memory_of


def updated(program: Program, own: Collection[str]) -> list[str]:
    """The names in `own` of the arrays that a step changes: the program's state, and the number of the random draw."""
    return [name for name in own if name == "random" or (name in program.buffers and program.buffers[name].role == "state")]


def member_feed(
    backend: Backend,
    program: Program,
    batch: int,
    arrays: Arrays,
    sources: Arrays,
    orders: np.ndarray,
    own: Collection[str],
) -> MemberFeed:
    """The backend's feed for the steps of many networks, with the arguments of `Backend.member_feed`."""
    given = program, batch, arrays, sources, orders, own
    return backend.member_feed(*given) or OneByOne(backend, *given)


class OneByOne(MemberFeed):
    """One binding for all members. A member's rows are copied to it before the steps; changed rows are copied back."""

    def __init__(
        self,
        backend: Backend,
        program: Program,
        batch: int,
        arrays: Arrays,
        sources: Arrays,
        orders: np.ndarray,
        own: Collection[str],
    ) -> None:
        everything = {**arrays, **sources}
        self._rows = {name: everything[name] for name in own if name in everything}
        self._at = {name: memory_of(rows).array(rows[0]) for name, rows in self._rows.items()}
        self._updated = updated(program, self._rows)
        self._orders, self._order = orders, orders[0].copy()
        binding = backend.bind(program, batch, {name: self._at.get(name, array) for name, array in arrays.items()})
        self._feed = backend.feed(binding, {name: self._at.get(name, array) for name, array in sources.items()}, self._order)

    def __call__(self, first: int, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        done = np.zeros(len(members), np.int64)
        for position, member in enumerate(members):
            for name, rows in self._rows.items():
                memory_of(rows).assign(self._at[name], rows[member])
            self._order[:] = self._orders[member if len(self._orders) > 1 else 0]
            self._feed.forget()
            losses = np.empty(values.shape[1])
            done[position] = self._feed(first, losses)
            values[member] = losses
            for name in self._updated:
                memory_of(self._rows[name]).assign(self._rows[name][member, ...], self._at[name])
        return done
