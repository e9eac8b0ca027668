"""Text to ids and back, the order of the ids, and what is unknown."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data import Vocabulary, text
from txl.data.corpora import passes


def built(
    unit: str, train: bytes, valid: bytes | None = None, test: bytes | None = None, **settings
) -> Vocabulary:
    """Return the vocabulary of a corpus of three files; a split that is not given is the training split."""
    with tempfile.TemporaryDirectory() as folder:
        for split, content in {"train": train, "valid": valid or train, "test": test or train}.items():
            (Path(folder) / f"{split}.txt").write_bytes(content)
        return text(folder, unit, cache=f"{folder}/cache", **settings).vocabulary


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=1), st.binary())
def test_bytes_come_back(train, test):
    vocabulary = built("byte", train, test=test)
    assert vocabulary.decode(vocabulary.encode(train)) == train
    assert vocabulary.decode(vocabulary.encode(test)) == test


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1), st.text())
def test_characters_come_back(train, valid):
    train, valid = train.encode(errors="replace"), valid.encode(errors="replace")
    vocabulary = built("char", train, valid)
    assert vocabulary.decode(vocabulary.encode(train)) == train
    assert vocabulary.decode(vocabulary.encode(valid)) == valid


@pytest.mark.parametrize("text", ["汉字和表情 🙂👍🏽\n", "日本語のテキスト", "ไม่มีช่องว่าง"])
@pytest.mark.parametrize("unit", ["byte", "char", "bpe"])
def test_every_script_comes_back(text, unit):
    vocabulary = built(unit, text.encode())
    assert vocabulary.decode(vocabulary.encode(text.encode())).decode() == text


def test_ids_fall_in_frequency_and_ties_go_to_the_first():
    assert built("byte", b"cab", b"aab").symbols == [b"a", b"b", b"c"]
    assert built("char", b"zyzyx").symbols == ["z", "y", "x"]
    assert built("word", b"b a b\na c").symbols == ["b", "a", "<eos>", "c"]


def test_a_long_text_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr(passes, "PIECE", 3)
    assert built("char", b"bca abcab").symbols == ["b", "a", "c", " "]


def test_words_end_lines_and_keep_blank_ones():
    vocabulary = built("word", b"a b\n\nc\n")
    ids = vocabulary.encode(b"a b\n\nc\n")
    words = [vocabulary.symbols[i] for i in ids]
    assert words == ["a", "b", "<eos>", "<eos>", "c", "<eos>"]
    assert vocabulary.decode(ids) == b"a b\n\nc\n"


def test_unknown_words_exist_only_where_needed():
    assert "<unk>" not in built("word", b"a b", b"b", b"a").symbols
    vocabulary = built("word", b"a b", b"new")
    assert [vocabulary.symbols[i] for i in vocabulary.encode(b"a new")] == ["a", "<unk>", "<eos>"]


def test_rare_words_are_unknown():
    vocabulary = built("word", b"a a b\nb c", min_count=2)
    assert vocabulary.symbols == ["a", "b", "<eos>", "<unk>"]


def test_the_unknown_word_has_the_place_of_its_frequency():
    vocabulary = built("word", b"a a a a a b b\nc d e\n", min_count=2)
    assert vocabulary.symbols == ["a", "<unk>", "b", "<eos>"]


def test_the_corpus_own_unknown_is_used():
    assert built("word", b"a <unk>", b"new").symbols.count("<unk>") == 1


@pytest.mark.parametrize("unit", ["byte", "char", "word", "bpe"])
def test_the_printed_lines_rebuild_it(unit):
    text = "a\tb \u2028 é\x85 \r\n c".encode()
    vocabulary = built(unit, text)
    assert Vocabulary.from_lines(unit, vocabulary.lines()).symbols == vocabulary.symbols
    assert not any("\n" in line for line in vocabulary.lines())


def test_a_strange_symbol_is_named():
    with pytest.raises(ValueError, match=r"byte b'z' at position 2"):
        built("byte", b"ab").encode(b"abz")
    with pytest.raises(ValueError, match="word 'new' is not in the vocabulary"):
        built("word", b"a").encode(b"a new")


def test_ids_take_the_smallest_type():
    assert built("byte", bytes(range(256))).dtype == "uint8"
    assert built("char", "".join(map(chr, range(100, 400))).encode()).dtype == "uint16"


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="unit must be one of byte, char, word, bpe, not 'line'"):
        built("line", b"a")


@pytest.mark.parametrize(
    ("unit", "symbols", "labels"),
    [
        ("byte", [b"a", b" ", b"\n", b"\t", b"\x01", b"\xe2"], ["a", "␣", "↵", "⇥", r"\x01", r"\xe2"]),
        ("char", ["é", " ", "\n", "\x01", "😀"], ["é", "␣", "↵", "U+0001", "😀"]),
        ("word", ["the", "<eos>", "can\xa0not"], ["the", "<eos>", "canU+00A0not"]),
        ("bpe", ["the", "Ġof", "Ċ"], ["the", "␣of", "↵"]),
    ],
)
def test_each_token_can_be_shown_by_itself(unit, symbols, labels):
    assert Vocabulary(unit, symbols).labels(range(len(symbols))) == labels
