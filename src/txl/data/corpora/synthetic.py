"""Synthetic corpora of known entropy, to compare with what a model learns."""

import hashlib
import logging
import math

import numpy as np

from txl.data.corpora.preparation import SPLITS, Corpus
from txl.data.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def lagged_copy(vocabulary: int, lag: int, probability: float, length: int, seed: int) -> Corpus:
    """Return random tokens: each repeats the one `lag` back with a probability, else is uniform.

    A model whose context holds the token `lag` back can reach `lagged_copy_entropy`. Any other can reach only
    ln(vocabulary), because the tokens in between are independent of the next one.

    Args:
        vocabulary: V, the number of different tokens.
        length: of the whole text: 90 % for training, then 5 % for validation and 5 % for the test.

    Raises:
        ValueError: a vocabulary below 2, a lag below 1, a probability not in [0, 1] or fewer than 40 tokens.
    """
    for key, value, valid, expected in (
        ("vocabulary", vocabulary, vocabulary >= 2, "2 or more: the entropy of one token is 0"),
        ("lag", lag, lag >= 1, "1 or more"),
        ("probability", probability, 0 <= probability <= 1, "between 0 and 1"),
        ("length", length, length >= 40, "40 or more, so that each split has 2 tokens"),
    ):
        if not valid:
            raise ValueError(f"data.{key}={value} must be {expected}")
    random = np.random.default_rng(seed)
    rounds = -(-length // lag)
    # Column j holds the tokens at j, j + lag, j + 2 lag, …
    drawn = random.integers(vocabulary, size=(rounds, lag))
    new = random.random((rounds, lag)) >= probability
    new[0] = True
    last_new = np.maximum.accumulate(np.where(new, np.arange(rounds)[:, None], 0), axis=0)
    copied = np.take_along_axis(drawn, last_new, axis=0).reshape(-1)[:length]
    symbols = Vocabulary("word", [str(number) for number in range(vocabulary)])
    tokens = copied.astype(symbols.dtype)
    cuts = np.split(tokens, [length * 90 // 100, length * 95 // 100])
    known, unknown, bits = lagged_copy_entropy(vocabulary, probability), math.log(vocabulary), math.log(2)
    log.info(
        f"lagged_copy: entropy of a token {known:.6f} nats ({known / bits:.6f} bits, perplexity "
        f"{math.exp(known):.4f}) given the token {lag} back, {unknown:.6f} nats ({unknown / bits:.6f} bits, "
        f"perplexity {vocabulary}) without it"
    )
    sha256 = hashlib.sha256(tokens.astype("<u4").tobytes()).hexdigest()
    return Corpus("lagged_copy", sha256, symbols, dict(zip(SPLITS, cuts, strict=True)))


def lagged_copy_entropy(vocabulary: int, probability: float) -> float:
    """Return the entropy, in nats, of a token of `lagged_copy` given the one `lag` back; without it, ln V.

    That token repeats with probability p + (1 - p)/V, each of the V - 1 others has (1 - p)/V.
    """
    other = (1 - probability) / vocabulary
    same = probability + other
    return -same * math.log(same) - ((vocabulary - 1) * other * math.log(other) if other else 0.0)
