"""Words are cut as the vocabulary knows them, and put together again as people write."""

import pytest

from txl.data import Vocabulary
from txl.data.punctuation import as_corpus, as_written

WIKI = [
    "Hello",
    "my",
    "dog",
    ",",
    ".",
    "(",
    ")",
    "1",
    "000",
    "@,@",
    "@-@",
    "well",
    "known",
    "It",
    "'s",
    "don",
    "'t",
    "cost",
    "$",
    "5",
    "million",
    "<eos>",
    "<unk>",
]
WIKI.append('"')
TREEBANK = ["hello", "my", "dog", ",", ".", "do", "n't", "it", "'s", "n", "<unk>", "<eos>"]
RAW = ["Hello,", "my", "dog.", "dog", "<unk>", "<eos>"]


@pytest.mark.parametrize(
    ("symbols", "written", "kept"),
    [
        (WIKI, "Hello, my dog", "Hello , my dog"),
        (WIKI, "(my well-known dog)", "( my well @-@ known dog )"),
        (WIKI, "It's 1,000.", "It 's 1 @,@ 000 ."),
        (WIKI, 'It don\'t cost $5 million "my dog", my\ndog', None),
        (TREEBANK, "Hello, don't. It's", "hello , do n't . it 's"),
        (RAW, "Hello, my dog. dog", "Hello, my dog. dog"),
        (WIKI, "Hello , my dog", "Hello , my dog"),
        (WIKI, "Hello\n\n, dog", "Hello\n\n, dog"),
    ],
)
def test_both_ways(symbols, written, kept):
    vocabulary = Vocabulary("word", symbols)
    found = as_corpus(written, vocabulary)
    if kept is None:
        kept = 'It don \'t cost $ 5 million " my dog " , my\ndog'
    assert found == kept
    if symbols is WIKI and " , " not in written and "\n\n" not in written:
        assert as_written(found) == written


def test_a_word_that_is_not_known_stays_one_word_where_cutting_does_not_help():
    assert as_corpus("cat my", Vocabulary("word", WIKI)) == "cat my"
    assert as_corpus("cat, my", Vocabulary("word", WIKI)) == "cat , my"
