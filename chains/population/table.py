"""Long tables of doses and measurements, with a row for each event, as subjects and as samples of a network.

Columns have the names that NONMEM's users give them: ID, TIME, DV, AMT, EVID, MDV, CMT, RATE, ADDL, II, SS, DVID. An entry
that this reader does not understand is refused, with its row and column. Rows are counted from 1, without the header.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from chains.support.checks import check_count
from chains.support.messages import counted, shown

NEEDED = ("id", "time", "dv")
DEFAULTS = {"amt": 0.0, "cmt": 1.0, "rate": 0.0, "addl": 0.0, "ii": 0.0, "ss": 0.0}
KNOWN = (*NEEDED, *DEFAULTS, "evid", "mdv", "dvid")
REFUSED = ("date", "dat1", "dat2", "dat3", "pcmt", "call", "cens", "blq", "limit", "dur")  # they would change the meaning
MISSING = ("", ".", "na", "nan", "none", "<na>")


@dataclass(frozen=True)
class SubjectDoses:
    """The doses of a subject, (doses,): additional doses are written out.

    A `duration` of 0 is a bolus; an `interval` is that of a steady state, else 0. They count for measurements in later rows,
    until the time `until`, where the subject was reset. `rows` and `ends` are the rows of both, so that a measurement at the
    same time is before or after.
    """

    times: np.ndarray
    amounts: np.ndarray
    durations: np.ndarray
    intervals: np.ndarray
    compartments: np.ndarray
    rows: np.ndarray
    until: np.ndarray
    ends: np.ndarray

    def at(self, time: float, row: float) -> np.ndarray:
        """Which doses count for a measurement."""
        given = (self.times < time) | ((self.times == time) & (self.rows < row))
        return given & ((self.until > time) | ((self.until == time) & (self.ends > row)))


@dataclass(frozen=True)
class Subject:
    """A subject: its measurements (times, values, numbers of the outputs, rows), its doses, and the covariates by name."""

    id: Any
    times: np.ndarray
    values: np.ndarray
    outputs: np.ndarray
    rows: np.ndarray
    doses: SubjectDoses
    covariates: dict[str, np.ndarray]  # at the measurements


@dataclass(frozen=True)
class Samples:
    """A sample for each measurement: `x`, `y` and `subjects` for a `PopulationModel`; `columns` names the features."""

    x: np.ndarray
    y: np.ndarray
    subjects: np.ndarray
    outputs: np.ndarray
    columns: tuple[str, ...]
    doses: int


@dataclass(frozen=True)
class Table:
    """The subjects of a table, in its order."""

    subjects: tuple[Subject, ...]
    covariates: tuple[str, ...]

    def __repr__(self) -> str:
        measured, given = sum(len(each.times) for each in self.subjects), sum(len(each.doses.times) for each in self.subjects)
        return f"<table of {counted(len(self.subjects), 'subject')}: {measured} measurements, {given} doses>"

    def samples(
        self, *, compartment: int | None = None, infusion: bool = False, steady: bool = False, doses: int | None = None
    ) -> Samples:
        """A sample for each measurement: the covariates, the time, then the doses as `Compartments` takes them.

        Parameters
        ----------
        compartment : int, optional
            Only doses into this one. By default doses into several are refused.
        infusion, steady : bool
            Whether doses have durations, and intervals of a steady state, as in `Compartments`.
        doses : int, optional
            How many doses a sample has, as for a network that was made for another table. By default the largest number before
            a measurement. Spare doses are of amount 0.

        Raises
        ------
        TypeError, ValueError
            For doses that these arguments have no place for.
        """
        kinds = ["times", "amounts", *["durations"] * infusion, *["intervals"] * steady]
        self._check_compartment(compartment)
        rows = [self._given(subject, k, compartment) for subject in self.subjects for k in range(len(subject.times))]
        for name, flag in (("durations", infusion), ("intervals", steady)):
            if not flag and any(getattr(given, name)[chosen].any() for _, given, chosen in rows):
                setting = "infusion=True: some doses have a RATE" if name == "durations" else "steady=True: some doses have SS"
                raise ValueError(f"`samples` needs {setting}")
        if not rows:
            raise ValueError("the table has no measurements")
        most = max(int(chosen.sum()) for *_, chosen in rows) or 1
        count = most if doses is None else check_count("doses", doses)
        if count < most:
            raise ValueError(f"`doses` (={count}) must be at least {most}, the largest number before a measurement")
        x = np.zeros((len(rows), len(self.covariates) + 1 + len(kinds) * count))
        x[:, : len(self.covariates) + 1] = [[*each, time] for (each, time), *_ in rows]
        for sample, (_, given, chosen) in zip(x, rows, strict=True):
            parts = sample[len(self.covariates) + 1 :].reshape(len(kinds), count)
            for part, kind in zip(parts, kinds, strict=True):
                part[: chosen.sum()] = getattr(given, kind)[chosen]
        names = [f"{kind.removesuffix('s')} of dose {k + 1}" for kind in kinds for k in range(count)]
        y, outputs = (np.concatenate([getattr(each, name) for each in self.subjects]) for name in ("values", "outputs"))
        subjects = np.repeat([each.id for each in self.subjects], [len(each.times) for each in self.subjects])
        return Samples(x, y, subjects, outputs, (*self.covariates, "time", *names), count)

    def _check_compartment(self, compartment: int | None) -> None:
        """Doses of different subjects into different compartments are refused too: samples do not tell them apart."""
        if compartment is not None:
            check_count("compartment", compartment)
            return
        first: dict[int, Any] = {}
        for subject in self.subjects:
            for number in subject.doses.compartments.astype(int).tolist():
                first.setdefault(number, subject.id)
        if len(first) > 1:
            found = ", ".join(f"{number} (subject {first[number]})" for number in sorted(first))
            raise ValueError(f"the table has doses into several compartments, {found}: pass `compartment`")

    def _given(self, subject: Subject, k: int, compartment: int | None) -> tuple[Any, SubjectDoses, np.ndarray]:
        """Covariates and time of a measurement, the subject's doses, and which of them count."""
        doses = subject.doses
        chosen = doses.at(subject.times[k], subject.rows[k])
        if compartment is not None:
            chosen = chosen & (doses.compartments == compartment)
        return ([values[k] for values in subject.covariates.values()], subject.times[k]), doses, chosen


