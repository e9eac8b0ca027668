"""The passes over a text of any size: hashing and checking it, counting its symbols, encoding it.

Each reads piece by piece and keeps its counts, never the text.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from txl.data import bpe
from txl.data.corpora.reading import PIECE, Part, pieces
from txl.data.corpora.workers import parallel_map
from txl.data.vocabulary import HIGHEST, Vocabulary, code_points, words
from txl.terminal import ByteProgress

Splits = dict[str, list[Part]]
Counts = Mapping[str, Mapping[str | bytes, int]]  # of the symbols of each split, in order of first appearance
ONE_PROCESS = 2**25  # bytes of words up to which one process is faster than several
MAX_PROCESSES = 4  # each holds the vocabulary, and one merges their counts
LINES_AT_ONCE = 2**23  # bytes of a worker's task
BPE_AT_ONCE = 2**19  # bytes given to the bpe encoder at once


def sizes(splits: Splits) -> dict[str, int]:
    return {split: sum(part.size for part in parts) for split, parts in splits.items()}


def _progress(description: str, splits: Splits) -> ByteProgress:
    return ByteProgress(description, sum(sizes(splits).values()))


def hashes(splits: Splits, unit: str) -> tuple[str, dict[str, str]]:
    """Return the sha256 of the concatenated splits, and that of each split.

    Raises:
        ValueError: the text is not UTF-8, and the unit is not "byte".
    """
    whole, each = hashlib.sha256(), {}
    with _progress("reading", splits) as progress:
        for split, parts in splits.items():
            one = hashlib.sha256()
            for piece in pieces(parts, unit):
                content = piece.read()
                if unit != "byte":
                    _check_utf8(content, piece)
                whole.update(content)
                one.update(content)
                progress.advance(piece.size)
            each[split] = one.hexdigest()
    return whole.hexdigest(), each


def _check_utf8(content: bytes, piece: Part) -> None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        where = piece.begin + error.start
        wide = " (it looks like UTF-16)" if where == 0 and content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise ValueError(
            f"data.path: {piece.source} is not UTF-8 at byte {where:,}{wide}; convert it (iconv -t UTF-8), "
            "or use data.unit=byte"
        ) from error


def count_words(splits: Splits, end_of_line: str) -> Counts:
    counts: dict[str, Counter[str | bytes]] = {split: Counter() for split in splits}
    with _progress("counting words", splits) as progress:
        for split, found in _by_lines(partial(_count_lines, end_of_line), splits, progress):
            counts[split].update(found)
    return counts


def _count_lines(end_of_line: str, lines: Part) -> Counter[str]:
    return Counter(words(lines.read().decode(), end_of_line, lines.last))


def count_characters(splits: Splits, unit: str, drop: bytes) -> Counts:
    """Count bytes or characters, except the byte `drop` if it is not empty."""
    kinds, symbol = (HIGHEST + 1, chr) if unit == "char" else (256, lambda value: bytes([value]))
    with _progress(f"counting {unit}s", splits) as progress:
        texts = _texts(splits, unit, drop, progress)
        return _tally(splits, ((split, code_points(unit, text)) for split, text in texts), kinds, symbol)


def count_learnt(splits: Splits, size: int) -> tuple[Counts, bpe.Learnt]:
    """Learn an encoding from the training split and count its symbols in all splits."""
    training = {"train": splits["train"]}
    with _progress("learning bpe", training) as progress:
        learnt = bpe.learn((text for _, text in _texts(training, "bpe", b"", progress)), size)
    symbols, encoder = learnt[0], bpe.tokenizer(*learnt)
    with _progress("counting symbols", splits) as progress:
        texts = _texts(splits, "bpe", b"", progress)
        ids = ((split, bpe.encode(encoder, text)) for split, text in texts)
        return _tally(splits, ids, len(symbols), symbols.__getitem__), learnt


def _tally(
    splits: Splits, codes: Iterable[tuple[str, np.ndarray]], kinds: int, symbol: Callable[[int], str | bytes]
) -> Counts:
    """Count each code below `kinds`, in order of first appearance."""
    counts = {split: np.zeros(kinds, dtype=np.int64) for split in splits}
    first: dict[str, list[int]] = {split: [] for split in splits}
    for split, piece in codes:
        new = counts[split] == 0
        counts[split] += np.bincount(piece, minlength=kinds)
        if (new & (counts[split] > 0)).any():
            values, places = np.unique(piece[new[piece]], return_index=True)
            first[split] += values[np.argsort(places)].tolist()
    return {split: {symbol(code): int(counts[split][code]) for code in first[split]} for split in splits}


def processes(splits: Splits) -> int:
    """Return how many processes should read words."""
    return min(os.cpu_count() or 1, MAX_PROCESSES) if sum(sizes(splits).values()) > ONE_PROCESS else 1


def _by_lines(
    function: Callable[[Part], Any], splits: Splits, progress: ByteProgress
) -> Iterator[tuple[str, Any]]:
    """Yield each split with what the function returns for some lines of it, in order."""
    with parallel_map(function, processes(splits)) as apply:
        for split, parts in splits.items():
            tasks = list(pieces(parts, "word", LINES_AT_ONCE))
            for lines, result in zip(tasks, apply(tasks), strict=True):
                yield split, result
                progress.advance(lines.size)


def _texts(splits: Splits, unit: str, drop: bytes, progress: ByteProgress) -> Iterator[tuple[str, bytes]]:
    """Yield each split with its text in pieces, without the byte `drop` if it is not empty."""
    size = BPE_AT_ONCE if unit == "bpe" else PIECE
    for split, parts in splits.items():
        for piece in pieces(parts, unit, size):
            yield split, piece.read().replace(drop, b"")
            progress.advance(piece.size)


def encode(splits: Splits, vocabulary: Vocabulary, drop: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each split with the ids of a piece of it, in order."""
    with _progress("encoding", splits) as progress:
        if vocabulary.unit == "word":
            yield from _by_lines(partial(_encode_lines, vocabulary), splits, progress)
        else:
            for split, text in _texts(splits, vocabulary.unit, drop, progress):
                yield split, vocabulary.encode(text)


def _encode_lines(vocabulary: Vocabulary, lines: Part) -> np.ndarray:
    return vocabulary.encode(lines.read(), lines.last)
