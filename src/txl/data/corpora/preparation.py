"""Preparing a corpus once: text to arrays of ids in the cache, whole or not at all.

A prepared corpus is a folder of `.npy` arrays, to be read by memory map, with its vocabulary and a report.
The folder's name holds a key of the content and of the preparation. It is made under another name and renamed
when everything is in it, so what is there can be trusted, whenever a process was killed and whoever else
prepared at the same time. A *stamp* remembers which files, by size, inode and times of change, gave which
folder: then 1 GB need not be read again to know that it is the same.
"""

from __future__ import annotations

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

import numpy as np

from txl.data.corpora import passes
from txl.data.corpora.cache import PreparationFolder, Stamp, move
from txl.data.corpora.reading import Part
from txl.data.vocabulary import END_OF_LINE, SENTENCE, UNKNOWN, Vocabulary, check_unit

log = logging.getLogger(__name__)

SPLITS = ("train", "valid", "test")
PREPARATION = 3  # raise it when the same content would be prepared differently


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    Attributes:
        name: which corpus.
        sha256: of its whole text, before it is split.
        vocabulary: the symbols; `vocabulary.unit` says what a token is, and for words
            `vocabulary.id_of(vocabulary.end_of_line)` which one ends a line or sentence.
        tokens: the ids of each split, one-dimensional memory-mapped arrays.
        folder: where they lie, with `report.json`; None for a corpus that is not kept.
    """

    name: str
    sha256: str
    vocabulary: Vocabulary
    tokens: dict[str, np.ndarray]
    folder: Path | None = None

    @property
    def unit(self) -> str:
        """What a token is: "byte", "char", "word" or "bpe"."""
        return self.vocabulary.unit


@dataclass(frozen=True)
class Recipe:
    """How a text becomes tokens.

    Attributes:
        unit: "byte", "char", "word" or "bpe".
        newlines: "keep", or "drop" to leave them out of bytes and characters after the text is split.
        min_count: words that occur less often where words are counted are `<unk>`.
        bpe_vocabulary: for bpe, how many symbols to learn.
        count_all: words are counted in all splits, not in the training split alone.
        words: of One Billion Word, the published words, a file; each sentence then stands between `<S>`.
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
        """Return what the preparation of this content is called."""
        words = hashlib.sha256(self.words.read_bytes()).hexdigest() if self.words else None
        settings = {**asdict(self), "words": words}
        if self.unit != "bpe":
            del settings["bpe_vocabulary"]
        recipe = json.dumps([PREPARATION, sha256, settings, sizes])
        return hashlib.sha256(recipe.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Expected:
    """What is known of a corpus, and must hold of the text at hand; None for what is not.

    Attributes:
        vocabulary: how many different tokens.
        tokens: how many in train, valid and test.
        content: how many bytes the whole text has.
        archive: the sha256 of what the text was fetched in.
    """

    vocabulary: int | None = None
    tokens: list[int] | None = None
    content: int | None = None
    archive: str | None = None

    def check(self, corpus: Corpus, content: int) -> None:
        """Raise ValueError, with how to go on all the same, where the corpus is another one."""
        found = [len(corpus.tokens[split]) for split in SPLITS]
        kinds = {
            "content": (content, self.content, "bytes"),
            "vocabulary": (len(corpus.vocabulary), self.vocabulary, f"different {corpus.unit}s"),
            "tokens": (found, self.tokens, "tokens"),
        }
        wrong = {key: kind for key, kind in kinds.items() if kind[1] is not None and kind[0] != kind[1]}
        if wrong:
            what = ", ".join(
                f"{_listed(is_)} {name} where {_listed(must_be)} were expected"
                for is_, must_be, name in wrong.values()
            )
            overrides = " ".join(f"data.{key}=null" for key in wrong)
            raise ValueError(
                f"{corpus.name} has {what}; is it the right text? {overrides} takes it all the same"
            )


def _listed(numbers: int | list[int]) -> str:
    return " / ".join(f"{number:,}" for number in np.atleast_1d(numbers))


def prepare(
    name: str,
    sources: list[Path],
    lay_out: Callable[[Callable[[], Path]], dict[str, list[Part]]],
    recipe: Recipe,
    cache: str,
    expected: Expected | None = None,
    sha256: str | None = None,
) -> Corpus:
    """Return a corpus from the cache, or prepare it and put it there.

    Args:
        name: of the corpus.
        sources: the files it is made of, as they are: archives, not what is in them.
        lay_out: returns the text of each split; called with what returns a folder for files that it unpacks,
            removed in the end.
        recipe: how it is prepared.
        cache: the folder of prepared corpora.
        expected: what is known of the corpus.
        sha256: by which the text is known; None for that of its splits, one after the other.

    Raises:
        OSError: the cache cannot be written, or is full.
        ValueError: the text is not what it must be.
    """
    place = Path(cache).expanduser()
    if recipe.words:
        sources = [*sources, recipe.words]
    stamp = Stamp(place, sources, [PREPARATION, name, str(recipe), expected and expected.archive])
    folder = stamp.folder()
    corpus = _load(folder, name) if folder else None
    if corpus is None:
        with contextlib.ExitStack() as stack:
            work = PreparationFolder(place, stack)
            work.turn(stamp)
            with work.writing(0):
                splits = lay_out(work.unpacked)
            whole, each = passes.hashes(splits, recipe.unit)
            sha256 = sha256 or whole
            sizes = [sum(part.size for part in splits[split]) for split in SPLITS]
            folder = place / f"{name[:40]}-{recipe.unit}-{recipe.key(whole, sizes)}"
            corpus = _load(folder, name)
            if corpus is None:
                log.info("preparing %s (%s bytes) in %s", name, f"{sum(sizes):,}", folder)
                with work.writing(sum(sizes)):
                    _write(work.prepared(), splits, recipe, name, sha256, each)
                    stamp.check()
                    move(work.prepared(), folder)
                corpus = _load(folder, name)
            stamp.write(folder)
    if corpus is None:
        raise OSError(f"{folder} is damaged and cannot be replaced; remove it")
    if expected:
        expected.check(corpus, report(corpus)["bytes"])
    return corpus


def report(corpus: Corpus) -> dict:
    """Return what is known of a prepared corpus: `report.json`, or its counts where it is not kept."""
    if corpus.folder:
        return json.loads((corpus.folder / "report.json").read_text("utf-8"))
    return {
        "name": corpus.name,
        "unit": corpus.unit,
        "sha256": corpus.sha256,
        "vocabulary": len(corpus.vocabulary),
        "tokens": {split: len(tokens) for split, tokens in corpus.tokens.items()},
    }


def _write(
    folder: Path, splits: passes.Splits, recipe: Recipe, name: str, sha256: str, each: dict[str, str]
) -> None:
    """Write the arrays, the vocabulary and the report of a corpus."""
    began = time.monotonic()
    drop = b"\n" if recipe.newlines == "drop" else b""
    vocabulary, found = _counted(splits, recipe, drop)
    (folder / "vocabulary.txt").write_text("".join(f"{line}\n" for line in vocabulary.lines()), "utf-8")
    first = [vocabulary.id_of(SENTENCE)] if recipe.words else []  # a sentence begins and ends with it
    with contextlib.ExitStack() as stack:
        files = {s: stack.enter_context((folder / f"{s}.npy").open("wb")) for s in SPLITS}
        for split, file in files.items():
            kind = {"descr": vocabulary.dtype.str, "fortran_order": False, "shape": (found["tokens"][split],)}
            np.lib.format.write_array_header_1_0(file, kind)
            file.write(np.array(first, vocabulary.dtype).tobytes())
        passes.encode(splits, vocabulary, drop, lambda split, ids: files[split].write(ids.data))
    written = {
        "name": name,
        "unit": recipe.unit,
        "newlines": recipe.newlines,
        "sha256": sha256,
        "sha256_splits": each,
        "bytes": passes.size(splits),
        "bytes_splits": {split: sum(part.size for part in splits[split]) for split in SPLITS},
        **found,
        "line": _line(folder, vocabulary),
        "seconds": time.monotonic() - began,
    }
    (folder / "report.json").write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _counted(splits: passes.Splits, recipe: Recipe, drop: bytes) -> tuple[Vocabulary, dict]:
    """Return the vocabulary and what the report says of the counts, which are large and end here."""
    if recipe.unit == "word":
        counts = passes.count_words(splits, SENTENCE if recipe.words else END_OF_LINE)
    elif recipe.unit == "bpe":
        counts = passes.count_learnt(splits, recipe.bpe_vocabulary)
    else:
        counts = passes.count_characters(splits, recipe.unit, drop)
    vocabulary = _vocabulary(counts, recipe)
    tokens = {split: counts.total(split) + bool(recipe.words) for split in SPLITS}
    if not all(tokens.values()):
        raise ValueError(
            f"data.path: the text has {_listed(list(tokens.values()))} {recipe.unit}s in train, valid and "
            "test, and none of the three may be empty; take a longer text or name three files, with ':' "
            "between them"
        )
    unknown = {
        split: sum(
            number
            for symbol, number in counts.symbols[split].items()
            if symbol == vocabulary.unknown or vocabulary.id_of(symbol) is None
        )
        / max(tokens[split], 1)
        for split in SPLITS
    }
    # `nlargest` keeps the order of first appearance among equals, as sorting does.
    commonest = heapq.nlargest(10, counts.symbols["train"].items(), key=lambda item: item[1])
    shown = [
        [symbol.decode("latin-1") if isinstance(symbol, bytes) else symbol, n] for symbol, n in commonest
    ]
    return vocabulary, {
        "tokens": tokens,
        "vocabulary": len(vocabulary),
        "unknown": unknown,
        "commonest": shown,
    }


def _vocabulary(counts: passes.Counts, recipe: Recipe) -> Vocabulary:
    """Return the vocabulary of what was counted."""
    if recipe.words:
        lines = recipe.words.read_text("utf-8").split("\n")
        vocabulary = Vocabulary("word", [line.split()[0] for line in lines if line.strip()])
        if vocabulary.end_of_line != SENTENCE or vocabulary.unknown is None:
            raise ValueError(f"{recipe.words} must list {SENTENCE} and <UNK> among its words")
        return vocabulary
    everywhere = recipe.count_all or recipe.unit in ("byte", "char")
    total = counts.symbols["train"]
    if everywhere:
        total = {}
        for found in counts.symbols.values():
            for symbol, number in found.items():
                total[symbol] = total.get(symbol, 0) + number
    # `sorted` is stable: ties stay in order of first appearance.
    ordered = sorted(total, key=lambda symbol: -total[symbol])
    if recipe.unit == "word":
        ordered = [word for word in ordered if total[word] >= recipe.min_count]
        known = set(ordered)
        if UNKNOWN not in known and not all(known.issuperset(found) for found in counts.symbols.values()):
            rare = sum(number for word, number in total.items() if word not in known)
            ordered.insert(bisect.bisect(ordered, -rare, key=lambda word: -total[word]), UNKNOWN)
    elif recipe.unit == "bpe":
        symbols, merges = counts.learnt
        return Vocabulary("bpe", [*ordered, *(symbol for symbol in symbols if symbol not in total)], merges)
    return Vocabulary(recipe.unit, ordered)


def _line(folder: Path, vocabulary: Vocabulary) -> str:
    """Return a line of the validation text as the tokens give it back."""
    tokens = np.load(folder / "valid.npy", mmap_mode="r")[:2000]
    text = vocabulary.decode(tokens.tolist()).decode(errors="replace")
    lines = text.splitlines() or [""]
    return next((line for line in lines if len(line.strip()) > 20), max(lines, key=len)).strip()[:200]


def _load(folder: Path, name: str) -> Corpus | None:
    """Return the corpus of a prepared folder, or None where there is none that is whole."""
    try:
        known = json.loads((folder / "report.json").read_text("utf-8"))
        lines = (folder / "vocabulary.txt").read_text("utf-8").split("\n")[:-1]
        tokens = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in SPLITS}
        if {split: len(ids) for split, ids in tokens.items()} != known["tokens"]:
            raise ValueError("not the number of tokens that it had")
        return Corpus(name, known["sha256"], Vocabulary.from_lines(known["unit"], lines), tokens, folder)
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            return None
        reason = "a file is missing"
    except (ValueError, KeyError, EOFError) as error:
        reason = str(error)
    log.warning("%s is damaged (%s): it is prepared again", folder, reason)
    shutil.rmtree(folder, ignore_errors=True)
    return None