def read_table(
    source: Any, columns: Mapping[str, str] | None = None, covariates: Sequence[str] = (), varying: Sequence[str] = ()
) -> Table:
    """Read a table with a row for each dose or measurement.

    Without EVID, a row with an amount is a dose. A measurement in the row before a dose at the same time is before that dose;
    an additional dose (ADDL) is after measurements at its time. EVID 3 or 4 and SS = 1 end earlier doses; SS = 2 does not.
    Entries that are empty, ".", "NA" or NaN are missing. Other columns are not read.

    Parameters
    ----------
    source : path, pandas.DataFrame or mapping of str to array
        A CSV file with a header, a frame, or columns by name.
    columns : mapping of str to str, optional
        The table's names of columns: ``{"amt": "amount", "dv": "concentration"}``. By default equal names, in either case.
    covariates : sequence of str
        Columns of numbers that are constant within a subject.
    varying : sequence of str
        Columns of covariates that may change: the last value is carried forward.

    Raises
    ------
    TypeError, ValueError
        For a table that is not understood, with the row and the column.
    """
    given = _columns_of(source)
    more = [*covariates, *varying]
    reader = _Reader(given, _names(given, columns or {}, more), more)
    return Table(tuple(reader.subjects(list(covariates), list(varying))), (*covariates, *varying))


def _columns_of(source: Any) -> dict[str, list[Any]]:
    """The entries of each column."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, newline="", encoding="utf-8-sig") as file:
            header, *rows = [*csv.reader(file)] or [[]]
        header = [name.strip() for name in header]
        for k, row in enumerate(rows, 1):
            if len(row) != len(header):
                raise ValueError(f"row {k} has {len(row)} entries, but the header has {len(header)} columns")
        if len(set(header)) != len(header):
            raise ValueError(f"the header has a name twice: {', '.join(header)}")
        return {name: [row[k].strip() for row in rows] for k, name in enumerate(header)}
    if not (isinstance(source, Mapping) or hasattr(source, "to_numpy")):
        raise TypeError(f"`source` (={shown(source)}) must be the path of a CSV file, a frame, or a mapping of columns")
    found = {str(name): source[name] for name in source}
    shapes = {name: np.shape(column) for name, column in found.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"all columns must be vectors of one length, got {shapes}")
    return {name: column if isinstance(column, list) else np.asanyarray(column).tolist() for name, column in found.items()}


def _names(given: Mapping[str, Any], columns: Mapping[str, str], covariates: list[str]) -> dict[str, str]:
    """The table's name of each column that is read. Raises ValueError for columns that are missing or not understood."""
    for key in columns:
        if key not in KNOWN:
            raise ValueError(f"`columns` has {key!r}: the names that are known are {', '.join(KNOWN)}")
    for key, found in _by_lower_case(given).items():
        if len(found) > 1 and key not in columns:
            raise ValueError(f"the table has columns {' and '.join(found)}: say in `columns` which one is {key!r}")
    names = {key: found[0] for key, found in _by_lower_case(given).items()} | dict(columns)
    missing = [name for name in NEEDED if name not in names] + [name for name in names.values() if name not in given]
    missing += [name for name in covariates if name not in given]
    if twice := [name for k, name in enumerate(covariates) if name in covariates[:k]]:
        raise ValueError(f"`covariates` and `varying` name {twice[0]!r} twice")
    if missing:
        raise ValueError(f"there is no column {missing[0]!r}: the table has {', '.join(given)}; see `columns`")
    if refused := [name for name in given if name.lower() in REFUSED and name not in (*names.values(), *covariates)]:
        raise ValueError(f"column {refused[0]} is not understood: rename or remove it")
    return names


