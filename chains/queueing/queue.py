"""`Queue`: calls return immediately; workers run them, in order if they share memory, else concurrently."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import numpy as np

from chains.chain import Chain
from chains.losses import Loss
from chains.network import checks
from chains.network.network import check_net, network_of
from chains.optimizers import Optimizer
from chains.queueing.scheduler import LeftOutError, Pending, Result, Scheduler
from chains.support import arguments
from chains.support.arrays import as_array
from chains.support.checks import check_count, check_is
from chains.support.messages import counted, shown
from chains.training.train import train

MAX_PENDING = 256  # calls
MAX_ARRAYS = 8  # for results, of one shape and type
MAX_BYTES = 256 << 20  # of all arrays for results that are not in use


class Queue:
    """Queued calls: each returns a `Result` immediately; reading that waits.

    Calls that share memory, one of which writes it, run in the order in which they were queued. So does a call with the result
    of another one as an argument. Others may run concurrently. Until its call has ended, an array may be read, but only the
    queue may change it. The workers of a queue without references end after its calls. Calls that have not begun when the
    process ends are left out; this and errors that no caller has seen are printed.

    Parameters
    ----------
    workers : int
        The number of calls that run concurrently. Compiled programs take ``get_num_threads() // workers`` threads each while
        the queue is open: with one worker, results have the bits of calls without a queue.
    pending : int
        The number of calls that may wait. Queueing another one blocks until there is room, and while arguments that only the
        queue references take over 32 MB: memory does not grow with the calls.

    Raises
    ------
    TypeError, ValueError
        For numbers that are not whole and positive.

    Examples
    --------
    >>> with chains.Queue() as q:
    ...     r = q.value_and_grad(net, p, x, t, loss)  # returns immediately
    ...     value, gradient = r.wait()
    """

    def __init__(self, workers: int = 1, pending: int = MAX_PENDING) -> None:
        self._workers = check_count("workers", workers)
        self._scheduler = Scheduler(self._workers, check_count("pending", pending))
        self._outputs = Outputs()
        weakref.finalize(self, self._scheduler.drop).atexit = False

    # Calls

    def __call__(self, net: Chain, x: Any, p: Any, **options: Any) -> Result:
        """Queue ``net(x, p, **options)``.

        Parameters
        ----------
        net : Chain
            The network.
        x, p : array or Result
            As in a call of the network.
        **options
            As in a call of the network.

        Returns
        -------
        Result
            The outputs.

        Raises
        ------
        TypeError, ValueError
            For inputs and parameters that do not fit the network. Other arguments are checked when the call runs.
        """
        p, x = self._checked(net, p, x)
        return self._add("a network", self._forward, (net, x, p), options, _changing(options, "eval"))

    def value_and_grad(self, net: Chain, p: Any, x: Any, t: Any, loss: Loss, **options: Any) -> Result:
        """Queue ``net.value_and_grad(p, x, t, loss, **options)``.

        Parameters
        ----------
        net : Chain
            The network.
        p, x, t, loss, **options
            As in `Chain.value_and_grad`; arrays may be results.

        Returns
        -------
        Result
            The value and the gradient. ``result[1]`` is the gradient, as an argument of further calls.

        Raises
        ------
        TypeError, ValueError
            As in a call.
        """
        p, x = self._checked(net, p, x)
        checks.check_loss(loss)
        return self._add("value_and_grad", self._gradient, (net, p, x, t, loss), options, _changing(options, "train"))

    def vjp(self, net: Chain, p: Any, x: Any, dy: Any, **options: Any) -> Result:
        """Queue ``net.vjp(p, x, dy, **options)``.

        Parameters
        ----------
        net : Chain
            The network.
        p, x, dy, **options
            As in `Chain.vjp`; arrays may be results.

        Returns
        -------
        Result
            The gradients with respect to the parameters and to the inputs.

        Raises
        ------
        TypeError, ValueError
            As in a call.
        """
        p, x = self._checked(net, p, x)
        return self._add("vjp", net.vjp, (p, x, dy), options, _changing(options, None))

    def train(self, net: Chain, p: np.ndarray, x: Any, t: Any, loss: Loss, optimizer: Optimizer, **options: Any) -> Result:
        """Queue ``train(net, p, x, t, loss, optimizer, **options)``, by default without a progress bar.

        Parameters
        ----------
        net, p, x, t, loss, optimizer, **options
            As in `train`.

        Returns
        -------
        Result
            The history. If the queue is left by an exception, a running training ends after a step, as by Ctrl-C.

        Raises
        ------
        TypeError, ValueError
            For a network and parameters that do not fit each other. Other arguments are checked when training begins.
        """
        check_net(net)
        check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        checks.check_loss(loss)
        if np.ndim(p) != 2:
            p = arguments.check_trained(p, net.n_params)
        given = {"progress": False, **options}
        return self._add("train", train, (net, p, x, t, loss, optimizer), given, [p, options.get("state")], fresh=True)

    def call(self, function: Callable[..., Any], *args: Any, reads: Any = (), writes: Any = (), **options: Any) -> Result:
        """Queue ``function(*args, **options)``, for a custom function.

        Parameters
        ----------
        function : callable
            The function. It must not wait for results of the queue; those among its arguments are ready when it runs.
        *args
            Its arguments. It may read the arrays among them and among `options`, also those in lists and tuples.
        reads, writes : array or iterable of arrays
            Further arrays that it reads, and all arrays that it changes, including arguments.
        **options
            Its arguments by name.

        Returns
        -------
        Result
            The result of the function.

        Raises
        ------
        TypeError
            If `function` is not callable, and for `reads` and `writes` that are not arrays.
        """
        if not callable(function):
            raise TypeError(f"`function` (={shown(function)}) must be a function")
        read, changed = _arrays("reads", reads), _arrays("writes", writes)
        if any(isinstance(array, Pending) for array in changed):
            raise TypeError("`writes` must hold arrays, not results: result.array waits for the array of one")
        return self._add(getattr(function, "__name__", "a function"), function, args, options, changed, read, fresh=False)

    # Waiting

    def wait(self, progress: bool | None = False) -> None:
        """Wait until all calls have ended.

        Parameters
        ----------
        progress : bool, optional
            Whether to show a bar of the calls; None shows one on terminals and in notebooks.

        Raises
        ------
        Exception
            The error that no caller has seen yet; of several, an ExceptionGroup.
        """
        self._scheduler.wait_for_all(progress)
        self._scheduler.raise_unseen()

    def close(self, *, cancel: bool = False) -> None:
        """Wait until all calls have ended, and end the workers.

        Parameters
        ----------
        cancel : bool
            Whether to leave out the calls that have not begun, and to end a running training after a step.
        """
        self._scheduler.close(cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(cancel=error is not None)
        if error is None:
            self._scheduler.raise_unseen()
            return
        for other in self._scheduler.take_errors():
            if not isinstance(other, LeftOutError):
                notes = "; ".join(getattr(other, "__notes__", ()))
                error.add_note(f"a queued call failed too, {notes}: {type(other).__name__}: {other}")

    def __len__(self) -> int:
        """How many calls have not ended."""
        return len(self._scheduler.pending)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = self._scheduler.closed.removeprefix("is ") or f"{counted(len(self), 'call')} pending"
        return f"<Queue of {counted(self._workers, 'worker')}, {state}>"

    # Inside

    def _checked(self, net: Any, p: Any, x: Any) -> tuple[Any, Any]:
        """The parameters and inputs of a network as arrays, unless they are results."""
        network = network_of(net)
        if not isinstance(p, Pending) and not isinstance(x, Pending):
            checks.check_order(network, p, x, "q(net, x, p), q.value_and_grad(net, p, x, t, loss)")
        if not isinstance(p, Pending) and (type(p) is not np.ndarray or p.shape != (net.n_params,)) and np.ndim(p) != 2:
            p = arguments.check_params(p, net.n_params)
        if not isinstance(x, Pending) and (type(x) is not np.ndarray or x.shape[1:] != net.input_shape):
            x = (
                as_array("x", x)
                if isinstance(p, Pending) or np.ndim(p) == 2
                else arguments.check_input(x, net.input_shape, ids=network.id_count)
            )
        return p, x

    def _forward(self, net: Chain, x: Any, p: Any, **options: Any) -> np.ndarray:
        if options.get("out") is None and type(p) is np.ndarray and p.ndim == 1:
            options["out"] = self._outputs.take((len(x), *net.output_shape), p.dtype)
        return net(x, p, **options)

    def _gradient(self, net: Chain, p: Any, x: Any, t: Any, loss: Loss, **options: Any) -> Any:
        if options.get("out") is None and type(p) is np.ndarray and p.ndim == 1:
            options["out"] = self._outputs.take(p.shape, p.dtype)
        return net.value_and_grad(p, x, t, loss, **options)

    def _add(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], writes: list[Any],
        reads: Iterable[Any] = (), fresh: bool | None = None,
    ) -> Result:  # fmt: skip
        """Queue a call from a method that the user has called.

        `fresh` is whether the result has separate memory; by default, whether `options` give no array for it.
        """
        frame = sys._getframe(2)
        place = frame.f_code.co_filename, frame.f_lineno
        return self._scheduler.add(
            name, place, (function, args, options, reads, writes), fresh=options.get("out") is None if fresh is None else fresh
        )


def _arrays(name: str, given: Any) -> list[Any]:
    """One array or several as a list."""
    if hasattr(given, "shape") or isinstance(given, Pending):
        return [given]
    try:
        return list(given)
    except TypeError:
        raise TypeError(f"`{name}` (={shown(given)}) must be an array, or several in a list") from None


def _changing(options: dict[str, Any], mode: str | None) -> list[Any]:
    """The arrays that a call of a network with these options changes; `mode` is the default."""
    out = options.get("out")
    changed = list(out) if isinstance(out, tuple) else [out]
    if mode is not None and options.get("mode", mode) == "train":
        changed.append(options.get("state"))
    return changed


def _references(array: np.ndarray) -> int:
    return sys.getrefcount(array)


def _only_here() -> int:
    """What `_references` counts of an array that a list and a loop over it hold."""
    held = [np.empty(0)]
    for array in held:
        return _references(array)
    raise AssertionError


FREE = _only_here()


class Outputs:
    """Arrays of results, by shape and type, used again once nothing refers to them: memory does not grow with the calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: OrderedDict[tuple[tuple[int, ...], Any], list[np.ndarray]] = OrderedDict()

    def take(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array with arbitrary contents that is not in use."""
        with self._lock:
            arrays = self._lent.setdefault((shape, dtype), [])
            self._lent.move_to_end((shape, dtype))
            for array in arrays:
                if _references(array) == FREE:
                    return array
            array = np.empty(shape, dtype)
            if len(arrays) == MAX_ARRAYS:
                del arrays[0]
            arrays.append(array)
            self._shrink()
            return array

    def _shrink(self) -> None:
        """Forget the shapes that were used least recently, if all take too much memory."""
        total = sum(array.nbytes for arrays in self._lent.values() for array in arrays)
        while total > MAX_BYTES and len(self._lent) > 1:
            _, arrays = self._lent.popitem(last=False)
            total -= sum(array.nbytes for array in arrays)
