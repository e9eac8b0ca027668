"""The files of a corpus, and their content as plain text."""

import glob
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from txl.data.corpora.reading import Part, corruption_named, members, unpacked
from txl.terminal import ByteProgress

log = logging.getLogger(__name__)

Folder = Callable[[], Path]  # returns the folder for unpacked files, which the first call makes
SPLIT_NAMES = {"train": "train(ing)?", "valid": "valid(ation)?", "test": "test"}


def find(path: str) -> dict[str, list[Path]]:
    """Return the files of each split, or under "" those of one text yet to be split.

    Args:
        path: a file; a glob, whose files in sorted order are one text; a folder with one file each whose name
            has "train", "valid" and "test" as a word, or else with .txt files that are one text; or three
            files or globs for the three splits, separated by ":" (";" on Windows).

    Raises:
        FileNotFoundError: no file matches.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        return _in_folder(place)
    if place.exists():
        return {"": [place]}
    several = path.split(os.pathsep)
    if len(several) == len(SPLIT_NAMES):
        return {split: _glob(pattern) for split, pattern in zip(SPLIT_NAMES, several, strict=True)}
    return {"": _glob(path)}


def _glob(pattern: str) -> list[Path]:
    found = [Path(name) for name in sorted(glob.glob(os.path.expanduser(pattern), recursive=True))]
    found = [path for path in found if path.is_file()]
    if not found:
        raise FileNotFoundError(f"data.path: there is no file {pattern}")
    return found


def _in_folder(folder: Path) -> dict[str, list[Path]]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    named = {
        split: [path for path in files if re.search(rf"(^|[^a-z]){word}([^a-z]|$)", path.name.lower())]
        for split, word in SPLIT_NAMES.items()
    }
    if any(named.values()):
        for split, found in named.items():
            if len(found) != 1:
                names = ", ".join(path.name for path in found) or "none"
                raise FileNotFoundError(
                    f"data.path: {folder} must hold one file with {split!r} in its name, there is {names}"
                )
        log.info("data.path: %s", ", ".join(f"{split} is {found[0].name}" for split, found in named.items()))
        return named
    texts = [path for path in files if re.search(r"\.txt(\.(gz|bz2|xz|zst))?$", path.name)]
    if not texts:
        raise FileNotFoundError(
            f"data.path: {folder} has no corpus: neither files with 'train', 'valid' and 'test' in "
            "their names nor any .txt (or .txt.gz, .bz2, .xz, .zst); name other files by a glob: "
            f"{folder}/*.md"
        )
    log.info("data.path: one text of %s", ", ".join(path.name for path in texts))
    return {"": texts}


def read_files(files: list[Path], unit: str, folder: Folder) -> list[Part]:
    """Return the text of plain or packed files in their order."""
    return [read_file(unpacked(path, folder), unit, path) for path in files]


def read_file(plain: Path, unit: str, source: Path) -> Part:
    """Return the text of a plain file, known to its owner as `source`, and log what may surprise them."""
    part = Part.whole(plain, unit, str(source))
    if part.begin:
        log.info("%s begins with a byte order mark, which is left out", source)
    with plain.open("rb") as file:
        if b"\r\n" in file.read(2**16):
            kept = "which words do not see" if unit == "word" else "which are kept"
            log.info("%s has lines that end with CRLF, %s", source, kept)
    return part


def unpack_by_name(archive: Path, names: dict[str, str], folder: Folder) -> dict[str, Path]:
    """Unpack the named files, which may lie in any folder of a .zip or .tar.gz.

    Raises:
        FileNotFoundError: there is no archive.
        ValueError: it is corrupt or lacks a file.
    """
    if not archive.is_file():
        raise FileNotFoundError(f"data.path: there is no file {archive}")
    found = members(archive, lambda member: Path(member).name in names.values(), folder())
    files = {Path(member).name: plain for member, plain in found.items()}
    for name in names.values():
        if name not in files:
            raise ValueError(f"{archive} has no file {name}; is it the right archive?")
    return {key: files[name] for key, name in names.items()}


def parquet_text(files: list[Path], target: Path) -> Path:
    """Write the column `text` of Parquet files, one row a line, and return the file.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        ValueError: a file is corrupt or lacks the column.
    """
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise ModuleNotFoundError(
            "Parquet files need the package pyarrow; install it with: pip install 'txl[corpora]'"
        ) from error
    with target.open("wb") as file:
        for path in files:
            with (
                corruption_named(path, ArrowInvalid),
                ByteProgress(f"unpacking {path.name}") as progress,
            ):
                source = parquet.ParquetFile(path)
                if "text" not in source.schema_arrow.names:
                    raise ValueError(
                        f"{path} has no column text, only {', '.join(source.schema_arrow.names)}"
                    )
                for batch in source.iter_batches(4096, columns=["text"]):
                    rows = batch.column(0).to_pylist()
                    lines = "".join(row if row.endswith("\n") else f"{row}\n" for row in rows).encode()
                    file.write(lines)
                    progress.advance(len(lines))
    return target
