"""Data: the IDX reader, where the files of a data set are looked for, batches, one-hot rows."""

import gzip
import os
import struct
import sys

import numpy as np
import pytest

from chains.data import Augment, Batches, load_mnist, mnist, one_hot, read_idx
from chains.data.mnist import ELEMENT_TYPES

RNG_SEED = 0


def idx_bytes(array: np.ndarray) -> bytes:
    """`array` in the IDX format."""
    code = next(code for code, kind in ELEMENT_TYPES.items() if np.dtype(kind) == array.dtype.newbyteorder(">"))
    return (
        bytes([0, 0, code, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(ELEMENT_TYPES[code]).tobytes()
    )


def digits(n: int, seed: int = RNG_SEED) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 28, 28), np.uint8), (np.arange(n) % 10).astype(np.uint8)


def write_mnist(folder, train: int = 30, test: int = 10, packed: bool = True) -> None:
    """Four files like those of MNIST, with noise for images."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in zip(mnist.FILES, [*digits(train), *digits(test, 1)], strict=True):
        content = idx_bytes(array)
        if packed:
            (folder / file.name).write_bytes(gzip.compress(content))
        else:
            (folder / file.name.removesuffix(".gz")).write_bytes(content)


# The IDX format


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (2, 3, 4)])
def test_idx_gives_back_the_array(tmp_path, packed, dtype, shape):
    array = np.asarray(np.random.default_rng(RNG_SEED).uniform(-100, 100, shape)).astype(np.int8).astype(dtype)
    content = idx_bytes(array)
    path = tmp_path / "numbers"
    path.write_bytes(gzip.compress(content) if packed else content)
    read = read_idx(path)
    assert read.dtype == dtype
    assert read.dtype.isnative
    assert read.flags.writeable
    np.testing.assert_array_equal(read, array, strict=True)


def test_idx_reads_known_bytes(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(bytes.fromhex("00000b02 00000001 00000002 0100 ffff"))
    np.testing.assert_array_equal(read_idx(str(path)), np.array([[256, -1]], np.int16), strict=True)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("change", "fault", "found"), [(-5, "cut short", 35), (1, "too long", "more"), (7, "too long", "more")]
)
def test_idx_refuses_wrong_lengths(tmp_path, packed, change, fault, found):
    content = idx_bytes(np.ones((4, 7), np.uint8))  # 12 + 28 bytes
    content = content[:change] if change < 0 else content + b"\1" * change
    path = tmp_path / "numbers"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ValueError, match=rf"numbers is {fault}: .*\(4, 7\) take 40 bytes, but {found} were found"):
        read_idx(path)


def test_idx_refuses_a_broken_off_gzip_file(tmp_path):
    noise = np.random.default_rng(RNG_SEED).integers(0, 256, (100, 100), np.uint8)
    packed = gzip.compress(idx_bytes(noise))
    path = tmp_path / "numbers.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(
        ValueError, match=r"numbers.gz is cut short: .*take 10,012 bytes, but \d+ were found \(unpacking it failed"
    ):
        read_idx(path)


def test_idx_refuses_a_gzip_file_with_a_wrong_checksum(tmp_path):
    packed = bytearray(gzip.compress(idx_bytes(np.ones(100, np.uint8))))
    packed[-6] ^= 1
    path = tmp_path / "numbers.gz"
    path.write_bytes(packed)
    with pytest.raises(ValueError, match=r"numbers.gz is damaged.*unpacking it failed"):
        read_idx(path)


@pytest.mark.parametrize(
    "start", [b"", b"\0\0", b"\1\0\x08\0\0", b"\0\0\x07\1\0\0\0\1\1", b"\0\0\x0a\0\0", b"\0\0\x08\x41", b"PK\3\4"]
)
def test_idx_refuses_other_files(tmp_path, start):
    path = tmp_path / "picture"
    path.write_bytes(start)
    with pytest.raises(ValueError, match=r"picture is not an IDX file: it must begin with .*, got the bytes"):
        read_idx(path)


def test_idx_refuses_a_cut_header_and_absurd_shapes(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(b"\0\0\x08\3\0\0\0\1")
    with pytest.raises(ValueError, match="the type and the shape take 16 bytes, but 8 were found"):
        read_idx(path)
    path.write_bytes(b"\0\0\x08\3" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1))
    with pytest.raises(ValueError, match="is cut short"):
        read_idx(path)
    path.write_bytes(b"\0\0\x08\4" + struct.pack(">4I", 0, 2**32 - 1, 2**32 - 1, 2**32 - 1))
    with pytest.raises(ValueError, match="is damaged: no array has its shape"):
        read_idx(path)


def test_idx_says_when_there_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "nothing")


# MNIST, and where it is looked for


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A separate cache, and no CHAINS_DATA; downloading fails the test."""
    pooch = pytest.importorskip("pooch")
    monkeypatch.delenv("CHAINS_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setattr(pooch, "retrieve", lambda *args, **kwargs: pytest.fail("nothing was to be downloaded"))
    return tmp_path


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_from_a_folder(tmp_path, packed):
    write_mnist(tmp_path / "here", packed=packed)
    (x, t), (x_test, t_test) = load_mnist(tmp_path / "here")
    np.testing.assert_array_equal(x, digits(30)[0], strict=True)
    np.testing.assert_array_equal(t, np.arange(30) % 10)
    assert t.dtype == t_test.dtype == np.int64
    assert x_test.shape == (10, 28, 28)
    assert t_test.shape == (10,)


def test_mnist_is_looked_for_in_order(places, monkeypatch):
    write_mnist(places / "cache" / "chains" / "mnist", train=20)
    assert len(load_mnist()[0][0]) == 20
    monkeypatch.setenv("CHAINS_DATA", str(places / "data"))
    assert len(load_mnist()[0][0]) == 20
    write_mnist(places / "data" / "mnist", train=40)
    assert len(load_mnist()[0][0]) == 40
    write_mnist(places / "elsewhere", train=60)
    assert len(load_mnist(places / "elsewhere")[0][0]) == 60


def test_mnist_in_a_folder_that_lacks_files(places):
    write_mnist(places / "cache" / "chains" / "mnist")
    write_mnist(places / "here")
    (places / "here" / mnist.FILES[1].name).unlink()
    with pytest.raises(FileNotFoundError, match=r"`folder` .*here'\) lacks train-labels-idx1-ubyte.gz, needed for mnist"):
        load_mnist(places / "here")


def test_mnist_is_downloaded_with_its_hashes(places, monkeypatch):
    write_mnist(places / "server")
    asked = []

    def retrieve(url, known_hash, fname, path, progressbar):
        asked.append(url)
        if url.startswith(mnist.MIRRORS[0]):
            raise ValueError("the hash is wrong")
        assert known_hash in [f"sha256:{file.sha256}" for file in mnist.FILES]
        path.mkdir(parents=True, exist_ok=True)
        return str((places / "server" / fname).rename(path / fname))

    monkeypatch.setattr(sys.modules["pooch"], "retrieve", retrieve)
    assert load_mnist()[0][0].shape == (30, 28, 28)
    assert asked == [mirror + file.name for file in mnist.FILES for mirror in mnist.MIRRORS]
    assert load_mnist()[1][0].shape == (10, 28, 28)  # from the cache now
    assert len(asked) == 8


@pytest.mark.parametrize("error", [OSError("no route to host"), ValueError("the hash is wrong")])
def test_mnist_that_cannot_be_downloaded(places, monkeypatch, error):
    def retrieve(*args, **kwargs):
        raise error

    monkeypatch.setattr(sys.modules["pooch"], "retrieve", retrieve)
    monkeypatch.setenv("CHAINS_DATA", "some folder")
    with pytest.raises(ConnectionError, match=r"could not be downloaded .*\bCHAINS_DATA\b.*'some folder'") as caught:
        load_mnist()
    for mirror in mnist.MIRRORS:
        assert f"{mirror}: {type(error).__name__}, {error}" in str(caught.value)


def test_mnist_without_pooch(places, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(FileNotFoundError, match=r"install pooch: pip install pooch; or put train-images.*set CHAINS_DATA"):
        load_mnist()


@pytest.mark.parametrize(
    ("file", "array", "complaint"),
    [
        (0, np.zeros((30, 27, 28), np.uint8), r"train-images.* must hold uint8 images .*, got uint8 of shape \(30, 27, 28\)"),
        (0, np.zeros((30, 28, 28), np.int8), r"train-images.* must hold uint8 images .*, got int8"),
        (1, np.zeros(29, np.uint8), r"train-labels.* must hold 30 uint8 labels, got uint8 of shape \(29,\)"),
        (3, np.full(10, 10, np.uint8), r"t10k-labels.* must hold digits from 0 to 9, got 10"),
    ],
)
def test_mnist_that_is_something_else(tmp_path, file, array, complaint):
    write_mnist(tmp_path)
    (tmp_path / mnist.FILES[file].name).write_bytes(idx_bytes(array))
    with pytest.raises(ValueError, match=complaint):
        load_mnist(tmp_path)


@pytest.mark.skipif(not os.environ.get("CHAINS_DATA"), reason="CHAINS_DATA is not set")
def test_the_real_mnist():
    (x, t), (x_test, t_test) = load_mnist()
    assert x.shape == (60_000, 28, 28)
    assert x_test.shape == (10_000, 28, 28)
    assert np.bincount(t).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(t_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert x.mean() / 255 == pytest.approx(0.1307, abs=1e-4)


# Batches


def test_batches_cover_everything_once_and_stay_aligned():
    x, t = np.arange(46).reshape(23, 2), np.arange(23)
    batches = Batches(x, t, batch_size=5)
    assert len(batches) == 5
    orders = []
    for _ in range(2):
        parts = list(batches)
        assert [len(part[1]) for part in parts] == [5, 5, 5, 5, 3]
        for x_part, t_part in parts:
            np.testing.assert_array_equal(x_part, x[t_part])
        orders.append(np.concatenate([part[1] for part in parts]))
        assert sorted(orders[-1]) == list(t)
    assert list(orders[0]) != list(orders[1])
    assert batches.epoch == 2


def test_batches_repeat_with_the_seed():
    t = np.arange(50)

    def two_epochs(seed):
        batches = Batches(t, batch_size=50, seed=seed)
        return [part.tolist() for _ in range(2) for (part,) in batches]

    assert two_epochs(3) == two_epochs(3)
    assert two_epochs(3) != two_epochs(4)


def test_batches_in_order_are_views():
    x = np.zeros((10, 3))
    parts = [part for (part,) in Batches(x, batch_size=4, shuffle=False)]
    assert [len(part) for part in parts] == [4, 4, 2]
    assert all(np.shares_memory(part, x) for part in parts)


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "sizes"),
    [(6, 3, False, [3, 3]), (7, 3, True, [3, 3]), (2, 3, False, [2]), (2, 3, True, []), (0, 3, False, [])],
)
def test_batches_at_the_end(samples, batch_size, drop_last, sizes):
    batches = Batches(np.zeros(samples), batch_size=batch_size, drop_last=drop_last)
    assert [len(part) for (part,) in batches] == sizes
    assert len(batches) == len(sizes)


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_scale_the_first_array(shuffle):
    x, t = digits(12)
    before = x.copy()
    settings = {"batch_size": 5, "shuffle": shuffle, "seed": 2, "augment": Augment(shift=1)}
    pairs = list(zip(Batches(x, t, scale=1 / 255, **settings), Batches(x, t, **settings), strict=True))
    for (scaled, labels), (plain, same_labels) in pairs:
        np.testing.assert_array_equal(scaled, plain * np.float32(1 / 255), strict=True)
        assert scaled.max() <= 1.0
        assert labels.tobytes() == same_labels.tobytes()
    assert max(scaled.max() for (scaled, _), _ in pairs) == 1.0
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    ("dtype", "wanted"), [(bool, np.float32), (np.int64, np.float32), (np.float32, np.float32), (np.float64, np.float64)]
)
def test_scaled_batches_are_floats(dtype, wanted):
    x = np.array([[0, 1], [1, 1], [1, 0]], dtype)
    (part,) = next(iter(Batches(x, batch_size=3, shuffle=False, scale=-0.1)))
    np.testing.assert_array_equal(part, np.array([[0, -0.1], [-0.1, -0.1], [-0.1, 0]], wanted), strict=True)
    assert "scale=-0.1" in repr(Batches(x, batch_size=3, scale=-0.1))


