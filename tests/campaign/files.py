"""Damaged files: IDX, CIFAR-10, checkpoints, models and the cache of compiled code, changed at random, read or refused.

A file that is read must hold what was written into it, bit by bit. A refusal is a ValueError or an OSError. Nothing is executed
meanwhile, and the process may take so much memory and no more. Now and then, two processes write one file of a model until they
are killed, while it is read.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import hashlib
import os
import re
import resource
import shutil
import signal
import stat
import struct
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from chains import Chain, Dense, load, save, tanh
from chains.backends.native.llvm import cache as code_cache
from chains.data.cifar import RECORD_BYTES, read_cifar10
from chains.data.mnist import ELEMENT_TYPES, read_idx
from chains.support import storage
from tests.campaign import running

MEMORY = 700 << 20  # bytes that the process may take beyond what it has: three times the largest file of CIFAR-10's format
WRITERS = 0.005  # the share of attempts with two processes, which take longer
REFUSALS = (ValueError, OSError)
EXECUTION = ("exec", "compile", "pickle.", "marshal.", "os.system", "os.exec", "os.spawn", "subprocess.", "ctypes.dlopen",
             "socket.", "shutil.", "os.remove", "os.rename")  # fmt: skip
ZEROS = storage.NO_DIGEST.encode()
_heard: list[str] | None = None  # what was executed, while somebody listens


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    if rng.random() < WRITERS:
        return f"two writers: {writers(rng, _prepared())}"
    kind = list(KINDS)[int(rng.integers(len(KINDS)))]
    return f"{kind}: {KINDS[kind](rng, _prepared())}"


@cache
def _prepared() -> Path:
    """A folder for the files, once there is a bound on memory and an ear for what is executed."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # where nothing waits for a disk
    folder = Path(tempfile.mkdtemp(prefix="chains-campaign-", dir=memory))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with open("/proc/self/statm") as file:
        have = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    sys.addaudithook(_hear)
    return folder


def _hear(event: str, _: object) -> None:
    if _heard is not None and event.startswith(EXECUTION):
        _heard.append(event)


@contextlib.contextmanager
def nothing_executed() -> Iterator[None]:
    global _heard
    _heard = found = []
    try:
        yield
    finally:
        _heard = None
    assert not found, f"executed meanwhile: {found}"


def damaged(rng: np.random.Generator, data: bytes) -> bytes:
    """The data with a few changes."""
    for _ in range(int(rng.integers(0, 4))):
        size = len(data)
        at, to = sorted(rng.integers(0, size + 1, 2).tolist())
        way = int(rng.integers(8))
        if way == 0 and size:  # a bit
            k = int(rng.integers(min(size, 64)) if rng.random() < 0.5 else rng.integers(size))
            data = data[:k] + bytes([data[k] ^ (1 << int(rng.integers(8)))]) + data[k + 1 :]
        elif way == 1:  # cut short
            data = data[:at]
        elif way == 2:  # more behind
            data += rng.bytes(int(rng.integers(1, 40)))
        elif way == 3:  # something missing
            data = data[:at] + data[to:]
        elif way == 4:  # something twice
            data = data[:to] + data[at:to] + data[to:]
        elif way == 5:  # a number that is absurd
            word = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000][int(rng.integers(6))]
            k = 4 * int(rng.integers(0, 5))
            data = data[:k] + struct.pack(">I", word) + data[k + 4 :]
        elif way == 6:  # noise
            data = data[:at] + rng.bytes(to - at) + data[to:]
        else:  # nothing but noise
            data = rng.bytes(size) if rng.random() < 0.1 else data
    return data


