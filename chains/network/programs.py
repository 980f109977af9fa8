"""The programs of a network. Networks of one structure share a program; the first request records it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from chains.backends import Backend, Executable
from chains.backends.executable import decline
from chains.network.structure import Unknown, value_of
from chains.program.program import Program
from chains.program.settings import Tunable, freeze, numbers_of
from chains.program.settings import structure as structure_of
from chains.support.caching import Recent

T = TypeVar("T")
MAX_KEPT = 64  # entries of each kind; the oldest are forgotten first
MAX_ALIKE = 16  # losses and penalties with functions for the same shapes
RECORDED: Recent[Program] = Recent(256)  # of all networks, by their structures
# The executables of all networks, by backend and structure, as long as one of the networks is in use.
BOUND: WeakValueDictionary[tuple[Backend, Hashable], Executable] = WeakValueDictionary()


def forget() -> None:
    """Forget what networks of one structure share."""
    RECORDED.clear()
    BOUND.clear()


class Programs:
    """Programs on one backend, for any number of threads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._recorded: dict[Hashable, Executable] = {}  # one for all kinds that differ only in settings
        self._tuned: dict[Hashable, Executable] = {}  # with settings, by equality of their parts
        self._same: dict[Hashable, tuple[Executable, tuple[Any, ...]]] = {}  # by the ids of objects, which an entry keeps alive

    def __len__(self) -> int:
        return len(self._recorded)

    @property
    def fallbacks(self) -> list[str]:
        """The reasons why the backend leaves some of the programs to a slower one, a line each."""
        reasons = dict.fromkeys(self._backend.fallback(run.program) for run in list(self._recorded.values()))
        return [f"on NumPy, several times slower: {reason}" for reason in reasons if reason]

    def get(
        self, structure: Callable[[], Hashable], kind: Hashable, make: Callable[[], Program], *parts: Tunable
    ) -> Executable:
        """The program of this kind, recorded by `make` from these parts. All networks of one structure share it.

        `structure` returns the structure of the network. If it or that of a part is unknown, the program is for this network
        alone.
        """
        try:
            return self._tuned[kind, parts]
        except KeyError:
            key = kind, structure_of(parts)
            freeze(parts)
            recorded = get_or_make(self._recorded, key, lambda: self._shared(structure, key, make))
            return get_or_make(self._tuned, (kind, parts), lambda: recorded.tuned(numbers_of(parts)))

    def _shared(
        self, structure: Callable[[], Hashable], key: tuple[Hashable, Hashable], make: Callable[[], Program]
    ) -> Executable:
        """The executable of another network of this structure, with its bindings, or a new one."""
        kind, parts = key
        try:
            known = structure(), kind, value_of(parts)
        except Unknown:
            return Executable(self._backend, make())
        found = BOUND.get((self._backend, known))
        if found is None:
            found = Executable(self._backend, RECORDED.get(known, make))
            if self._backend.fallback(found.program) is None:  # of a slower backend, each network warns
                BOUND[self._backend, known] = found
        return found

    def recent(self, kind: Hashable, things: tuple[Any, ...], find: Callable[[], Executable]) -> Executable:
        """The result of `find` for this kind and these objects, which are found faster by identity than by equality."""
        key = (kind, *map(id, things))
        found = self._same.get(key)
        return found[0] if found is not None else get_or_make(self._same, key, lambda: (find(), things))[0]


class Repeated(NamedTuple):
    """A call that may be repeated: its kind and mode, its checked arrays by buffer name, in the order of the function."""

    kind: Hashable
    mode: Any
    arrays: dict[str, Any]
    outs: Sequence[str]
    one: Any = None  # its loss and penalty
    other: Any = None
    check: Callable[[Any], None] | None = None  # of the targets "t", the third array
    batch: int = 0  # samples of a member, if inputs may have an axis of members


class Shortcuts:
    """Fast functions for repeated calls: the same network, loss and mode, and arrays of the same shapes.

    They take NumPy arrays that need no conversion. For others they return None; the caller then takes the general path.
    """

    def __init__(self, backend: Backend) -> None:
        self._wanted = np.ndarray if backend.has_functions else None  # the type of arrays that may have a function
        # By kind, mode, type and shape: pairs of loss and penalty, the last ones first, each with its function. That is None
        # after the first call, since many calls are not repeated.
        self._functions: dict[Hashable, tuple[tuple[Any, Any, Callable[..., Any] | None], ...]] = {}

    def find(self, kind: Hashable, mode: Any, p: Any, x: Any, one: Any = None, other: Any = None) -> Callable[..., Any] | None:
        """The function for calls of this kind in a mode, with these objects or equal ones, or None."""
        if type(p) is type(x) is self._wanted:
            try:
                entries = self._functions.get((kind, mode, p.dtype, x.shape), ())
            except TypeError:  # the mode is invalid: the general path reports it
                return None
            for entry in entries:
                if entry[0] is one and entry[1] is other:
                    return entry[2]
            if entries and (found := _equal(entries, one, other)) is not None:
                self._put((kind, mode, p.dtype, x.shape), one, other, found[2])  # now it is found without comparing
                return found[2]
        return None

    def add(self, run: Executable, repeated: Repeated) -> None:
        """Provide a function for such calls, from the second call on, if the backend has one."""
        p, x = repeated.arrays["p"], repeated.arrays["x"]
        if type(p) is type(x) is self._wanted and not run.program._takes_ids:  # which are looked through at each call
            key, one, other = (repeated.kind, repeated.mode, p.dtype, x.shape), repeated.one, repeated.other
            known = _equal(get_or_make(self._functions, key, tuple), one, other)
            if known is None:
                self._put(key, one, other, None)
            elif known[2] is None:
                types = {name: array.dtype for name, array in repeated.arrays.items()}
                self._put(key, one, other, _checking(run.function(repeated.batch or len(x), types, repeated.outs), repeated))

    def _put(self, key: Hashable, one: Any, other: Any, function: Callable[..., Any] | None) -> None:
        """Replace the entry for equal objects, or add one."""
        entries = self._functions.get(key, ())
        before = _equal(entries, one, other)
        self._functions[key] = ((one, other, function), *(each for each in entries[:MAX_ALIKE] if each is not before))


def _equal(entries: Any, one: Any, other: Any) -> Any:
    """The entry for objects that equal these, or None."""
    for entry in entries:
        if type(entry[0]) is type(one) and type(entry[1]) is type(other) and entry[0] == one and entry[1] == other:
            return entry
    return None


def _checking(function: Callable[..., Any], repeated: Repeated) -> Callable[..., Any]:
    """The function, with the check of its targets before it, if there is one."""
    check = repeated.check
    if function is decline or check is None:
        return function
    shape = repeated.arrays["t"].shape

    def call(p: Any, x: Any, t: Any, *rest: Any) -> Any:
        if type(t) is np.ndarray and t.dtype.kind in "fi" and t.shape == shape:  # the general path checks others
            check(t)
        return function(p, x, t, *rest)

    return call


def get_or_make(known: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """The entry for this key, made the first time."""
    found = known.get(key)
    if found is None:
        found = make()
        for oldest in list(known)[: max(0, len(known) - MAX_KEPT + 1)]:  # other threads may do the same
            known.pop(oldest, None)
        found = known.setdefault(key, found)
    return found
