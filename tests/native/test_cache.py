"""Machine code kept on disk, and shared among programs of one process."""

from __future__ import annotations

import gc
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from chains import SGD, Chain, Dense, SquaredLoss, expr, tanh, train
from chains.network.network import network_of

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend, compiled, compiler
from chains.backends.native import binding as native_module
from chains.backends.native.compiled import COMPILED
from chains.backends.native.llvm import cache as cache_files
from chains.backends.native.llvm import jit as machine
from chains.backends.native.runtime import shared
from tests.native.support import all_finished, in_process, map_program, run_on


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiled_again():
    """Compile one program anew and check what it computes; whether its code came from the disk."""
    program = map_program("float32", lambda x: expr.exp(x) + 0.125)
    runner = NativeBackend()
    x = np.linspace(-1, 1, 37, dtype=np.float32)
    y = run_on(runner, program, 37, {"x0": x, "y0": np.empty_like(x)})["y0"]
    np.testing.assert_allclose(y, np.exp(x) + 0.125, rtol=1e-6)
    cached = runner.compile(program).code.cached
    del runner
    COMPILED.clear()
    gc.collect()  # code that is still in use would be shared
    return cached


def test_the_second_time_the_code_comes_from_the_disk(folder):
    assert [compiled_again() for _ in range(3)] == [False, True, True]
    assert len(list(folder.iterdir())) == 2  # the program's and its code


def test_no_assembly_is_written_for_a_program_on_the_disk(folder, monkeypatch):
    assert not compiled_again()
    monkeypatch.setattr(compiler, "Compiler", None)
    assert compiled_again()


def test_a_program_whose_code_is_gone_is_compiled_again(folder):
    compiled_again()
    code_of(folder).unlink()
    assert [compiled_again() for _ in range(2)] == [False, True]


def test_another_compiler_writes_its_own_assembly(folder, monkeypatch):
    """Where that comes to the same, the code is the same."""
    assert not compiled_again()
    monkeypatch.setattr(compiled, "compiler_version", lambda: "another")
    assert compiled_again()
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr(compiler, "Compiler", None)
    assert compiled_again()


def test_the_compilers_version_covers_what_it_is_made_of():
    """Whatever the compiler imports that is not hashed decides on nothing that it writes."""
    unseen = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True).stdout.split()
    assert set(unseen) <= {
        "chains.support.caching",
        "chains.support.messages",
        "chains.support.checks",
        "chains.support.progress",
        "chains.support.threads",  # how many run
        *FOREIGN,
    }


FOREIGN = {"chains.backends.base", "chains.support.memory", "chains.backends.auto"}
IMPORTED = """
import ast, importlib.util, pathlib
from chains.backends.native.llvm.cache import SOURCES
root = pathlib.Path(importlib.util.find_spec("chains").origin).parent
seen, left = set(), ["chains.backends.native.compiler", "chains.backends.native.plan.passes"]
while left:
    name = left.pop()
    path = root.parent.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if name in seen or not name.startswith("chains.") or not path.is_file():
        continue
    seen.add(name)
    inside = str(path.relative_to(root))
    if not inside.startswith(SOURCES):
        print(name)
        continue
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            left += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
"""


def code_of(folder):
    """The file of the code, which is longer than that of the program."""
    return max(folder.iterdir(), key=lambda path: path.stat().st_size)


def test_cached_code_of_another_pipeline_is_not_used(folder, monkeypatch):
    assert not compiled_again()
    monkeypatch.setattr(machine, "PIPELINE", "another")
    assert [compiled_again() for _ in range(2)] == [False, True]


@pytest.fixture
def emitted(folder, monkeypatch):
    """The names of code as it is made: compiled or read from the disk."""
    native_module.runtime()  # made once a process
    shared.gatherer(np.dtype("f4"), np.dtype("f4"))
    names, make = [], machine.Code
    monkeypatch.setattr(machine, "Code", lambda name, *rest, **more: names.append(name) or make(name, *rest, **more))
    return names


def fresh_net(width):
    """A network with a backend of its own."""
    net = Chain(Dense(5, width, tanh), Dense(width, 3))
    network_of(net).use(NativeBackend(threads=1))
    return net


