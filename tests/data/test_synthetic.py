"""A corpus whose answer is known: the tokens are as it says, and the entropy is what is counted."""

import math

import numpy as np
import pytest

from txl.data import lagged_copy, lagged_copy_entropy


def counted(pairs: np.ndarray, vocabulary: int) -> float:
    """The conditional entropy H(second | first) of the pairs as they were counted, in nats."""
    joint = np.zeros((vocabulary, vocabulary))
    np.add.at(joint, tuple(pairs), 1)
    joint /= joint.sum()
    given = joint / joint.sum(1, keepdims=True)
    return -(joint[joint > 0] * np.log(given[joint > 0])).sum()


@pytest.mark.parametrize(("vocabulary", "lag", "probability"), [(2, 1, 0.5), (5, 7, 0.9), (16, 3, 0.0)])
def test_the_entropy_is_what_is_counted(vocabulary, lag, probability):
    corpus = lagged_copy(vocabulary, lag, probability, 400_000, seed=0)
    tokens = np.concatenate([corpus.tokens[split] for split in ("train", "valid", "test")])
    assert tokens.max() == vocabulary - 1
    known = counted(np.stack([tokens[:-lag], tokens[lag:]]), vocabulary)
    assert known == pytest.approx(lagged_copy_entropy(vocabulary, probability), abs=4e-3)
    for other in {1, 2, lag + 1} - {lag, 2 * lag}:
        nearer = counted(np.stack([tokens[:-other], tokens[other:]]), vocabulary)
        assert nearer == pytest.approx(math.log(vocabulary), abs=4e-3)


def test_a_sure_copy_repeats_and_has_no_entropy():
    tokens = lagged_copy(9, 4, 1.0, 400, seed=3).tokens["train"]
    assert (tokens[4:] == tokens[:-4]).all()
    assert lagged_copy_entropy(9, 1.0) == 0
    assert lagged_copy_entropy(9, 0.0) == pytest.approx(math.log(9))


def test_the_same_seed_gives_the_same_corpus_and_another_does_not():
    one, again, other = (lagged_copy(9, 4, 0.5, 400, seed) for seed in (1, 1, 2))
    assert one.sha256 == again.sha256 != other.sha256
    assert {split: len(tokens) for split, tokens in one.tokens.items()} == {
        "train": 360,
        "valid": 20,
        "test": 20,
    }
    assert one.unit == "word"
    assert one.vocabulary.decode([0, 8]) == b"0 8"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vocabulary": 1}, "data.vocabulary=1 must be 2 or more"),
        ({"lag": 0}, "data.lag=0 must be 1 or more"),
        ({"probability": 1.5}, "data.probability=1.5 must be between 0 and 1"),
        ({"length": 39}, "data.length=39 must be 40 or more"),
    ],
)
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        lagged_copy(**{"vocabulary": 4, "lag": 2, "probability": 0.5, "length": 100, "seed": 0} | wrong)
