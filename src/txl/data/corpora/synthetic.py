"""Made-up corpora whose entropy is known, so that what a model learns can be held against the truth."""

import hashlib
import logging
import math

import numpy as np

from txl.data.corpora.preparation import SPLITS, Corpus
from txl.data.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def lagged_copy(vocabulary: int, lag: int, probability: float, length: int, seed: int) -> Corpus:
    """Return random tokens of which each repeats the one `lag` back with a probability, else is uniform.

    A model that reaches `lag` tokens back can come down to `lagged_copy_entropy`; what reaches less far, to
    ln(vocabulary) and not below: the tokens in between are independent of the next one.

    Args:
        vocabulary: V, how many different tokens.
        length: tokens in all: the first 90 % are for training, then 5 % for validation, 5 % for the test.

    Raises:
        ValueError: a vocabulary below 2, a lag below 1, a probability not in [0, 1] or fewer than 40 tokens.
    """
    if vocabulary < 2:
        raise ValueError(f"data.vocabulary={vocabulary} must be 2 or more: one token alone tells nothing")
    if lag < 1:
        raise ValueError(f"data.lag={lag} must be 1 or more")
    if not 0 <= probability <= 1:
        raise ValueError(f"data.probability={probability} must be between 0 and 1")
    if length < 40:
        raise ValueError(f"data.length={length} must be 40 or more, so that each split has 2 tokens")
    random = np.random.default_rng(seed)
    rounds = -(-length // lag)
    drawn = random.integers(
        vocabulary, size=(rounds, lag)
    )  # column j: the tokens at j, j + lag, j + 2 lag, …
    new = random.random((rounds, lag)) >= probability
    new[0] = True
    last_new = np.maximum.accumulate(np.where(new, np.arange(rounds)[:, None], 0), axis=0)
    copied = np.take_along_axis(drawn, last_new, axis=0).reshape(-1)[:length]
    symbols = Vocabulary("word", [str(number) for number in range(vocabulary)])
    tokens = copied.astype(symbols.dtype)
    cuts = np.split(tokens, [length * 90 // 100, length * 95 // 100])
    known, unknown = lagged_copy_entropy(vocabulary, probability), math.log(vocabulary)
    log.info(
        "lagged_copy: entropy of a token %.6f nats (%.6f bits, perplexity %.4f) for whom the token %d back "
        "is known, %.6f nats (%.6f bits, perplexity %d) for whom it is not",
        known,
        known / math.log(2),
        math.exp(known),
        lag,
        unknown,
        unknown / math.log(2),
        vocabulary,
    )
    sha256 = hashlib.sha256(tokens.astype("<u4").tobytes()).hexdigest()
    return Corpus("lagged_copy", sha256, symbols, dict(zip(SPLITS, cuts, strict=True)))


def lagged_copy_entropy(vocabulary: int, probability: float) -> float:
    """Return the entropy, in nats, of a token of `lagged_copy` if the one `lag` back is known.

    That token comes again with probability p + (1 - p)/V, each of the V - 1 others with (1 - p)/V. If it is
    not known, the entropy is ln V.
    """
    other = (1 - probability) / vocabulary
    same = probability + other
    return -same * math.log(same) - ((vocabulary - 1) * other * math.log(other) if other else 0.0)
