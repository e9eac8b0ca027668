"""The bits that general compressors need for a text, to compare a model with."""

import bz2
import gzip
import lzma
from collections.abc import Callable

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": lambda text: gzip.compress(text, 9),
    "bzip2 -9": lambda text: bz2.compress(text, 9),
    "xz -9e": lambda text: lzma.compress(text, preset=9 | lzma.PRESET_EXTREME),
}


def compressed_bits(text: bytes, symbols: int) -> dict[str, float]:
    """Return the bits per symbol of each compressor, for a text of so many symbols (bytes or characters)."""
    return {name: 8 * len(compress(text)) / symbols for name, compress in COMPRESSORS.items()}
