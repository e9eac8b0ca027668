"""Preparing a corpus once: text to arrays of ids in the cache, whole or not at all.

A prepared corpus is a folder of memory-mapped `.npy` arrays with its vocabulary and a report. Its name holds
a key of the content and the preparation. The folder gets this name once it is complete, so that neither a
killed process nor one that prepares at the same time leaves a partial corpus. A *stamp* records which files,
by size, inode and times of change, gave which folder, so that an unchanged 1 GB need not be read again.
"""

import bisect
import contextlib
import hashlib
import heapq
import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from txl.data import bpe
from txl.data.corpora import passes
from txl.data.corpora.cache import PreparationFolder, Stamp, writing
from txl.data.corpora.reading import Part, split_by_bytes
from txl.data.vocabulary import END_OF_LINE, SENTENCE, UNKNOWN, Vocabulary, check_unit

log = logging.getLogger(__name__)

SPLITS = ("train", "valid", "test")
PREPARATION = 3  # increase it when the same content would be prepared differently


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    Attributes:
        sha256: of its whole text, before it is split.
        vocabulary: also says what a token is (`unit`) and which word ends a line (`end_of_line`).
        tokens: the ids of each split, one-dimensional memory-mapped arrays.
        folder: holds them and `report.json`; None for a corpus made in memory.
    """

    name: str
    sha256: str
    vocabulary: Vocabulary
    tokens: dict[str, np.ndarray]
    folder: Path | None = None

    @property
    def unit(self) -> str:
        return self.vocabulary.unit


@dataclass(frozen=True)
class Recipe:
    """How a text becomes tokens.

    Attributes:
        newlines: "keep", or "drop" to remove them from bytes and characters after the text is split.
        min_count: words counted less often are `<unk>`.
        bpe_vocabulary: for bpe, the number of symbols to learn.
        count_all: count words in all splits, not in the training split alone.
        words: the file of One Billion Word's published vocabulary; each sentence then stands between `<S>`.
    """

    unit: str
    newlines: str = "keep"
    min_count: int = 1
    bpe_vocabulary: int = 8192
    count_all: bool = False
    words: Path | None = None

    def __post_init__(self) -> None:
        check_unit(self.unit)
        if self.newlines not in ("keep", "drop"):
            raise ValueError(f"data.newlines={self.newlines} must be keep or drop")
        if self.newlines == "drop" and self.unit not in ("byte", "char"):
            raise ValueError(f"data.newlines=drop is for bytes and characters, not data.unit={self.unit}")
        if self.min_count < 1:
            raise ValueError(f"data.min_count={self.min_count} must be positive")

    def key(self, sha256: str, sizes: list[int]) -> str:
        words = hashlib.sha256(self.words.read_bytes()).hexdigest() if self.words else None
        settings = {**asdict(self), "words": words}
        if self.unit != "bpe":
            del settings["bpe_vocabulary"]
        recipe = json.dumps([PREPARATION, sha256, settings, sizes])
        return hashlib.sha256(recipe.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Expected:
    """Facts of a known corpus that the text must satisfy; None for no check.

    Attributes:
        tokens: their numbers in train, valid and test.
        content: bytes of the whole text.
        archive: sha256 of the archive.
    """

    vocabulary: int | None = None
    tokens: list[int] | None = None
    content: int | None = None
    archive: str | None = None

    def check(self, corpus: Corpus, content: int) -> None:
        """Raise ValueError, which names the settings that skip the check, if the corpus is another one."""
        found = [len(corpus.tokens[split]) for split in SPLITS]
        facts: list[tuple[str, int | list[int], int | list[int] | None, str]] = [
            ("content", content, self.content, "bytes"),
            ("vocabulary", len(corpus.vocabulary), self.vocabulary, f"different {corpus.unit}s"),
            ("tokens", found, self.tokens, "tokens"),
        ]
        wrong = {
            f"data.{key}=null": f"{_listed(actual)} {name} where {_listed(known)} were expected"
            for key, actual, known, name in facts
            if known is not None and actual != known
        }
        if wrong:
            raise ValueError(
                f"{corpus.name} has {', '.join(wrong.values())}; is it the right text? {' '.join(wrong)} "
                "accepts it anyway"
            )


def _listed(numbers: int | list[int]) -> str:
    return " / ".join(f"{number:,}" for number in np.atleast_1d(numbers))


def prepare(
    name: str,
    sources: list[Path],
    read: Callable[[Callable[[], Path]], dict[str, list[Part]]],
    recipe: Recipe,
    expected: Expected,
    cache: str,
    sha256: str | None = None,
) -> Corpus:
    """Return a corpus from the cache, or prepare it and put it there.

    Args:
        sources: the files it is made of: archives, not their content.
        read: returns the text of each split, or under "" one text yet to be split; called with a function
            that returns a temporary folder for unpacked files.
        sha256: of the text; None for that of the concatenated splits.

    Raises:
        OSError: the cache is full or cannot be written.
        ValueError: the text is invalid or not the expected one.
    """
    place = Path(cache).expanduser()
    if recipe.words:
        sources = [*sources, recipe.words]
    stamp = Stamp(place, sources, [PREPARATION, name, str(recipe), expected.archive])
    folder = stamp.folder()
    corpus = _load(folder, name) if folder else None
    if corpus is None:
        with contextlib.ExitStack() as stack:
            preparing = PreparationFolder(place, stack)
            preparing.lock(stamp)
            with writing(place):
                splits = read(preparing.unpacked)
            if "" in splits:
                splits = split_by_bytes(splits[""], recipe.unit)
            whole, each = passes.hashes(splits, recipe.unit)
            sizes = passes.sizes(splits)
            size = sum(sizes.values())
            folder = place / f"{name[:40]}-{recipe.unit}-{recipe.key(whole, list(sizes.values()))}"
            corpus = _load(folder, name)
            if corpus is None:
                log.info("preparing %s (%s bytes) in %s", name, f"{size:,}", folder)
                facts = {
                    "name": name,
                    "unit": recipe.unit,
                    "newlines": recipe.newlines,
                    "sha256": sha256 or whole,
                    "sha256_splits": each,
                    "bytes": size,
                    "bytes_splits": sizes,
                }
                with writing(place, size):
                    _write(preparing.prepared, splits, recipe, facts)
                    stamp.check()
                    preparing.publish(folder)
                corpus = _load(folder, name)
            stamp.write(folder)
    if corpus is None:
        raise OSError(f"{folder} is damaged and cannot be replaced; remove it")
    expected.check(corpus, report(corpus)["bytes"])
    return corpus


def report(corpus: Corpus) -> dict:
    if corpus.folder:
        return json.loads((corpus.folder / "report.json").read_text("utf-8"))
    return {
        "name": corpus.name,
        "unit": corpus.unit,
        "sha256": corpus.sha256,
        "vocabulary": len(corpus.vocabulary),
        "tokens": {split: len(tokens) for split, tokens in corpus.tokens.items()},
    }


def _write(folder: Path, splits: passes.Splits, recipe: Recipe, facts: dict[str, Any]) -> None:
    """Write a prepared corpus, with its facts and others in its report."""
    began = time.monotonic()
    drop = b"\n" if recipe.newlines == "drop" else b""
    vocabulary, counted = _count(splits, recipe, drop)
    (folder / "vocabulary.txt").write_text("".join(f"{line}\n" for line in vocabulary.lines()), "utf-8")
    first = [vocabulary.id_of(SENTENCE)] if recipe.words else []  # a sentence begins and ends with it
    with contextlib.ExitStack() as stack:
        files = {s: stack.enter_context((folder / f"{s}.npy").open("wb")) for s in SPLITS}
        for split, file in files.items():
            shape = (counted["tokens"][split],)
            kind = {"descr": vocabulary.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, kind)
            file.write(np.array(first, vocabulary.dtype).tobytes())
        for split, ids in passes.encode(splits, vocabulary, drop):
            files[split].write(ids.data)
    shown = {"line": _line(folder, vocabulary), "seconds": time.monotonic() - began}
    written = json.dumps({**facts, **counted, **shown}, indent=2, ensure_ascii=False)
    (folder / "report.json").write_text(f"{written}\n", "utf-8")


def _count(splits: passes.Splits, recipe: Recipe, drop: bytes) -> tuple[Vocabulary, dict[str, Any]]:
    """Return the vocabulary and the report's counts; the large counts of all symbols end here."""
    learnt: bpe.Learnt = ([], [])
    if recipe.unit == "word":
        counts = passes.count_words(splits, SENTENCE if recipe.words else END_OF_LINE)
    elif recipe.unit == "bpe":
        counts, learnt = passes.count_learnt(splits, recipe.bpe_vocabulary)
    else:
        counts = passes.count_characters(splits, recipe.unit, drop)
    tokens = {split: sum(counts[split].values()) + bool(recipe.words) for split in SPLITS}
    if not all(tokens.values()):
        raise ValueError(
            f"data.path: the text has {_listed(list(tokens.values()))} {recipe.unit}s in train, valid and "
            "test, and none of the three may be empty; take a longer text or name three files, separated by "
            "':'"
        )
    vocabulary = _published(recipe.words) if recipe.words else _vocabulary(counts, recipe, learnt)
    known = {*vocabulary.symbols} - {vocabulary.unknown}
    unknown = {
        split: sum(number for symbol, number in found.items() if symbol not in known) / tokens[split]
        for split, found in counts.items()
    }
    # `nlargest` keeps the order of first appearance among equals, as sorting does.
    commonest = heapq.nlargest(10, counts["train"].items(), key=lambda item: item[1])
    return vocabulary, {
        "tokens": tokens,
        "vocabulary": len(vocabulary),
        "unknown": unknown,
        "commonest": [[s.decode("latin-1") if isinstance(s, bytes) else s, n] for s, n in commonest],
    }


