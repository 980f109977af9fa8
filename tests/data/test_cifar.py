"""CIFAR-10: the reader of its binary format, the loader, the archive it is downloaded as."""

import gzip
import io
import os
import sys
import tarfile

import numpy as np
import pytest

from chains.data import cifar, load_cifar10, read_cifar10

RECORDS = 20


def photographs(seed, n=RECORDS):
    """Noise for images, labels, and the two as a file has them."""
    rng = np.random.default_rng(seed)
    x, t = rng.integers(0, 256, (n, 3, 32, 32), np.uint8), rng.integers(0, 10, n, np.uint8)
    return x, t, b"".join(bytes([label]) + image.tobytes() for image, label in zip(x, t, strict=True))


def write_cifar10(folder, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for seed, file in enumerate(cifar.FILES):
        content = photographs(seed)[2]
        name = file.name if packed else file.name.removesuffix(".gz")
        (folder / name).write_bytes(gzip.compress(content) if packed else content)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(cifar, "RECORDS", RECORDS)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A separate cache, and no CHAINS_DATA; downloading fails the test."""
    pooch = pytest.importorskip("pooch")
    monkeypatch.delenv("CHAINS_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setattr(pooch, "retrieve", lambda *args, **kwargs: pytest.fail("nothing was to be downloaded"))
    return tmp_path


@pytest.mark.parametrize("records", [0, -1, 2.5, "7"], ids=str)
def test_numbers_of_records_that_make_no_sense(records):
    with pytest.raises((TypeError, ValueError), match=rf"`records` \(={records!r}\)"):
        read_cifar10("data_batch_1.bin", records)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("records", [None, 7])
def test_the_reader_gives_back_images_and_labels(tmp_path, packed, records):
    x, t, content = photographs(0, 7)
    path = tmp_path / "photographs"
    path.write_bytes(gzip.compress(content) if packed else content)
    images, labels = read_cifar10(str(path), records)
    np.testing.assert_array_equal(images, x, strict=True)
    np.testing.assert_array_equal(labels, t.astype(np.int64), strict=True)
    assert images.flags.writeable
    assert images.flags.c_contiguous


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("size", "fault"), [(0, "cut short"), (3073 * 7, "cut short"), (3073 * 20 - 1, "cut short"),
                                             (3073 * 20 + 1, "too long"), (3073 * 21, "too long")])  # fmt: skip
def test_wrong_lengths_are_refused(tmp_path, packed, size, fault):
    content = photographs(0, 21)[2][:size]
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(gzip.compress(content) if packed else content)
    found = "more" if fault == "too long" else f"{size:,}"
    with pytest.raises(
        ValueError, match=rf"data_batch_1.bin is {fault}: 20 records .* take 61,460 bytes, but {found} were found"
    ):
        read_cifar10(path, RECORDS)
    if size % 3073 or not size:
        with pytest.raises(ValueError, match=r"data_batch_1.bin is cut short"):
            read_cifar10(path)


def test_broken_gzip_files_are_refused(tmp_path):
    packed = gzip.compress(photographs(0)[2])
    path = tmp_path / "test_batch.bin.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"test_batch.bin.gz is cut short: .* take 61,460 bytes, but .* \(unpacking it failed"):
        read_cifar10(path, RECORDS)
    path.write_bytes(packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:])
    with pytest.raises(ValueError, match=r"test_batch.bin.gz is damaged.*unpacking it failed"):
        read_cifar10(path, RECORDS)


def test_other_labels_are_refused_with_their_record(tmp_path):
    content = bytearray(photographs(0)[2])
    content[3073 * 13] = 10
    content[3073 * 15] = 255
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"data_batch_2.bin must hold labels from 0 to 9, got 10 in record 13"):
        read_cifar10(path)


def test_a_folder_or_nothing_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_cifar10(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        read_cifar10(tmp_path / "folder")


@pytest.mark.parametrize("packed", [False, True])
def test_the_loader_joins_five_files_and_one(tmp_path, packed):
    write_cifar10(tmp_path, packed)
    (x, t), (x_test, t_test) = load_cifar10(tmp_path)
    np.testing.assert_array_equal(x, np.concatenate([photographs(k)[0] for k in range(5)]), strict=True)
    np.testing.assert_array_equal(t, np.concatenate([photographs(k)[1] for k in range(5)]).astype(np.int64), strict=True)
    np.testing.assert_array_equal(x_test, photographs(5)[0], strict=True)
    np.testing.assert_array_equal(t_test, photographs(5)[1])


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_1.bin.gz, .*test_batch.bin.gz, needed for cifar10"):
        load_cifar10(tmp_path)
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin.gz").unlink()
    (tmp_path / "data_batch_3.bin.gz").mkdir()  # a folder is no file
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_3.bin.gz, needed for cifar10"):
        load_cifar10(tmp_path)


def test_it_is_looked_for_in_order(places, monkeypatch):
    write_cifar10(places / "cache" / "chains" / "cifar10")
    assert len(load_cifar10()[0][0]) == 100
    monkeypatch.setenv("CHAINS_DATA", str(places / "data"))
    write_cifar10(places / "data" / "cifar10")
    (places / "data" / "cifar10" / "test_batch.bin.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"test_batch.bin.gz is cut short"):
        load_cifar10()


def serve(monkeypatch, names):
    """Downloads answered with an archive of these files; the addresses asked for."""
    asked = []

    def retrieve(url, known_hash, fname, path, progressbar):
        asked.append(url)
        assert known_hash == "md5:c32a1d4ab5d03f1284b67883e8d87530"
        path.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path / fname, "w:gz") as archive:
            for name in names:
                content = photographs(names.index(name))[2]
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return str(path / fname)

    monkeypatch.setattr(sys.modules["pooch"], "retrieve", retrieve)
    return asked


NAMES = [f"cifar-10-batches-bin/{file.name.removesuffix('.gz')}" for file in cifar.FILES]


def test_the_archive_is_downloaded_and_unpacked_once(places, monkeypatch):
    asked = serve(monkeypatch, [*NAMES, "cifar-10-batches-bin/readme.html", "../outside.bin"])
    for _ in range(2):
        (_, t), (x_test, _) = load_cifar10()
        np.testing.assert_array_equal(t[:RECORDS], photographs(0)[1])
        np.testing.assert_array_equal(x_test, photographs(5)[0])
    assert asked == [cifar.MIRRORS[0] + "cifar-10-binary.tar.gz"]
    left = sorted(path.name for path in (places / "cache").rglob("*") if path.is_file())
    assert left == sorted(file.name.removesuffix(".gz") for file in cifar.FILES)


def test_an_archive_that_lacks_a_file_is_refused(places, monkeypatch):
    serve(monkeypatch, NAMES[:-1])
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz lacks test_batch.bin"):
        load_cifar10()


def test_no_connection(places, monkeypatch):
    def retrieve(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(sys.modules["pooch"], "retrieve", retrieve)
    with pytest.raises(ConnectionError, match=r"cifar-10-binary.tar.gz could not be downloaded .*CHAINS_DATA"):
        load_cifar10()


HERE = os.path.isdir(os.path.join(os.environ.get("CHAINS_DATA", ""), "cifar10")) and bool(os.environ.get("CHAINS_DATA"))


@pytest.mark.skipif(not HERE, reason="CHAINS_DATA has no folder cifar10")
def test_the_real_cifar10(monkeypatch):
    monkeypatch.setattr(cifar, "RECORDS", 10_000)
    (x, t), (x_test, t_test) = load_cifar10()
    assert (x.shape, x_test.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert np.bincount(t).tolist() == [5000] * 10
    assert np.bincount(t_test).tolist() == [1000] * 10
    np.testing.assert_allclose(x.mean((0, 2, 3)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-3)
