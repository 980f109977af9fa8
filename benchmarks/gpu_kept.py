"""The kernels that CuPy compiled, kept between runs of `benchmarks.gpu` as a few files of bounded size."""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path

PART_BYTES = 40 << 20  # of kernels in an archive: about 11 MiB when compressed


def unpacked(folder: Path | None) -> Path:
    """A new folder that CuPy is told to keep its kernels in, with those of the archives in `folder`."""
    place = Path(tempfile.mkdtemp(prefix="kernels-"))
    for archive in sorted(folder.glob("kernels-*.tar.gz")) if folder is not None else ():
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
    os.environ["CUPY_CACHE_DIR"] = str(place)
    return place


def pack(place: Path, folder: Path | None) -> None:
    """Bring the kernels into archives in `folder`, of at most `PART_BYTES` of kernels each, or of one kernel."""
    if folder is None:
        return
    parts: list[list[Path]] = [[]]
    size = 0
    for file in sorted(path for path in place.iterdir() if path.is_file() and path.suffix in (".cubin", ".ltoir")):
        nbytes = file.stat().st_size
        if size + nbytes > PART_BYTES and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(file)
        size += nbytes
    for number, files in enumerate(parts):
        beside, archive = folder / "kernels.new", folder / f"kernels-{number}.tar.gz"
        with tarfile.open(beside, "w:gz", compresslevel=1) as tar:
            for file in files:
                tar.add(file, file.name)
        os.replace(beside, archive)
    for old in folder.glob("kernels-*.tar.gz"):
        if int(old.name.removeprefix("kernels-").removesuffix(".tar.gz")) >= len(parts):
            old.unlink()
