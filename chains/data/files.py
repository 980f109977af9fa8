"""The files of a data set, in a folder, in the user's cache, or downloaded into it; and their reader."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import textwrap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePosixPath
from types import ModuleType, TracebackType
from typing import BinaryIO, Self, cast

GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class DataFile:
    """A file of a data set: its name on the mirrors, and its SHA-256 there, in hexadecimal.

    A file of an archive has no hash, and has its name without ``.gz`` there.
    """

    name: str
    sha256: str = ""

    def inside(self, folder: Path) -> Path | None:
        """The path of the file in `folder`: its name or, unpacked, its name without ``.gz``."""
        for name in (self.name, self.name.removesuffix(".gz")):
            if (folder / name).is_file():
                return folder / name
        return None


@dataclass(frozen=True)
class Archive:
    """A tar archive with all files of a data set: its name on the mirrors, and its hash, ``"md5:..."`` or ``"sha256:..."``."""

    name: str
    known_hash: str


def find(
    name: str, files: Sequence[DataFile], mirrors: Sequence[str], folder: str | PathLike[str] | None = None,
    archive: Archive | None = None,
) -> list[Path]:  # fmt: skip
    """The paths of a data set's files, in order, from the first place that has all of them.

    If `folder` is given, it is the only place. Otherwise the first place is the folder `name` in the folder that the
    environment variable CHAINS_DATA names, and the second the folder `name` in the user's cache (``pooch.os_cache("chains")``).
    Then the files are downloaded into that cache from one of the `mirrors` (addresses that end with a slash), one by one, or in
    the `archive` of them all, which is unpacked there. Without mirrors, the environment variable decides.

    Raises FileNotFoundError if the files are missing and pooch is not installed; the message says where to put them. Raises
    ConnectionError if no mirror gave a file with the right hash, and ValueError if an archive lacks a file.
    """
    if folder is not None:
        found = _all_inside(Path(folder), files)
        if found is None:
            raise FileNotFoundError(f"`folder` (={str(folder)!r}) lacks {_missing(Path(folder), files)}, needed for {name}")
        return found
    remedy = f"put {_names(files)} into a folder `{name}` and set CHAINS_DATA to the folder around it"
    if root := os.environ.get("CHAINS_DATA"):
        found = _all_inside(Path(root) / name, files)
        if found is not None:
            return found
        remedy += f" (it is {root!r} now, where {_missing(Path(root) / name, files)} of `{name}` is missing)"
    if not mirrors:
        raise FileNotFoundError(f"{name} cannot be downloaded: {remedy}")
    try:
        import pooch
    except ImportError:
        raise FileNotFoundError(f"to download {name}, install pooch: pip install pooch; or {remedy}") from None
    cache = Path(pooch.os_cache("chains")) / name
    found = _all_inside(cache, files)
    if found is None and archive is not None:
        packed = _download(pooch, archive.name, archive.known_hash, mirrors, cache, remedy)
        found = _extract(packed, files, cache)
        packed.unlink()
    return found or [_download(pooch, file.name, f"sha256:{file.sha256}", mirrors, cache, remedy) for file in files]


def _all_inside(folder: Path, files: Sequence[DataFile]) -> list[Path] | None:
    paths = [path for file in files if (path := file.inside(folder)) is not None]
    return paths if len(paths) == len(files) else None


def _missing(folder: Path, files: Sequence[DataFile]) -> str:
    return _names([file for file in files if file.inside(folder) is None])


def _names(files: Sequence[DataFile]) -> str:
    return ", ".join(file.name for file in files)


def _download(pooch: ModuleType, name: str, known_hash: str, mirrors: Sequence[str], cache: Path, remedy: str) -> Path:
    failures = []
    for mirror in mirrors:
        try:
            path = pooch.retrieve(
                mirror + name,
                known_hash=known_hash,
                fname=name,
                path=cache,
                progressbar=sys.stderr is not None and sys.stderr.isatty(),
            )
        except (OSError, ValueError) as error:  # no connection or no room; a wrong hash
            reason = textwrap.shorten(str(error), 200)
            failures.append(f"{mirror}: {type(error).__name__}, {reason}")
        else:
            return Path(path)
    raise ConnectionError(f"{name} could not be downloaded into {cache}; try again, or {remedy}\n" + "\n".join(failures))


def _extract(packed: Path, files: Sequence[DataFile], folder: Path) -> list[Path]:
    """Unpack only the files of a data set from a tar archive, from any folders in it."""
    import shutil  # these two load all of Python's compressors
    import tarfile

    with tarfile.open(packed) as archive:
        members = {PurePosixPath(member.name).name: member for member in archive.getmembers() if member.isfile()}
        names = [file.name.removesuffix(".gz") for file in files]
        if missing := ", ".join(name for name in names if name not in members):
            raise ValueError(f"{packed} lacks {missing}")
        for name in names:
            partial = folder / f"{name}.part"  # renamed when whole, so that an interruption leaves no half file
            content = archive.extractfile(members[name])
            assert content is not None  # it is a regular file
            partial.unlink(missing_ok=True)  # of an interrupted run; a link left there is not followed
            with content, partial.open("xb") as file:
                shutil.copyfileobj(content, file)
            partial.replace(folder / name)
    return [folder / name for name in names]


class Reader:
    """A data file opened for reading; gzipped or plain by its first bytes, not by its name.

    Memory grows with the bytes that are read, never with the size to which a damaged or hostile file would unpack. Raises
    OSError if the file cannot be opened or is a directory, a pipe or a device.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.position = 0  # bytes read so far
        self.damage = ""  # the fault while unpacking, for the end of a message
        mode = os.stat(self.path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{self.path} is a directory, not a data file")
        if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
            raise OSError(f"{self.path} is a pipe or a device, not a data file: copy its content into a file first")
        self._file = open(self.path, "rb")  # noqa: SIM115 - closed by __exit__
        packed = self._file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        self._file.seek(0)
        self._content = cast(BinaryIO, gzip.GzipFile(fileobj=self._file)) if packed else self._file

    def read(self, size: int) -> bytearray:
        """The next `size` bytes; fewer if the file ends before or is damaged."""
        content = bytearray()
        try:
            while len(content) < size and (chunk := self._content.read(min(size - len(content), CHUNK_BYTES))):
                content += chunk
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self.damage = f" (unpacking it failed: {error})"
        self.position += len(content)
        return content

    def check_end(self, expected: int, what: str) -> None:
        """Raise ValueError unless the file ends here, undamaged, after `expected` bytes; `what` describes them."""
        found = self.position
        more = bool(not self.damage and self.read(1))
        if found != expected or more or self.damage:
            fault = "is cut short" if found < expected else "is too long" if more else "is damaged"
            raise ValueError(
                f"{self.path} {fault}: {what} take {expected:,} bytes, but {'more' if more else f'{found:,}'} were found"
                f"{self.damage}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
