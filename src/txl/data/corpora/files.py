"""The files of a corpus, and their content as plain text."""

import glob
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from txl.data.corpora.reading import Part, unpacked

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
    if place.is_file():
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
    return [Part.whole(unpacked(path, folder), unit, path) for path in files]
