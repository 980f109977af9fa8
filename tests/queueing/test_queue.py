"""Queued calls give what calls without a queue give, in order where they share memory, with errors where results are read."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, Dense, SquaredLoss, tanh, train
from chains.queueing import queue, scheduler
from tests.waiting import eventually

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(20, 3)).astype(np.float32), RNG.normal(size=(20, 2)).astype(np.float32)
LOSS = SquaredLoss()


@pytest.fixture
def net(backend_name):
    return Chain(Dense(3, 5, tanh), Dense(5, 2), backend=backend_name)


@pytest.fixture
def p(net):
    return net.init(seed=0)


@pytest.fixture
def gate():
    """An event that queued functions wait for, set in the end whatever happens."""
    event = threading.Event()
    yield event
    event.set()


def held_up(q, gate, **options):
    """A call that ends when the gate is open; it has begun."""
    begun = threading.Event()

    def function():
        begun.set()
        gate.wait(60)

    result = q.call(function, **options)
    assert begun.wait(60)
    return result


def test_calls_have_the_bits_of_calls_without_a_queue(net, p):
    dy = RNG.normal(size=T.shape).astype(np.float32)
    with chains.Queue() as q:
        y, r, v = q(net, X, p), q.value_and_grad(net, p, X, T, LOSS), q.vjp(net, p, X, dy)
        value, gradient = r.wait()
        assert np.asarray(y).tobytes() == net(X, p).tobytes()
        wanted = net.value_and_grad(p, X, T, LOSS)
        assert (value, gradient.tobytes()) == (wanted[0], wanted[1].tobytes())
        assert [a.tobytes() for a in v] == [a.tobytes() for a in net.vjp(p, X, dy)]
        assert float(r[0]) == value
        assert r[1].array is gradient
        assert r.done
        assert str(r[0]) == str(value)


def test_training_has_the_bits_of_train(net, p):
    wanted = p.copy()
    history = train(net, wanted, X, T, LOSS, Adam(0.01), epochs=5, batch_size=7, seed=3)
    with chains.Queue() as q:
        result = q.train(net, p, X, T, LOSS, Adam(0.01), epochs=5, batch_size=7, seed=3)
        y = q(net, X, p)  # of the trained parameters
    assert result.wait().loss == history.loss
    assert p.tobytes() == wanted.tobytes()
    assert y.array.tobytes() == net(X, wanted).tobytes()


def test_two_trainings_go_on_side_by_side(net, p):
    alone, pairs = p.copy(), [p.copy(), p.copy()]
    with chains.num_threads(1):
        train(net, alone, X, T, LOSS, Adam(0.01), epochs=20)
    meeting = threading.Barrier(2, timeout=60)
    with chains.Queue(workers=2) as q:
        for each in pairs:
            q.train(net, each, X, T, LOSS, Adam(0.01), epochs=20, callbacks=[lambda state: (meeting.wait(), None)[1]])
    assert all(each.tobytes() == alone.tobytes() for each in pairs)


def test_a_training_loop_of_queued_steps(net, p):
    wanted, alone = p.copy(), chains.Updater(SGD(0.1), p.copy())
    for k in range(0, 20, 4):
        alone(net.value_and_grad(alone.p, X[k : k + 4], T[k : k + 4], LOSS)[1])
    update = chains.Updater(SGD(0.1), wanted)
    with chains.Queue(workers=2) as q:
        for k in range(0, 20, 4):
            r = q.value_and_grad(net, wanted, X[k : k + 4], T[k : k + 4], LOSS)
            q.call(update, r[1], writes=wanted)
    np.testing.assert_allclose(wanted, alone.p, rtol=1e-6)


def test_results_are_arguments(net, p):
    other = Chain(Dense(2, 4, tanh))
    with chains.Queue(workers=2) as q:
        y = q(other, q(net, X, p), other.init(seed=1))
        total = q.call(lambda parts: sum(float(np.sum(part)) for part in parts), [y, y])
    np.testing.assert_allclose(total.wait(), 2.0 * other(net(X, p), other.init(seed=1)).sum(), rtol=1e-5)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_order_is_that_of_the_calls(workers):
    """Random calls on random views that overlap, against the same ones run one after the other."""
    rng = np.random.default_rng(workers)
    memory = np.arange(64.0)
    alone = memory.copy()

    def views(whole, numbers):
        return [whole[start : start + 8 * step : step] for start, step in numbers]

    def function(outs, ins):
        total = sum(float(each.sum()) for each in ins)
        for out in outs:
            out *= 0.5
            out += np.sin(total + np.arange(len(out)))
        return total

    with chains.Queue(workers) as q:
        results, wanted = [], []
        for _ in range(3000):
            counts = rng.integers(0, (3, 4))
            outs, ins = (list(zip(rng.integers(0, 48, n), rng.integers(1, 3, n), strict=True)) for n in counts)
            written = views(memory, outs)
            results.append(q.call(function, written, views(memory, ins), writes=written))
            wanted.append(function(views(alone, outs), views(alone, ins)))
            if len(results) > 50:
                assert results.pop(0).wait() == wanted.pop(0)
    assert memory.tobytes() == alone.tobytes()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_values_that_are_views_are_memory_too(workers):
    """Random calls whose values are views of what they read, against the same ones run one after the other."""
    rng = np.random.default_rng(workers)
    memory = np.arange(32.0)
    alone = memory.copy()

    def part(of, start):
        return of[start : start + 16]

    def change(out, factor):
        time.sleep(0.0)
        out *= 0.5
        out += np.sin(factor + np.arange(len(out)))
        return out

    def added(of):
        time.sleep(0.0)
        return float(np.sum(of))

    with chains.Queue(workers) as q:
        queued, values = [memory], [alone]
        results, wanted = [], []
        for _ in range(2000):
            k, start, kind = rng.integers(len(queued)), rng.integers(0, 8), rng.integers(4)
            if kind == 0:
                queued.append(q.call(part, queued[k], start))
                values.append(part(values[k], start))
            elif kind == 1:
                out = slice(2 * start, 2 * start + 8)
                queued.append(q.call(change, memory[out], start, writes=memory[out]))
                values.append(change(alone[out], start))
            elif kind == 2 and k and queued[k].done:
                written = queued[k].array
                q.call(change, written, 1.0, writes=written)
                change(values[k], 1.0)
            else:
                results.append(q.call(added, queued[k]))
                wanted.append(added(values[k]))
            if len(queued) > 12:
                del queued[1], values[1]
    assert [result.wait() for result in results] == wanted
    assert memory.tobytes() == alone.tobytes()


def test_an_output_is_written_again_once_nobody_reads_it(net, p, gate):
    out = np.empty(T.shape, np.float32)
    with chains.Queue(workers=2) as q:
        reader = q.call(lambda y, _: y.copy(), q(net, X, p, out=out), held_up(q, gate))
        again = q(net, 2.0 * X, p, out=out)
        time.sleep(0.02)
        assert not again.done
        gate.set()
        assert reader.array.tobytes() == net(X, p).tobytes()
        assert again.array.tobytes() == net(2.0 * X, p).tobytes()


def test_calls_that_share_nothing_run_side_by_side():
    meeting = threading.Barrier(3, timeout=60)
    with chains.Queue(workers=3) as q:
        for _ in range(3):
            q.call(meeting.wait)


def test_readers_run_side_by_side_and_writers_alone(gate):
    a = np.zeros(4)
    with chains.Queue(workers=3) as q:
        reader = held_up(q, gate, reads=a)
        assert q.call(np.sum, a).wait(60) == 0.0
        writer = q.call(a.fill, 1.0, writes=a)
        later = q.call(np.sum, a)
        time.sleep(0.02)
        assert not writer.done
        assert not later.done
        gate.set()
        assert later.wait(60) == 4.0
        reader.wait()


# Errors


def test_an_error_comes_where_the_result_is_read():
    def wrong():
        raise KeyError("seven")

    with chains.Queue() as q:
        result = q.call(wrong)
        q.call(len, "fine").wait()
        with pytest.raises(KeyError) as caught:
            result.wait()
        assert f"queued at {__file__}, line " in caught.value.__notes__[0]
        assert "failed: KeyError" in repr(result)


def test_an_error_that_nobody_has_read_comes_at_the_end():
    with pytest.raises(ZeroDivisionError), chains.Queue() as q:
        q.call(lambda: 1 / 0)
    with chains.Queue() as q:
        first = q.call(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            q.wait()
        q.wait()  # is told once
        with pytest.raises(ZeroDivisionError):
            first.wait()


@pytest.mark.parametrize("wait", [False, True])
def test_several_errors_come_as_a_group(wait):
    def block():
        with chains.Queue() as q:
            first = q.call(lambda: 1 / 0)
            q.call(print, first)  # which fails for the same reason
            q.call(lambda: {}["key"])
            if wait:
                q.wait()

    with pytest.raises(ExceptionGroup, match="2 queued calls failed") as caught:
        block()
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError, KeyError]
    assert all("queued at" in error.__notes__[0] for error in caught.value.exceptions)


def test_an_exception_of_the_block_tells_of_the_calls_that_failed(gate):
    def block():
        with chains.Queue() as q:
            failed = q.call(lambda: 1 / 0)
            assert eventually(lambda: failed.done)
            held_up(q, gate)
            q.call(len, "left out")
            threading.Timer(0.05, gate.set).start()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        block()
    (note,) = caught.value.__notes__
    assert note.startswith("a queued call failed too, queued at ")
    assert note.endswith("ZeroDivisionError: division by zero")


def test_what_depends_on_an_error_does_not_run():
    a, ran = np.zeros(3), []
    with chains.Queue() as q:
        failed = q.call(lambda: 1 / 0, writes=a)
        readers = [q.call(ran.append, a), q.call(ran.append, failed)]
        overwritten = q.call(a.fill, 2.0, writes=a)  # does not read what has failed
        for reader in readers:
            with pytest.raises(ZeroDivisionError):
                reader.wait()
        overwritten.wait()
        assert q.call(np.sum, a).wait() == 6.0
    assert ran == []


def test_an_error_holds_until_somebody_is_told():
    """Whether a reader is queued before or after the error makes no difference."""
    a = np.zeros(3)
    with chains.Queue() as q:
        failed = q.call(lambda: 1 / 0, writes=a)
        assert eventually(lambda: failed.done)
        with pytest.raises(ZeroDivisionError):
            q.call(np.sum, a).wait()
        assert q.call(np.sum, a).wait() == 0.0


def test_arguments_of_a_failed_call_are_kept_until_somebody_is_told():
    """So that no other array takes their place in memory, and with it the error."""
    with chains.Queue() as q:
        a = np.zeros(3)
        alive = weakref.ref(a)
        failed = q.call(lambda a: 1 / 0, a, writes=a)
        assert eventually(lambda: failed.done)
        del a
        gc.collect()
        assert alive() is not None
        with pytest.raises(ZeroDivisionError):
            failed.wait()
        q.call(int).wait()
        gc.collect()
        assert failed.work is None


def test_what_does_not_fit_is_refused_at_once(net, p):
    with chains.Queue() as q:
        with pytest.raises(ValueError, match="`x`"):
            q(net, X[:, :2], p)
        with pytest.raises(ValueError, match="`p`"):
            q.value_and_grad(net, p[:-1], X, T, LOSS)
        with pytest.raises(TypeError, match="`net`"):
            q("net", X, p)
        with pytest.raises(TypeError, match="loss"):
            q.value_and_grad(net, p, X, T, "loss")
        with pytest.raises(TypeError, match="`optimizer`"):
            q.train(net, p, X, T, LOSS, "adam")
        with pytest.raises(TypeError, match="`function` \\(=3\\)"):
            q.call(3)
        late = q.value_and_grad(net, p, X, T[:5], LOSS)
        with pytest.raises(ValueError, match="20 samples"):
            late.wait()
        assert len(q) == 0
    for settings in ({"workers": 0}, {"pending": 0}, {"workers": 1.5}):
        with pytest.raises((TypeError, ValueError), match=next(iter(settings))):
            chains.Queue(**settings)


def test_values_of_the_wrong_kind():
    with chains.Queue() as q:
        pair, text = q.call(lambda: (1.0, 2.0)), q.call(lambda: "text")
        with pytest.raises(TypeError, match=r"a tuple, not an array; take a part"):
            _ = pair.array
        with pytest.raises(TypeError, match="a tuple, not a number"):
            float(pair)
        with pytest.raises(TypeError, match=r"a str, not an array; try result.wait"):
            np.asarray(text)
        with pytest.raises(TypeError, match="whole numbers"):
            pair["first"]
        first, second = pair
        assert (first, second, pair[1].wait()) == (1.0, 2.0, 2.0)
        with pytest.raises(IndexError):
            pair[2].wait()


def test_results_of_another_queue(gate):
    with chains.Queue() as one, chains.Queue() as other:
        result = held_up(one, gate)
        with pytest.raises(ValueError, match="another queue"):
            other.call(print, result).wait()
        gate.set()
        result.wait()
        assert other.call(lambda value: value, result).wait() is None


def test_a_queued_function_cannot_wait():
    with chains.Queue() as q:
        other = q.call(lambda: 3)
        with pytest.raises(RuntimeError, match="a queued function cannot wait"):
            q.call(lambda: q.call(lambda: 4).wait()).wait()
        with pytest.raises(RuntimeError, match="a queued function cannot"):
            q.call(q.wait).wait()
        assert q.call(other.wait).wait() == 3  # it is there


def test_arrays_of_other_libraries_are_memory_too(gate):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4)
    with chains.Queue(workers=2) as q:
        held_up(q, gate, reads=tensor.numpy())
        writer = q.call(tensor.fill_, 1.0, writes=tensor)
        reader = q.call(torch.sum, tensor)
        time.sleep(0.02)
        assert not writer.done
        gate.set()
        assert float(reader.wait()) == 4.0
        with pytest.raises(TypeError, match="requires a gradient"):
            q.call(torch.sum, torch.zeros(3, requires_grad=True)).wait()
        assert q.call(int).wait() == 0


def test_timeouts(gate):
    with chains.Queue() as q:
        result = held_up(q, gate)
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s"):
            result.wait(timeout=0.01)
        assert not result.done
        gate.set()
        assert result.wait(timeout=60) is None


# Memory


def test_results_use_their_arrays_again_once_nobody_holds_them(net, p):
    with chains.Queue() as q:
        first = q.value_and_grad(net, p, X, T, LOSS)
        address = first[1].array.ctypes.data
        kept = q.value_and_grad(net, p, X, T, LOSS)[1].array
        view = kept[:2]
        del first
        assert q.value_and_grad(net, p, X, T, LOSS)[1].array.ctypes.data == address
        before = kept.copy()
        del kept
        for _ in range(10):
            q.value_and_grad(net, p + 1, X, T, LOSS)
        q.wait()
        assert view.tobytes() == before[:2].tobytes()


def test_arrays_are_lent_to_one_at_a_time():
    lent = queue.Outputs()
    arrays = [lent.take((3,), np.float64) for _ in range(20)]
    assert len({array.ctypes.data for array in arrays}) == 20
    assert lent.take((3,), np.float32).dtype == np.float32
    assert sum(map(len, lent._lent.values())) <= queue.MAX_ARRAYS + 1


def test_large_arrays_of_shapes_that_are_over_are_let_go(monkeypatch):
    monkeypatch.setattr(queue, "MAX_BYTES", 1000)
    lent = queue.Outputs()
    for n in range(1, 100):
        lent.take((n,), np.float64)
    assert sum(array.nbytes for arrays in lent._lent.values() for array in arrays) <= 1000


def test_arguments_and_results_are_let_go():
    class Thing(np.ndarray):
        pass

    with chains.Queue() as q:
        x = np.zeros(3).view(Thing)
        alive = weakref.ref(x)
        result = q.call(lambda x: None, x)
        result.wait()
        del x
        q.wait()
        assert eventually(lambda: gc.collect() >= 0 and alive() is None)
        ended = weakref.ref(q.call(lambda: None))
        q.wait()
        q.call(lambda: None).wait()
        gc.collect()
        assert ended() is None


def test_many_pending_calls_wait_for_room(gate):
    with chains.Queue(pending=3) as q:
        held_up(q, gate)
        q.call(int)
        q.call(int)
        assert len(q) == 3
        thread = threading.Thread(target=q.call, args=(int,))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        gate.set()
        thread.join(60)
        assert not thread.is_alive()


def test_arguments_that_nobody_else_holds_are_bounded(gate, monkeypatch):
    monkeypatch.setattr(scheduler, "MAX_HELD", 3000)
    with chains.Queue() as q:
        held_up(q, gate)
        kept = [np.zeros(1000) for _ in range(5)]
        for array in kept:
            q.call(len, array)
        assert q._scheduler._held == 0

        def queue_fresh():
            for _ in range(4):
                q.call(len, np.zeros(150))

        thread = threading.Thread(target=queue_fresh)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert q._scheduler._held == 3600
        gate.set()
        thread.join(60)
        q.wait()
        assert q._scheduler._held == 0


def test_memory_is_flat_however_much_is_queued(net, p):
    with chains.Queue() as q:
        for _ in range(300):
            q.value_and_grad(net, p, X, T, LOSS)
        q.wait()
        assert sum(map(len, q._outputs._lent.values())) <= 2
        assert (len(q._scheduler._hazards), len(q._scheduler.pending), q._scheduler._failed) == (0, 0, [])


# Ends


def test_an_exception_leaves_out_what_has_not_begun(gate):
    ran, calls = [], []

    def block():
        with chains.Queue() as q:
            held_up(q, gate)
            calls.append(q.call(ran.append, 1))
            threading.Timer(0.05, gate.set).start()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        block()
    assert ran == []
    with pytest.raises(RuntimeError, match="left out: the queue was closed before it ran"):
        calls[0].wait()


def test_an_exception_ends_training_after_a_step(net, p):
    begun, calls, start = threading.Event(), [], time.perf_counter()

    def block():
        with chains.Queue() as q:
            calls.append(q.train(net, p, X, T, LOSS, Adam(), epochs=10**9, callbacks=[lambda state: begun.set()]))
            assert begun.wait(60)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        block()
    assert time.perf_counter() - start < 30
    history = calls[0].wait()
    assert "interrupted" in history.stopped
    assert history.epochs >= 1


def test_a_closed_queue_takes_no_calls():
    q = chains.Queue()
    assert q.call(lambda: 5).wait() == 5
    q.close()
    with pytest.raises(RuntimeError, match="the queue is closed"):
        q.call(int)
    q.close()
    assert repr(q) == "<Queue of 1 worker, closed>"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chains-queue")]


def test_threads_are_shared_out_among_workers(number):
    chains.set_num_threads(4)
    with chains.Queue(workers=2) as q:
        assert q.call(chains.get_num_threads).wait() == 2
    assert chains.get_num_threads() == 4


def test_a_bar(gate, capsys):
    with chains.Queue() as q:
        held_up(q, gate)
        for _ in range(4):
            q.call(int)
        threading.Timer(0.05, gate.set).start()
        q.wait(progress=True)
    assert "5/5 calls" in capsys.readouterr().err


def test_what_is_printed(gate):
    with chains.Queue(workers=2) as q:
        assert repr(q) == "<Queue of 2 workers, 0 calls pending>"
        result = held_up(q, gate)
        assert repr(result).startswith("<Result of function, pending, queued at ")
        assert repr(result[0]).startswith("<part 0 of <Result of function, pending")
        assert repr(q) == "<Queue of 2 workers, 1 call pending>"
        gate.set()
        assert str(result) == "None"


def run_script(text, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(text)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False, **options)


SCRIPT = """
    import os, signal, sys, threading, time
    import numpy as np, chains
    from chains import Adam, Chain, Dense, SquaredLoss
    net = Chain(Dense(3, 4, "tanh"), Dense(4, 1))
    x, t, p = np.ones((50, 3), "f4"), np.ones((50, 1), "f4"), net.init()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_the_process_ends_while_calls_are_pending(workers):
    done = run_script(SCRIPT + f"""
    chains.set_num_threads(2)
    q = chains.Queue(workers={workers})
    net = Chain(Dense(3, 400, "tanh"), Dense(400, 400, "tanh"), Dense(400, 1))
    p, x, t = net.init(), np.ones((500, 3), "f4"), np.ones((500, 1), "f4")
    q.train(net, p, x, t, SquaredLoss(), Adam(), epochs=10**9)
    for _ in range(100):
        q.value_and_grad(net, p, x, t, SquaredLoss())
    time.sleep(0.2)
    print("end")
    """)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "end\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("chains.Queue: the program ended before 101 queued calls (the first queued at <string>, line ")
    assert line.endswith("was left out. Wait with q.wait(), or in a block `with chains.Queue() as q`.")


@pytest.mark.parametrize("end", ["time.sleep(0.2)", "q.close()", "del q; gc.collect()", "q = chains.Queue(); gc.collect()"])
def test_errors_that_nobody_sees_are_printed_at_the_end(end):
    done = run_script(SCRIPT + f"""
    import gc
    q = chains.Queue()
    for name in ("first", "second"):
        q.call(lambda name=name: {{}}[name])
    try:
        q.call(lambda: 1 / 0).wait()
    except ZeroDivisionError:
        print("seen")
    {end}
    """)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "seen\n")
    assert done.stderr.count("chains.Queue: 2 queued calls failed, and nobody waited for it:") == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("KeyError")] == [
        "KeyError: 'first'",
        "KeyError: 'second'",
    ]
    assert done.stderr.count("queued at <string>, line") == 2


