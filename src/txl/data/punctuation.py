"""Text as people write it and as corpora of words tokenize it: "Hello, my dog" and "Hello , my dog".

Corpora separate punctuation differently: WikiText writes `1 @,@ 000` and `well @-@ known`, Penn Treebank `do
n't` in lower case, others leave a comma in its place. The vocabulary decides: of several tokenizations of a
word, the one with the fewest unknown parts is used.
"""

import re
from collections.abc import Iterator

from txl.data.vocabulary import Vocabulary

PARTS = re.compile(r"\w+|[^\w\s]")
INSIDE = re.compile(r"(?<=\w)([-,.])(?=\w)")  # a sign between letters or digits: `@-@` in WikiText
CLITIC = re.compile(r"(?i)(n't|'(?:s|re|ve|ll|d|m|t))$")
BEFORE = r"([,.;:!?%)\]}]|'(?:s|re|ve|ll|d|m|t)\b|n't\b|\.\.\.)"  # what follows a word without a space


def as_corpus(text: str, vocabulary: Vocabulary) -> str:
    """Return a text tokenized like a word vocabulary; line ends stay."""
    plain = (symbol for symbol in vocabulary.symbols if not symbol.startswith("<"))
    if all(symbol == symbol.lower() for symbol in plain):
        text = text.lower()
    return "\n".join(
        " ".join(part for word in line.split() for part in _best(word, vocabulary))
        for line in text.split("\n")
    )


def as_written(text: str) -> str:
    """Return words separated by single spaces as people write them."""
    text = re.sub(r" ?@([-,.])@ ?", r"\1", text)
    text = re.sub(rf" {BEFORE}", r"\1", text)
    text = re.sub(r"([(\[{$£]) ", r"\1", text)
    lines = (re.sub(r'(^|\s)" ([^"]*?) "', r'\1"\2"', line) for line in text.split("\n"))
    return "\n".join(lines)


def _best(word: str, vocabulary: Vocabulary) -> list[str]:
    """Return the tokenization with the smallest share of unknown parts, and of these the shortest."""
    return min(
        _tokenizations(word),
        key=lambda parts: (sum(vocabulary.id_of(part) is None for part in parts) / len(parts), len(parts)),
    )


def _tokenizations(word: str) -> Iterator[list[str]]:
    yield [word]
    core = re.fullmatch(r"(?s)(\W*)(.*?)(\W*)", word)
    assert core  # the pattern matches any text
    before, inside, after = list(core[1]), core[2], list(core[3])
    yield [part for part in (*before, inside, *after) if part]
    yield [*before, *INSIDE.sub(r" @\1@ ", inside).split(), *after]
    cut = CLITIC.sub(r" \1", inside).split()
    yield [*before, *cut, *after]
    yield [*before, *re.sub(r"(?<=\w)'", " '", inside).split(), *after]
    yield PARTS.findall(word) or [word]
