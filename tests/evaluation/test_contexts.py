"""Scores from exactly c tokens: held against reading each context by itself, and against a known text."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch

from conftest import small_model
from txl.data import lagged_copy, lagged_copy_entropy
from txl.evaluation.contexts import (
    STRETCH,
    SeparateContexts,
    TransformerScorer,
    choose_positions,
    context_lengths,
    load_scores,
    reads_ahead,
    save_scores,
    score,
)
from txl.evaluation.recl import effective_contexts
from txl.model import (
    AlibiPosition,
    LearnedPosition,
    PositionEncoding,
    RelativePosition,
    RotaryPosition,
    ShawPosition,
    SinusoidalPosition,
    T5Position,
    TransformerXL,
)

LENGTHS = [5, 8, 11, 14]
ENCODINGS = [RelativePosition, partial(RelativePosition, clamp_length=4), ShawPosition, RotaryPosition,
             AlibiPosition, T5Position, SinusoidalPosition, LearnedPosition, PositionEncoding,
             partial(SinusoidalPosition, from_end=True)]  # fmt: skip
TEXT = np.random.default_rng(1).integers(13, size=200).astype(np.uint8)


def scored(reader, text, positions, lengths, batch_size=8):
    scores = np.full((len(lengths), len(positions)), np.nan, dtype=np.float64)
    for _done in score(reader, text, positions, lengths, batch_size, scores):
        pass
    return scores


@torch.no_grad()
def plainly(model, text, position, length, attention_length=None):
    """The score of one token from one context: one segment of exactly these tokens, one target at its end."""
    context = torch.from_numpy(text[position - length : position].astype(np.int64))[None]
    hidden, _ = model(context, model.empty_memory(1, 0), attention_length)
    return -model.embedding.log_probabilities(hidden)[0, -1, text[position]].item()


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: str(encoding)[-45:])
def test_windows_give_what_each_context_gives_by_itself(encoding):
    model = small_model(position=encoding)
    reader = TransformerScorer(model)
    window = torch.from_numpy(TEXT[None, :15].astype(np.int64))
    from_the_end = getattr(model.position, "from_end", False)
    assert reads_ahead(reader, window, LENGTHS) == from_the_end
    positions = choose_positions(len(TEXT), 14, 3, 12, seed=0)
    found = scored(SeparateContexts(reader) if from_the_end else reader, TEXT, positions, LENGTHS)
    expected = [[plainly(model, TEXT, position, length) for position in positions] for length in LENGTHS]
    assert np.abs(found - expected).max() < 1e-10
    assert np.abs(found[1:] - found[:-1]).max() > 1e-2, "the model makes nothing of a longer context"


def test_any_positions_lengths_and_batches_will_do():
    model = small_model()
    positions, lengths = np.array([12, 13, 40, 41, 43, 199]), [2, 7, 12]
    expected = [[plainly(model, TEXT, position, length, 4) for position in positions] for length in lengths]
    for batch_size in (1, 3, 100):
        found = scored(TransformerScorer(model, attention_length=4), TEXT, positions, lengths, batch_size)
        assert np.abs(found - expected).max() < 1e-10


def test_segments_with_a_memory_that_drops_nothing_are_one_segment():
    model, positions = small_model(), choose_positions(len(TEXT), 14, 3, 20, seed=0)
    whole = scored(TransformerScorer(model), TEXT, positions, LENGTHS)
    parts = scored(TransformerScorer(model, None, 4, 16), TEXT, positions, LENGTHS)
    assert np.abs(whole - parts).max() < 1e-10


@torch.no_grad()
def test_places_in_a_segment_are_those_of_its_training_and_its_memory_counts():
    model, position = small_model(position=LearnedPosition), 50
    found = scored(TransformerScorer(model, None, 4, 16), TEXT, np.array([position]), [11])
    memory = model.empty_memory(1, 16)
    for begin, end in ((39, 43), (43, 47), (47, 50)):
        hidden, memory = model(torch.from_numpy(TEXT[None, begin:end].astype(np.int64)), memory)
    expected = -model.embedding.log_probabilities(hidden)[0, -1, TEXT[position]].item()
    assert found.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("encoding", ENCODINGS[:-1], ids=lambda encoding: str(encoding)[-45:])
def test_the_cth_token_back_counts_and_an_older_one_does_not_by_a_bit(encoding):
    reader, position = TransformerScorer(small_model(position=encoding, dtype=torch.float32)), 60
    before = scored(reader, TEXT, np.array([position]), LENGTHS)
    for place, length in enumerate(LENGTHS):
        changed = TEXT.copy()
        changed[: position - length] = (changed[: position - length] + 1) % 13
        after = scored(reader, changed, np.array([position]), LENGTHS)
        assert (after[: place + 1] == before[: place + 1]).all()
        changed = TEXT.copy()
        changed[position - length] = (changed[position - length] + 1) % 13
        after = scored(reader, changed, np.array([position]), LENGTHS)
        assert (after[:place] == before[:place]).all()
        assert (after[place:] != before[place:]).all()


def test_positions_are_as_many_as_asked_for_none_twice_each_with_its_context():
    for count in (1, 5, STRETCH, 300, 986):
        positions = choose_positions(1000, 14, 3, count, seed=4)
        assert len(positions) == count == len(set(positions.tolist()))
        assert positions.min() >= 14
        assert positions.max() < 1000
    assert choose_positions(1000, 14, 3, 986, seed=0).tolist() == list(range(14, 1000))
    few = [choose_positions(10_000, 100, 10, 64, seed).tolist() for seed in (0, 0, 1)]
    assert few[0] == few[1] != few[2]


def test_windows_are_shared_within_a_stretch():
    read = []

    class Counting(TransformerScorer):
        def scores(self, window, lengths):
            read.append(window[:, 1:].numel())
            return super().scores(window, lengths)

    positions = choose_positions(len(TEXT), 14, 3, 60, seed=0)
    scored(Counting(small_model()), TEXT, positions, LENGTHS)
    assert sum(read) < 60 * 14 * 1.15 < 60 * sum(LENGTHS)


def test_what_is_scored_is_not_scored_again(tmp_path):
    positions, reader = choose_positions(len(TEXT), 14, 3, 60, seed=0), TransformerScorer(small_model())
    whole, part = scored(reader, TEXT, positions, LENGTHS), np.full((4, 60), np.nan, dtype=np.float32)
    work = score(reader, TEXT, positions, LENGTHS, 8, part)
    (_, total), (done, _) = itertools.islice(work, 2)
    path = tmp_path / "scores" / "one.npz"
    save_scores(path, "this", part, positions, LENGTHS)
    assert np.isnan(load_scores(path, "that", part.shape)).all()
    again = load_scores(path, "this", part.shape)
    assert 0 < np.isnan(again).mean() < 1
    rest = list(score(reader, TEXT, positions, LENGTHS, 8, again))
    assert rest[0] == (0, total - done)
    assert rest[-1] == (total - done, total - done)
    assert again == pytest.approx(whole, abs=1e-5)
    path.write_bytes(b"PK\3\4 torn")
    with pytest.raises(ValueError, match=r"one\.npz is damaged .*; remove it to score again"):
        load_scores(path, "this", part.shape)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda: context_lengths(0, 1, 5), "start=0 must be positive"),
        (lambda: context_lengths(5, 5, 9), "longest=9 must be at least start \\+ step = 10"),
        (
            lambda: choose_positions(100, 100, 5, 1, 0),
            "has 100 tokens, no more than the longest context, 100",
        ),
        (lambda: choose_positions(0, 100, 5, 1, 0), "has 0 tokens, no more than the longest context"),
        (
            lambda: choose_positions(110, 100, 5, 11, 0),
            "positions=11 must be from 1 to 10, the tokens of the",
        ),
    ],
)
def test_what_a_text_does_not_have_is_said(choose, message):
    with pytest.raises(ValueError, match=message):
        choose()
    assert context_lengths(3, 2, 8) == [3, 5, 7]


LAG, SYMBOLS, SEGMENT = 10, 8, 16


@pytest.fixture(scope="module")
def copies():
    """A text that repeats itself `LAG` tokens later, and a recurrent model that has learnt it."""
    corpus = lagged_copy(SYMBOLS, LAG, 0.9, 200_000, seed=1)
    torch.manual_seed(0)
    position = partial(RelativePosition, key_length=2 * SEGMENT)
    model = TransformerXL(SYMBOLS, position, 2, 32, 2, 16, 64, pre_norm=True, init_std=0.06)
    text = torch.from_numpy(corpus.tokens["train"].astype(np.int64)).view(24, -1)
    optimizer, memory, steps = torch.optim.Adam(model.parameters()), model.empty_memory(24, SEGMENT), 450
    for step in range(steps):
        read = text[:, step * SEGMENT : (step + 1) * SEGMENT + 1]
        hidden, memory = model(read[:, :-1], memory)
        loss = model.embedding.scores(hidden, read[:, 1:]).mean()
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (step + 1) / 30) * (1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return corpus.tokens["test"], model.eval()


def effective(model, text, start, step, longest, share, threshold=0.01, count=1500):
    lengths = context_lengths(start, step, longest)
    positions = choose_positions(len(text), longest, step, count, seed=0)
    scores = scored(TransformerScorer(model), text, positions, lengths, 64)
    return lengths, scores, effective_contexts(scores[None], lengths, share, threshold)[0]


def test_the_loss_falls_to_the_known_entropy_once_the_context_holds_the_token_and_not_before(copies):
    text, model = copies
    lengths, scores, _ = effective(model, text, 6, 1, 16, 1.0)
    losses = dict(zip(lengths, scores.mean(axis=1), strict=True))
    known = lagged_copy_entropy(SYMBOLS, 0.9)
    for length, loss in losses.items():
        if length < LAG:
            assert loss > math.log(SYMBOLS) - 0.05
        else:
            assert loss == pytest.approx(known, abs=0.1)


# Of the hardest tokens, here those that no context tells, the minimum takes every score that a longer context
# moves down by chance: some percent, where knowing the token gains 90 and more.
@pytest.mark.parametrize(("share", "threshold"), [(1.0, 0.01), (0.5, 0.1), (0.1, 0.1)])
@pytest.mark.parametrize(("start", "step"), [(9, 1), (8, 2), (7, 4), (4, 7), (1, 12)])
def test_the_effective_context_of_a_trained_model_is_the_lag_to_within_a_step(
    copies, start, step, share, threshold
):
    text, model = copies
    _, _, found = effective(model, text, start, step, start + 3 * step, share, threshold)
    assert LAG <= found.length < LAG + step
    assert not found.beyond
    assert found.gains[0] > 0.9


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_effective_context_of_an_untrained_model_is_the_start(copies, share):
    torch.manual_seed(3)
    position = partial(RelativePosition, key_length=2 * SEGMENT)
    model = TransformerXL(SYMBOLS, position, 2, 32, 2, 16, 64, pre_norm=True).eval()
    for start, step in ((4, 7), (9, 1)):
        _, _, found = effective(model, copies[0], start, step, start + 2 * step, share)
        assert found.length == start
