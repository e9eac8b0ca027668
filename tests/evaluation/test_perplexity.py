"""Every token after the first is scored once, and the batch size changes nothing but the speed."""

import math

import numpy as np
import pytest
import torch

from conftest import SMALL, small_model
from txl.evaluation.perplexity import Reading, WarmedStreams, half_interval, score_text
from txl.model import RelativePosition, SinusoidalPosition

V = SMALL["vocabulary"]
TOKENS = np.random.default_rng(0).integers(0, V, 203)


def reading(
    batch_size=1, length=7, memory=9, attention=None, stride=None, reset=None, warm_up=None, border=None
):
    return Reading(batch_size, length, memory, attention, stride or length, reset, warm_up, border)


def scored(model, way, tokens=TOKENS):
    scores = np.full(len(tokens) - 1, np.nan)
    score_text(model, tokens, way, scores)
    return scores


@pytest.mark.parametrize("border", [None, [3]])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 40])
@pytest.mark.parametrize(("length", "stride"), [(7, 7), (7, 3), (1, 1), (202, 202), (300, 300), (8, 1)])
def test_every_token_after_the_first_is_scored_once(batch_size, length, stride, border):
    way = reading(batch_size, length, 5, stride=stride, border=border)
    streams, counts = WarmedStreams(TOKENS, way, 2), np.zeros(len(TOKENS), int)
    for number in range(len(streams)):
        batch, places = streams.read(number)
        targets = places[:, 1:][batch.scored.numpy()]
        assert (batch.targets.numpy()[batch.scored.numpy()] == TOKENS[targets]).all()
        np.add.at(counts, targets, 1)
    assert counts[0] == 0
    assert (counts[1:] == 1).all()


@pytest.mark.parametrize("position", [RelativePosition, SinusoidalPosition])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention": 5},
        {"memory": 30},
        {"reset": 3},
        {"memory": 0, "stride": 2},
        {"stride": 2},
        {"border": [3], "length": 4},
        {"border": [3], "length": 2, "reset": 2},
    ],
)
def test_the_batch_size_does_not_change_the_number(options, position):
    """The warm-up covers all that a score depends on: equal to the rounding of float64."""
    model = small_model(position=position)
    alone = scored(model, reading(1, **options))
    assert not np.isnan(alone).any()
    for batch_size in (3, 8):
        assert np.abs(scored(model, reading(batch_size, **options)) - alone).max() < 1e-11
    if not options:
        short = scored(model, reading(8, warm_up=7))  # one segment: close, and not the same
        cold = scored(model, reading(8, warm_up=0))
        assert 1e-9 < abs(short.mean() - alone.mean()) < abs(cold.mean() - alone.mean())


def test_no_document_sees_another():
    model, border = small_model(), 3
    edges = [0, *(place for place in np.flatnonzero(border == TOKENS) if 0 < place < len(TOKENS) - 1)]
    pieces = [TOKENS[a : b + 1] for a, b in zip(edges, [*edges[1:], len(TOKENS) - 1], strict=True)]
    assert len(pieces) > 5
    alone = np.concatenate([scored(model, reading(1, 4), piece) for piece in pieces])
    for batch_size in (1, 3):
        found = scored(model, reading(batch_size, 4, border=[border]))
        assert np.abs(found - alone).max() < 1e-11
    assert np.abs(scored(model, reading(1, 4)) - alone).max() > 1e-3


def test_a_sliding_window_of_stride_one_sees_just_so_many_tokens():
    model, tokens = small_model(), torch.from_numpy(TOKENS)
    scores = scored(model, reading(4, 6, 0, stride=1))
    with torch.no_grad():
        for place in (3, 6, 50, 202):
            seen = tokens[max(0, place - 6) : place][None]
            hidden, _ = model(seen, model.empty_memory(1, 0))
            expected = -model.embedding.log_probabilities(hidden[0, -1])[tokens[place]]
            assert abs(scores[place - 1] - expected) < 1e-12


def test_a_memory_that_is_reset_holds_nothing_of_before():
    model, tokens = small_model(), torch.from_numpy(TOKENS)
    scores = scored(model, reading(3, reset=2))
    with torch.no_grad():
        memory = model.empty_memory(1, 9)
        for begin in (28, 35):
            piece = tokens[None, begin : begin + 8]
            hidden, memory = model(piece[:, :-1], memory)
            expected = model.embedding.scores(hidden, piece[:, 1:])[0].numpy()
            assert np.abs(scores[begin : begin + 7] - expected).max() < 1e-12


def test_of_segments_that_overlap_the_memory_takes_what_is_not_read_again():
    model, tokens = small_model(), torch.from_numpy(TOKENS)
    scores = scored(model, reading(3, stride=3))
    with torch.no_grad():
        memory = model.empty_memory(1, 9)
        for begin in range(0, 190, 3):
            piece = tokens[None, begin : begin + 8]
            hidden, memory = model(piece[:, :-1], memory, remember=3)
            expected = model.embedding.scores(hidden, piece[:, 1:])[0].numpy()
            first = 4 if begin else 0
            assert np.abs(scores[begin : begin + 7] - expected)[first:].max() < 1e-11


def test_the_interval_respects_that_neighbours_are_alike():
    random = np.random.default_rng(0)
    covered = {"independent": 0, "alike": 0, "alike, taken for independent": 0}
    for _ in range(200):
        noise = random.normal(size=6000)
        alike = np.zeros(6000)
        for i in range(1, 6000):
            alike[i] = 0.9 * alike[i - 1] + noise[i]
        covered["independent"] += abs(noise.mean()) < half_interval(noise)
        covered["alike"] += abs(alike.mean()) < half_interval(alike)
        naive = 1.96 * alike.std() / math.sqrt(len(alike))
        covered["alike, taken for independent"] += abs(alike.mean()) < naive
    assert covered["independent"] >= 180
    assert covered["alike"] >= 175
    assert covered["alike, taken for independent"] < 110
    assert math.isnan(half_interval(np.zeros(300)))
