"""Text to ids and back, the order of the ids, and what is unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl.data import Vocabulary


def splits(train: bytes, valid: bytes = b"", test: bytes = b"") -> dict[str, bytes]:
    return {"train": train, "valid": valid, "test": test}


@given(st.binary(min_size=1), st.binary())
def test_bytes_come_back(train, test):
    vocabulary = Vocabulary.build("byte", splits(train, test=test))
    assert vocabulary.decode(vocabulary.encode(train)) == train
    assert vocabulary.decode(vocabulary.encode(test)) == test


@given(st.text(min_size=1), st.text())
def test_characters_come_back(train, valid):
    train, valid = train.encode(errors="replace"), valid.encode(errors="replace")
    vocabulary = Vocabulary.build("char", splits(train, valid))
    assert vocabulary.decode(vocabulary.encode(train)) == train
    assert vocabulary.decode(vocabulary.encode(valid)) == valid


@pytest.mark.parametrize("text", ["汉字和表情 🙂👍🏽\n", "日本語のテキスト", "ไม่มีช่องว่าง"])
@pytest.mark.parametrize("unit", ["byte", "char"])
def test_every_script_comes_back(text, unit):
    vocabulary = Vocabulary.build(unit, splits(text.encode()))
    assert vocabulary.decode(vocabulary.encode(text.encode())).decode() == text


def test_ids_fall_in_frequency_and_ties_go_to_the_first():
    assert Vocabulary.build("byte", splits(b"cab", b"aab")).symbols == [b"a", b"b", b"c"]
    assert Vocabulary.build("char", splits(b"zyzyx")).symbols == ["z", "y", "x"]
    assert Vocabulary.build("word", splits(b"b a b\na c")).symbols == ["b", "a", "<eos>", "c"]


def test_a_long_text_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr(
        "txl.data.vocabulary._pieces", lambda codes: (codes[i : i + 3] for i in range(0, len(codes), 3))
    )
    text = b"bca abcab"
    vocabulary = Vocabulary.build("char", splits(text))
    assert vocabulary.symbols == ["b", "a", "c", " "]
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_words_end_lines_and_keep_blank_ones():
    vocabulary = Vocabulary.build("word", splits(b"a b\n\nc\n"))
    ids = vocabulary.encode(b"a b\n\nc\n")
    words = [vocabulary.symbols[i] for i in ids]
    assert words == ["a", "b", "<eos>", "<eos>", "c", "<eos>"]
    assert vocabulary.decode(ids) == b"a b\n\nc\n"


def test_unknown_words_exist_only_where_needed():
    assert "<unk>" not in Vocabulary.build("word", splits(b"a b", b"b", b"a")).symbols
    vocabulary = Vocabulary.build("word", splits(b"a b", b"new"))
    assert [vocabulary.symbols[i] for i in vocabulary.encode(b"a new")] == ["a", "<unk>", "<eos>"]


def test_rare_words_are_unknown():
    vocabulary = Vocabulary.build("word", splits(b"a a b\nb c"), min_count=2)
    assert vocabulary.symbols == ["a", "b", "<eos>", "<unk>"]


def test_the_corpus_own_unknown_is_used():
    assert Vocabulary.build("word", splits(b"a <unk>", b"new")).symbols.count("<unk>") == 1


@pytest.mark.parametrize("unit", ["byte", "char", "word"])
def test_the_printed_lines_rebuild_it(unit):
    text = "a\tb \u2028 é\x85 \r\n c".encode()
    vocabulary = Vocabulary.build(unit, splits(text))
    assert Vocabulary.from_lines(unit, vocabulary.lines()).symbols == vocabulary.symbols
    assert not any("\n" in line for line in vocabulary.lines())


def test_a_strange_symbol_is_named():
    with pytest.raises(ValueError, match=r"byte b'z' at position 2"):
        Vocabulary.build("byte", splits(b"ab")).encode(b"abz")
    with pytest.raises(ValueError, match="word 'new' is not in the vocabulary"):
        Vocabulary.build("word", splits(b"a")).encode(b"a new")


def test_ids_take_the_smallest_type():
    assert Vocabulary.build("byte", splits(bytes(range(256)))).dtype == "uint8"
    assert Vocabulary.build("char", splits("".join(map(chr, range(300))).encode())).dtype == "uint16"


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="unit must be one of byte, char, word, not 'line'"):
        Vocabulary.build("line", splits(b"a"))