def trained_once(net, rate=0.1):
    x, t, p = np.ones((8, 5), "f4"), np.zeros((8, 3), "f4"), net.init(seed=1)
    train(net, p, x, t, SquaredLoss(), SGD(rate), epochs=2, batch_size=4)
    return p


def test_programs_of_the_same_code_share_it(emitted):
    """Networks of one shape, in one process and whatever their names, are compiled once."""
    nets = [fresh_net(37) for _ in range(4)]
    results = [trained_once(net) for net in nets]
    assert len(emitted) == 1
    for p in results:
        np.testing.assert_array_equal(p, results[0])
    trained_once(fresh_net(38))
    assert len(emitted) == len(set(emitted)) == 2


def test_code_that_nobody_uses_is_let_go(emitted):
    before = len(machine._made)
    for round in range(3):
        for width in (41, 42, 43):
            trained_once(fresh_net(width))
        COMPILED.clear()
        gc.collect()
        assert len(machine._made) <= before
        assert len(emitted) == 3 * (round + 1)


def test_threads_that_want_the_same_code_make_it_once(emitted):
    together = threading.Barrier(4)

    def work(k):
        net = fresh_net(45)
        together.wait()
        return trained_once(net)

    with ThreadPoolExecutor(4) as workers:
        results = list(workers.map(work, range(4)))
    assert len(emitted) == 1
    assert len({p.tobytes() for p in results}) == 1


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "head": lambda data: data[:20],
    "one bit": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "another file": lambda data: b"\x7fELF" * 100,
    "longer": lambda data: data + b"\0",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("whose", ["code", "program"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_replaced(damage, whose, folder):
    compiled_again()
    code = code_of(folder)
    path = code if whose == "code" else next(path for path in folder.iterdir() if path != code)
    before = path.read_bytes()
    path.write_bytes(DAMAGE[damage](before))
    assert [compiled_again() for _ in range(2)] == [whose == "program", True]
    assert path.read_bytes() == before


def test_a_file_under_anothers_name_is_not_used(folder):
    cache_files.store(f"{1:040}", b"one")
    cache_files.store(f"{2:040}", b"two")
    one, two = (folder / f"{k:040}.o" for k in (1, 2))
    one.write_bytes(two.read_bytes())
    assert [cache_files.load(f"{k:040}") for k in (1, 2)] == [None, b"two"]


def test_a_folder_in_the_place_of_a_file(folder):
    compiled_again()
    for path in list(folder.iterdir()):
        path.unlink()
        path.mkdir()
    assert not compiled_again()


@pytest.mark.few(1)
@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_the_cache_can_be_switched_off(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CHAINS_CACHE", word)
    assert [compiled_again() for _ in range(2)] == [False, False]
    assert list(tmp_path.iterdir()) == []
    assert cache_files.clear() == 0


def test_the_cache_lies_in_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("CHAINS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [compiled_again() for _ in range(2)] == [False, True]
    assert len(list((tmp_path / "chains" / "native").glob("*.o"))) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("place", ["a file", "a file/below"])
def test_a_folder_that_cannot_be_written_is_harmless(place, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("in the way")
    monkeypatch.setenv("CHAINS_CACHE", str(tmp_path / place))
    assert [compiled_again() for _ in range(2)] == [False, False]
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_harmless(folder):
    folder.mkdir()
    folder.chmod(0o500)
    assert [compiled_again() for _ in range(2)] == [False, False]


def test_clearing_the_cache(folder):
    compiled_again()
    (folder / f"{7:040}-unfinished.new").write_bytes(b"x")
    (folder / "mine.o").write_bytes(b"of another program")
    assert cache_files.clear() == 3
    assert [path.name for path in folder.iterdir()] == ["mine.o"]
    assert cache_files.clear() == 0
    assert not compiled_again()


def test_the_cache_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(cache_files, "LIMIT_BYTES", 20_000)
    for k in range(12):
        cache_files.store(f"{k:040}", bytes(3000))
        for path in folder.iterdir():  # so that the order is plain whatever the clock's resolution
            os.utime(path, (1000.0 + int(path.stem), 1000.0 + int(path.stem)))
    sizes = [path.stat().st_size for path in folder.iterdir()]
    assert 3000 * 4 < sum(sizes) <= 20_000
    assert cache_files.load(f"{11:040}") == bytes(3000)
    assert cache_files.load(f"{0:040}") is None


def test_what_was_used_last_stays(folder, monkeypatch):
    monkeypatch.setattr(cache_files, "LIMIT_BYTES", 10_000)
    for k in range(3):
        cache_files.store(f"{k:040}", bytes(3000))
        os.utime(folder / f"{k:040}.o", (1000.0 + k, 1000.0 + k))
    assert cache_files.load(f"{0:040}") is not None  # which makes it the newest
    cache_files.store(f"{3:040}", bytes(3000))
    assert sorted(int(path.stem) for path in folder.iterdir()) == [0, 2, 3]


def test_the_folder_is_read_once_for_many_files(folder, monkeypatch):
    """To read it for each file, thousands of programs would take the square of their number."""
    read, files = [], cache_files._files
    monkeypatch.setattr(cache_files, "_files", lambda place: read.append(place) or files(place))
    for k in range(20):
        cache_files.store(f"{k:040}", bytes(3000))
    assert read == [folder]


# Whom the cache trusts

NAME = f"{1:040}"
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners and modes here")


@pytest.fixture
def said(monkeypatch):
    """The warnings so far, none of them said before."""
    monkeypatch.setattr(cache_files, "_said", set())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


@pytest.fixture
def kept(folder):
    """A file that the cache has made."""
    cache_files.store(NAME, b"machine code")
    assert cache_files.load(NAME) == b"machine code"
    return folder / f"{NAME}.o"


def assert_refused(said, *words):
    """Nothing is read; one warning has all these words, however often it is tried."""
    for _ in range(3):
        assert cache_files.load(NAME) is None
    assert len(said) == 1
    assert said[0].category is RuntimeWarning
    for word in (*words, "CHAINS_CACHE"):
        assert word in str(said[0].message)


@posix
@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077])
def test_the_folder_and_its_files_are_their_users_alone(mask, folder):
    before = os.umask(mask)
    try:
        cache_files.store(NAME, b"machine code")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / f"{NAME}.o").stat().st_mode) == 0o600
    assert cache_files.load(NAME) == b"machine code"


@posix
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_not_used(mode, kept, folder, said):
    folder.chmod(mode)
    assert_refused(said, f"folder {folder} ", f"mode {mode:#o}", "chmod go-w")
    cache_files.store(f"{2:040}", b"more")
    assert [path.name for path in folder.iterdir()] == [kept.name]
    assert len(said) == 1
    folder.chmod(0o755)
    assert cache_files.load(NAME) == b"machine code"


@posix
def test_a_folder_that_another_user_owns_is_not_used(kept, folder, said, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert_refused(said, f"folder {folder} ", f"user number {owner}")
    cache_files.store(f"{2:040}", b"more")
    assert [path.name for path in folder.iterdir()] == [kept.name]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only the superuser gives files away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_the_superuser_does_not_use_what_others_own(what, kept, folder, said):
    os.chown(folder if what == "folder" else kept, 12345, 12345)
    assert_refused(said, f"{what} {folder if what == 'folder' else kept} ", "user number 12345")


@posix
@pytest.mark.parametrize("mode", [0o606, 0o660, 0o666])
def test_a_file_that_others_may_write_is_not_used_but_replaced(mode, kept, said):
    kept.chmod(mode)
    assert_refused(said, f"file {kept} ", f"mode {mode:#o}")
    cache_files.store(NAME, b"own machine code")
    assert cache_files.load(NAME) == b"own machine code"


@posix
def test_a_file_that_another_user_owns_is_not_used(kept, folder, said, monkeypatch):
    """As if the folder were this user's, and the file in it another one's."""
    private, owner = cache_files._is_private, os.geteuid()

    def is_private(path, status):
        with monkeypatch.context() as within:
            within.setattr(os, "geteuid", lambda: owner if path == folder else owner + 1)
            return private(path, status)

    monkeypatch.setattr(cache_files, "_is_private", is_private)
    assert_refused(said, f"file {kept} ", f"user number {owner}")


@posix
def test_code_that_was_planted_is_not_executed(folder, said):
    """In a folder for everybody, whatever lies there under the right name."""
    assert not compiled_again()
    path = code_of(folder)
    folder.chmod(0o777)
    head = len(cache_files._MAGIC)
    crash = b"\xcc" * 500
    path.write_bytes(cache_files._MAGIC + cache_files._digest(path.stem, crash) + crash)
    assert len(path.read_bytes()) == head + 32 + 500
    assert not compiled_again()
    assert path.read_bytes().endswith(crash)
    assert len(said) == 1


@posix
def test_a_symbolic_link_is_not_followed(kept, folder, tmp_path, said):
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert cache_files.load(NAME) is None
    cache_files.store(NAME, b"own machine code")
    assert cache_files.load(NAME) == b"own machine code"
    assert not kept.is_symlink()
    assert cache_files._MAGIC in (tmp_path / "elsewhere").read_bytes()
    assert b"own" not in (tmp_path / "elsewhere").read_bytes()


@posix
def test_a_folder_may_be_reached_by_a_link(kept, folder, tmp_path, monkeypatch):
    """As where home is small, and the cache on another disk."""
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.setenv("CHAINS_CACHE", str(tmp_path / "link"))
    assert cache_files.load(NAME) == b"machine code"


@posix
def test_a_pipe_does_not_block(kept):
    kept.unlink()
    os.mkfifo(kept, 0o600)
    assert cache_files.load(NAME) is None
    cache_files.store(NAME, b"machine code")
    assert cache_files.load(NAME) == b"machine code"


@posix
def test_a_socket_and_a_device_are_not_read(kept, monkeypatch):
    kept.unlink()
    monkeypatch.chdir(kept.parent)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(kept.name)
        assert cache_files.load(NAME) is None
    assert cache_files._read(Path("/dev/zero")) == b""


def test_a_write_that_fails_leaves_what_was_there(kept, folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache_files.store(NAME, b"own machine code")
    assert [path.name for path in folder.iterdir()] == [kept.name]
    assert cache_files.load(NAME) == b"machine code"


def test_files_of_others_are_not_trimmed(folder, monkeypatch):
    monkeypatch.setattr(cache_files, "LIMIT_BYTES", 5000)
    folder.mkdir(0o700)
    (folder / "mine.o").write_bytes(bytes(10_000))
    for k in range(3):
        cache_files.store(f"{k:040}", bytes(2000))
    assert (folder / "mine.o").exists()
    assert len(list(folder.iterdir())) == 3


@posix
def test_windows_has_no_modes(kept, folder, said, monkeypatch):
    """There the cache works without owners and flags."""
    folder.chmod(0o777)
    monkeypatch.delattr(os, "geteuid")
    monkeypatch.setattr(cache_files, "_READ", os.O_RDONLY)
    assert cache_files.load(NAME) == b"machine code"
    cache_files.store(NAME, b"own machine code")
    assert cache_files.load(NAME) == b"own machine code"
    assert not said


def compile_many(place, name):
    """Wait for the other process, then compile the same programs as it does."""
    os.environ["CHAINS_CACHE"] = str(Path(place) / "cache")
    (Path(place) / name).touch()
    while len(list(Path(place).glob("process*"))) < 2:
        time.sleep(0.001)
    for k in range(12):
        program = map_program("float32", lambda x, k=k: expr.exp(x) * (k + 0.5))
        x = np.linspace(-1, 1, 37, dtype=np.float32)
        y = run_on(NativeBackend(), program, 37, {"x0": x, "y0": np.empty_like(x)})["y0"]
        np.testing.assert_allclose(y, np.exp(x) * (k + 0.5), rtol=1e-6)
    print(json.dumps("done"))


def test_two_processes_at_once(tmp_path):
    processes = [in_process(compile_many, str(tmp_path), f"process{k}", popen=True) for k in range(2)]
    assert all_finished(processes) == ["done", "done"]
    names = [path.suffix for path in (tmp_path / "cache").iterdir()]
    assert set(names) == {".o"}
    assert len(names) == 24
