"""Made-up archives in each published format, from a server that is slow, breaks off, lies or has moved."""

import contextlib
import hashlib
import http.server
import io
import itertools
import json
import os
import re
import tarfile
import threading
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from conftest import verb
from txl.data import large_text, lm1b, ptb, wikitext
from txl.data.corpora import fetch

WORDS = ["the", "of", "and", "wolf", "said", "é", "日本", "<unk>"]


def sentences(count: int, seed: int) -> str:
    return "".join(
        " ".join(WORDS[(i * i + j * seed) % len(WORDS)] for j in range(i % 7 + (i % 5 > 0))) + "\n"
        for i in range(count)
    )


def counted(text: str) -> tuple[int, int]:
    """Count words and ends of lines in another way than the project does."""
    seen = Counter()
    for line in io.StringIO(text, newline="\n"):
        seen.update(re.findall(r"\S+", line))
        seen[None] += 1
    return sum(seen.values()), len(seen)


def zipped(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def tarred(files: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return file.getvalue()


class Server:
    """Serves `files` by path; `faults` are what the next answers for a path do wrong."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.asked.append((self.path, self.headers.get("Range")))
                fault = (outer.faults.get(self.path) or [""]).pop(0)
                content = outer.files.get(self.path)
                if content is None or fault == "503":
                    self.send_error(503 if fault else 404)
                    return
                begin = int(re.findall(r"\d+", self.headers.get("Range", "0"))[0])
                if begin >= len(content) > 0 and begin:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
                rest = content[begin:]
                self.send_response(206 if begin else 200)
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    if fault == "broken off":
                        self.wfile.write(rest[: len(rest) // 2])
                    elif fault == "stalls":
                        self.wfile.write(rest[:10])
                        self.wfile.flush()
                        time.sleep(1.0)
                    elif fault == "slow":
                        for i in range(0, len(rest), len(rest) // 20 + 1):
                            self.wfile.write(rest[i : i + len(rest) // 20 + 1])
                            self.wfile.flush()
                            time.sleep(0.01)
                    else:
                        self.wfile.write(rest)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def serve(self, path: str, content: bytes, *faults: str) -> str:
        """Put content at a path and return its address."""
        self.files[path], self.faults[path] = content, list(faults)
        return self.address + path


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetch, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 0.4)
    served = Server()
    yield served
    served.server.shutdown()
    served.server.server_close()


TEXT = ("<page>\n" + sentences(20_000, 3)).encode()
ARCHIVE = zipped("enwik8", TEXT)
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()


def enwik8(addresses, cache, sha256=SHA256, **settings):
    return large_text("enwik8", None, addresses, sha256, cache=str(cache), **settings)


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        ((), 1),
        (("slow",), 1),
        (("broken off",), 2),
        (("broken off", "broken off"), 3),
        (("503",), 2),
        (("stalls",), 2),
    ],
)
def test_a_transfer_is_slow_or_breaks_off_and_goes_on(server, tmp_path, faults, requests):
    corpus = enwik8([server.serve("/enwik8.zip", ARCHIVE, *faults)], tmp_path)
    cuts = [0, len(TEXT) * 90 // 100, len(TEXT) * 95 // 100, len(TEXT)]
    for (split, tokens), begin, end in zip(corpus.tokens.items(), cuts, cuts[1:], strict=False):
        assert corpus.vocabulary.decode(tokens) == TEXT[begin:end], split
    assert len(corpus.vocabulary) == len(set(TEXT))
    assert len(server.asked) == requests
    if "broken off" in faults:  # it went on where it had stopped
        assert [int(asked[6:-1]) > 0 for _, asked in server.asked[1:]] == [True] * len(faults)
    assert sorted(path.name for path in (tmp_path / "downloads" / "enwik8").iterdir()) == [
        ".enwik8.zip.lock",
        "enwik8.zip",
    ]
    again = enwik8([server.address + "/gone"], tmp_path)
    assert again.sha256 == corpus.sha256 == hashlib.sha256(TEXT).hexdigest()


def test_a_moved_file_and_a_wrong_one_send_to_the_mirror(server, tmp_path):
    wrong = server.serve("/wrong/enwik8.zip", zipped("enwik8", b"another text"))
    mirror = server.serve("/mirror/enwik8.zip", ARCHIVE)
    assert len(enwik8([server.address + "/gone/enwik8.zip", wrong, mirror], tmp_path).tokens["train"])
    assert [path for path, _ in server.asked] == [
        "/gone/enwik8.zip",
        "/wrong/enwik8.zip",
        "/mirror/enwik8.zip",
    ]


def test_without_a_network_it_says_what_to_put_where_and_works_once_it_is_there(server, tmp_path):
    wrong = server.serve("/wrong/enwik8.zip", b"nonsense")
    addresses = [server.address + "/gone/enwik8.zip", wrong, "http://nowhere.invalid/enwik8.zip"]
    with pytest.raises(ConnectionError) as error:
        enwik8(addresses, tmp_path)
    place = tmp_path / "downloads" / "enwik8" / "enwik8.zip"
    message = str(error.value)
    for part in (
        "404",
        f"its sha256 is not {SHA256[:12]}",
        "no network",
        f"get {addresses[0]}",
        f"put it at {place}",
    ):
        assert part in message
    assert "\n" not in message
    place.write_bytes(b"by mistake")
    with pytest.raises(ValueError, match=r"enwik8.zip has sha256 .*expected .*remove it.*data\.sha256=null"):
        enwik8(addresses, tmp_path)
    place.write_bytes(ARCHIVE)
    assert len(enwik8(addresses, tmp_path).tokens["train"])


def test_what_is_known_of_a_corpus_is_checked(server, tmp_path):
    addresses = [server.serve("/enwik8.zip", ARCHIVE)]
    with pytest.raises(
        ValueError, match=r"enwik8 has [\d,]+ bytes where 100,000,000 were expected.*data\.content=null"
    ):
        enwik8(addresses, tmp_path, content=100_000_000)
    with pytest.raises(ValueError, match=r"different bytes where 205 were expected.*data\.vocabulary=null"):
        enwik8(addresses, tmp_path, vocabulary=205)
    dropped = enwik8(addresses, tmp_path, newlines="drop", vocabulary=len(set(TEXT)) - 1)
    assert b"\n" not in dropped.vocabulary.symbols


def test_a_corrupt_archive_is_named(server, tmp_path):
    broken = ARCHIVE[:400] + b"nonsense" + ARCHIVE[408:]
    with pytest.raises(
        ValueError, match=r"enwik8\.zip is corrupt or cut short: .*; remove it and get it again"
    ):
        enwik8([server.serve("/enwik8.zip", broken)], tmp_path, sha256=None)
    assert not list(tmp_path.glob(".preparing*"))
    copy = tmp_path / "text8.zip"
    copy.write_bytes(ARCHIVE)
    with pytest.raises(ValueError, match="has no file text8; is it the right archive"):
        large_text("text8", str(copy), [], None, cache=str(tmp_path))


def parquet(lines: list[str]) -> bytes:
    from pyarrow import parquet, table

    file = io.BytesIO()
    # As on the hub: a blank line is an empty row, any other keeps its newline.
    parquet.write_table(table({"text": [line if line.strip() else "" for line in lines]}), file)
    return file.getvalue()


def test_wikitext_comes_from_parquet(server, tmp_path):
    splits = {"train": sentences(500, 3), "validation": sentences(80, 5), "test": sentences(90, 2)}
    for split, text in splits.items():
        lines = text.splitlines(keepends=True)
        halves = [lines[: len(lines) // 2], lines[len(lines) // 2 :]] if split == "train" else [lines]
        for i, half in enumerate(halves):
            server.serve(f"/103/{split}-{i:05}-of-{len(halves):05}.parquet", parquet(half))
    known = [counted(text) for text in splits.values()]

    def prepared(address, **settings):
        return wikitext("wikitext103", "103", 2, None, [address], cache=str(tmp_path), **settings)

    corpus = prepared(server.address, vocabulary=known[0][1], tokens=[count for count, _ in known])
    text = corpus.vocabulary.decode(corpus.tokens["train"]).decode()
    assert text == splits["train"]
    with pytest.raises(
        ValueError, match=r"wikitext103 has .* tokens where 1 / 2 / 3 were expected.*data\.tokens=null"
    ):
        prepared(server.address, tokens=[1, 2, 3])
    folder = tmp_path / "downloads" / "wikitext103" / "103"
    for file in folder.glob("*.parquet"):
        file.unlink()
    with pytest.raises(
        ConnectionError, match=r"from the same folder, train-00001-of-00002\.parquet, validation-"
    ):
        prepared(server.address + "/gone")
    (folder / "train-00000-of-00002.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(ValueError, match=r"train-00000-of-00002\.parquet is corrupt"):
        prepared(server.address)


def test_ptb_comes_from_its_archive_or_your_copy(server, tmp_path):
    splits = {"train": sentences(300, 3), "valid": sentences(40, 5) + "new\n", "test": sentences(50, 2)}
    archive = tarred({f"./simple-examples/data/ptb.{split}.txt": text for split, text in splits.items()})
    known = [counted(text)[0] for text in splits.values()]
    with pytest.raises(
        ConnectionError, match=r"simple-examples\.tgz has no public address; get a copy and put it at"
    ):
        ptb(None, [], cache=str(tmp_path))
    fetched = ptb(None, [server.serve("/ptb.tgz", archive)], tokens=known, cache=str(tmp_path))
    # The authors count the words of all three splits, so the new one is known.
    assert fetched.vocabulary.id_of("new") is not None
    (tmp_path / "mine.tgz").write_bytes(archive)
    mine = ptb(str(tmp_path / "mine.tgz"), [], cache=str(tmp_path))
    assert mine.sha256 == fetched.sha256


PTB = Path(os.environ.get("TXL_REFERENCE", "nowhere")).parent / "corpora" / "ptb"


@pytest.mark.skipif(not PTB.is_dir(), reason="the Penn Treebank is licensed and not here")
def test_the_penn_treebank_has_the_counts_that_are_known(tmp_path):
    done = verb("prepare", "--json", "data=ptb", f"data.path={PTB}", f"data.cache={tmp_path}")
    report = json.loads(done.stdout)
    texts = {split: (PTB / f"ptb.{split}.txt").read_text("utf-8") for split in ("train", "valid", "test")}
    assert report["tokens"] == {split: counted(text)[0] for split, text in texts.items()}
    assert report["tokens"] == {"train": 929_589, "valid": 73_760, "test": 82_430}
    assert report["vocabulary"] == counted("".join(texts.values()))[1] == 10_000


def test_one_billion_word_has_its_shards_and_its_vocabulary(server, tmp_path):
    base = "1-billion-word-language-modeling-benchmark-r13output"
    shards = {
        f"{base}/training-monolingual.tokenized.shuffled/news.en-{i:05}-of-00100": sentences(50 + i, 3)
        for i in (2, 1)
    }
    held = {
        f"{base}/heldout-monolingual.tokenized.shuffled/news.en.heldout-{i:05}-of-00050": sentences(
            20 + i, i + 2
        )
        for i in range(3)
    }
    archive = tarred({f"{base}/README": "x", **shards, **held})
    words = server.serve("/vocab.txt", b"<S> 99\nthe 50\nof 20\n<UNK> 9\nwolf 5\n</S> 1\n")
    address = server.serve("/lm1b.tar.gz", archive, "broken off")
    sha256 = hashlib.sha256(archive).hexdigest()

    def prepared(**settings):
        return lm1b(None, [address], sha256, None, [words], cache=str(tmp_path), **settings)

    corpus = prepared(vocabulary=6)
    assert corpus.vocabulary.symbols == ["<S>", "the", "of", "<UNK>", "wolf", "</S>"]
    border = corpus.vocabulary.id_of(corpus.vocabulary.end_of_line)
    # The authors read `<S> sentence <S>`, whose inputs and targets are those of our one stream.
    text = "".join(dict(sorted(shards.items())).values())
    theirs = []
    for line in text.splitlines():
        ids = [
            0,
            *(
                max(["<S>", "the", "of", "<UNK>", "wolf"].index(w) if w in ("the", "of", "wolf") else 3, 0)
                for w in line.split()
            ),
            0,
        ]
        theirs += itertools.pairwise(ids)
    tokens = corpus.tokens["train"].tolist()
    assert list(itertools.pairwise(tokens)) == theirs
    assert border == 0
    assert tokens.count(border) == len(text.splitlines()) + 1
    assert corpus.tokens["valid"].tolist() != corpus.tokens["test"].tolist()
    same = prepared(valid_shard=0)
    assert same.tokens["valid"].tolist() == same.tokens["test"].tolist() == corpus.tokens["test"].tolist()
    unpacked = tmp_path / "unpacked"
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for member in packed:
            place = unpacked / member.name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(packed.extractfile(member).read())
    vocabulary = tmp_path / "downloads" / "lm1b" / "1b_word_vocab.txt"
    mine = lm1b(str(unpacked / base), [], None, str(vocabulary), [], cache=str(tmp_path))
    assert mine.sha256 == corpus.sha256
    assert Path(mine.folder) == Path(corpus.folder)
    with pytest.raises(
        ConnectionError, match=r"vocab\.txt .*\(and http.*lm1b.* at .*tar\.gz\).*data\.words=…"
    ):
        lm1b(None, [address], sha256, None, [server.address + "/gone"], cache=str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"data\.valid_shard=50 must be from 0 to 49"):
        prepared(valid_shard=50)