def test_batches_can_be_nested():
    batches = Batches(np.arange(9), batch_size=3, seed=1)
    outer = iter(batches)
    first = next(outer)[0]
    list(batches)
    rest = [part for (part,) in outer]
    assert sorted(np.concatenate([first, *rest])) == list(range(9))


def test_batches_say_what_they_are():
    batches = Batches(np.zeros((60, 28, 28), np.uint8), np.zeros(60, np.int64), batch_size=7)
    assert repr(batches) == (
        "<Batches of uint8 (60, 28, 28), int64 (60,): 9 an epoch; batch_size=7, shuffle=True, seed=0, drop_last=False>"
    )


def test_batches_refuse_what_makes_no_sense():
    with pytest.raises(ValueError, match="`arrays` is empty"):
        Batches(batch_size=1)
    with pytest.raises(ValueError, match=r"the same number of samples, got \[3, 4\]"):
        Batches(np.zeros(3), np.zeros(4), batch_size=1)
    with pytest.raises(ValueError, match=r"`arrays\[1\]` \(=2.0\) must have an axis"):
        Batches(np.zeros(3), 2.0, batch_size=1)
    with pytest.raises(ValueError, match=r"`batch_size` \(=0\)"):
        Batches(np.zeros(3), batch_size=0)
    with pytest.raises(TypeError, match=r"`batch_size` \(=2.5\)"):
        Batches(np.zeros(3), batch_size=2.5)
    for seed in ("a", -1, None, 0.5):
        with pytest.raises((TypeError, ValueError), match=rf"`seed` \(={seed!r}\) must be a whole number"):
            Batches(np.zeros(3), batch_size=2, seed=seed)
    with pytest.raises(TypeError, match=r"`arrays\[1\]` has masked entries"):
        Batches(np.zeros(3), np.ma.array(np.zeros(3), mask=[0, 1, 0]), batch_size=2)
    with pytest.raises(TypeError, match=r"`scale` \(='1/255'\)"):
        Batches(np.zeros(3), batch_size=2, scale="1/255")
    for scale in (0, np.inf, np.nan):
        with pytest.raises(ValueError, match=rf"`scale` \(={scale}\)"):
            Batches(np.zeros(3), batch_size=2, scale=scale)
    with pytest.raises(TypeError, match="must be real to be scaled, got complex128"):
        Batches(np.zeros(3, complex), batch_size=2, scale=0.5)


