"""The plan of scratch memory: nothing that is alive at the same time overlaps, everything is aligned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chains
from chains.program.scratch import ALIGNMENT, Lifetime, plan_scratch, rounded
from tests.harness import CASES

spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)
lives = st.lists(st.tuples(st.integers(1, 400), st.booleans(), spans), max_size=14)


def lifetimes_of(drawn):
    return [Lifetime(k, 4 * size, batched, *span) for k, (size, batched, span) in enumerate(drawn)]


def byte_range(made, life, batch):
    start = made.offset(life.key, batch)
    return start, start + life.size * (batch if life.batched else 1)


@given(lives, st.integers(1, 70))
def test_live_buffers_share_no_byte(drawn, batch):
    lifetimes = lifetimes_of(drawn)
    made = plan_scratch(lifetimes)
    for k, a in enumerate(lifetimes):
        for b in lifetimes[:k]:
            (a0, a1), (b0, b1) = byte_range(made, a, batch), byte_range(made, b, batch)
            assert not a.overlaps(b) or a1 <= b0 or b1 <= a0


@given(lives, st.integers(1, 70))
def test_buffers_are_aligned_and_inside(drawn, batch):
    lifetimes = lifetimes_of(drawn)
    made = plan_scratch(lifetimes)
    for life in lifetimes:
        start, stop = byte_range(made, life, batch)
        assert start % ALIGNMENT == 0
        assert 0 <= start <= stop <= made.nbytes(batch)


@given(lives)
def test_memory_is_used_again(drawn):
    """A plan takes no more than all buffers side by side, and no less than what is alive at once."""
    lifetimes = lifetimes_of(drawn)
    made = plan_scratch(lifetimes)
    fixed = [life for life in lifetimes if not life.batched]
    together = max((sum(f.size for f in fixed if f.first <= at <= f.last) for at in range(13)), default=0)
    side_by_side = sum(-(-life.size // ALIGNMENT) * ALIGNMENT for life in fixed)
    assert together <= made.fixed_bytes <= side_by_side


@given(st.tuples(spans, spans))
def test_overlap_is_symmetric_and_right(pair):
    a, b = (Lifetime(0, 4, False, *span) for span in pair)
    assert a.overlaps(b) == b.overlaps(a) == bool(set(range(a.first, a.last + 1)) & set(range(b.first, b.last + 1)))


def test_buffers_one_after_another_share():
    made = plan_scratch([Lifetime(k, 1024, False, 2 * k, 2 * k + 1) for k in range(5)])
    assert made.fixed_bytes == 1024
    assert plan_scratch([]).nbytes(100) == 0


@pytest.mark.parametrize("batch", [1, 2, 15, 16, 17, 1000])
def test_rounded_batches_keep_the_alignment(batch):
    assert rounded(batch) >= batch
    assert rounded(batch) * 4 % ALIGNMENT == 0
    assert rounded(batch) - batch < ALIGNMENT // 4


@pytest.mark.parametrize("case", CASES[::5], ids=str)
def test_plans_of_real_programs(case):
    net = case.net()
    program = net.program(case.loss, chains.Adam(), penalty=case.penalty, target_shape=case.problem(1).t.shape[1:])
    used = [(buffer, span) for buffer, span in program._used.items() if buffer.role == "scratch"]
    for batch in (1, 7, 64):
        ranges = []
        for buffer, (first, last) in used:
            start = program.scratch.offset(buffer, batch)
            stop = start + buffer.nbytes * (batch if buffer.batched else 1)
            assert all(stop <= a or b <= start for a, b, f, e in ranges if f <= last and first <= e), buffer.name
            ranges.append((start, stop, first, last))


def test_scratch_shrinks_by_sharing():
    """A deep network's forward pass needs two layers' memory, however deep it is."""

    def needs(depth):
        return chains.Chain(*(chains.Dense(8, 8, "tanh") for _ in range(depth))).program().scratch.bytes_per_sample

    assert needs(20) == needs(4) <= 3 * 8 * 4
