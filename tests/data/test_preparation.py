"""Any text: packed, in pieces, in several processes; what is bad is one clear line, and nothing half-done "
"stays."""

import bz2
import contextlib
import gzip
import json
import lzma
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ROOT, TINY, kept_in, tiny_text, verb
from txl.data import report, text
from txl.data.corpora import cache as cache_module
from txl.data.corpora import passes, preparation, reading, workers
from txl.data.corpora.reading import Part, pieces

PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": partial(pyarrow.compress, codec="zstd", asbytes=True),
}


def prepared(path, cache, unit="word", **more):
    return text(str(path), unit, cache=str(cache), **more)


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_text_is_read_as_it_is_and_what_is_corrupt_is_named(tmp_path, suffix):
    content = tiny_text().encode()
    plain, packed = tmp_path / "a.txt", tmp_path / f"a.txt{suffix}"
    plain.write_bytes(content)
    whole = PACKERS[suffix](content)
    packed.write_bytes(whole)
    assert prepared(packed, tmp_path / "c").sha256 == prepared(plain, tmp_path / "c").sha256
    for damage in (whole[: len(whole) * 2 // 3], b"no archive at all"):
        packed.write_bytes(damage)
        with pytest.raises(ValueError, match=rf"a\.txt\{suffix} is corrupt or cut short: .*get it again"):
            prepared(packed, tmp_path / "c")
    assert not list((tmp_path / "c").glob(".*"))


def test_several_packed_frames_are_one_text(tmp_path):
    pack = PACKERS[".zst"]
    (tmp_path / "a.zst").write_bytes(pack(b"hello ") + pack(b"world"))
    assert reading.unpacked(tmp_path / "a.zst", lambda: tmp_path).read_bytes() == b"hello world"


def test_a_folder_a_glob_and_three_files(tmp_path):
    for name, content in {
        "b.txt": "two\n",
        "a.txt": "one\n",
        "c.md": "three\n",
        ".hidden.txt": "no\n",
    }.items():
        (tmp_path / name).write_text(content * 30)
    for path, words in {"": {"one", "two"}, "*.[tm]*": {"one", "two", "three"}}.items():
        corpus = prepared(tmp_path / path, tmp_path / "c", "char")
        whole = b"".join(corpus.vocabulary.decode(tokens) for tokens in corpus.tokens.values()).decode()
        assert list(dict.fromkeys(whole.split())) == [
            word for word in ("one", "two", "three") if word in words
        ]
    splits = os.pathsep.join(str(tmp_path / name) for name in ("b.txt", "c.md", "a.txt"))
    corpus = prepared(splits, tmp_path / "c")
    assert corpus.vocabulary.decode(corpus.tokens["valid"]) == b"<unk>\n" * 30
    (tmp_path / "latest.txt").write_text("latest is not test\n")  # a word in a word is no name of a split
    prepared(tmp_path, tmp_path / "c")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "picture.png").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"empty has no corpus: .* other files by a glob"):
        prepared(empty, tmp_path / "c")


@settings(max_examples=60, deadline=None)
@given(content=st.text("aé日 \n\r\U0001f642", min_size=1, max_size=80), size=st.integers(1, 9))
@pytest.mark.parametrize("unit", ["byte", "char", "word", "bpe"])
def test_chunks_make_up_the_text_and_break_nothing(tmp_path_factory, content, size, unit):
    file = tmp_path_factory.mktemp("chunks") / "a"
    file.write_bytes(content.encode())
    part = Part.whole(file, unit)
    found = list(pieces([part], unit, size))
    chunks = [piece.read() for piece in found]
    assert b"".join(chunks) == content.encode()
    assert [piece.size for piece in found] == [len(chunk) for chunk in chunks]
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
    if unit != "byte":
        assert "".join(chunk.decode() for chunk in chunks) == content
    if unit == "word":
        assert all(chunk.endswith((b"\n", b" ")) for chunk in chunks[:-1])