def _published(file: Path) -> Vocabulary:
    lines = file.read_text("utf-8").split("\n")
    vocabulary = Vocabulary("word", [line.split()[0] for line in lines if line.strip()])
    if vocabulary.end_of_line != SENTENCE or vocabulary.unknown is None:
        raise ValueError(f"{file} must list {SENTENCE} and <UNK> among its words")
    return vocabulary


def _vocabulary(counts: passes.Counts, recipe: Recipe, learnt: bpe.Learnt) -> Vocabulary:
    """Return the vocabulary in the order of the counts, of bpe with the learnt symbols that do not occur."""
    total = dict(counts["train"])
    if recipe.count_all or recipe.unit in ("byte", "char"):
        for split in ("valid", "test"):
            for symbol, number in counts[split].items():
                total[symbol] = total.get(symbol, 0) + number
    # `sorted` is stable: ties stay in order of first appearance.
    ordered = sorted(total, key=lambda symbol: -total[symbol])
    if recipe.unit == "word":
        ordered = [word for word in ordered if total[word] >= recipe.min_count]
        known = set(ordered)
        if UNKNOWN not in known and not all(known.issuperset(found) for found in counts.values()):
            rare = sum(number for word, number in total.items() if word not in known)
            ordered.insert(bisect.bisect(ordered, -rare, key=lambda word: -total[word]), UNKNOWN)
    unused = (symbol for symbol in learnt[0] if symbol not in total)
    return Vocabulary(recipe.unit, [*ordered, *unused], learnt[1])


