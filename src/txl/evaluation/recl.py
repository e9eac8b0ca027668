"""Relative effective context length (Appendix C): up to what length a longer context helps, within a group.

A better model gains less from a longer context, having less to gain. So the models of a group are compared
with the best of them. Let l_i(c, t) be the score of token t by model i given a context of c tokens:

    b(c, t)     = min_i l_i(c, t)                                      the best score of the group
    T           = the share r of all t with the largest b(c, t)        the hard tokens
    f_i(c, c')  = mean over T of min(b(c, t), l_i(c', t))              the loss of model i given c' tokens
    g_i(c, c')  = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)     its relative gain

f_i(c, c) is the mean of b(c, t), the same for all models. RECL is the first length of context whose next step
gains less than the threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class EffectiveContext:
    """The effective context of one model."""

    length: int
    beyond: bool  # every step gained enough: RECL may be longer than the longest context scored
    gains: list[float]  # g(c, c') of each step
    differences: list[float]  # exp f(c, c) - exp f(c, c') of each step, in perplexity (Figure 3)


def effective_contexts(
    scores_NJP: np.ndarray, lengths: Sequence[int], share: float, threshold: float
) -> list[EffectiveContext]:
    """Return the effective context of each model of a group.

    Args:
        scores_NJP: of N models at J lengths of context on P tokens, in nats.
        lengths: the J lengths of context, ascending.
        share: r, in (0, 1].
        threshold: the least relative gain that counts.

    Raises:
        ValueError: fewer than two lengths, a share of less than one token, or scores that are not finite.
    """
    models, count, tokens = scores_NJP.shape
    if count < 2:
        raise ValueError("a gain needs two lengths of context; make longest at least start + step")
    hard, scores_NJP = check_share(share, tokens), scores_NJP.astype(np.float64)
    if not np.isfinite(scores_NJP).all():
        raise ValueError("some scores are not finite: a model gives a token the probability 0, or nan")
    base, reached = np.empty(count - 1), np.empty((models, count - 1))
    for step, best_P in enumerate(scores_NJP[:, :-1].min(axis=0)):
        hardest = np.argsort(-best_P, kind="stable")[:hard]
        base[step] = np.exp(best_P[hardest].mean())
        longer_NP = np.minimum(best_P, scores_NJP[:, step + 1])
        reached[:, step] = np.exp(longer_NP[:, hardest].mean(axis=1))
    differences = base - reached
    gains = differences / base
    found = []
    for gain, difference in zip(gains, differences, strict=True):
        small = np.flatnonzero(gain < threshold).tolist()
        length = lengths[small[0] if small else -1]
        found.append(EffectiveContext(length, not small, gain.tolist(), difference.tolist()))
    return found


def check_share(share: float, tokens: int) -> int:
    """Return how many tokens a share is; raise ValueError if it is less than one or more than all."""
    if not 0 < share <= 1:
        raise ValueError(f"r={share:g} must be above 0 and at most 1")
    if share * tokens < 1:
        raise ValueError(f"r={share:g} of {tokens} positions is less than one; use {1 / share:.0f} or more")
    return round(share * tokens)
