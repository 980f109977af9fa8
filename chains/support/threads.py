"""The number of threads of compiled programs."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from chains.support.checks import check_count
from chains.support.messages import shown

ROOT = Path("/")  # of the file system


def processors() -> int:
    """The number of processors that the process's affinity, its control groups' quotas and LOKY_MAX_CPU_COUNT allow.

    A quota of one and a half processors counts as two. The sources of a quota are `cpu.max` (version 2 of Linux's control
    groups) and `cpu.cfs_quota_us` (version 1), of the process's group and of those around it. A process reads them once.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loky = os.environ.get("LOKY_MAX_CPU_COUNT", "")
    limits = [math.ceil(quota) for quota in _quotas(ROOT)] + ([int(loky)] if loky.isdecimal() else [])
    return max(1, min([count, *limits]))


@cache
def _quotas(root: Path) -> tuple[float, ...]:
    """The quotas of the process's control groups, in processors, from the file system under `root`."""
    return tuple(_read_quotas(root))


def _read_quotas(root: Path) -> Iterator[float]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            for folder in _around(root / "sys/fs/cgroup", path):
                yield from _quota(_text(folder / "cpu.max").split())
        elif "cpu" in controllers.split(","):
            for name in {controllers, "cpu"}:
                for folder in _around(root / "sys/fs/cgroup" / name, path):
                    yield from _quota([_text(folder / f"cpu.cfs_{word}_us").strip() for word in ("quota", "period")])


def _around(root: Path, path: str) -> Iterator[Path]:
    """The folder of a control group and its parents; a container may see its own group as the root."""
    group = root / path.lstrip("/")
    yield group
    yield from (folder for folder in group.parents if folder.is_relative_to(root))


def _quota(words: list[str]) -> Iterator[float]:
    """The quota from the microseconds of a period; None without a limit."""
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


if hasattr(os, "register_at_fork"):  # a worker may be put into another group
    os.register_at_fork(after_in_child=_quotas.cache_clear)

MAX_THREADS = 64


class _Number:
    """The number of threads, and the functions called when it changes."""

    def __init__(self) -> None:
        self.chosen: int | None = None  # by `set_num_threads`
        self.blocks: list[list[int]] = []  # one number each, of the `num_threads` blocks that have not ended
        self.default: int | None = None  # known after the first request
        self.current: int | None = None  # the number that follows from the others; None before the first request
        self.followers: list[Callable[[], None]] = []  # called when `current` has changed
        self.lock = threading.RLock()

    def resolve(self) -> int:
        """The present number; followers are called if it has changed."""
        with self.lock:
            chosen = self.blocks[-1][0] if self.blocks else self.chosen
            if chosen is None and self.default is None:
                self.default = default_num_threads()
            number = chosen or self.default or 1
            if number != self.current:
                self.current = number
                for follower in self.followers:
                    follower()
            return number

    def after_fork(self) -> None:
        """In a forked process, which may be one of many workers: forget a number that was not set."""
        self.lock = threading.RLock()
        if not self.blocks and self.chosen is None:
            self.default = self.current = None


_number = _Number()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _number.after_fork())


def get_num_threads() -> int:
    """The largest number of threads of compiled programs: that of `set_num_threads` or `num_threads`, else the default.

    The default is CHAINS_NUM_THREADS, else OMP_NUM_THREADS (the first number of a list such as "4,2"), else 1 in worker
    processes of multiprocessing, else the number of processors that the process may use. Its affinity and the quotas of its
    control groups limit that number. The processes of a communicator (`comm`) on one machine divide it. The default is found at
    the first request. Raises ValueError unless CHAINS_NUM_THREADS is a whole number from 1 to 64.
    """
    return _number.current or _number.resolve()


def set_num_threads(n: int) -> None:
    """Set the largest number of threads of compiled programs, for this whole process, from the next call on.

    Within a block of `num_threads` it holds until the block ends. Networks, objectives and running trainings follow. The same
    number gives the same bits.

    Parameters
    ----------
    n : int
        1 to 64.

    Raises
    ------
    TypeError, ValueError
        For other numbers.
    """
    n = _checked(n)
    with _number.lock:
        if _number.blocks:
            _number.blocks[-1][0] = n
        else:
            _number.chosen = n
        _number.resolve()


def num_threads(n: int) -> AbstractContextManager[None]:
    """``with num_threads(2): ...`` sets the number of threads within the block.

    Blocks of several Python threads may overlap: the one that began last holds, and the end of each takes back only its number.

    Parameters
    ----------
    n : int
        As of `set_num_threads`.
    """
    return _block(_checked(n))


@contextmanager
def _block(n: int) -> Iterator[None]:
    own = [n]
    with _number.lock:
        _number.blocks = [*_number.blocks, own]
        _number.resolve()
    try:
        yield
    finally:
        with _number.lock:
            _number.blocks = [block for block in _number.blocks if block is not own]
            _number.resolve()


def limit_num_threads(n: int) -> None:
    """As `set_num_threads`, for tools that set a number and later restore the earlier one: a default stays a default."""
    with _number.lock:
        if n == _number.default and not _number.blocks:
            _number.chosen = None
            _number.resolve()
        else:
            set_num_threads(max(1, min(n, MAX_THREADS)))


def limit_default_num_threads(n: int) -> None:
    """Limit the default to `n`, unless an environment variable sets it: for processes that share a machine."""
    with _number.lock:
        by_environment = {"CHAINS_NUM_THREADS", "OMP_NUM_THREADS"} & os.environ.keys()
        _number.default = default_num_threads() if by_environment else min(_number.default or default_num_threads(), n)
        _number.resolve()


def follow(follower: Callable[[], None]) -> None:
    """Call a function whenever the number has changed."""
    with _number.lock:
        _number.followers.append(follower)


def known_num_threads() -> int | None:
    """The present number; None before the first request in this process."""
    return _number.current


def default_num_threads() -> int:
    """The number if none was set, as in `get_num_threads`."""
    own = os.environ.get("CHAINS_NUM_THREADS")
    if own is not None:
        if not (own.isascii() and own.isdigit()) or not 1 <= int(own) <= MAX_THREADS:
            raise ValueError(f"CHAINS_NUM_THREADS (={own!r}) must be a whole number from 1 to {MAX_THREADS}")
        return int(own)
    shared = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if shared.isascii() and shared.isdigit() and int(shared):  # others are ignored, as in OpenMP's libraries
        return min(int(shared), MAX_THREADS)
    return 1 if _is_worker() else min(processors(), MAX_THREADS)


def _is_worker() -> bool:
    """Whether multiprocessing has made this process, which is then one of several."""
    process = sys.modules.get("multiprocessing.process")  # imported in all of these
    if process is None:
        return False
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)  # about to be one


def _checked(n: Any) -> int:
    number = check_count("n", n)
    if number > MAX_THREADS:
        raise ValueError(f"`n` (={shown(n)}) must be a whole number from 1 to {MAX_THREADS}")
    return number