def test_the_size_of_pieces_and_the_number_of_processes_change_nothing(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    long = " ".join(f"word{i * i % 50}" for i in range(800))
    file.write_text(f"{tiny_text(3000)}{long}\n\n{tiny_text(2000)}no newline at the end")
    whole = {unit: prepared(file, tmp_path / "1", unit) for unit in ("char", "word")}
    for module in (reading, passes):
        monkeypatch.setattr(module, "PIECE", 100)
    monkeypatch.setattr(passes, "LINES_AT_ONCE", 100)
    monkeypatch.setattr(reading, "LONG", 50)
    monkeypatch.setattr(passes, "processes", lambda _: 2)
    for unit, corpus in whole.items():
        again = prepared(file, tmp_path / "2", unit)
        assert again.vocabulary.symbols == corpus.vocabulary.symbols
        assert all(np.array_equal(again.tokens[split], corpus.tokens[split]) for split in corpus.tokens)


def test_a_worker_that_dies_is_one_clear_error():
    with (
        pytest.raises(OSError, match=r"a worker process died .* for lack of memory; free some memory"),
        workers.parallel_map(os._exit, 2) as exit_all,
    ):
        list(exit_all([3] * 8))


@pytest.mark.parametrize("source", ["argument", "standard input", "file without a guard"])
def test_workers_do_not_run_the_main_program_and_end_with_it(tmp_path, source):
    script = tmp_path / "main.py"
    script.write_text(
        "import time\n"
        "from txl.data.corpora.workers import parallel_map\n"
        "print('main', flush=True)\n"
        "with parallel_map(time.sleep, 2) as sleep_all:\n"
        "    list(sleep_all([0] * 9))\n"
        "    print('slept', flush=True)\n"
        "    list(sleep_all([60] * 9))\n"
    )
    words = {"argument": ["-c", script.read_text()], "standard input": ["-"]}.get(source, [str(script)])
    with script.open() as code:
        process = subprocess.Popen(
            [sys.executable, *words],
            stdin=code,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    with process:
        assert process.stdout.readline() == b"main\n"
        assert process.stdout.readline() == b"slept\n"
        process.kill()
        process.wait()
        began = time.monotonic()
        assert process.stdout.read() == b""  # the pipe closes when the last worker has ended
    assert time.monotonic() - began < 30


SCRIPTS = (
    "汉字和表情🙂👍🏽，没有空格。\nไม่มีช่องว่าง\n日本語のテキスト\r\n\n  two  spaces\tand é\u0301 \u2028 end"
)


@pytest.mark.parametrize("unit", ["byte", "char", "bpe"])
def test_every_script_comes_back_unchanged(tmp_path, unit):
    (tmp_path / "a.txt").write_bytes((SCRIPTS * 40).encode())
    corpus = prepared(tmp_path / "a.txt", tmp_path / "c", unit, bpe_vocabulary=300)
    back = b"".join(corpus.vocabulary.decode(tokens) for tokens in corpus.tokens.values())
    assert back == (SCRIPTS * 40).encode()
    if unit == "bpe":
        counts = np.bincount(corpus.tokens["train"], minlength=len(corpus.vocabulary))
        assert (np.diff(counts) <= 0).all()  # ids go by falling frequency
        assert len(corpus.vocabulary) == 300
        assert sum(map(len, corpus.tokens.values())) < len(back)
        loaded = type(corpus.vocabulary).from_lines("bpe", corpus.vocabulary.lines())
        assert loaded.decode(loaded.encode("新 🦊 text\n".encode())).decode() == "新 🦊 text\n"


@pytest.mark.parametrize(
    ("content", "unit", "expected"),
    [
        (b"a b\r\nc\r\n", "word", "a b\nc\n"),  # CRLF: words do not see it
        (b"a b\r\nc\r\n", "byte", "a b\r\nc\r\n"),
        (b"\xef\xbb\xbfa b\n", "word", "a b\n"),  # a byte order mark is no text
        (b"\xef\xbb\xbfa b\n", "char", "a b\n"),
        (b"\xef\xbb\xbfa b\n", "byte", "\ufeffa b\n"),
        (b"a\n\n\nb\n", "word", "a\n\n\nb\n"),  # blank lines are kept
        (b"a b", "word", "a b\n"),  # the last line ends
    ],
)
def test_line_ends_marks_and_blank_lines(tmp_path, content, unit, expected):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_bytes(content)
    corpus = prepared(tmp_path, tmp_path / "c", unit)
    for tokens in corpus.tokens.values():
        assert corpus.vocabulary.decode(tokens).decode() == expected


def test_invalid_utf8_is_found_in_its_place(tmp_path):
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress("é".encode() * 5000 + b"\xe9 here" + b"more\n" * 5000))
    with pytest.raises(
        ValueError, match=r"a\.txt\.gz is not UTF-8 at byte 10,000; convert it .*data\.unit=byte"
    ):
        prepared(file, tmp_path / "c", "char")
    (tmp_path / "wide.txt").write_bytes("wide".encode("utf-16"))
    with pytest.raises(ValueError, match=r"is not UTF-8 at byte 0 \(it looks like UTF-16\)"):
        prepared(tmp_path / "wide.txt", tmp_path / "c")
    assert not kept_in(tmp_path / "c")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"newlines": "drop"}, r"data\.newlines=drop is for bytes and characters, not data\.unit=word"),
        ({"min_count": 0}, r"data\.min_count=0 must be positive"),
        ({"unit": "bpe", "bpe_vocabulary": 100}, r"data\.bpe_vocabulary=100 must be at least 256"),
    ],
)
def test_a_preparation_that_cannot_be_is_refused(tmp_path, text_file, changes, message):
    with pytest.raises(ValueError, match=message):
        prepared(text_file, tmp_path / "c", **changes)


