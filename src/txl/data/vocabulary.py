"""Vocabularies: which symbols there are, and text to ids and back.

Ids go by falling frequency, ties by first appearance, as the authors' `vocabulary.py` orders them: the
adaptive softmax relies on it. A *byte* or *char* vocabulary holds every symbol of all splits, so nothing is
ever unknown (the authors' way for enwik8 and text8); a *word* vocabulary holds the words of the training
split, ends each line with `<eos>` and reads other words as `<unk>`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

UNITS = ("byte", "char", "word")
END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
HIGHEST = 0x10FFFF  # the highest code point


class Vocabulary:
    """The symbols of one corpus.

    Args:
        unit: "byte", "char" or "word".
        symbols: in the order of their ids: bytes as `bytes` of length 1, characters and words as `str`.
    """

    def __init__(self, unit: str, symbols: Sequence[str | bytes]) -> None:
        check_unit(unit)
        self.unit, self.symbols = unit, list(symbols)
        self._ids = {symbol: index for index, symbol in enumerate(self.symbols)}
        if len(self._ids) != len(self.symbols):
            raise ValueError("a symbol occurs twice in the vocabulary")

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned integer type that holds every id."""
        return np.min_scalar_type(max(len(self) - 1, 0))

    @classmethod
    def build(cls, unit: str, splits: dict[str, bytes], min_count: int = 1) -> Vocabulary:
        """Return the vocabulary of a corpus.

        Args:
            unit: "byte", "char" or "word".
            splits: the text of "train", "valid" and "test", UTF-8 unless the unit is "byte".
            min_count: words that occur less often in the training split are unknown.
        """
        check_unit(unit)
        if unit == "word":
            counts = Counter(_words(splits["train"]))
            words = [word for word, count in _by_frequency(counts) if count >= min_count]
            known = set(words)
            if UNKNOWN not in known and not all(known.issuperset(_words(text)) for text in splits.values()):
                words.append(UNKNOWN)
            return cls(unit, words)
        counts = np.zeros(HIGHEST + 1, dtype=np.int64)
        first: dict[int, None] = {}  # in order of first appearance
        for text in splits.values():
            for piece in _pieces(_codes(unit, text)):
                counts += np.bincount(piece, minlength=HIGHEST + 1)
                values, places = np.unique(piece, return_index=True)
                first |= dict.fromkeys(values[np.argsort(places)].tolist())
        ordered = sorted(first, key=lambda value: -counts[value])  # stable: ties stay as they came
        return cls(unit, [bytes([value]) if unit == "byte" else chr(value) for value in ordered])

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids of a text.

        Raises:
            ValueError: a byte or character that the vocabulary does not hold, or invalid UTF-8.
        """
        if self.unit == "word":
            unknown = self._ids.get(UNKNOWN)
            ids = [self._ids.get(word, unknown) for word in _words(text)]
            if None in ids:
                word = next(word for word in _words(text) if word not in self._ids)
                raise ValueError(f"the word {word!r} is not in the vocabulary, which has no {UNKNOWN}")
            return np.array(ids, dtype=self.dtype)
        table = np.full(HIGHEST + 1, -1, dtype=np.int32)
        table[[ord(symbol) for symbol in self.symbols]] = np.arange(len(self))
        codes = _codes(self.unit, text)
        ids = np.empty(len(codes), dtype=self.dtype)
        begin = 0
        for piece in _pieces(codes):
            found = table[piece]
            if (found < 0).any():
                place = int(np.argmax(found < 0))
                symbol = chr(piece[place]) if self.unit == "char" else bytes([piece[place]])
                raise ValueError(
                    f"the {self.unit} {symbol!r} at position {begin + place} is not in the vocabulary"
                )
            ids[begin : begin + len(piece)] = found
            begin += len(piece)
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the text of ids: for words one space between words and a newline for each `<eos>`."""
        symbols = [self.symbols[index] for index in ids]
        if self.unit == "byte":
            return b"".join(symbols)
        if self.unit == "char":
            return "".join(symbols).encode()
        lines = " ".join(symbols).split(END_OF_LINE)
        return "\n".join(line.strip(" ") for line in lines).encode()

    def lines(self) -> list[str]:
        """Return one printable line a symbol: bytes as hexadecimal, characters as U+0041, words as such."""
        if self.unit == "byte":
            return [symbol.hex() for symbol in self.symbols]
        if self.unit == "char":
            return [f"U+{ord(symbol):04X}" for symbol in self.symbols]
        return list(self.symbols)

    @classmethod
    def from_lines(cls, unit: str, lines: Iterable[str]) -> Vocabulary:
        """Return the vocabulary that `lines` wrote."""
        check_unit(unit)
        if unit == "byte":
            return cls(unit, [bytes.fromhex(line) for line in lines])
        if unit == "char":
            return cls(unit, [chr(int(line.removeprefix("U+"), 16)) for line in lines])
        return cls(unit, list(lines))


def check_unit(unit: str) -> None:
    """Raise ValueError unless `unit` is one we know."""
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")


def _words(text: bytes) -> Iterator[str]:
    """Yield the words of each line and the end of the line (the authors' rule for the word corpora)."""
    lines = text.decode().split("\n")
    for line in lines if lines[-1] else lines[:-1]:
        yield from line.split()
        yield END_OF_LINE


def _codes(unit: str, text: bytes) -> np.ndarray:
    """Return the byte values or code points of a text."""
    if unit == "byte":
        return np.frombuffer(text, dtype=np.uint8)
    return np.frombuffer(text.decode().encode("utf-32-le"), dtype=np.uint32)


def _pieces(codes: np.ndarray, size: int = 2**22) -> Iterator[np.ndarray]:
    """Yield an array piece by piece, so that what is made of a piece stays small."""
    for begin in range(0, len(codes), size):
        yield codes[begin : begin + size]


def _by_frequency(counts: Counter) -> list[tuple[str, int]]:
    """Return the counts in falling order; `sorted` is stable, so ties stay in order of first appearance."""
    return sorted(counts.items(), key=lambda item: -item[1])
