"""The ruler: general compressors on the same bytes."""

import os

from txl.data import enwiki_sample
from txl.evaluation.compressors import compressed_bits


def test_random_bytes_need_eight_bits_and_zeros_almost_none():
    for value in compressed_bits(os.urandom(20_000), 20_000).values():
        assert 8.0 < value < 8.2
    for value in compressed_bits(bytes(20_000), 20_000).values():
        assert value < 0.1


def test_the_known_sizes_of_the_sample(tmp_path):
    corpus = enwiki_sample(cache=str(tmp_path))
    text = corpus.vocabulary.decode(corpus.tokens["test"])
    found = {name: round(value, 2) for name, value in compressed_bits(text, len(text)).items()}
    assert found == {"gzip -9": 2.84, "bzip2 -9": 2.37, "xz -9e": 2.48}
