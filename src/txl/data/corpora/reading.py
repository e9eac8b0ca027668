"""Reading text of any size: plain files in pieces, archives unpacked into plain files.

A split of a corpus is a list of `Part`s: runs of bytes of plain files. Packed files are unpacked first, so
that several processes can read from any position.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from txl.terminal import ByteProgress

OPEN: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PIECE = 2**22  # bytes read at once
LONG = 2**20  # bytes of a line beyond which it may be broken
CORRUPT: tuple[type[Exception], ...] = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
)
LINE_UNITS = ("word", "bpe")  # read line by line


@dataclass(frozen=True)
class Part:
    """A run of bytes of a plain file.

    Attributes:
        begin, end: the first byte, and the one after the last.
        source: the file as its owner knows it, for messages: the archive, not its unpacked content.
    """

    path: Path
    begin: int
    end: int
    source: str

    @classmethod
    def whole(cls, path: Path, unit: str, source: str | None = None) -> Part:
        """Return a whole file, without its byte order mark unless the unit is "byte".

        Raises:
            ValueError: the file is empty.
        """
        size = path.stat().st_size
        with path.open("rb") as file:
            mark = file.read(3) == b"\xef\xbb\xbf"
        begin = 3 if mark and unit != "byte" else 0
        if size <= begin:
            raise ValueError(f"data.path: {source or path} is empty; a corpus needs text")
        return cls(path, begin, size, str(source or path))

    @property
    def size(self) -> int:
        return self.end - self.begin


def chunks(part: Part, unit: str, size: int = PIECE) -> Iterator[bytes]:
    """Yield a part in chunks that break no character and, for words and bpe, no line unless it is long.

    Raises:
        ValueError: the file became shorter meanwhile.
    """
    with part.path.open("rb") as file:
        for begin, end in borders(part, unit, size):
            file.seek(begin)
            chunk = file.read(end - begin)
            if len(chunk) < end - begin:
                raise ValueError(f"{part.source} became shorter while it was read; start again")
            yield chunk


def borders(part: Part, unit: str, size: int = PIECE) -> Iterator[tuple[int, int]]:
    """Yield where the chunks of a part begin and end, without reading them."""
    with part.path.open("rb") as file:
        begin = part.begin
        while begin < part.end:
            end = min(begin + size, part.end)
            if end < part.end:
                end = _border(file, end, part.end, unit)
            yield begin, end
            begin = end


def _border(file: IO[bytes], place: int, end: int, unit: str) -> int:
    """Return the first position from `place` on, or `end`, where a chunk may end.

    The end of a line is sought in the next `LONG` bytes; failing that, words end at a space, bpe at a
    character.
    """
    if unit == "byte":
        return place
    if unit in LINE_UNITS:
        file.seek(place - 1)
        near = file.read(min(LONG, end - place + 1))
        found = near.find(b"\n")
        if found >= 0:
            return place + found
        if unit == "word":
            return _find_end(file, place, end, b" ")
    file.seek(place)
    near = file.read(4)
    return min(place + next((i for i, byte in enumerate(near) if byte & 0xC0 != 0x80), len(near)), end)


def _find_end(file: IO[bytes], place: int, end: int, mark: bytes) -> int:
    """Return the position after the first `mark` at or after `place - 1`, or `end`."""
    begin = max(place - 1, 0)
    file.seek(begin)
    while begin < end:
        chunk = file.read(min(PIECE, end - begin))
        found = chunk.find(mark)
        if found >= 0:
            return begin + found + 1
        if not chunk:
            break
        begin += len(chunk)
    return end


def split_by_bytes(parts: list[Part], unit: str) -> dict[str, list[Part]]:
    """Divide a text into contiguous splits: the first 90 % of its bytes, the next 5 %, the last 5 %.

    A cut moves on to the end of its character (unit "char") or of its line ("word" and "bpe"); a text of one
    line is cut between words.
    """
    total = sum(part.size for part in parts)
    left = {"train": total * 90 // 100, "valid": total * 95 // 100 - total * 90 // 100, "test": total}
    splits: dict[str, list[Part]] = {split: [] for split in left}
    names = iter(left)
    split, room = next(names), left["train"]
    for part in parts:
        while part.size:
            while room <= 0 and split != "test":
                split = next(names)
                room += left[split]
            if part.size <= room:
                splits[split].append(part)
                room -= part.size
                break
            with part.path.open("rb") as file:
                cut = _cut(file, part, part.begin + room, unit)
            splits[split].append(replace(part, end=cut))
            room -= cut - part.begin
            part = replace(part, begin=cut)
    return splits


def _cut(file: IO[bytes], part: Part, place: int, unit: str) -> int:
    if unit not in LINE_UNITS:
        return _border(file, place, part.end, unit)
    first = _find_end(file, part.begin + 1, part.end, b"\n")
    file.seek(first)
    more_lines = first < part.end and any(chunk.strip() for chunk in iter(lambda: file.read(PIECE), b""))
    return _find_end(file, place, part.end, b"\n" if more_lines else b" ")


def unpacked(path: Path, folder: Callable[[], Path]) -> Path:
    """Return the file itself, or if it is a .gz, .bz2, .xz or .zst, its content as a new file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is corrupt.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data.path: there is no file {path}")
    if path.suffix not in (*OPEN, ".zst"):
        return path
    target = folder() / f"{len(list(folder().iterdir()))}-{path.stem}"
    with corruption_named(path), ByteProgress(f"unpacking {path.name}") as progress:
        if path.suffix == ".zst":
            with path.open("rb") as packed, target.open("wb") as file:
                _unpack_zstandard(packed, file, progress)
        else:
            with OPEN[path.suffix](path) as packed, target.open("wb") as file:
                copy(packed, file, progress)
    return target


