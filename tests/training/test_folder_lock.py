"""One folder of checkpoints and two trainings, or a full disk."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from chains import SGD, Chain, Checkpoint, Dense, SquaredLoss, train
from chains.support import storage
from chains.training import folder_lock
from chains.training.checkpoint import files
from tests.training.support import make_data

NET = Chain(Dense(3, 2), backend="numpy")
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals and fork")


def run(folder=None, p=None, epochs=4, resume=None, **settings):
    """Train for some epochs, with a checkpoint after each; the parameters and the history."""
    p = NET.init(seed=0) if p is None else p
    checkpoint = None if folder is None else Checkpoint(folder, every=1, **settings.pop("saved", {}))
    history = train(
        NET, p, *make_data(), SquaredLoss(), SGD(0.05), epochs=epochs, checkpoint=checkpoint, resume=resume, **settings
    )
    return p, history


def wait_in(folder: str, forked: bool = False) -> None:
    """Train in a folder, and say so after an epoch, for ever; if `forked`, with a child that outlives this process."""

    def wait(state):
        child = os.fork() if forked else 0
        if not child:  # a child that says so has left the lock to its parent
            print("here", flush=True)
            time.sleep(20)
            os._exit(0)
        time.sleep(600)  # until it is killed: on a busy machine, what the other process does takes long

    run(Path(folder), callbacks=[wait])


@pytest.fixture
def other(tmp_path, request):
    """Another process that trains in the folder, and waits there."""
    code = (
        f"from tests.training.test_folder_lock import wait_in; wait_in({str(tmp_path)!r}, {getattr(request, 'param', False)})"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout.readline() == b"here\n"
        yield process
        process.kill()
        process.stdout.close()


def test_a_folder_that_another_process_writes_to_is_refused(other, tmp_path):
    p = NET.init(seed=1)
    before, kept = p.tobytes(), sorted(os.listdir(tmp_path))
    wanted = rf"`checkpoint` .* is being written by another training, process {other.pid} on {platform.node()}: wait for"
    for resume in (None, tmp_path):
        with pytest.raises(ValueError, match=wanted):
            run(tmp_path, p, resume=resume)
    assert (p.tobytes(), sorted(os.listdir(tmp_path))) == (before, kept)
    run(tmp_path / "next", p, resume=tmp_path)  # reading is free
    assert p.tobytes() == run()[0].tobytes()


@POSIX
@pytest.mark.parametrize("other", [False, True], ids=["alone", "with a child"], indirect=True)
def test_the_lock_of_a_killed_process_blocks_none(other, tmp_path):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / folder_lock.NAME).exists()
    (tmp_path / "unfinished-0123.part").write_bytes(b"half of a file")
    assert run(tmp_path, resume=tmp_path)[0].tobytes() == run()[0].tobytes()
    assert [name for name in os.listdir(tmp_path) if not name.startswith("step-")] == []


def test_a_training_within_another_one_is_refused(tmp_path):
    def within(state):
        run(tmp_path, resume=tmp_path)

    with pytest.raises(ValueError, match=f"another training, process {os.getpid()} on"):
        run(tmp_path, callbacks=[within])
    assert run(tmp_path, resume=tmp_path)[0].tobytes() == run()[0].tobytes()


def test_arguments_that_are_refused_leave_no_folder(tmp_path):
    for settings in ({"batch_size": 0}, {"resume": tmp_path / "nothing"}, {"weights": 3}):
        with pytest.raises((TypeError, ValueError)):
            run(tmp_path / "a" / "b", **settings)
    assert os.listdir(tmp_path) == []


def test_a_lock_that_was_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    lock, calls = folder_lock._lock, []

    def removed(file):
        lock(file)
        if len(calls) < 2:
            calls.append((tmp_path / folder_lock.NAME).unlink())

    monkeypatch.setattr(folder_lock, "_lock", removed)
    with (
        folder_lock.FolderLock(tmp_path),
        pytest.raises(ValueError, match="by another training"),
        folder_lock.FolderLock(tmp_path),
    ):
        pass
    assert len(calls) == 2


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def refused(file):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder_lock, "_lock", refused)
    with pytest.warns(UserWarning, match="other trainings are not kept from writing to .*No locks available"):
        assert run(tmp_path)[1].epochs == 4


def test_a_checkpoint_that_vanishes_while_it_is_looked_for_is_looked_for_again(tmp_path, monkeypatch):
    run(tmp_path)
    read, newest = storage.read, files(tmp_path)[0][1]

    def late(path):
        if path != newest or newest.exists():
            for _, old in files(tmp_path):  # another training has written a newer one
                old.rename(tmp_path / "step-000000000099.safetensors")
        return read(path)

    newest.unlink()
    monkeypatch.setattr(storage, "read", late)
    assert Checkpoint(tmp_path).load().path.name == "step-000000000099.safetensors"


# A full disk


class Disk:
    """A disk with room for so many files: writing another one fails."""

    def __init__(self, monkeypatch, room):
        self.room, self.most, self.write = room, 0, storage._write
        monkeypatch.setattr(storage, "_write", self._write)

    def _write(self, path, pieces):
        there = len([each for each in path.parent.iterdir() if each.suffix in (".safetensors", ".part")])
        if there >= self.room:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        self.write(path, pieces)
        self.most = max(self.most, there + 1)


@pytest.mark.parametrize("keep", [2, 3])
def test_the_oldest_checkpoint_makes_room(keep, tmp_path, monkeypatch):
    disk = Disk(monkeypatch, keep)
    run(tmp_path, saved={"keep": keep})
    assert disk.most == keep
    assert [number for number, _ in files(tmp_path)] == [4, 3, 2][:keep]


def test_the_only_checkpoint_makes_no_room(tmp_path, monkeypatch):
    Disk(monkeypatch, 1)
    with pytest.warns(
        UserWarning, match=r"no checkpoint could be written: .*No space left on device: '.*step-0+\d\.safetensors'"
    ):
        p = run(tmp_path, saved={"keep": 1})[0]
    assert p.tobytes() == run()[0].tobytes()
    assert [number for number, _ in files(tmp_path)] == [0]


@pytest.mark.parametrize("to", ["the same folder", "another folder"])
def test_a_full_disk_does_not_end_a_run_that_is_resumed(to, tmp_path, monkeypatch):
    run(tmp_path / "a", epochs=2)
    Disk(monkeypatch, 0)
    with pytest.warns(UserWarning, match="no checkpoint could be written: .*No space left"):
        p = run(tmp_path / ("a" if to == "the same folder" else "b"), resume=tmp_path / "a")[0]
    assert p.tobytes() == run()[0].tobytes()
    assert files(tmp_path / "a")
    assert [name for name in os.listdir(tmp_path / "a") if not name.startswith("step-")] == []


def test_a_new_run_on_a_full_disk_ends_before_its_first_step(tmp_path, monkeypatch):
    Disk(monkeypatch, 0)
    p = NET.init(seed=0)
    with pytest.raises(OSError, match=r"No space left on device: '.*step-0+\.safetensors'"):
        run(tmp_path / "a", p)
    assert p.tobytes() == NET.init(seed=0).tobytes()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 128 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(tmp_path)]
    if not sys.platform.startswith("linux") or os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_small_disk(small_disk):
    """There is room for two checkpoints of 49 kB, and later for one."""
    net = Chain(Dense(3, 2000), Dense(2000, 2), backend="numpy")
    x, t = make_data()

    def go_on(epochs):
        p = net.init(seed=0)
        checkpoint = Checkpoint(small_disk / "run", every=1)
        train(net, p, x, t, SquaredLoss(), SGD(0.001), epochs=epochs, checkpoint=checkpoint, resume=checkpoint)
        return p

    go_on(3)
    assert [number for number, _ in files(small_disk / "run")] == [3, 2]
    with pytest.raises(OSError, match="No space left on device"):
        (small_disk / "rest").write_bytes(bytes(1 << 20))
    with pytest.warns(UserWarning, match="no checkpoint could be written: .*No space left on device"):
        p = go_on(5)
    wanted = net.init(seed=0)
    train(net, wanted, x, t, SquaredLoss(), SGD(0.001), epochs=5)
    np.testing.assert_array_equal(p, wanted)
    assert Checkpoint(small_disk / "run").load().history.epochs in (3, 4, 5)
