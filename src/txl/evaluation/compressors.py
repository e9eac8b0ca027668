"""What general compressors need for the same text: the ruler beside a model's bits per byte."""

from __future__ import annotations

import bz2
import gzip
import lzma

COMPRESSORS = {
    "gzip -9": lambda text: gzip.compress(text, 9),
    "bzip2 -9": lambda text: bz2.compress(text, 9),
    "xz -9e": lambda text: lzma.compress(text, preset=9 | lzma.PRESET_EXTREME),
}


def compressed_bits(text: bytes, symbols: int) -> dict[str, float]:
    """Return how many bits each compressor needs for one symbol of a text.

    Args:
        text: the bytes to compress, alone and as one file.
        symbols: how many symbols they are: bytes or characters.
    """
    return {name: 8 * len(compress(text)) / symbols for name, compress in COMPRESSORS.items()}