# One-hot rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_one_hot(dtype):
    rows = one_hot(np.array([2, 0, 1], np.uint8), 3, dtype)
    np.testing.assert_array_equal(rows, np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype), strict=True)
    assert one_hot([[1, 0]], 4).shape == (1, 2, 4)
    assert one_hot(np.zeros(0, np.int64), 4).shape == (0, 4)


def test_one_hot_refuses_what_is_no_label():
    with pytest.raises(ValueError, match=r"`labels` must be whole numbers from 0 to 2, got 3 at index \(1,\)"):
        one_hot([0, 3], 3)
    with pytest.raises(ValueError, match=r"`labels` must .*, got -1 at"):
        one_hot([-1], 3)
    with pytest.raises(TypeError, match="`labels` must be integers, got float64"):
        one_hot([0.0], 3)
    with pytest.raises(ValueError, match=r"`classes` \(=0\)"):
        one_hot(np.zeros(0, int), 0)
    with pytest.raises(TypeError, match=r"`classes` \(=3.5\)"):
        one_hot([0], 3.5)
    with pytest.raises(TypeError, match="`labels` has masked entries"):
        one_hot(np.ma.array([0, 1, 0], mask=[0, 1, 0]), 3)
    for dtype in ("foo", object, str):
        with pytest.raises(TypeError, match="must be a type of numbers"):
            one_hot([0], 3, dtype)
