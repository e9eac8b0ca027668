"""Reading text of any size: plain files in pieces, packed files and archives unpacked into plain files.

A split of a corpus is a list of `Part`s: runs of bytes of plain files. Packed files are unpacked first, so
that several processes can read from any position.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import logging
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from txl.terminal import ByteProgress

log = logging.getLogger(__name__)

PIECE = 2**22  # bytes read at once
LONG = 2**20  # bytes of a line beyond which it may be broken
LINE_UNITS = ("word", "bpe")  # read line by line


@dataclass(frozen=True)
class Part:
    """A run of bytes of a plain file.

    Attributes:
        begin, end: the first byte, and the one after the last.
        source: the file as its owner knows it, for messages: the archive, not its unpacked content.
        last: whether nothing follows, so that the last line ends even without a newline.
    """

    path: Path
    begin: int
    end: int
    source: Path
    last: bool = True

    @classmethod
    def whole(cls, path: Path, unit: str, source: Path | None = None) -> Part:
        """Return a whole file, without its byte order mark unless the unit is "byte"; log that mark and CRLF.

        Raises:
            ValueError: the file is empty.
        """
        source, size = source or path, path.stat().st_size
        with path.open("rb") as file:
            head = file.read(2**16)
        begin = 3 if unit != "byte" and head.startswith(codecs.BOM_UTF8) else 0
        if size <= begin:
            raise ValueError(f"data.path: {source} is empty; a corpus needs text")
        if begin:
            log.info("%s begins with a byte order mark, which is left out", source)
        if b"\r\n" in head:
            kept = "which do not matter for words" if unit == "word" else "which are kept"
            log.info("%s has lines that end with CRLF, %s", source, kept)
        return cls(path, begin, size, source)

    @property
    def size(self) -> int:
        return self.end - self.begin

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            ValueError: the file became shorter meanwhile.
        """
        with self.path.open("rb") as file:
            file.seek(self.begin)
            content = file.read(self.size)
        if len(content) < self.size:
            raise ValueError(f"{self.source} became shorter while it was read; start again")
        return content


def pieces(parts: list[Part], unit: str, size: int = PIECE) -> Iterator[Part]:
    """Divide parts without breaking a character or, for words and bpe, a line unless it is long."""
    for part in parts:
        with part.path.open("rb") as file:
            begin = part.begin
            while begin < part.end:
                end = _border(file, min(begin + size, part.end), part.end, unit)
                yield replace(part, begin=begin, end=end, last=end == part.end)
                begin = end


