"""Reading text of any size: plain files in pieces, archives unpacked into plain files.

A split of a corpus is a list of `Part`s: runs of bytes of plain files. Whatever is packed is unpacked first,
so that everything after can begin anywhere in it, in several processes.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from txl.terminal import ByteProgress

PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": None}
PIECE = 2**22  # bytes that are read at once
LONG = 2**20  # bytes of a line beyond which it may be broken
BROKEN = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile)
LINES = ("word", "bpe")  # the units that are read line by line


@dataclass(frozen=True)
class Part:
    """A run of bytes of a plain file.

    Attributes:
        path: the file.
        begin: the first byte.
        end: the byte after the last.
        shown: the file as its owner knows it, for messages: the archive, not what was unpacked.
    """

    path: Path
    begin: int
    end: int
    shown: str

    @classmethod
    def whole(cls, path: Path, unit: str, shown: str | None = None) -> Part:
        """Return a whole file; unless the unit is "byte" a byte order mark is no text and left out.

        Raises:
            ValueError: the file is empty.
        """
        size = path.stat().st_size
        with path.open("rb") as file:
            mark = file.read(3) == b"\xef\xbb\xbf"
        begin = 3 if mark and unit != "byte" else 0
        if size <= begin:
            raise ValueError(f"data.path: {shown or path} is empty; a corpus needs text")
        return cls(path, begin, size, str(shown or path))

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.end - self.begin


def chunks(part: Part, unit: str, size: int = PIECE) -> Iterator[bytes]:
    """Yield a part in chunks that break no character, and for words and bpe no line where lines are not long.

    Raises:
        ValueError: the file was cut short meanwhile.
    """
    with part.path.open("rb") as file:
        for begin, end in borders(part, unit, size):
            file.seek(begin)
            chunk = file.read(end - begin)
            if len(chunk) < end - begin:
                raise ValueError(f"{part.shown} became shorter while it was read; start again")
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


def _border(file: BinaryIO, place: int, end: int, unit: str) -> int:
    """Return the first place from `place` on, or `end`, where a chunk may end.

    Lines are looked for in the next `LONG` bytes; beyond it, words end at a space, and bpe at a character.
    """
    if unit == "byte":
        return place
    if unit in LINES:
        file.seek(place - 1)
        near = file.read(min(LONG, end - place + 1))
        found = near.find(b"\n")
        if found >= 0:
            return place + found
        if unit == "word":
            return _after(file, place, end, b" ")
    file.seek(place)
    near = file.read(4)
    return min(place + next((i for i, byte in enumerate(near) if byte & 0xC0 != 0x80), len(near)), end)


def _after(file: BinaryIO, place: int, end: int, mark: bytes) -> int:
    """Return the place after the first `mark` at or after `place - 1`, or `end`."""
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
    """Cut a text in contiguous splits: the first 90 % of its bytes, the next 5 %, the last 5 %.

    Unless the unit is "byte" a cut moves on to the end of its character, for words and bpe to the end of its
    line; a text of one line is cut between words.
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


def _cut(file: BinaryIO, part: Part, place: int, unit: str) -> int:
    """Return where a split may end, from `place` on."""
    if unit not in LINES:
        return _border(file, place, part.end, unit)
    first = _after(file, part.begin + 1, part.end, b"\n")
    file.seek(first)
    more_lines = first < part.end and any(chunk.strip() for chunk in iter(lambda: file.read(PIECE), b""))
    return _after(file, place, part.end, b"\n" if more_lines else b" ")


def unpacked(path: Path, folder: Callable[[], Path], shown: str | None = None) -> Path:
    """Return a plain file with what `path` holds: itself, or, where it is packed, a new one in the folder.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are packed.
        folder: returns the folder for unpacked files.
        shown: the file's name for messages.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is corrupt.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data.path: there is no file {path}")
    if path.suffix not in PACKED:
        return path
    target = folder() / f"{len(list(folder().iterdir()))}-{path.stem}"
    with naming_what_is_corrupt(path), ByteProgress(f"unpacking {path.name}") as progress:
        if path.suffix == ".zst":
            with path.open("rb") as packed, target.open("wb") as file:
                _unpack_zstandard(packed, file, progress)
        else:
            with PACKED[path.suffix](path) as packed, target.open("wb") as file:
                copy(packed, file, progress)
    return target


class naming_what_is_corrupt:  # noqa: N801  reads as the words of a with statement
    """A context that turns the errors of a corrupt archive into one ValueError that names it."""

    def __init__(self, path: Path, *more: type[Exception]) -> None:
        self.path, self.kinds = path, (*BROKEN, *more)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error: BaseException | None, trace) -> None:
        # bz2 and lzma say what is wrong with the bytes by an OSError without a number.
        if isinstance(error, self.kinds) or (isinstance(error, OSError) and error.errno is None):
            raise ValueError(
                f"{self.path} is corrupt or cut short: {error}; remove it and get it again"
            ) from error


def copy(source: BinaryIO, target: BinaryIO, progress: ByteProgress) -> None:
    """Copy a stream to its end."""
    while chunk := source.read(PIECE):
        target.write(chunk)
        progress.advance(len(chunk))


def _unpack_zstandard(source: BinaryIO, target: BinaryIO, progress: ByteProgress) -> None:
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

    Args:
        archive: the file.
        wanted: says of a member's name whether it is needed.
        folder: an existing one.

    Returns:
        By the members' names, in their order, the plain files with their contents.

    Raises:
        ValueError: the archive is corrupt.
    """
    found = {}
    with naming_what_is_corrupt(archive), ByteProgress(f"unpacking {archive.name}") as progress:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                for name in filter(wanted, packed.namelist()):
                    found[name] = folder / f"{len(found)}-{os.path.basename(name)}"
                    with packed.open(name) as source, found[name].open("wb") as target:
                        copy(source, target, progress)
        else:
            with tarfile.open(archive, "r|*") as packed:
                for member in packed:
                    if member.isfile() and wanted(member.name):
                        found[member.name] = folder / f"{len(found)}-{os.path.basename(member.name)}"
                        with found[member.name].open("wb") as target:
                            copy(packed.extractfile(member), target, progress)
    return dict(sorted(found.items()))
