"""Text as people write it and as corpora of words hold it: "Hello, my dog" and "Hello , my dog".

Corpora cut punctuation off in ways of their own: WikiText writes `1 @,@ 000` and `well @-@ known`, Penn
Treebank `do n't` in lower case, others leave a comma where it stood. The vocabulary tells which: of several
ways to cut a word the one is taken of which it knows most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from txl.data.vocabulary import Vocabulary

PARTS = re.compile(r"\w+|[^\w\s]")
INSIDE = re.compile(r"(?<=\w)([-,.])(?=\w)")  # a sign between letters or digits: `@-@` in WikiText
CLITIC = re.compile(r"(?i)(n't|'(?:s|re|ve|ll|d|m|t))$")
BEFORE = r"([,.;:!?%)\]}]|'(?:s|re|ve|ll|d|m|t)\b|n't\b|\.\.\.)"  # what follows a word without a space


def as_corpus(text: str, vocabulary: Vocabulary) -> str:
    """Return a text with its words cut as those of a vocabulary of words; line ends stay."""
    plain = (symbol for symbol in vocabulary.symbols if not symbol.startswith("<"))
    if all(symbol == symbol.lower() for symbol in plain):
        text = text.lower()
    return "\n".join(
        " ".join(part for word in line.split() for part in _best(word, vocabulary))
        for line in text.split("\n")
    )


def as_written(text: str) -> str:
    """Return words, with single spaces between them, as people write them."""
    text = re.sub(r" ?@([-,.])@ ?", r"\1", text)
    text = re.sub(rf" {BEFORE}", r"\1", text)
    text = re.sub(r"([(\[{$£]) ", r"\1", text)
    lines = (re.sub(r'(^|\s)" ([^"]*?) "', r'\1"\2"', line) for line in text.split("\n"))
    return "\n".join(lines)


def _best(word: str, vocabulary: Vocabulary) -> list[str]:
    """Return the way to cut a word of which the vocabulary knows most, and of these the shortest."""
    ways = list(_ways(word))
    unknown = [sum(vocabulary.id_of(part) is None for part in way) / len(way) for way in ways]
    return min(zip(unknown, ways, strict=True), key=lambda pair: (pair[0] > 0, pair[0], len(pair[1])))[1]


def _ways(word: str) -> Iterator[list[str]]:
    yield [word]
    core = re.match(r"(?s)(\W*)(.*?)(\W*)$", word)
    before, inside, after = list(core[1]), core[2], list(core[3])
    yield [part for part in (*before, inside, *after) if part]
    yield [*before, *INSIDE.sub(r" @\1@ ", inside).split(), *after]
    cut = CLITIC.sub(r" \1", inside).split()
    yield [*before, *cut, *after]
    yield [*before, *re.sub(r"(?<=\w)'", " '", inside).split(), *after]
    yield PARTS.findall(word) or [word]
