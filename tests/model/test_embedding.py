"""The adaptive embedding and softmax against formulas written out for one token at a time, in float64."""

import math

import pytest
import torch

from txl.model import TiedEmbedding

V, D = 23, 8
CASES = {
    "plain": {},
    "plain, projected": {"d_embed": 6},
    "adaptive": {"cutoffs": [5, 9, 20]},
    "adaptive, projected": {"cutoffs": [5, 9], "d_embed": 6},
    "adaptive, projected, tied": {"cutoffs": [5, 9], "d_embed": 6, "tie_projections": [False, True, True]},
    "divided": {"cutoffs": [5, 9], "div_val": 2},
    "divided, tied": {"cutoffs": [5, 9], "div_val": 2, "tie_projections": [False, True, True]},
    "divided by four, projected": {"cutoffs": [10], "div_val": 4, "d_embed": 12},
}


def made(**options) -> TiedEmbedding:
    torch.manual_seed(0)
    embedding = TiedEmbedding(V, D, **options).double()
    for parameter in embedding.parameters():
        torch.nn.init.normal_(parameter)
    return embedding


def place(embedding, token: int) -> tuple[int, torch.Tensor]:
    """Which part a token is in, and its row of the weights."""
    part = next(i for i, end in enumerate(embedding.ends[1:]) if token < end)
    if len(embedding.weights) == 1:
        return part, embedding.weights[0][token]
    return part, embedding.weights[part][token - embedding.ends[part]]


def logit(embedding, hidden, part: int, row, bias) -> torch.Tensor:
    """One logit: the state, brought to the width of the part, times a row, plus a bias."""
    if embedding.projections:
        tied = embedding.projections[part if len(embedding.projections) > 1 else 0]
        hidden = hidden @ embedding.output_projections.get(str(part), tied)
    return hidden @ row + bias


def score(embedding, hidden, token: int) -> float:
    """The negative log-likelihood of one token, by the definition."""
    own, _ = place(embedding, token)
    parts = len(embedding.ends) - 1
    head = [
        logit(embedding, hidden, 0, place(embedding, t)[1], embedding.bias[t])
        for t in range(embedding.ends[1])
    ]
    for tail in range(1, parts):
        head.append(
            logit(embedding, hidden, 0, embedding.tail_weight[tail - 1], embedding.tail_bias[tail - 1])
        )
    total = math.log(sum(math.exp(x) for x in head))
    if own == 0:
        return total - head[token].item()
    words = range(embedding.ends[own], embedding.ends[own + 1])
    tail = [logit(embedding, hidden, own, place(embedding, t)[1], embedding.bias[t]) for t in words]
    within = math.log(sum(math.exp(x) for x in tail)) - tail[token - embedding.ends[own]].item()
    return total - head[embedding.ends[1] + own - 1].item() + within


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_scores_are_the_definition_in_the_order_of_the_tokens(case):
    embedding = made(**CASES[case])
    hidden, targets = torch.randn(2, V, D).double(), torch.stack([torch.randperm(V), torch.randperm(V)])
    scores = embedding.scores(hidden, targets)
    for b in range(2):
        for i in range(V):
            assert scores[b, i].item() == pytest.approx(
                score(embedding, hidden[b, i], targets[b, i]), abs=1e-10
            )


@pytest.mark.parametrize("case", CASES)
def test_probabilities_sum_to_one_and_agree_with_the_scores(case):
    embedding = made(**CASES[case])
    hidden = torch.randn(3, 2, D).double()
    logarithms = embedding.log_probabilities(hidden)
    torch.testing.assert_close(logarithms.exp().sum(-1), torch.ones(3, 2).double())
    for token in range(V):
        scores = embedding.scores(hidden, torch.full((3, 2), token))
        torch.testing.assert_close(-logarithms[..., token], scores, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_embeddings_are_rows_projected_and_scaled(case):
    embedding = made(**CASES[case])
    vectors = embedding.embed(torch.arange(V)[None])[0]
    for token in range(V):
        part, row = place(embedding, token)
        if embedding.projections:
            row = embedding.projections[part if len(embedding.projections) > 1 else 0] @ row
        torch.testing.assert_close(vectors[token], row * D**0.5, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", ["adaptive", "divided", "divided, tied"])
def test_a_tail_that_no_token_touches_still_has_a_gradient_of_zero(case):
    embedding = made(**CASES[case])
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    embedding.scores(embedding.embed(tokens), tokens).sum().backward()
    for name, parameter in embedding.named_parameters():
        assert parameter.grad is not None, name


def test_without_cutoffs_the_adaptive_softmax_is_the_plain_one():
    plain = made()
    hidden, targets = torch.randn(2, 5, D).double(), torch.randint(V, (2, 5))
    logits = hidden @ plain.weights[0].T + plain.bias
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    torch.testing.assert_close(plain.scores(hidden, targets).flatten(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("div_val", [1, 2, 4])
def test_every_precision_scores_and_learns(dtype, div_val):
    torch.manual_seed(0)
    embedding = TiedEmbedding(V, 16, cutoffs=[5, 9], div_val=div_val)
    for parameter in embedding.parameters():
        torch.nn.init.normal_(parameter)
    tokens = torch.randint(V, (2, 9))
    with torch.autocast("cpu", dtype):
        scores = embedding.scores(embedding.embed(tokens), tokens)
    scores.sum().backward()
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in embedding.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cutoffs": [5, 23]},
            r"cutoffs \[5, 23\] must rise, be positive and lie below the vocabulary of 23",
        ),
        ({"cutoffs": [9, 5]}, "must rise"),
        ({"cutoffs": [0]}, "must rise"),
        ({"cutoffs": [5, 9], "div_val": 4}, "d_embed 8 cannot be divided by div_val 4 for 3 parts"),
        ({"div_val": 0}, "cannot be divided"),
        ({"cutoffs": [5], "tie_projections": [True]}, "one value for each of the 2 parts"),
    ],
)
def test_impossible_parts_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TiedEmbedding(V, D, **options)


def test_cutoffs_beyond_the_vocabulary_are_named_with_it_and_what_to_do():
    with pytest.raises(ValueError, match=r"\[1000\] .* vocabulary of 10; use smaller ones, .*null"):
        TiedEmbedding(10, 8, cutoffs=[1000])
