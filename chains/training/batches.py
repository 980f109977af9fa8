"""The batches of a run: parts of arrays, or those of a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chains.data.batches import pass_from
from chains.losses import Loss
from chains.network import checks, ensembles, executables
from chains.network.call import Call, state_of
from chains.network.ensembles import Members
from chains.network.network import Network
from chains.network.record import Criterion
from chains.penalties import Penalty
from chains.program.program import Program
from chains.support import arguments
from chains.support.checks import check_count, whole
from chains.support.messages import counted
from chains.support.streams import member_seeds
from chains.training.history import Position
from chains.training.resume import SOURCE, text_of

# Attributes that decide the batches of a source, if it has them.
SETTINGS = ("samples", "batch_size", "shuffle", "seed", "drop_last", "augment", "scale")


@dataclass(frozen=True)
class ArrayBatches:
    """Arrays by buffer name, the criterion to minimise on them, and what decides the batches of an epoch."""

    arrays: dict[str, Any]
    criterion: Criterion
    batch_size: int
    drop_last: bool = False
    shuffle: bool = True
    seed: Any = 0

    @property
    def samples(self) -> int:
        """The number of samples; for an ensemble, of each member."""
        return len(self.arrays["x"])

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the batches, by the names that users know."""
        flags = {"drop_last": bool(self.drop_last), "shuffle": bool(self.shuffle)}
        return {"samples": self.samples, "batch_size": self.batch_size, **flags, "seed": self.seed}

    @property
    def seeds(self) -> np.ndarray:
        """The seed of the network, shape (), or those of the members, shape (members,)."""
        return np.array(self.seed, np.uint64)

    def counted_numbers(self, network: Network) -> dict[str, Any]:
        """The arrays for checks of their numbers, without targets that do not count."""
        return dict(checks.with_counted_targets(network.declaration, self.arrays))

    def check_state(self, call: Call, program: Program) -> np.ndarray | None:
        """The state, if the network has one. Raises TypeError or ValueError if it is missing or does not fit."""
        return state_of(call, program, {"p": call.p, **self.arrays}).get("state")


@dataclass(frozen=True)
class MemberBatches(ArrayBatches):
    """The batches of an ensemble: `members` has the arrays, too, and the names of those with a row for each member."""

    members: Members = field(default_factory=lambda: Members(0))

    @property
    def samples(self) -> int:
        return self.members.samples

    @property
    def seeds(self) -> np.ndarray:
        seed = self.seed
        return np.array(member_seeds(self.members.count, seed) if isinstance(seed, int) else seed, np.uint64)

    def counted_numbers(self, network: Network) -> dict[str, Any]:
        return self.members.with_counted_targets(network.declaration)

    def check_state(self, call: Call, program: Program) -> np.ndarray | None:
        if call.state is None:
            return state_of(call, program, {"p": call.p}).get("state")
        ensembles.add_state(call, self.members, updated=True)
        state: np.ndarray = self.members.arrays.pop("state")
        return state


def from_arrays(call: Call, batch_size: int | None, **settings: Any) -> ArrayBatches:
    """The batches of data, with these settings of train. Raises TypeError or ValueError for those that do not fit."""
    x, p = call.x, call.p
    if hasattr(x, "__iter__") and not isinstance(x, (list, tuple)) and not hasattr(x, "shape"):
        raise TypeError(f"`t` must be None: `x` (a {type(x).__name__}) is a source of batches, which gives targets too")
    if p.ndim == 1:
        arrays, criterion = executables.problem(call)
        kind: type[ArrayBatches] = ArrayBatches
        own, samples = dict[str, Any](), len(arrays["x"])
    else:
        members, criterion = member_problem(call, len(p))
        arrays, kind, own, samples = dict(members.arrays), MemberBatches, {"members": members}, members.samples
    size = _check_batch_size(call.network, samples, batch_size, settings["drop_last"])
    arrays = arguments.to_device_of(p, arrays, move=False)
    return kind(arrays, criterion, size, **settings, **own)


def member_problem(call: Call, count: int) -> tuple[Members, Criterion]:
    """The checked data of `count` members, and the criterion that each of them minimises."""
    members = ensembles.check_data(call, Members(count))
    first = Call(call.network, {**call.given, **members.of(0)})
    return members, executables.problem(first)[1]


def _check_batch_size(network: Network, samples: int, batch_size: int | None, drop_last: bool) -> int:
    """The batch size, at most the number of samples. Raises ValueError if it is invalid, or too small for this network."""
    batch_size = samples if batch_size is None else check_count("batch_size", batch_size, also=", or None for all samples")
    if drop_last and batch_size > samples:
        raise ValueError(f"`drop_last` leaves nothing to train on: `batch_size` (={batch_size}) exceeds the {samples} samples")
    batch_size = min(batch_size, samples)
    network.check_batch(batch_size)
    if samples % batch_size and not drop_last:
        network.check_batch(samples % batch_size, "the last batch, which `drop_last` would leave out,")
    return batch_size


