"""When two views overlap, against the elements that they have at several batch sizes."""

from __future__ import annotations

import numpy as np
import pytest

from chains.program.alias import across, conflict, overlap, reach, same
from chains.program.operations import Copy, Fill, MatMul
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer, View, concrete

BATCHES = (1, 2, 3, 5)


def elements(view, batch):
    """The places of a view's elements in its buffer, in order."""
    places = np.full((), view.offset)
    for extent, stride in zip(concrete(view.shape, batch), view.strides, strict=True):
        places = places[..., None] + stride * np.arange(extent)
    return places.reshape(-1)


def have_in_common(a, b):
    return any(np.isin(elements(a, batch), elements(b, batch)).any() for batch in BATCHES)


def views_of(rng, whole):
    """A window of an array, perhaps seen otherwise."""
    view = whole
    for axis in range(1 if whole.batched else 0, whole.ndim):
        start, stop = sorted(rng.choice(int(view.shape[axis]) + 1, 2, replace=False))
        view = view.slice(axis, int(start), int(stop)) if rng.random() < 0.6 else view
    other = rng.integers(6)
    if other == 0:
        return view.T
    if other == 1:
        return view.expand(int(rng.integers(view.ndim + 1)) or -1)
    if other == 2 and view.contiguous:
        return view.flat
    if other == 3 and view.contiguous and view.ndim > 1:
        return view.rows
    return view


@pytest.mark.parametrize("batched", [False, True])
def test_views_that_have_an_element_in_common_meet(batched):
    """Of random pairs of windows none that share an element is called apart, and most others are."""
    rng = np.random.default_rng(0)
    shared = found = apart = 0
    for _ in range(2000):
        shape = tuple(int(length) for length in rng.integers(1, 6, rng.integers(1, 4)))
        whole = Recorder("views", np.float32).scratch("whole", shape, batched=batched)
        a, b = views_of(rng, whole), views_of(rng, whole)
        if have_in_common(a, b):
            shared += 1
            assert overlap(a, b), f"{a!r} {a.shape} {b!r} {b.shape}"
        else:
            apart += 1
            found += not overlap(a, b)
    assert shared > 500
    assert apart > 200
    assert found > 0.9 * apart


@pytest.mark.parametrize("batched", [False, True])
def test_the_same_elements_in_the_same_order(batched):
    rng = np.random.default_rng(1)
    alike = 0
    for _ in range(2000):
        whole = Recorder("views", np.float32).scratch("whole", (2, 3, 2), batched=batched)
        a, b = views_of(rng, whole), views_of(rng, whole)
        equal = all(np.array_equal(elements(a, batch), elements(b, batch)) for batch in BATCHES)
        alike += equal and a != b
        assert same(a, b) == equal, f"{a!r} {a.shape} {b!r} {b.shape}"
    assert alike > 20


def test_windows_beside_each_other():
    ops = Recorder("views", np.float32)
    image, vector = ops.scratch("image", (5, 4)), ops.scratch("vector", (9,), batched=False)
    assert not overlap(image.slice(1, 0, 2), image.slice(1, 2, 5))
    assert not overlap(image.slice(2, 0, 2), image.slice(2, 2, 4))
    assert overlap(image.slice(2, 0, 3), image.slice(2, 2, 4))
    assert overlap(image.slice(1, 0, 2), image)
    assert not overlap(vector.slice(0, 0, 4), vector.slice(0, 4, 9))
    assert overlap(vector.slice(0, 0, 5), vector.slice(0, 4, 9))
    assert not overlap(image.slice(1, 0, 2).slice(2, 0, 2), image.slice(1, 1, 4).slice(2, 2, 4))


def test_other_buffers_and_empty_views_never_meet():
    ops = Recorder("views", np.float32)
    a, b = ops.scratch("a", (4,)), ops.scratch("b", (4,))
    assert not overlap(a, b)
    assert not same(a, b)
    assert not overlap(a, a.slice(1, 2, 2))


def test_samples_that_lie_side_by_side():
    """Two columns of a buffer whose samples are neighbours: only a row of the other axis tells them apart."""
    buffer = Buffer("laned", "scratch", np.dtype(np.float32), (Batch(), 4))
    first, second = (View(buffer, (Batch(), 1), (1, 8), offset) for offset in (0, 8))
    assert overlap(first, second)  # at a batch of nine they do


def test_across():
    ops = Recorder("views", np.float32)
    matrix = ops.scratch("matrix", (3, 3))
    assert not across(matrix, matrix)
    assert across(matrix, matrix.slice(1, 0, 1))
    assert across(matrix, View(matrix.buffer, matrix.shape, (9, 1, 3)))  # each sample's transpose
    assert not across(matrix.slice(2, 0, 1), matrix.slice(2, 1, 2))


def test_reach():
    ops = Recorder("views", np.float32)
    matrix = ops.scratch("matrix", (4, 3), batched=False)
    assert reach(matrix.slice(1, 1, 2)) == (1, 11)
    assert reach(matrix.T) == (0, 12)
    with pytest.raises(AssertionError, match="samples"):
        reach(ops.scratch("rows", (3,)))


def test_operations_conflict_where_one_writes_what_the_other_touches():
    ops = Recorder("views", np.float32)
    a, b, c = (ops.scratch(name, (2, 2), batched=False) for name in "abc")
    read, write = Copy((c,), (a,)), Fill((a,), (), 1.0)
    assert conflict(read, write)
    assert conflict(write, read)
    assert conflict(write, write)
    assert not conflict(read, Copy((b,), (a,)))
    assert not conflict(Fill((a.slice(0, 0, 1),), (), 0.0), Fill((a.slice(0, 1, 2),), (), 0.0))
    assert conflict(MatMul((c,), (a, b), accumulate=True), MatMul((c,), (b, a), accumulate=True))