def _border(file: IO[bytes], place: int, end: int, unit: str) -> int:
    """Return the first position from `place` on, or `end`, where a piece may end.

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
    begin = place - 1
    file.seek(begin)
    for chunk in _content(file):
        found = chunk.find(mark)
        if found >= 0 or begin >= end:
            return min(begin + found + 1, end)
        begin += len(chunk)
    return end


def split_by_bytes(parts: list[Part], unit: str) -> dict[str, list[Part]]:
    """Divide a text into contiguous splits: the first 90 % of its bytes, the next 5 %, the last 5 %.

    A cut moves on to the end of its character (unit "char") or of its line ("word" and "bpe"); a text of one
    line is cut between words.
    """
    total, place = sum(part.size for part in parts), 0
    ends = {"train": total * 90 // 100, "valid": total * 95 // 100, "test": total}
    splits: dict[str, list[Part]] = {split: [] for split in ends}
    for part in parts:
        for split, end in ends.items():
            if part.size and place < end:
                cut = part.end if place + part.size <= end else _cut(part, part.begin + end - place, unit)
                splits[split].append(replace(part, end=cut))
                place += cut - part.begin
                part = replace(part, begin=cut)
    return splits


def _cut(part: Part, place: int, unit: str) -> int:
    with part.path.open("rb") as file:
        if unit not in LINE_UNITS:
            return _border(file, place, part.end, unit)
        first = _find_end(file, part.begin + 1, part.end, b"\n")
        file.seek(first)
        more_lines = first < part.end and any(chunk.strip() for chunk in _content(file))
        return _find_end(file, place, part.end, b"\n" if more_lines else b" ")


def _content(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(PIECE), b"")


def unpacked(path: Path, folder: Callable[[], Path]) -> Path:
    """Return the file itself, or if it is a .gz, .bz2, .xz, .zst or .parquet, its text as a new file.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        ValueError: it is corrupt, or a .parquet without a column `text`.
    """
    if path.suffix not in UNPACKED:
        return path
    target = folder() / f"{len(list(folder().iterdir()))}-{path.stem}"
    with _unpacking(path) as progress:
        _write(UNPACKED[path.suffix](path), target, progress)
    return target


@contextmanager
def _unpacking(packed: Path) -> Iterator[ByteProgress]:
    """Show the progress; turn the error that corrupt bytes raise into a ValueError that names the file."""
    try:
        with ByteProgress(f"unpacking {packed.name}") as progress:
            yield progress
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError) as error:
        # gzip, bz2 and pyarrow report corrupt bytes as an OSError without a number.
        if getattr(error, "errno", None) is not None:
            raise
        raise ValueError(f"{packed} is corrupt or cut short: {error}; remove it and get it again") from error


def _write(content: Iterable[bytes], target: Path, progress: ByteProgress) -> None:
    with target.open("wb") as file:
        for chunk in content:
            file.write(chunk)
            progress.advance(len(chunk))


def _opened(opener: Callable[[Path], Any], path: Path) -> Iterator[bytes]:
    with opener(path) as file:
        yield from _content(file)


def _zstandard(path: Path) -> Iterator[bytes]:
    return _opened(partial(_pyarrow(path).input_stream, compression="zstd"), path)


def _rows(path: Path) -> Iterator[bytes]:
    """Yield the column `text` of a Parquet file, one row a line."""
    pyarrow = _pyarrow(path)
    try:
        source = pyarrow.parquet.ParquetFile(path)
        if "text" not in source.schema_arrow.names:
            raise ValueError(f"{path} has no column text, only {', '.join(source.schema_arrow.names)}")
        for batch in source.iter_batches(4096, columns=["text"]):
            rows = batch.column(0).to_pylist()
            yield "".join(row if row.endswith("\n") else f"{row}\n" for row in rows).encode()
    except pyarrow.ArrowInvalid as error:
        raise EOFError(error) from error


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ModuleNotFoundError(
            f"a {path.suffix} file needs the package pyarrow; install it with: pip install 'txl[corpora]'"
        ) from error
    return pyarrow


UNPACKED: dict[str, Callable[[Path], Iterator[bytes]]] = {  # the text of a packed file in pieces
    ".gz": partial(_opened, gzip.open),
    ".bz2": partial(_opened, bz2.open),
    ".xz": partial(_opened, lzma.open),
    ".zst": _zstandard,
    ".parquet": _rows,
}


def unpack_members(archive: Path, patterns: dict[str, str], folder: Path) -> dict[str, list[Path]]:
    """Unpack some members of a .zip or .tar.gz into the folder.

    Args:
        patterns: the last part of their paths, with * for any name: "valid.txt", "train/*.txt".

    Returns:
        For each key of `patterns` the unpacked files, in the order of the names of their members.

    Raises:
        ValueError: the archive is corrupt, or lacks a file.
    """
    found: dict[PurePosixPath, Path] = {}
    with _unpacking(archive) as progress:
        for name, file in _members(archive):
            if any(name.match(pattern) for pattern in patterns.values()):
                found[name] = folder / f"{len(found)}-{name.name}"
                _write(_content(file), found[name], progress)
    files = {}
    for key, pattern in patterns.items():
        files[key] = [found[name] for name in sorted(found) if name.match(pattern)]
        if not files[key]:
            raise ValueError(f"{archive} has no file {pattern}; is it the right archive?")
    return files


def _members(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed_zip:
            for info in packed_zip.infolist():
                if not info.is_dir():
                    with packed_zip.open(info) as file:
                        yield PurePosixPath(info.filename), file
    else:
        with tarfile.open(archive, "r|*") as packed:
            for member in packed:
                if member.isfile() and (content := packed.extractfile(member)):
                    yield PurePosixPath(member.name), content
