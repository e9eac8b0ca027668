"""Byte-pair encoding: learnt from the training text with the library `tokenizers`, kept as plain symbols.

A symbol is a run of bytes, each written as one printable character (the alphabet that GPT-2 introduced), so
that text in any script can be encoded and decoded byte for byte. Lines are encoded one by one, so that the
ids of a text do not depend on the pieces in which it is read.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

Learnt = tuple[list[str], list[tuple[str, str]]]  # symbols and merges, in the order in which they were learnt
LONGEST_LINE = 2**16  # characters; a longer line is encoded in parts


def learn(texts: Iterable[bytes], size: int) -> Learnt:
    """Learn an encoding of `size` symbols, the 256 bytes among them.

    Args:
        texts: the training text, UTF-8 in pieces of whole lines.

    Raises:
        ValueError: a size below 256.
    """
    if size < 256:
        raise ValueError(f"data.bpe_vocabulary={size} must be at least 256, one for each byte")
    library = _library()
    learner = library.Tokenizer(library.models.BPE())
    learner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=list(byte_characters()), show_progress=False
    )
    learner.train_from_iterator((line for text in texts for line in lines(text)), trainer)
    model = json.loads(learner.to_str())["model"]
    symbols = sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    return symbols, merges


def tokenizer(symbols: Sequence[str], merges: Sequence[tuple[str, str]]) -> Any:
    """Return the encoder of these merges and symbols, whose positions are the ids."""
    library = _library()
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    encoder = library.Tokenizer(library.models.BPE(vocabulary, list(merges)))
    encoder.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return encoder


def encode(encoder: Any, text: bytes) -> np.ndarray:
    """Return the ids of a text, int64."""
    encodings = encoder.encode_batch(list(lines(text)), add_special_tokens=False)
    return np.fromiter((index for encoding in encodings for index in encoding.ids), dtype=np.int64)


def decode(symbols: Iterable[str]) -> bytes:
    values = {character: value for value, character in enumerate(byte_characters())}
    return bytes(values[character] for symbol in symbols for character in symbol)


def byte_characters() -> list[str]:
    """Return the character that stands for each byte: itself if it is printable, else one from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(value if value in printable else next(others)) for value in range(256)]


def lines(text: bytes) -> Iterator[str]:
    """Yield lines with their ends, very long ones in parts."""
    for line in text.decode().splitlines(keepends=True):
        for begin in range(0, len(line), LONGEST_LINE):
            yield line[begin : begin + LONGEST_LINE]


def _library() -> Any:
    try:
        import tokenizers
        from tokenizers import models, pre_tokenizers, trainers  # noqa: F401  makes them its attributes
    except ImportError as error:
        raise ModuleNotFoundError(
            "data.unit=bpe needs the package tokenizers; install it with: pip install 'txl[corpora]'"
        ) from error
    return tokenizers
