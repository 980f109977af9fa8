"""Batches made ahead of time in a background thread, while earlier ones are used."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from chains.data.batches import pass_from
from chains.support.checks import check_count

Item = TypeVar("Item")


def prefetch(batches: Iterable[Item], depth: int = 2) -> Prefetched[Item]:
    """The same batches in the same order, made ahead of time in a background thread.

    It pays if making a batch takes long and lets other threads run, as NumPy's functions on arrays and reading files do. It
    behaves like PyTorch's DataLoader with one worker and this ``prefetch_factor``.

    Parameters
    ----------
    batches : iterable
        The source. Each pass over the result is a pass over the source, in a separate thread.
    depth : int
        The largest number of batches that are made ahead.

    Returns
    -------
    Prefetched
        Its ``len()`` is that of `batches`. Several threads may share a pass: each batch goes to one of them. A pass ends with
        the last batch or with an error. If it is left by a break, an exception or the end of a ``with`` block, it ends after
        the current batch. An error in `batches` is raised at the place of its batch, with its own traceback.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.

    Examples
    --------
    >>> history = train(net, p, prefetch(Batches(x, t, batch_size=64, augment=Augment())), None, loss, Adam(1e-3))
    """
    return Prefetched(batches, depth)


class Prefetched(Generic[Item]):
    """The result of `prefetch`: an iterable of batches. As a context manager, or by `close`, it ends the current passes."""

    def __init__(self, batches: Iterable[Item], depth: int = 2) -> None:
        depth = check_count("depth", depth, also=" of batches")
        if not isinstance(batches, Iterable):
            raise TypeError(f"`batches` (a {type(batches).__name__}) must be something to iterate over")
        if hasattr(batches, "shape"):
            raise TypeError(
                f"`batches` (a {type(batches).__name__} of shape {batches.shape}) is one array, sample by sample: "
                "pass batches, such as Batches(x, t, batch_size=64)"
            )
        self.batches = batches
        self.depth = depth
        self._passes: weakref.WeakSet[Pass[Item]] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]  # a TypeError where it has no length

    def __iter__(self) -> Pass[Item]:
        return self.pass_from(0)

    def pass_from(self, batch: int) -> Pass[Item]:
        """The next pass, from the batch of this number on; earlier ones are made and dropped unless `batches` can skip them."""
        begun = Pass(pass_from(self.batches, check_count("batch", batch, 0)), self.depth)
        self._passes.add(begun)
        return begun

    @property
    def epoch(self) -> int:
        """The number of the next pass, if `batches` count them; it can be set. Otherwise raises AttributeError."""
        return self.batches.epoch  # type: ignore[attr-defined]

    @epoch.setter
    def epoch(self, number: int) -> None:
        self.batches.epoch = number  # type: ignore[attr-defined]

    def close(self) -> None:
        """End all current passes."""
        for begun in list(self._passes):
            begun.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"prefetch({self.batches!r}, depth={self.depth})"


class Pass(Iterator[Item]):
    """One pass over prefetched batches. It ends early by `close`, and when it is garbage-collected."""

    def __init__(self, source: Iterator[Item], depth: int) -> None:
        self._producer = _Producer(source, depth)
        # The thread knows the producer, not this object, so that it can be collected; at exit it is called as well.
        self.close = weakref.finalize(self, self._producer.stop)
        self._taking = threading.Lock()
        self._producer.thread.start()

    def __next__(self) -> Item:
        with self._taking:  # one thread at a time, so that each sees the end
            if not self.close.alive:
                raise StopIteration
            item, error = self._producer.take()
            if error is None:
                return item
            self.close()
        try:
            raise error
        finally:
            del error  # which holds this frame in its traceback

    def __repr__(self) -> str:
        return f"<a pass over batches made ahead of time{'' if self.close.alive else ', ended'}>"


class _Producer:
    """The thread, and the objects that it shares with a pass."""

    def __init__(self, source: Iterator[Any], depth: int) -> None:
        self.thread = threading.Thread(target=self._work, name="chains-prefetch", daemon=True)
        self._source = source
        # One entry for each batch that may still be made. No semaphore: a collected pass may call `stop` at any point of
        # any thread, within a semaphore's own lock too, and a SimpleQueue's `put` is made for that.
        self._slots: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._slots.put(None)
        self._ready: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._stopped = False

    def take(self) -> tuple[Any, BaseException | None]:
        """The next batch, or the error that came instead: StopIteration after the last one."""
        result = self._ready.get()
        self._slots.put(None)
        return result

    def stop(self) -> None:
        """End the thread and wait for it, but not for long: reading may block it."""
        self._stopped = True
        self._slots.put(None)
        if self.thread.is_alive() and self.thread is not threading.current_thread():  # which may have collected the pass
            self.thread.join(1.0)

    def _wait(self) -> bool:
        """Wait until another batch may be made. Returns whether the pass was left."""
        self._slots.get()
        return self._stopped

    def _work(self) -> None:
        source, self._source = self._source, iter(())
        try:
            while not self._wait():
                self._ready.put((next(source), None))  # no name for the batch: it would keep one in memory
            self._ready.put((None, StopIteration()))
        except BaseException as error:
            self._ready.put((None, error))
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()