def _by_lower_case(given: Iterable[str]) -> dict[str, list[str]]:
    """The table's columns for each known name, in either case."""
    found: dict[str, list[str]] = {}
    for name in given:
        if name.lower() in KNOWN:
            found.setdefault(name.lower(), []).append(name)
    return found


class _Reader:
    """The columns of a table as numbers, and the rules that they obey."""

    def __init__(self, given: Mapping[str, list[Any]], names: Mapping[str, str], covariates: list[str]) -> None:
        self._given, self._names = given, names
        self.count = len(given[names["id"]])
        if not self.count:
            raise ValueError("the table has no rows")
        self.c = {name: self.numbers(name, names[name]) for name in names if name != "id"}
        # Apart from the known columns, since a covariate may have the name of one that `columns` finds elsewhere.
        self.covariates = {name: self.numbers(name, name) for name in covariates}
        c = self.c
        for name, default in DEFAULTS.items():
            c[name] = np.where(np.isnan(c[name]), default, c[name]) if name in c else np.full(self.count, default)
        explicit = "evid" in c or "mdv" in c
        c.setdefault("evid", np.where(c["amt"] != 0.0, 1.0, 0.0))
        c.setdefault("mdv", np.where(c["evid"] != 0.0, 1.0, 0.0))
        c.setdefault("dvid", c["cmt"])
        self._check(explicit)

    def refuse(self, row: int, column: str, reason: str) -> NoReturn:
        name = column if column in self._given else self._names.get(column, column.upper())
        value = f" (={shown(self._given[name][row])})" if name in self._given else ""
        raise ValueError(f"row {row + 1}, column {name}{value}: {reason}")

    def numbers(self, column: str, name: str) -> np.ndarray:
        """A column as numbers, NaN where they are missing."""
        found = np.full(self.count, np.nan)
        for row, value in enumerate(self._given[name]):
            if _is_missing(value):
                continue
            try:
                found[row] = float(value)
            except (TypeError, ValueError):
                self.refuse(row, column, "this is not a number")
            if math.isinf(found[row]):
                self.refuse(row, column, "this is not finite")
        return found

    def _check(self, explicit: bool) -> None:
        c, (time, dv, amt, evid, mdv) = self.c, (self.c[name] for name in ("time", "dv", "amt", "evid", "mdv"))
        dose, steady = np.isin(evid, (1.0, 4.0)), c["ss"] != 0.0
        duration = amt / np.where(c["rate"] > 0.0, c["rate"], np.inf)
        details = sum(abs(c[name]) for name in ("addl", "ii", "ss", "rate"))
        rules = [
            (np.isnan(time), "time", "a time is missing"),
            (~np.isin(evid, (0.0, 1.0, 2.0, 3.0, 4.0)), "evid", "EVID must be 0, 1, 2, 3 or 4"),
            (~np.isin(mdv, (0.0, 1.0)), "mdv", "MDV must be 0 or 1"),
            ((evid != 0.0) & (mdv == 0.0), "mdv", "MDV must be 1 where EVID is not 0"),
            ((mdv == 0.0) & np.isnan(dv), "dv", "a measurement is missing: give MDV = 1 where there is none"),
            (
                dose & ~np.isnan(dv) & (dv != 0.0) & (not explicit),
                "dv",
                "a dose and a measurement in one row: give EVID or MDV",
            ),
            (dose & ~(amt > 0.0), "amt", "the amount of a dose must be positive"),
            (~dose & (amt != 0.0), "amt", "only doses, with EVID 1 or 4, have amounts"),
            (~dose & (details != 0.0), "evid", "only doses, with EVID 1 or 4, have RATE, ADDL, II or SS"),
            (~_whole(c["cmt"], 1), "cmt", "CMT must be a whole number from 1 on"),
            (~_whole(c["dvid"], 1) & (mdv == 0.0), "dvid", "DVID must be a whole number from 1 on"),
            (c["rate"] < 0.0, "rate", "a RATE that is a parameter is not supported: it must be 0 or positive"),
            (~_whole(c["addl"], 0), "addl", "ADDL must be a whole number, 0 or more"),
            (c["ii"] < 0.0, "ii", "II must not be negative"),
            (~np.isin(c["ss"], (0.0, 1.0, 2.0)), "ss", "SS must be 0, 1 or 2"),
            (((c["addl"] > 0.0) | steady) & (c["ii"] <= 0.0), "ii", "ADDL and SS need an II"),
            ((c["ii"] > 0.0) & (c["addl"] == 0.0) & ~steady, "ii", "II needs ADDL or SS"),
            (steady & (duration > c["ii"]), "rate", "an infusion in a steady state must end before the next one begins"),
        ]
        for mask, column, reason in rules:
            if mask.any():
                self.refuse(int(np.argmax(mask)), column, reason)

    def subjects(self, covariates: list[str], varying: list[str]) -> Iterable[Subject]:
        """The subjects in the order of the table."""
        ids = self._ids()
        starts = [0, *(k for k in range(1, self.count) if ids[k] != ids[k - 1]), self.count]
        known: set[Any] = set()
        for start, stop in pairwise(starts):
            if ids[start] in known:
                self.refuse(start, "id", "the rows of a subject must follow one another")
            known.add(ids[start])
            rows = np.arange(start, stop)
            measured = rows[self.c["mdv"][rows] == 0.0]
            found = {name: self._covariate(name, rows, name in varying)[measured - start] for name in (*covariates, *varying)}
            time, dv, output = (self.c[name][measured] for name in ("time", "dv", "dvid"))
            yield Subject(ids[start], time, dv, output.astype(int), measured, self._doses(rows), found)

    def _ids(self) -> list[Any]:
        given = self._given[self._names["id"]]
        for row, value in enumerate(given):
            if _is_missing(value):
                self.refuse(row, "id", "an ID is missing")
        try:
            return [_number(value) for value in given]
        except (TypeError, ValueError):
            return given

    def _covariate(self, name: str, rows: np.ndarray, varying: bool) -> np.ndarray:
        """A covariate in each row of a subject."""
        values = self.covariates[name][rows]
        there = np.flatnonzero(~np.isnan(values))
        if not len(there) or (varying and there[0] > 0):
            self.refuse(int(rows[0]), name, "the covariate is missing in the subject's first row, or in all of its rows")
        last = np.maximum.accumulate(np.where(np.isnan(values), 0, np.arange(len(rows))))
        changes = there[values[there] != values[there[0]]]
        if len(changes) and not varying:
            self.refuse(int(rows[changes[0]]), name, "the covariate changes: name it in `varying` if it may")
        return values[last] if varying else np.full(len(rows), values[there[0]])

    def _doses(self, rows: np.ndarray) -> SubjectDoses:
        """The doses of a subject, with additional ones, and where a reset ends them."""
        c = self.c
        found: list[list[float]] = []
        last = -math.inf
        for row in rows:
            time, evid, ss = c["time"][row], c["evid"][row], c["ss"][row]
            if time < last and evid not in (3.0, 4.0):
                self.refuse(int(row), "time", "times of a subject must not decrease, except at a reset (EVID 3 or 4)")
            if time < last:
                self.refuse(int(row), "time", "a reset to an earlier time is not supported: give it another ID")
            last = time
            if evid in (3.0, 4.0) or ss == 1.0:  # earlier doses end here
                found = [[*dose[:6], time, row] if dose[6] > time else dose for dose in found if dose[0] <= time]
            if evid in (1.0, 4.0):
                amount, rate, ii = c["amt"][row], c["rate"][row], c["ii"][row]
                duration, into = amount / rate if rate else 0.0, c["cmt"][row]
                for n in range(int(c["addl"][row]) + 1):
                    interval = ii if ss and not n else 0.0
                    found.append([time + n * ii, amount, duration, interval, into, math.inf if n else row, math.inf, math.inf])
        array = np.array(found, float).reshape(-1, len(fields(SubjectDoses)))
        return SubjectDoses(*array.T)


def _whole(values: np.ndarray, least: int) -> np.ndarray:
    return (values >= least) & (values == np.floor(values))


def _number(value: Any) -> int | float:
    """An ID as a number, so that "1", "1.0" and 1 are one subject. Raises ValueError for other names."""
    try:
        if not isinstance(value, float):
            return int(value)  # all digits of a long one
    except ValueError:
        pass
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return int(number) if number.is_integer() else number


def _is_missing(value: Any) -> bool:
    return str(value).strip().lower() in MISSING
