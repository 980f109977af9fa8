"""Batches made ahead of time: order, depth, errors, and threads that end."""

import gc
import subprocess
import sys
import threading
import time
import traceback
import weakref

import numpy as np
import pytest

from chains.data import Augment, Batches, prefetch
from tests.waiting import eventually


class Counted:
    """Whole numbers, and how many were made."""

    def __init__(self, n, fail_at=None):
        self.n, self.fail_at, self.made, self.closed = n, fail_at, 0, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        try:
            for k in range(self.n):
                if k == self.fail_at:
                    raise OSError(f"batch {k} cannot be read")
                self.made += 1
                yield k
        finally:
            self.closed += 1


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    assert eventually(lambda: threading.active_count() <= before)


@pytest.mark.parametrize("depth", [1, 2, 7, 100])
def test_the_same_batches_in_the_same_order_every_epoch(depth):
    ahead = prefetch(Counted(20), depth)
    assert len(ahead) == 20
    for _ in range(50):
        assert list(ahead) == list(range(20))


def test_batches_are_the_same_bits():
    x, t = np.random.default_rng(0).integers(0, 256, (50, 3, 8, 8), np.uint8), np.arange(50)
    make = lambda: Batches(x, t, batch_size=16, seed=1, augment=Augment())  # noqa: E731
    plain, ahead = make(), prefetch(make())
    for _ in range(3):
        for a, b in zip(plain, ahead, strict=True):
            np.testing.assert_array_equal(a[0], b[0])
            np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.parametrize("depth", [1, 3])
def test_a_slow_consumer_bounds_what_is_made(depth):
    source = Counted(50)
    for k in prefetch(source, depth):
        time.sleep(0.002)
        assert source.made <= k + 1 + depth
    assert source.made == 50


def test_batches_are_made_while_others_are_used():
    source = Counted(50)
    ahead = iter(prefetch(source, 4))
    assert next(ahead) == 0
    assert eventually(lambda: source.made == 5)
    ahead.close()


@pytest.mark.parametrize("fail_at", [0, 7, 19])
def test_an_error_comes_where_its_batch_would_have(fail_at):
    ahead = iter(prefetch(Counted(20, fail_at)))
    assert [next(ahead) for _ in range(fail_at)] == list(range(fail_at))
    with pytest.raises(OSError, match=f"batch {fail_at} cannot be read") as caught:
        next(ahead)
    assert any("cannot be read" in (frame.line or "") for frame in traceback.extract_tb(caught.tb))
    with pytest.raises(StopIteration):
        next(ahead)


def test_leaving_early_ends_the_thread():
    source, before = Counted(1000), threading.active_count()
    ahead = prefetch(source)
    for _ in range(200):
        for k in ahead:
            if k == 3:
                break
        assert threading.active_count() == before
    assert source.closed == 200


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_consumer_ends_the_thread(error):
    def consume():
        with prefetch(source) as ahead:
            for k in ahead:
                if k == 3:
                    raise error

    source, before = Counted(1000), threading.active_count()
    with pytest.raises(error):
        consume()
    assert threading.active_count() == before
    assert source.closed == 1


def test_a_with_block_ends_every_pass():
    before = threading.active_count()
    with prefetch(Counted(1000)) as ahead:
        passes = [iter(ahead) for _ in range(3)]
        assert [next(one) for one in passes] == [0, 0, 0]
    assert threading.active_count() == before
    with pytest.raises(StopIteration):
        next(passes[0])
    assert next(iter(ahead)) == 0  # it can be used again


def test_a_pass_in_a_cycle_is_collected():
    begun = iter(prefetch(Counted(1000)))
    begun.itself = begun
    before, gone = threading.active_count(), weakref.ref(begun)
    del begun
    gc.collect()
    assert gone() is None
    assert eventually(lambda: threading.active_count() < before)


def test_used_batches_are_let_go():
    def arrays():
        for _ in range(20):
            array = np.zeros(10)
            alive.append(weakref.ref(array))
            yield array
            del array

    alive = []
    for _ in prefetch(arrays(), 2):
        assert sum(ref() is not None for ref in alive) <= 5


def test_an_interpreter_ends_in_the_middle_of_a_pass():
    code = "import itertools; from chains.data import prefetch; ahead = iter(prefetch(itertools.count())); print(next(ahead))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"`depth` \(=0\)"):
        prefetch([1], 0)
    with pytest.raises(TypeError, match=r"`depth` \(=1.5\)"):
        prefetch([1], 1.5)
    with pytest.raises(TypeError, match=r"`batches` \(a int\)"):
        prefetch(3)
    with pytest.raises(TypeError, match="has no len"):
        len(prefetch(k for k in range(3)))


# Several threads


def test_threads_may_share_a_pass():
    """Each batch goes to one of them, and all of them see the end."""
    for _ in range(20):
        shared, taken = iter(prefetch(range(50))), [[], [], []]
        threads = [threading.Thread(target=mine.extend, args=(shared,), daemon=True) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10.0)
            assert not thread.is_alive(), "a thread waits for a batch that never comes"
        assert sorted(number for mine in taken for number in mine) == list(range(50))


def test_an_error_ends_the_pass_for_all_threads():
    def batches():
        yield 0
        raise OSError("gone")

    shared, errors = iter(prefetch(batches())), []

    def consume():
        try:
            list(shared)
        except OSError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()
    assert errors == ["gone"]


def test_a_pass_says_what_it_is():
    begun = iter(prefetch([1, 2], depth=np.int64(1)))
    assert repr(begun) == "<a pass over batches made ahead of time>"
    begun.close()
    assert repr(begun).endswith("ended>")
