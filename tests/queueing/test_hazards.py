"""What a call waits for: those that write what it reads or writes, those that read what it writes, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from chains.queueing.hazards import Hazards, extent


class Call:
    def __init__(self):
        self.accesses = []


def test_readers_do_not_wait_for_each_other():
    hazards, (writer, one, other, last) = Hazards(), (Call() for _ in range(4))
    assert hazards.add(writer, [], [(0, 10)]) == (set(), set())
    assert hazards.add(one, [(0, 10)], []) == ({writer}, set())
    assert hazards.add(other, [(5, 6)], []) == ({writer}, set())
    assert hazards.add(last, [], [(5, 10)]) == (set(), {writer, one, other})


def test_neighbours_do_not_overlap():
    hazards = Hazards()
    for start in (0, 20, 10):
        assert hazards.add(Call(), [], [(start, start + 10)]) == (set(), set())
    assert len(hazards) == 3


def test_what_has_ended_is_forgotten():
    hazards, calls = Hazards(), [Call() for _ in range(20)]
    for k, call in enumerate(calls):
        hazards.add(call, [(k, k + 3)], [(k + 1, k + 2)])
    for call in reversed(calls):
        hazards.end(call)
    assert len(hazards) == 0
    assert hazards._starts == []
    assert hazards._stretches == {}


def test_empty_arrays_touch_nothing():
    assert Hazards().add(Call(), [(5, 5)], [(5, 5)]) == (set(), set())


@pytest.mark.parametrize("seed", range(4))
def test_everything_that_must_be_waited_for_is(seed):
    """Against all pairs of calls, one by one: each waits, directly or through others, for every one that it conflicts with."""
    rng, hazards = np.random.default_rng(seed), Hazards()
    calls, before, accesses = [], {}, {}
    for _ in range(300):
        call = Call()
        reads, writes = ([(a, a + n) for a, n in zip(rng.integers(0, 60, k), rng.integers(0, 9, k), strict=True)]
                         for k in rng.integers(0, 3, 2))  # fmt: skip
        sources, others = hazards.add(call, reads, writes)
        assert call not in sources | others
        direct = sources | others
        before[call] = set.union(direct, *(before[each] for each in direct))
        for earlier in calls:
            if earlier in accesses and conflicts((reads, writes), accesses[earlier]):
                assert earlier in before[call]
        for each in direct:
            assert conflicts((reads, writes), accesses[each])
        calls.append(call)
        accesses[call] = reads, writes
        if rng.random() < 0.3:
            # Only a call that waits for nobody may end.
            free = [each for each in calls if each in accesses and not any(b in accesses for b in before[each])]
            ended = free[rng.integers(len(free))]
            hazards.end(ended)
            del accesses[ended]


def conflicts(one, other):
    (reads, writes), (others_reads, others_writes) = one, other
    pairs = [(a, b) for a in writes for b in (*others_reads, *others_writes)] + [(a, b) for a in reads for b in others_writes]
    return any(a[0] < b[1] and b[0] < a[1] and a[0] < a[1] and b[0] < b[1] for a, b in pairs)


def test_extents_of_arrays():
    array = np.zeros((4, 6))
    start = array.ctypes.data
    assert extent(array) == (start, start + 192)
    assert extent(array[1:3]) == (start + 48, start + 144)
    assert extent(array[:, 1]) == (start + 8, start + 8 + 3 * 48 + 8)
    assert extent(array[::-1]) == (start, start + 192)
    assert extent(np.broadcast_to(array[:1], (5, 6))) == (start, start + 48)