def test_a_result_that_is_still_held_is_not_reported(capfd):
    result = chains.Queue().call(lambda: 1 / 0)
    gc.collect()
    with pytest.raises(ZeroDivisionError):
        result.wait()
    del result
    gc.collect()
    assert capfd.readouterr().err == ""


def test_waits_in_pieces(monkeypatch, gate):
    """As on Windows, where Ctrl-C is answered between them."""
    monkeypatch.setattr(scheduler, "LONGEST_WAIT", 0.002)
    with chains.Queue(workers=1, pending=1) as q:
        slow = held_up(q, gate)
        with pytest.raises(TimeoutError, match=r"0\.01 s"):
            slow.wait(0.01)
        threading.Timer(0.02, gate.set).start()
        later = q.call(int, 7)  # which waits for room
        assert slow.ended
        assert later.wait() == 7


def test_ctrl_c_while_waiting():
    done = run_script(SCRIPT + """
    try:
        with chains.Queue() as q:
            r = q.train(net, p, x, t, SquaredLoss(), Adam(), epochs=10**9)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            r.wait()
    except KeyboardInterrupt:
        print("interrupted", r.wait().stopped.split(" in ")[0])
    """)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted interrupted by the user\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_has_no_workers():
    done = run_script(SCRIPT + """
    with chains.Queue() as q:
        gate = threading.Event()
        pending = q.call(gate.wait)
        child = os.fork()
        if not child:
            for function in (pending.wait, lambda: q.call(int)):
                try:
                    function()
                except RuntimeError as error:
                    print(str(error).split(":")[0], flush=True)
            with chains.Queue() as own:
                print(own.call(lambda: 7).wait(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        gate.set()
        print(pending.wait())
    """)  # fmt: skip
    assert done.stdout == "the queue was made by another process\n" * 2 + "7\nTrue\n", done.stderr
    assert done.returncode == 0


def test_signals_reach_only_the_main_thread(net, p):
    """The event that ends training in a worker does not end training elsewhere."""
    with chains.Queue() as q:
        q.call(int).wait()
        q._scheduler._stop.set()
        assert train(net, p, X, T, LOSS, Adam(), epochs=3).epochs == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