def check_source(x: Any, p: np.ndarray, comm: Any, **given: Any) -> None:
    """Raise TypeError or ValueError unless `x` can be a source, and for arguments that a source decides."""
    if p.ndim > 1:
        raise ValueError("`t` is missing: an ensemble is trained on arrays, not on a source of batches")
    if comm is not None:
        raise ValueError("`t` is missing: with `comm`, training is on arrays, not on a source of batches")
    if isinstance(x, np.ndarray) or not hasattr(x, "__iter__"):
        raise TypeError(
            f"`t` is None, and `x` (a {type(x).__name__}) is not a source of batches: pass targets, or Batches(x, t, ...)"
            + "; call it, if it returns one" * callable(x)
        )
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"`{name}` is decided by the source of batches: give it there, not to train")


def source_epoch(source: Any) -> int | None:
    """The number of the next pass over a source, if it counts its passes in an attribute `epoch`."""
    return whole(getattr(source, "epoch", None), 0)


def source_settings(source: Any, seed: Any) -> dict[str, Any]:
    """The known settings of a source; for a source that prefetches another one, the settings of the other."""
    while hasattr(source, "batches"):
        source = source.batches
    try:
        length = len(source)
    except TypeError:
        length = None
    settings = {f"x.{name}": _plain(getattr(source, name)) for name in SETTINGS if hasattr(source, name)}
    return {SOURCE: length, **settings, "seed": seed}


def _plain(value: Any) -> Any:
    """The value if JSON has its type, else its text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, (bool, int, float, str, type(None))) else text_of(value)


class SourceBatches:
    """The batches of a source, (x, t) or (x, t, weights): every pass over it is an epoch, of `epochs` to do.

    The first batch is taken immediately: its shapes decide the program. The passes continue at `position`, after the batches
    already seen. If the source counts its passes in an attribute `epoch`, they continue in the pass of that number.
    `check_finite` refuses infinities and NaN in the batches. Raises TypeError or ValueError if `source` cannot be continued, or
    its first batch does not fit.
    """

    def __init__(
        self, source: Any, network: Network, p: np.ndarray, loss: Loss, penalty: Penalty | None, *,
        epochs: int, position: Position, check_finite: bool,
    ) -> None:  # fmt: skip
        self.source, self.settings, self.seeds = source, position.data, np.array(position.data["seed"], np.uint64)
        self.arrays: dict[str, Any] = {}  # no data are known ahead
        self._network, self._p, self._loss, self._penalty, self._check_finite = network, p, loss, penalty, check_finite
        if source_epoch(source) is not None:
            source.epoch = position.source_epoch
        self.epoch = source_epoch(source)  # the number of the last pass begun, if the source counts passes
        seen = position.step
        self._begun: Iterator[Any] | None = pass_from(source, max(0, seen - 1))
        if self._begun is source and epochs > 1:
            raise ValueError(f"`x` (a {type(source).__name__}) yields one pass only, too few for {epochs} epochs")
        first = next(self._begun, None)
        if first is None:
            raise ValueError("`x` yielded no batches")
        self.criterion = self._checked(first, "in the first batch")[1]
        self._first = [] if seen else [first]  # a batch already seen only gives the shapes

    def counted_numbers(self, network: Network) -> dict[str, Any]:
        """Nothing: each batch is checked when it is taken."""
        return {}

    def check_state(self, call: Call, program: Program) -> np.ndarray | None:
        """As of `ArrayBatches`."""
        return state_of(call, program, {"p": call.p}).get("state")

    @property
    def next_epoch(self) -> int | None:
        """The number of the pass that `begin` gives."""
        return source_epoch(self.source) if self._begun is None else self.epoch

    def begin(self) -> Iterator[Any]:
        """The batches of an epoch; the first epoch continues from the batch already taken."""
        if self._begun is None:
            self.epoch = source_epoch(self.source)
            return iter(self.source)
        begun = _Resumed(self._first, self._begun)
        self._first, self._begun = [], None
        return begun

    def arrays_of(self, batch: Any, number: int, done: int) -> dict[str, Any]:
        """The arrays of a batch by buffer name. Raises TypeError or ValueError, with its number, if it does not fit."""
        data, criterion = self._checked(batch, f"in batch {number} of a pass, after {counted(done, 'step')}")
        if criterion != self.criterion:
            raise ValueError(f"the targets or weights of batch {number} have another shape than those of the first one")
        return data

    def _checked(self, batch: Any, where: str) -> tuple[dict[str, Any], Criterion]:
        """The arrays of a batch, and the criterion, which is the same for all batches."""
        try:
            if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
                raise TypeError(f"`x` must yield batches (x, t) or (x, t, weights), got a {type(batch).__name__}")
            x, t, weights = (*batch, None)[:3]
            network = self._network
            given = {"x": x, "t": t, "loss": self._loss, "weights": weights, "penalty": self._penalty}
            data, criterion = executables.problem(Call(network, given))
            network.check_batch(len(data["x"]))
            arguments.check_apart("p", self._p, data)
            if self._check_finite:
                arguments.check_finite(self._p.dtype, **checks.with_counted_targets(network.declaration, data))
            return data, criterion
        except (TypeError, ValueError) as error:
            error.add_note(where)
            raise


class _Resumed(Iterator[Any]):
    """An iterator with its first item, if taken, put back."""

    def __init__(self, first: list[Any], rest: Iterator[Any]) -> None:
        self._first = first  # no itertools.chain: it would keep the first batch in memory
        self._rest = rest
        self.close = getattr(rest, "close", lambda: None)

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self._rest)
