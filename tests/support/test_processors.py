"""How many processors a process may use: affinity, quotas of control groups, loky's limit."""

from __future__ import annotations

import os

import pytest

from chains.support import threads
from chains.support.threads import processors


@pytest.fixture
def computer(tmp_path, monkeypatch):
    """Sixteen processors, in no control group."""
    monkeypatch.setattr(threads, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)


def files(groups, **quotas):
    """The process's groups, and quotas by folder of /sys/fs/cgroup."""
    return {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{place}": text for place, text in quotas.items()}


SECOND = "0::/user/job\n"
FIRST = "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    ("groups", "quotas", "wanted"),
    [
        (SECOND, {}, 16),
        (SECOND, {"user/job/cpu.max": "max 100000\n"}, 16),
        (SECOND, {"user/job/cpu.max": "300000 100000\n"}, 3),
        (SECOND, {"user/job/cpu.max": "150000 100000\n"}, 2),
        (SECOND, {"user/job/cpu.max": "1000 100000\n"}, 1),
        (SECOND, {"user/job/cpu.max": "9900000 100000\n"}, 16),
        (SECOND, {"user/job/cpu.max": "max 100000\n", "user/cpu.max": "400000 100000\n"}, 4),
        (SECOND, {"cpu.max": "200000 100000\n"}, 2),  # a container's own group may be the root that it sees
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/../../outside\n", {"cpu.max": "200000 100000\n"}, 2),
        (SECOND, {"user/job/cpu.max": "nonsense"}, 16),
        (SECOND, {"user/job/cpu.max": "100000 0"}, 16),
        (FIRST, {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 16),
        (FIRST, {"cpu/job/cpu.cfs_quota_us": "500000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 5),
        (FIRST, {"cpu,cpuacct/job/cpu.cfs_quota_us": "500000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, 5),
        (FIRST, {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        (FIRST, {"memory/job/cpu.cfs_quota_us": "100000\n", "memory/job/cpu.cfs_period_us": "100000\n"}, 16),
        (FIRST + "0::/\n", {"cpu.max": "700000 100000\n"}, 7),
        ("", {"cpu.max": "200000 100000\n"}, 16),
        ("nonsense\n", {}, 16),
    ],
)
def test_quotas(groups, quotas, wanted, tmp_path, computer):
    for place, text in files(groups, **quotas).items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert processors() == wanted


def test_affinity(computer, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert processors() == 2


def test_where_there_is_no_affinity(computer, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert processors() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors() == 1


@pytest.mark.parametrize(("text", "wanted"), [("3", 3), ("0", 1), ("99", 16), ("", 16), ("many", 16), ("-1", 16)])
def test_lokys_limit(text, wanted, computer, monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", text)
    assert processors() == wanted


def test_this_computer():
    assert 1 <= processors() <= (os.cpu_count() or 1)
