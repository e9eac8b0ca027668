"""Vocabularies: the symbols of a corpus, and text to ids and back.

Ids are ordered by falling frequency, ties by first appearance, as in the authors' `vocabulary.py`: the
adaptive softmax relies on it. A *byte* or *char* vocabulary holds every symbol of all splits, so none is
unknown (as the authors do for enwik8 and text8); a *word* vocabulary holds the words of the training split,
ends each line with `<eos>` and reads other words as `<unk>`; a *bpe* vocabulary is learnt from the training
split and reads every text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from txl.data import bpe

UNITS = ("byte", "char", "word", "bpe")
END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
SENTENCE, SENTENCE_UNKNOWN = "<S>", "<UNK>"  # their counterparts in One Billion Word's vocabulary
HIGHEST = 0x10FFFF  # the highest code point
VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥"}
LINES: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {  # a symbol to a line, and back
    "byte": (bytes.hex, bytes.fromhex),
    "char": (lambda symbol: f"U+{ord(symbol):04X}", lambda line: chr(int(line.removeprefix("U+"), 16))),
}


class Vocabulary:
    """The symbols of one corpus.

    Args:
        symbols: in the order of their ids: bytes as `bytes` of length 1, the others as `str`.
        merges: for "bpe" the pairs of symbols that are joined, in the order in which they were learnt.

    Attributes:
        end_of_line: the word that ends each line: `<eos>`, or `<S>` where lines are sentences, or None.
        unknown: the word that stands for unknown words, or None.

    Raises:
        ValueError: an unknown unit, or a symbol that occurs twice.
    """

    def __init__(
        self, unit: str, symbols: Sequence[str | bytes], merges: Iterable[tuple[str, str]] = ()
    ) -> None:
        check_unit(unit)
        self.unit, self.merges = unit, list(merges)
        self.symbols: list[Any] = list(symbols)
        self._ids = {symbol: index for index, symbol in enumerate(self.symbols)}
        if len(self._ids) != len(self.symbols):
            raise ValueError("a symbol occurs twice in the vocabulary")
        words = self._ids if unit == "word" else {}
        self.end_of_line = next((word for word in (END_OF_LINE, SENTENCE) if word in words), None)
        self.unknown = next((word for word in (UNKNOWN, SENTENCE_UNKNOWN) if word in words), None)

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned integer type that holds every id."""
        return np.min_scalar_type(max(len(self) - 1, 0))

    def id_of(self, symbol: str | bytes | None) -> int | None:
        return None if symbol is None else self._ids.get(symbol)

    @cached_property
    def _table(self) -> np.ndarray:
        """The id of each byte or code point, -1 for none."""
        table = np.full(HIGHEST + 1, -1, dtype=np.int32)
        table[[ord(symbol) for symbol in self.symbols]] = np.arange(len(self))
        return table

    @cached_property
    def _tokenizer(self) -> Any:
        return bpe.tokenizer(self.symbols, self.merges)

    def encode(self, text: bytes, ends: bool = True) -> np.ndarray:
        """Return the ids of a text.

        Args:
            text: UTF-8 unless the unit is "byte".
            ends: for words, whether the last line ends even without a newline.

        Raises:
            ValueError: a byte, character or word that the vocabulary lacks, or invalid UTF-8.
        """
        if self.unit == "word":
            unknown = self.id_of(self.unknown)
            found = words(text.decode(), self.end_of_line or END_OF_LINE, ends)
            ids = [self._ids.get(word, unknown) for word in found]
            if None in ids:
                word = found[ids.index(None)]
                raise ValueError(f"the word {word!r} is not in the vocabulary, which has no {UNKNOWN}")
            return np.array(ids, dtype=self.dtype)
        if self.unit == "bpe":
            return bpe.encode(self._tokenizer, text).astype(self.dtype)
        codes = code_points(self.unit, text)
        ids = self._table[codes]
        if len(ids) and ids.min() < 0:
            place = int(np.argmax(ids < 0))
            symbol = chr(codes[place]) if self.unit == "char" else bytes([codes[place]])
            raise ValueError(f"the {self.unit} {symbol!r} at position {place} is not in the vocabulary")
        return ids.astype(self.dtype)

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the text of ids: words are separated by one space, lines by a newline."""
        symbols = [self.symbols[index] for index in ids]
        if self.unit == "byte":
            return b"".join(symbols)
        if self.unit == "char":
            return "".join(symbols).encode()
        if self.unit == "bpe":
            return bpe.decode(symbols)
        lines = " ".join(symbols).split(self.end_of_line or END_OF_LINE)
        return "\n".join(line.strip(" ") for line in lines).encode()

    def labels(self, ids: Iterable[int]) -> list[str]:
        r"""Return each token with all of it visible: `␣` for a space, `↵` for a newline.

        Unprintable characters are escaped as `U+FEFF`, bytes as `\xff`.
        """
        return [self._label(self.symbols[index]) for index in ids]

    def _label(self, symbol: Any) -> str:
        escape = "U+{:04X}"
        if self.unit == "byte":
            symbol, escape = symbol.decode("ascii", "backslashreplace"), "\\x{:02x}"
        elif self.unit == "bpe":
            symbol = bpe.decode([symbol]).decode(errors="replace")
        return "".join(VISIBLE.get(c) or (c if c.isprintable() else escape.format(ord(c))) for c in symbol)

    def lines(self) -> list[str]:
        """Return one printable line a symbol: bytes as hexadecimal, characters as U+0041, words as such.

        For "bpe" a blank line and the merges follow, one a line.
        """
        to_line, _ = LINES.get(self.unit, (str, str))
        merges = ["", *(f"{left} {right}" for left, right in self.merges)] if self.unit == "bpe" else []
        return [*map(to_line, self.symbols), *merges]

    @classmethod
    def from_lines(cls, unit: str, lines: Iterable[str]) -> Vocabulary:
        """Return the vocabulary whose `lines()` are given."""
        _, from_line = LINES.get(unit, (str, str))
        lines, merges = list(lines), []
        if unit == "bpe":
            blank = lines.index("")
            lines, merges = lines[:blank], [line.split(" ") for line in lines[blank + 1 :]]
        return cls(unit, [*map(from_line, lines)], [(left, right) for left, right in merges])


def check_unit(unit: str) -> None:
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")


def words(text: str, end_of_line: str, ends: bool) -> list[str]:
    """Return the words of lines, each line followed by `end_of_line` (the authors' rule for word corpora).

    With `ends` the last line ends even without a newline.
    """
    if ends and text and not text.endswith("\n"):
        text += "\n"
    return text.replace("\n", f" {end_of_line} ").split()


def code_points(unit: str, text: bytes) -> np.ndarray:
    if unit == "byte":
        return np.frombuffer(text, dtype=np.uint8)
    return np.frombuffer(text.decode().encode("utf-32-le"), dtype=np.uint32)