@contextmanager
def corruption_named(path: Path, *more: type[Exception]) -> Iterator[None]:
    """Raise ValueError with the name of an archive for an error that its corrupt bytes cause.

    Args:
        more: kinds of such errors, besides those of the standard library.
    """
    kinds: tuple[type[Exception], ...] = (*CORRUPT, *more)
    caught: tuple[type[Exception], ...] = (*kinds, OSError)
    try:
        yield
    except caught as error:
        # bz2 and lzma report corrupt bytes as an OSError without a number.
        if not isinstance(error, kinds) and getattr(error, "errno", None) is not None:
            raise
        raise ValueError(f"{path} is corrupt or cut short: {error}; remove it and get it again") from error


def copy(source: IO[bytes], target: IO[bytes], progress: ByteProgress) -> None:
    while chunk := source.read(PIECE):
        target.write(chunk)
        progress.advance(len(chunk))


def _unpack_zstandard(source: IO[bytes], target: IO[bytes], progress: ByteProgress) -> None:
    try:
        import zstandard
    except ImportError as error:
        raise ModuleNotFoundError(
            "a .zst file needs the package zstandard; install it with: pip install 'txl[corpora]'"
        ) from error
    frame, rest, inside = zstandard.ZstdDecompressor().decompressobj(), b"", False
    try:
        while chunk := rest or source.read(2**17):
            inside = True
            text = frame.decompress(chunk)
            target.write(text)
            progress.advance(len(text))
            rest = b""
            if frame.eof:
                rest, inside = frame.unused_data, False
                frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise EOFError(error) from error
    if inside:
        raise EOFError("it ends in the middle of a frame")


def members(archive: Path, wanted: Callable[[str], bool], folder: Path) -> dict[str, Path]:
    """Unpack the wanted members of a .zip or a .tar.gz into the folder.

    Returns:
        The unpacked files by the names of their members, in sorted order.

    Raises:
        ValueError: the archive is corrupt.
    """
    found: dict[str, Path] = {}
    with corruption_named(archive), ByteProgress(f"unpacking {archive.name}") as progress:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed_zip:
                for name in filter(wanted, packed_zip.namelist()):
                    found[name] = folder / f"{len(found)}-{os.path.basename(name)}"
                    with packed_zip.open(name) as source, found[name].open("wb") as target:
                        copy(source, target, progress)
        else:
            with tarfile.open(archive, "r|*") as packed:
                for member in packed:
                    if member.isfile() and wanted(member.name):
                        content = packed.extractfile(member)
                        assert content is not None  # it is a file
                        found[member.name] = folder / f"{len(found)}-{os.path.basename(member.name)}"
                        with found[member.name].open("wb") as target:
                            copy(content, target, progress)
    return dict(sorted(found.items()))