def packed(rng: np.random.Generator, data: bytes) -> tuple[bytes, bytes]:
    """The bytes of a file that holds the data, gzipped half of the time and then damaged now and then; and what it holds."""
    if rng.random() < 0.5:
        return data, data
    members = [data] if rng.random() < 0.8 else [data[: len(data) // 2], data[len(data) // 2 :]]
    whole = b"".join(gzip.compress(member, int(rng.integers(0, 7)), mtime=0) for member in members)
    written = damaged(rng, whole) if rng.random() < 0.5 else whole
    return written, data if written == whole else _unpacked(written, data)


def _unpacked(written: bytes, data: bytes) -> bytes:
    """What a damaged file holds: less than `data` where the damage is a whole gzip member that is missing."""
    try:
        return gzip.decompress(written)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return data


def idx(rng: np.random.Generator, folder: Path) -> str:
    code = list(ELEMENT_TYPES)[int(rng.integers(len(ELEMENT_TYPES)))]
    kind = np.dtype(ELEMENT_TYPES[code])
    shape = tuple(rng.integers(0, 6, int(rng.integers(0, 5))).tolist())
    content = rng.bytes(kind.itemsize * int(np.prod(shape, dtype=int)))
    valid = bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content
    path = folder / "file.idx"
    written, inside = packed(rng, damaged(rng, valid))
    path.write_bytes(written)
    try:
        with nothing_executed():
            array = read_idx(path)
    except REFUSALS:
        assert written != valid, "a valid file was refused"
        return "refused"
    found = bytes([0, 0, inside[2], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    found += array.astype(ELEMENT_TYPES[inside[2]]).tobytes()
    assert found == inside, "the array is not what the file holds"
    return "read"


def cifar(rng: np.random.Generator, folder: Path) -> str:
    records = int(rng.integers(1, 4))
    table = rng.integers(0, 256, (records, RECORD_BYTES), np.uint8)
    table[:, 0] %= 10
    path = folder / "file.bin"
    valid = table.tobytes()
    if rng.random() < 0.001:  # much more than it seems
        written = inside = gzip.compress(bytes(200 << 20), 1)
    else:
        written, inside = packed(rng, damaged(rng, valid))
    path.write_bytes(written)
    wanted = records if rng.random() < 0.5 else None
    try:
        with nothing_executed():
            images, labels = read_cifar10(path, wanted)
    except REFUSALS:
        assert written != valid, "a valid file was refused"
        return "refused"
    found = np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(len(images), -1)], 1)
    assert found.tobytes() == inside, "the images are not what the file holds"
    return "read"


def code(rng: np.random.Generator, folder: Path) -> str:
    """Code under a name: what comes back is that code or nothing, whatever lies in its place."""
    place = folder / "code"
    os.environ["CHAINS_CACHE"] = str(place)
    name, content = f"{int(rng.integers(1 << 62)):040x}", rng.bytes(int(rng.integers(0, 400)))
    code_cache.store(name, content)
    path = place / f"{name}.o"
    way, changed = int(rng.integers(12)), True
    if way == 0:
        path.unlink()
        os.mkfifo(path, 0o600)
    elif way == 1:
        other = folder / "elsewhere"
        os.replace(path, other)
        path.symlink_to(other)
    elif way == 2:
        path.unlink()
        path.mkdir()
    elif way == 3:
        path.chmod(0o666)
    else:
        before = path.read_bytes()
        after = damaged(rng, before)
        path.write_bytes(after)
        changed = after != before
    with nothing_executed(), _silent():
        found = code_cache.load(name)
    _remove(path)
    assert found is None if changed else found == content, "code came back that was not stored, or not at all"
    return "refused" if changed else "read"


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            path.rmdir()
        else:
            path.unlink()


def checkpoint(rng: np.random.Generator, folder: Path) -> str:
    """Arrays and texts; half of the damaged files get the digest that goes with them, so that their headers are read."""
    kinds = list(storage.NAMES)
    arrays = {}
    for k in range(int(rng.integers(0, 4))):
        dtype = kinds[int(rng.integers(len(kinds)))]
        arrays[f"array {k}"] = rng.integers(0, 2, tuple(rng.integers(0, 5, int(rng.integers(0, 4))))).astype(dtype)
    texts, path = {"number": f"{int(rng.integers(1 << 40))}"}, folder / "step-1.safetensors"
    storage.write(path, arrays, texts)
    before = path.read_bytes()
    if forged := rng.random() < 0.5:
        after = damaged(rng, re.sub(rb'(?<="sha256": ")[0-9a-f]{64}', ZEROS, before, count=1))
        after = after.replace(ZEROS, hashlib.sha256(after).hexdigest().encode(), 1)
    else:
        after = damaged(rng, before)
    path.write_bytes(after)
    try:
        with nothing_executed():
            found, said = storage.read(path)
    except REFUSALS:
        assert after != before, "a valid file was refused"
        return "refused"
    assert forged or after == before, "the digest is another"
    assert all(isinstance(text, str) for text in said.values())
    assert sum(array.nbytes for array in found.values()) <= MEMORY
    if after == before:
        assert said == texts
        assert found.keys() == arrays.keys()
        assert all(found[name].tobytes() == array.tobytes() for name, array in arrays.items()), "an array is another"
    return "read"


def model(rng: np.random.Generator, folder: Path) -> str:
    """A network and its parameters. A file that has lost the digest's name has no digest, and its numbers may differ."""
    inputs, outputs = (int(k) for k in rng.integers(1, 5, 2))
    net, path = Chain(Dense(inputs, outputs, tanh), backend="numpy"), folder / "model.safetensors"
    p = rng.normal(size=net.n_params)
    save(path, net, p)
    before = path.read_bytes()
    after = damaged(rng, before)
    path.write_bytes(after)
    try:
        with nothing_executed():
            found, q, _ = load(path)
    except REFUSALS as error:
        reason = str(error)
    else:
        reason = ""
    if reason:
        assert after != before, "a valid file was refused"
        assert str(path) in reason, f"no file is named: {reason}"
        return "refused"
    if b'"sha256"' in after:
        assert (repr(found), q.tobytes()) == (repr(net), p.tobytes()), "the network is another"
    return "read"


def writers(rng: np.random.Generator, folder: Path) -> str:
    """Each file that is read is of one writer; the temporary files that are left are those of killed writers."""
    shared = folder / "shared"
    shared.mkdir()
    path, units = shared / "model.safetensors", rng.integers(1, 60, 2).tolist()
    nets = [Chain(Dense(n, n), backend="numpy") for n in units]
    save(path, nets[0], np.zeros(nets[0].n_params))
    children = [_writer(path, net, rank + 1) for rank, net in enumerate(nets)]
    seen = set()
    for _ in range(int(rng.integers(1, 60))):
        found, p, _ = load(path)
        rank = int(p[0])
        assert (p == rank).all(), "half of one network and half of another"
        assert repr(found) == repr(nets[max(rank - 1, 0)]), "the architecture of another"
        seen.add(rank)
    for child in children:
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "a writer has failed"
    found, p, _ = load(path)
    assert (p == p[0]).all()
    left = [each.name for each in shared.iterdir() if each != path]
    assert len(left) <= 2, left
    shutil.rmtree(shared)
    return f"read from {len(seen)}, {len(left)} files were left"


def _writer(path: Path, net: Chain, number: int) -> int:
    """A process that saves the network again and again, with this number in the place of all parameters."""
    child = os.fork()
    if not child:
        try:
            while True:
                save(path, net, np.full(net.n_params, float(number)))
        finally:
            os._exit(1)
    return child


KINDS: dict[str, Callable[[np.random.Generator, Path], str]] = {
    "IDX": idx, "CIFAR-10": cifar, "checkpoint": checkpoint, "model": model, "compiled code": code
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(running.main(attempt))
