"""RECL is what Appendix C defines: held against its definition written down word for word."""

import math

import numpy as np
import pytest

from txl.evaluation.recl import effective_contexts

LENGTHS = [30, 50, 70, 90, 110]


def defined(scores, lengths, share, threshold):
    """RECL of each model and its gains, by loops over the definition, one number after the other."""
    models, count, tokens = len(scores), len(scores[0]), len(scores[0][0])

    def b(c, t):
        return min(scores[i][c][t] for i in range(models))

    def hardest(c):
        return sorted(range(tokens), key=lambda t: (-b(c, t), t))[: round(share * tokens)]

    def f(i, c, longer):
        chosen = hardest(c)
        return sum(min(b(c, t), scores[i][longer][t]) for t in chosen) / len(chosen)

    def g(i, c, longer):
        return (math.exp(f(i, c, c)) - math.exp(f(i, c, longer))) / math.exp(f(i, c, c))

    found = []
    for i in range(models):
        c = 0
        while c + 1 < count and g(i, c, c + 1) >= threshold:
            c += 1
        found.append((lengths[c], c + 1 == count, [g(i, c, c + 1) for c in range(count - 1)]))
    return found


def some_scores(models=3, tokens=40, fall=0.05, seed=0):
    """Scores that fall with the context, now more and now less, and jump about."""
    random = np.random.default_rng(seed)
    falls = fall * random.exponential(size=(models, len(LENGTHS), tokens))
    return 3 - falls.cumsum(axis=1) + random.normal(scale=0.05, size=falls.shape)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_it_is_the_definition_word_for_word(share):
    scores, seen = some_scores(), set()
    for threshold in (0.01, 0.02, 0.05, 0.1, 0.2):
        found = effective_contexts(scores, LENGTHS, share, threshold)
        expected = defined(scores.tolist(), LENGTHS, share, threshold)
        for of_model, (length, beyond, gains) in zip(found, expected, strict=True):
            assert (of_model.length, of_model.beyond) == (length, beyond)
            assert of_model.gains == pytest.approx(gains, abs=1e-12)
            seen.add(length)
    assert len(seen) > 2, "nearly all are alike, and the test sees little"


def test_the_hardest_tokens_are_chosen_again_for_each_length():
    # Token 0 is hard from the shortest context, token 1 from the next; only then has token 1 more to gain.
    scores = np.array([[[5.0, 1.0], [1.0, 3.0], [1.0, 1.0]]])
    (found,) = effective_contexts(scores, [1, 2, 3], 0.5, 0.01)
    assert found.differences == pytest.approx([math.exp(5) - math.exp(1), math.exp(3) - math.exp(1)])
    assert (found.length, found.beyond) == (3, True)


def test_a_model_gains_over_the_best_of_its_group_only():
    alone = np.array([[[4.0, 4.0], [3.0, 3.0], [3.0, 3.0]]])
    better = np.full((1, 3, 2), 2.0)
    assert effective_contexts(alone, [10, 20, 30], 1.0, 0.01)[0].length == 20
    weak, strong = effective_contexts(np.concatenate([alone, better]), [10, 20, 30], 1.0, 0.01)
    assert (weak.length, weak.differences) == (10, [0, 0])
    assert (strong.length, strong.gains) == (10, [0, 0])


def test_without_any_gain_it_is_the_start():
    scores = some_scores(fall=0.0)
    scores[:] = scores[:, :1]
    assert [one.length for one in effective_contexts(scores, LENGTHS, 0.1, 0.01)] == [30, 30, 30]


@pytest.mark.parametrize(
    ("shape", "share", "message"),
    [
        ((1, 1, 20), 0.5, "needs two lengths of context; make longest at least start"),
        ((1, 3, 9), 0.1, "r=0.1 of 9 positions is less than one; use 10 or more"),
        ((1, 3, 9), 0.0, "r=0 must be above 0 and at most 1"),
        ((1, 3, 9), 1.5, "r=1.5 must be above 0 and at most 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(shape, share, message):
    with pytest.raises(ValueError, match=message):
        effective_contexts(np.ones(shape), LENGTHS[: shape[1]], share, 0.01)
    broken = np.ones((1, 2, 10))
    broken[0, 0, 3] = np.inf
    with pytest.raises(ValueError, match="some scores are not finite"):
        effective_contexts(broken, [1, 2], 1.0, 0.01)