def test_an_unchanged_file_is_known_without_reading_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "SETTLED_SECONDS", 0.01)
    file = tmp_path / "a.txt"
    file.write_text(tiny_text())
    time.sleep(0.02)
    first = prepared(file, tmp_path / "c")
    with monkeypatch.context() as patch:
        patch.setattr(passes, "hashes", lambda *_: pytest.fail("read again"))
        assert prepared(file, tmp_path / "c").folder == first.folder
    stat, changed = file.stat(), bytearray(file.read_bytes())
    changed[0] ^= 1
    file.write_bytes(changed)  # of the same length, and it seems as old as before
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert prepared(file, tmp_path / "c").folder != first.folder


def test_a_file_that_has_just_changed_is_read_again(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(tiny_text())
    prepared(file, tmp_path / "c")
    assert not list((tmp_path / "c" / "stamps").glob("*.json"))


def test_a_damaged_corpus_is_prepared_again(tmp_path, text_file, caplog):
    first = prepared(text_file, tmp_path / "c")
    ids = first.tokens["train"].copy()
    array = first.folder / "train.npy"
    array.write_bytes(array.read_bytes()[:-10])
    assert np.array_equal(prepared(text_file, tmp_path / "c").tokens["train"], ids)
    assert "is damaged" in caplog.text
    (first.folder / "report.json").unlink()
    assert np.array_equal(prepared(text_file, tmp_path / "c").tokens["train"], ids)


@pytest.mark.parametrize(
    ("unit", "content"), [("byte", "a"), ("char", "abc"), ("word", "\n"), ("bpe", "one\n")]
)
def test_a_split_of_nothing_is_refused(tmp_path, unit, content):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(ValueError, match=f"{unit}s in train, valid and test, and none of the three may be"):
        prepared(tmp_path / "a.txt", tmp_path / "c", unit)
    assert not list((tmp_path / "c").glob("*/report.json"))


@pytest.mark.parametrize("content", ["short line\n", "a carriage return\r\n"])
def test_the_line_of_the_report_is_one_line(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content.encode() * 100)
    assert report(prepared(tmp_path / "a.txt", tmp_path / "c", "char"))["line"] == content.strip()


def test_the_report_says_what_another_count_says(tmp_path):
    train = "a b a\n\nc a\n"
    for split, content in {"train": train, "valid": "a new\n", "test": "b\n"}.items():
        (tmp_path / f"{split}.txt").write_text(content)
    found = report(prepared(tmp_path, tmp_path / "c", min_count=2))
    assert found["tokens"] == {"train": 8, "valid": 3, "test": 2}
    assert found["unknown"] == {"train": 2 / 8, "valid": 1 / 3, "test": 1 / 2}
    assert found["commonest"] == [["a", 3], ["<eos>", 3], ["b", 1], ["c", 1]]
    assert found["vocabulary"] == 3
    assert found["sha256_splits"]["valid"] != found["sha256_splits"]["test"]
    assert found["bytes"] == len(train) + 8


def command(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "txl", "prepare", "data=text", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"},
        **more,
    )


def test_the_command_reports_and_names_what_is_wrong(tmp_path, text_file):
    words = [f"data.path={text_file}", f"data.cache={tmp_path / 'c'}", "data.unit=word"]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    for part in ("tiny: vocabulary 18", "commonest: '", "a line: ", "report.json", "train", "0.00%"):
        assert part in done.stdout
    assert json.loads(verb("prepare", "data=text", *words, "--json").stdout)["vocabulary"] == 18
    for wrong, message in {
        "data.unit=line": "error: unit must be one of byte, char, word, bpe, not 'line'\n",
        "data.pth=x": "data.pth",
        f"data.path={tmp_path}/none.txt": "error: data.path: there is no file",
    }.items():
        done = verb("prepare", "data=text", *words, wrong)
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") <= 2


@pytest.mark.parametrize("packed", [False, True])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, packed):
    content, cache = b"hello world " * 20_000, tmp_path / "c"
    file = tmp_path / ("a.txt.gz" if packed else "a.txt")
    file.write_bytes(gzip.compress(content) if packed else content)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = command(f"data.path={file}", f"data.cache={cache}", preexec_fn=limit)
    assert done.returncode == 1
    assert f"error: data.cache={cache} cannot be written: File too large" in done.stderr
    assert "make room or name another folder" in done.stderr
    assert kept_in(cache) == []