def _line(folder: Path, vocabulary: Vocabulary) -> str:
    """Return a line of the validation text, decoded from its tokens."""
    tokens = np.load(folder / "valid.npy", mmap_mode="r")[:2000]
    text = vocabulary.decode(tokens.tolist()).decode(errors="replace")
    lines = text.splitlines() or [""]
    return next((line for line in lines if len(line.strip()) > 20), max(lines, key=len)).strip()[:200]


def _load(folder: Path, name: str) -> Corpus | None:
    """Return the corpus of a prepared folder, or None if it is missing, or damaged and therefore removed."""
    try:
        known = json.loads((folder / "report.json").read_text("utf-8"))
        lines = (folder / "vocabulary.txt").read_text("utf-8").split("\n")[:-1]
        tokens = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in SPLITS}
        if {split: len(ids) for split, ids in tokens.items()} != known["tokens"]:
            raise ValueError("its number of tokens has changed")
        return Corpus(name, known["sha256"], Vocabulary.from_lines(known["unit"], lines), tokens, folder)
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            return None
        reason = "a file is missing"
    except (ValueError, KeyError, EOFError) as error:
        reason = str(error)
    log.warning("%s is damaged (%s) and prepared again", folder, reason)
    shutil.rmtree(folder, ignore_errors=True)
    return None
