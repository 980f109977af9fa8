"""What a queued call returns at once: its result, to be waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from chains.queueing.hazards import Entry


# A function, its arguments, further arrays that it reads, and those that it changes.
Work = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Iterable[Any], list[Any]]


class Owner(Protocol):
    """What runs the call of a result."""

    def wait_for(self, result: Result, timeout: float | None) -> None: ...

    def told(self, error: BaseException) -> None: ...


class Pending:
    """A value that may not be there yet; reading it waits. Errors of the call are raised where it is read.

    It may be an argument of further calls in the same queue, which then wait for it.
    """

    def wait(self, timeout: float | None = None) -> Any:
        """The value, once it is there.

        Parameters
        ----------
        timeout : float, optional
            The seconds to wait at most.

        Returns
        -------
        object
            What the call would have returned without a queue.

        Raises
        ------
        TimeoutError
            Where the call has not ended by then.
        Exception
            What the call has raised, with a note of the place that queued it.
        """
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether the call has ended, well or not; does not wait."""
        raise NotImplementedError

    @property
    def array(self) -> np.ndarray:
        """The value, which must be an array; waits for it. Raises TypeError where it is something else."""
        value = self.wait()
        if not hasattr(value, "shape"):
            more = _PARTS if isinstance(value, tuple) else "; try result.wait()"
            raise TypeError(f"the result is a {type(value).__name__}, not an array" + more)
        return value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype, copy=copy)

    def __float__(self) -> float:
        value = self.wait()
        if isinstance(value, tuple):
            raise TypeError("the result is a tuple, not a number" + _PARTS)
        return float(value)

    def __str__(self) -> str:
        return str(self.wait())


_PARTS = "; take a part of it, such as result[0]"


class Result(Pending):
    """The result of a queued call, such as ``q(net, x, p)``. Made by a `Queue`."""

    def __init__(self, owner: Owner, name: str, place: tuple[str, int], work: Work, *, fresh: bool) -> None:
        self.owner = owner
        self.fresh = fresh  # whether the value has memory of its own
        self.name, self.place = name, place
        self.work: Work | None = work  # None once it has begun
        self.value: Any = None
        self.error: BaseException | None = None
        self.held = 0  # bytes of arguments that only the queue holds
        self.ended = False
        self.waits = 0  # calls before it that have not ended
        self.followers: list[tuple[Result, bool]] = []  # those that wait for it, and whether they need its value
        self.readers: list[Result] = []  # those that have it among their arguments, until it has ended
        self.accesses: list[tuple[tuple[int, int], Entry[Result]]] = []

    def wait(self, timeout: float | None = None) -> Any:
        if not self.ended:
            self.owner.wait_for(self, timeout)
        if self.error is not None:
            self.owner.told(self.error)
            raise self.error
        return self.value

    @property
    def done(self) -> bool:
        return self.ended

    def __getitem__(self, k: int) -> Part:
        if not isinstance(k, int) or isinstance(k, bool):
            raise TypeError(f"parts of a result have whole numbers, got {k!r}; try result.array")
        return Part(self, k)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wait())

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a pending result has no attribute {name!r}; that of the value is result.wait().{name}")

    def __repr__(self) -> str:
        file, line = self.place
        state = "pending" if not self.ended else "done" if self.error is None else f"failed: {type(self.error).__name__}"
        return f"<Result of {self.name}, {state}, queued at {file}:{line}>"


class Part(Pending):
    """A part of a result that is a tuple, such as the gradient ``r[1]`` of ``r = q.value_and_grad(...)``."""

    def __init__(self, result: Result, k: int) -> None:
        self.result, self.k = result, k

    def wait(self, timeout: float | None = None) -> Any:
        return self.result.wait(timeout)[self.k]

    @property
    def done(self) -> bool:
        return self.result.ended

    def __repr__(self) -> str:
        return f"<part {self.k} of {self.result!r}>"


def result_of(value: Pending) -> Result:
    """The result that a value is, or is a part of."""
    return value.result if isinstance(value, Part) else value  # type: ignore[return-value]
