"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path("/")  # of the file system


def processors() -> int:
    """The processors there are, as far as the process's affinity, its control groups' quotas and LOKY_MAX_CPU_COUNT leave them.

    A quota of one and a half processors counts as two. The sources of a quota are `cpu.max` (version 2 of Linux's control
    groups) and `cpu.cfs_quota_us` (version 1), of the process's group and of those around it. A process reads them once.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loky = os.environ.get("LOKY_MAX_CPU_COUNT", "")
    limits = [math.ceil(quota) for quota in _quotas(ROOT)] + ([int(loky)] if loky.isdecimal() else [])
    return max(1, min([count, *limits]))


@cache
def _quotas(root: Path) -> tuple[float, ...]:
    """The quotas of the process's control groups, in processors, as the file system under `root` has them."""
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
    """The folder of a control group and those around it; a container may see its own group as the root."""
    group = root / path.lstrip("/")
    yield group
    yield from (folder for folder in group.parents if folder.is_relative_to(root))


def _quota(words: list[str]) -> Iterator[float]:
    """The quota that the microseconds of a period say; none where there is no limit."""
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


if hasattr(os, "register_at_fork"):  # a worker may be put into a group of its own
    os.register_at_fork(after_in_child=_quotas.cache_clear)
