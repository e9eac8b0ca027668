"""The passes over a text of any size: hashing and checking it, counting its symbols, encoding it.

Each reads piece by piece and keeps its counts, never the text.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from txl.data import bpe
from txl.data.corpora import workers
from txl.data.corpora.reading import PIECE, Part, borders, chunks
from txl.data.corpora.workers import Lines, parallel_map
from txl.data.vocabulary import HIGHEST, Vocabulary, code_points
from txl.terminal import ByteProgress

Splits = dict[str, list[Part]]
ONE_PROCESS = 2**25  # bytes of words up to which one process is faster than several
MAX_PROCESSES = 4  # each holds the vocabulary, and one merges their counts
LINES_AT_ONCE = 2**23  # bytes of a worker's task
BPE_AT_ONCE = 2**19  # bytes given to the bpe encoder at once


def size(splits: Splits) -> int:
    return sum(part.size for parts in splits.values() for part in parts)


def hashes(splits: Splits, unit: str) -> tuple[str, dict[str, str]]:
    """Return the sha256 of the concatenated splits, and that of each split.

    Raises:
        ValueError: the text is not UTF-8, and the unit is not "byte".
    """
    whole, each = hashlib.sha256(), {}
    with ByteProgress("reading", size(splits)) as progress:
        for split, parts in splits.items():
            one = hashlib.sha256()
            for part in parts:
                place = part.begin
                for chunk in chunks(part, unit):
                    if unit != "byte":
                        _check_utf8(chunk, place, part)
                    whole.update(chunk)
                    one.update(chunk)
                    place += len(chunk)
                    progress.advance(len(chunk))
            each[split] = one.hexdigest()
    return whole.hexdigest(), each


def _check_utf8(chunk: bytes, place: int, part: Part) -> None:
    try:
        chunk.decode()
    except UnicodeDecodeError as error:
        where = place + error.start
        wide = " (it looks like UTF-16)" if where == 0 and chunk[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise ValueError(
            f"data.path: {part.source} is not UTF-8 at byte {where:,}{wide}; convert it (iconv -t UTF-8), or "
            "use data.unit=byte"
        ) from error


@dataclass
class Counts:
    """How often each symbol occurs.

    Attributes:
        symbols: for each split the count of each symbol, in order of first appearance.
        learnt: for bpe the symbols and the merges in the order in which they were learnt.
    """

    symbols: dict[str, dict[str | bytes, int]]
    learnt: tuple[list[str], list[tuple[str, str]]] | None = None

    def total(self, split: str) -> int:
        return sum(self.symbols[split].values())


def count_words(splits: Splits, end_of_line: str) -> Counts:
    counts = Counts({})
    with (
        ByteProgress("counting words", size(splits)) as progress,
        parallel_map(partial(workers.count, end_of_line), processes(splits)) as count_all,
    ):
        for split, parts in splits.items():
            total: Counter[str | bytes] = Counter()
            for found, lines in zip(count_all(tasks(parts)), tasks(parts), strict=True):
                total.update(found)
                progress.advance(lines.end - lines.begin)
            counts.symbols[split] = total
    return counts


def count_characters(splits: Splits, unit: str, drop: bytes) -> Counts:
    """Count bytes or characters, except the byte `drop` if it is not empty."""
    kinds = HIGHEST + 1 if unit == "char" else 256
    symbol = chr if unit == "char" else lambda value: bytes([value])
    counts = Counts({})
    with ByteProgress(f"counting {unit}s", size(splits)) as progress:
        for split, parts in splits.items():
            codes = (code_points(unit, text) for text in texts(parts, unit, drop, PIECE, progress))
            counts.symbols[split] = {symbol(code): number for code, number in _tally(codes, kinds).items()}
    return counts


def count_learnt(splits: Splits, vocabulary: int) -> Counts:
    """Learn an encoding from the training split and count its symbols in all splits."""
    with ByteProgress("learning bpe", sum(part.size for part in splits["train"])) as progress:
        training = texts(splits["train"], "bpe", b"", BPE_AT_ONCE, progress)
        learnt = bpe.learn((text.decode() for text in training), vocabulary)
    counts, encoder = Counts({}, learnt), bpe.tokenizer(*learnt)
    with ByteProgress("counting symbols", size(splits)) as progress:
        for split, parts in splits.items():
            ids = (
                bpe.encode(encoder, text.decode()) for text in texts(parts, "bpe", b"", BPE_AT_ONCE, progress)
            )
            numbers = _tally(ids, len(learnt[0]))
            counts.symbols[split] = {learnt[0][index]: number for index, number in numbers.items()}
    return counts


def _tally(codes: Iterable[np.ndarray], kinds: int) -> dict[int, int]:
    """Count each number below `kinds`, in order of first appearance."""
    counts, first = np.zeros(kinds, dtype=np.int64), []
    for piece in codes:
        new = counts == 0
        counts += np.bincount(piece, minlength=kinds)
        if (new & (counts > 0)).any():
            values, places = np.unique(piece[new[piece]], return_index=True)
            first += values[np.argsort(places)].tolist()
    return {value: int(counts[value]) for value in first}


def processes(splits: Splits) -> int:
    """Return how many processes should read words."""
    return min(os.cpu_count() or 1, MAX_PROCESSES) if size(splits) > ONE_PROCESS else 1


def tasks(parts: list[Part]) -> Iterator[Lines]:
    """Yield the lines of a split in pieces; the last line of a file ends with the file."""
    for part in parts:
        for begin, end in borders(part, "word", LINES_AT_ONCE):
            yield Lines(part.path, begin, end, end == part.end)


def texts(parts: list[Part], unit: str, drop: bytes, length: int, progress: ByteProgress) -> Iterator[bytes]:
    """Yield the text of a split in pieces, without the byte `drop` if it is not empty."""
    for part in parts:
        for chunk in chunks(part, unit, length):
            yield chunk.replace(drop, b"") if drop else chunk
            progress.advance(len(chunk))


def encode(
    splits: Splits, vocabulary: Vocabulary, drop: bytes, write: Callable[[str, np.ndarray], object]
) -> None:
    """Call `write` with the split and the ids of each piece, in order."""
    unit, length = vocabulary.unit, BPE_AT_ONCE if vocabulary.unit == "bpe" else PIECE
    with ByteProgress("encoding", size(splits)) as progress:
        if unit != "word":
            for split, parts in splits.items():
                for text in texts(parts, unit, drop, length, progress):
                    write(split, vocabulary.encode(text))
            return
        with parallel_map(partial(workers.encode, vocabulary), processes(splits)) as encode_all:
            for split, parts in splits.items():
                for ids, lines in zip(encode_all(tasks(parts)), tasks(parts), strict=True):
                    write(split, ids)
                    progress.advance(lines.end - lines.begin)
