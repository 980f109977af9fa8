"""Data files that would cost more than they are worth: bombs, pipes, directories, links."""

import gzip
import io
import os
import struct
import tarfile
import threading
import tracemalloc

import pytest

from chains.data import cifar, read_cifar10, read_idx
from chains.data.files import CHUNK_BYTES, DataFile, Reader, _extract

GIB = 1 << 30


def bomb(path, start=b"", size=256 << 20):
    """A gzip file, 1,000 times smaller than what it unpacks to: `start`, then zeros."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(start)
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < size / 900
    return path


def peak_bytes(call):
    """The most memory that a call which is refused takes, and its error."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is ") as caught:
            call()
        return tracemalloc.get_traced_memory()[1], str(caught.value)
    finally:
        tracemalloc.stop()


def test_no_more_is_unpacked_than_an_idx_header_promises(tmp_path):
    path = bomb(tmp_path / "images.gz", b"\0\0\x08\3" + struct.pack(">3I", 10, 28, 28))
    peak, message = peak_bytes(lambda: read_idx(path))
    assert "images.gz is too long: a header and uint8 values of shape (10, 28, 28) take 7,856 bytes, but more were" in message
    assert peak < 2 << 20


def test_a_bomb_that_is_no_idx_file_is_seen_by_its_first_bytes(tmp_path):
    path = bomb(tmp_path / "images.gz", b"\1\2\3\4")
    peak, message = peak_bytes(lambda: read_idx(path))
    assert "a number of dimensions, got the bytes 01 02 03 04" in message
    assert peak < 2 << 20


@pytest.mark.parametrize("packed", [False, True])
def test_a_promise_that_is_not_kept_costs_what_there_is(tmp_path, packed):
    content = b"\0\0\x0e\3" + struct.pack(">3I", 2**31, 2**31, 2**31) + bytes(1000)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(content) if packed else content)
    peak, message = peak_bytes(lambda: read_idx(path))
    assert "is cut short" in message
    assert "but 1,016 were found" in message
    assert peak < 3 * CHUNK_BYTES


def test_no_more_records_of_cifar_are_unpacked_than_asked_for(tmp_path, monkeypatch):
    path = bomb(tmp_path / "data_batch_1.bin.gz")
    peak, message = peak_bytes(lambda: read_cifar10(path, 100))
    assert "is too long: 100 records of 3,073 bytes take 307,300 bytes, but more were found" in message
    assert peak < 3 << 20
    monkeypatch.setattr(cifar, "MAX_RECORDS", 1000)
    peak, message = peak_bytes(lambda: read_cifar10(path))
    assert "is too long: 1,000 records of 3,073 bytes" in message
    assert peak < 10 << 20


def test_a_file_of_unknown_length_is_read_up_to_the_whole_data_set():
    assert cifar.MAX_RECORDS == len(cifar.FILES) * cifar.RECORDS == 60_000


def test_plain_files_are_not_read_beyond_either(tmp_path):
    path = tmp_path / "images"
    with path.open("wb") as file:  # sparse: 64 GiB that take no room
        file.write(b"\0\0\x08\1" + struct.pack(">I", 4) + b"abcd")
        file.truncate(64 * GIB)
    for read in (read_idx, lambda path: read_cifar10(path, 3)):
        peak, message = peak_bytes(lambda read=read: read(path))
        assert "is too long" in message
        assert peak < 2 << 20


@pytest.mark.parametrize("read", [read_idx, read_cifar10])
def test_directories_are_refused_with_a_sentence(tmp_path, read):
    with pytest.raises(IsADirectoryError, match="is a directory, not a data file"):
        read(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders here")
@pytest.mark.parametrize("read", [read_idx, read_cifar10])
def test_pipes_and_devices_are_refused_with_a_sentence(tmp_path, read):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    errors = []

    def try_it():
        try:
            read(pipe)
        except OSError as error:
            errors.append(str(error))

    thread = threading.Thread(target=try_it, daemon=True)  # which would wait for a writer
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert errors == [f"{pipe} is a pipe or a device, not a data file: copy its content into a file first"]
    with pytest.raises(OSError, match="/dev/zero is a pipe or a device"):
        read("/dev/zero")


def test_a_reader_stops_where_it_is_told(tmp_path):
    path = tmp_path / "numbers.gz"
    path.write_bytes(gzip.compress(bytes(range(100))))
    with Reader(path) as file:
        assert file.read(3) == bytes(range(3))
        assert file.position == 3
        assert file.read(1000) == bytes(range(3, 100))
        file.check_end(100, "numbers")
        with pytest.raises(ValueError, match="is cut short: numbers take 101 bytes, but 100 were found"):
            file.check_end(101, "numbers")


def test_large_arrays_cost_their_size_once(tmp_path):
    size = 24 << 20
    path = tmp_path / "numbers.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\1" + struct.pack(">I", size) + bytes(size), 1))
    tracemalloc.start()
    try:
        array = read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 1.3 * size
    finally:
        tracemalloc.stop()
    assert array.shape == (size,)
    assert not array.any()


# Unpacking an archive


def archive_of(path, **files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"folder/{name}.bin")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_a_link_in_place_of_a_half_file_is_not_followed(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "cache"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "x.bin.part").symlink_to(victim)
    (folder / "y.bin.part").write_bytes(b"half of an earlier run, longer than the file")
    packed = archive_of(tmp_path / "all.tar.gz", x=b"content of x", y=b"content of y")
    paths = _extract(packed, [DataFile("x.bin.gz"), DataFile("y.bin.gz")], folder)
    assert [path.read_bytes() for path in paths] == [b"content of x", b"content of y"]
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == ["x.bin", "y.bin"]
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_a_link_in_place_of_the_file_is_replaced(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "cache"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "x.bin").symlink_to(victim)
    (path,) = _extract(archive_of(tmp_path / "all.tar.gz", x=b"content"), [DataFile("x.bin.gz")], folder)
    assert path.read_bytes() == b"content"
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
