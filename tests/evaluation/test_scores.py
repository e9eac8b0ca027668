"""Sums of scores and the metrics made of them."""

import math

import pytest
import torch

from txl.evaluation.scores import ScoreSum
from txl.records.units import bits, perplexity


def test_only_scored_targets_count():
    scores, scored = (
        torch.tensor([[1.0, 2.0], [float("nan"), 4.0]]),
        torch.tensor([[True, True], [False, True]]),
    )
    total = ScoreSum()
    total.add(scores, scored)
    assert (total.total, total.count, total.loss) == (7.0, 3, 7 / 3)


def test_the_sum_does_not_lose_small_scores():
    total = ScoreSum()
    for _ in range(3):
        total.add(torch.full((1, 2**22), 1e-3), torch.ones(1, 2**22, dtype=torch.bool))
    assert total.loss == pytest.approx(float(torch.tensor(1e-3)), rel=1e-12)


def test_metrics():
    assert bits(math.log(2)) == 1.0
    assert perplexity(math.log(20)) == pytest.approx(20)
    assert perplexity(1e4) == math.inf
    assert math.isnan(ScoreSum().loss)
