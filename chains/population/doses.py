"""Repeated doses written out: a train of doses for each record of additional doses, and for steady state."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from chains.layers.ode.doses import numbers_of, refuse
from chains.support.checks import check_count


class DoseTable(NamedTuple):
    """Single doses, arrays (subjects, doses). Spare places have the amount 0 and the time infinity."""

    times: np.ndarray
    amounts: np.ndarray
    infusion: np.ndarray  # rates or durations, 0 for doses at once
    into: np.ndarray


def dose_table(
    times: Any, amounts: Any, *, infusion: Any = None, into: Any = None, addl: Any = 0, ii: Any = 0.0, ss: Any = 0,
    train: int = 40,
) -> DoseTable:  # fmt: skip
    """Single doses, in the order of their times, from records of repeated ones.

    Parameters
    ----------
    times, amounts : array, shape (subjects, records)
        When a record's first dose comes, and the amount of each of its doses. Spare places have the amount 0.
    infusion, into : array, shape (subjects, records), optional
        The rate or duration of infusions, by default 0, and the numbers of the state, by default 0.
    addl, ii : array, shape (subjects, records), or number
        How many further doses a record has, and the time from one to the next.
    ss : array, shape (subjects, records), or number
        1 for a record at steady state: as after a long train of such doses, with `ii` between them. It must be the first of its
        subject.
    train : int
        The number of doses before a record at steady state. What is left out is the part of the drug that stays longer than
        ``train * ii``: a share ``exp(-k * train * ii)`` of the steady state, where k is the smallest rate constant.

    Returns
    -------
    DoseTable
        With `times`, `amounts`, `infusion` and `into`. With `ss`, the first dose of a subject comes before its first record.
        The solution must begin there.

    Raises
    ------
    TypeError, ValueError
        For arrays that do not fit, numbers that are not whole, negative ones, and repeated doses without `ii`.
    """
    times = _array("times", times, None)
    shape = times.shape
    amounts, addl, ii, ss = (_array(*each, shape) for each in (("amounts", amounts), ("addl", addl), ("ii", ii), ("ss", ss)))
    infusion = _array("infusion", 0.0 if infusion is None else infusion, shape)
    into = _array("into", 0 if into is None else into, shape)
    check_count("train", train)
    used = amounts != 0.0
    _refuse("times", times, used & ~np.isfinite(times), "must be finite")
    for name, array in (("amounts", amounts), ("infusion", infusion), ("ii", ii)):
        _refuse(name, array, ~((array >= 0.0) & (array < np.inf)), "must be finite and not negative")
    _refuse("into", into, ~((into >= 0) & (into == np.floor(into))), "must be a number of the state, 0 or more")
    _refuse("addl", addl, (addl < 0) | (addl != np.floor(addl)), "must be a whole number, 0 or more")
    _refuse("ss", ss, (ss != 0) & (ss != 1), "must be 0 or 1")
    _refuse("ii", ii, used & ((addl > 0) | (ss > 0)) & (ii <= 0.0), "must be positive for repeated doses")
    before = np.where(
        used & (times < np.nanmax(np.where(used & (ss > 0), times, -np.inf), axis=1, initial=-np.inf)[:, None]), 1, 0
    )
    _refuse("times", times, before > 0, "must not come before a record at steady state")
    rows = [
        _single(np.stack([times, amounts, infusion, into, addl, ii, ss], -1)[subject][used[subject]], train)
        for subject in range(len(times))
    ]
    out = np.zeros((4, len(rows), max([1, *(len(row) for row in rows)])))
    out[0] = np.inf
    for subject, row in enumerate(rows):
        out[:, subject, : len(row)] = row.T
    return DoseTable(*out)


def _single(records: np.ndarray, train: int) -> np.ndarray:
    """The single doses of a subject's records, in the order of their times: (doses, 4)."""
    doses = [
        [time + k * ii, amount, lasting, place]
        for time, amount, lasting, place, addl, ii, ss in records.tolist()
        for k in range(-train if ss else 0, int(addl) + 1)
    ]
    found = np.array(doses).reshape(-1, 4)
    return found[np.argsort(found[:, 0], kind="stable")]


def _array(name: str, given: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    """An array (subjects, records); a number stands for all records."""
    number = shape is not None and not isinstance(given, (list, tuple)) and np.ndim(given) == 0
    return numbers_of(name, np.full(shape, given) if number else given, shape, "records")


_refuse = partial(refuse, column="record")