@pytest.mark.parametrize("seconds", [0.6, 0.8, 1.0, 1.3])
def test_a_kill_at_any_moment_leaves_nothing_that_is_taken_for_whole(tmp_path, seconds):
    file, cache = tmp_path / "a.txt", tmp_path / "c"
    file.write_text(tiny_text(1_000_000))
    words = [sys.executable, "-m", "txl", "prepare", "data=text", f"data.path={file}", f"data.cache={cache}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [*words, "data.unit=word"], env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait()
    corpus, undisturbed = prepared(file, cache), prepared(file, tmp_path / "other")
    assert all(np.array_equal(corpus.tokens[split], undisturbed.tokens[split]) for split in corpus.tokens)
    assert not list(cache.glob(".preparing*"))  # the next one has cleaned up


def test_a_cache_that_is_only_read_serves_what_it_has(tmp_path, text_file, monkeypatch):
    first = prepared(text_file, tmp_path / "c")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_module.tempfile, "mkdtemp", refuse)
    assert prepared(text_file, tmp_path / "c").folder == first.folder
    with pytest.raises(
        OSError, match=r"data\.cache=.* cannot be written: Permission denied; make room or name"
    ):
        prepared(text_file, tmp_path / "c", "char")


def test_preparation_imports_no_torch():
    code = "import sys, txl.data, txl.data.corpora.workers; assert 'torch' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )


def test_a_change_while_it_is_read_is_an_error(tmp_path, text_file, monkeypatch):
    hashes = passes.hashes

    def meanwhile(*arguments):
        text_file.write_text("another text\n" * 50)
        return hashes(*arguments)

    monkeypatch.setattr(preparation.passes, "hashes", meanwhile)
    with pytest.raises(ValueError, match=r"(became shorter|changed) while it was read"):
        prepared(text_file, tmp_path / "c")
    assert not kept_in(tmp_path / "c")


def test_a_model_is_trained_on_byte_pairs(train, text_file):
    done = train(*TINY, f"data.path={text_file}", "data.unit=bpe", "data.bpe_vocabulary=300")
    assert done.returncode == 0, done.stdout + done.stderr
    results = train.results()
    assert results["data"]["unit"] == "bpe"
    assert results["test"]["bits_per_character"] is None
    assert results["test"]["perplexity"] > 1
    assert "perplexity" in done.stdout
