"""The times of `txl speed` are of the right work: what each side scores, against the whole text read once."""

import itertools

import pytest
import torch

from conftest import small_model
from txl.evaluation import speed
from txl.evaluation.inference import CachedInference
from txl.model import LearnedPosition, RotaryPosition


def work(**changes):
    usual = {"attention_length": 9, "segment_length": 4, "batch_size": 3, "segments": None}
    return speed.SpeedCase(**(usual | {"windows": 2, "passes": 3, "rounds": 2} | changes))


def text_of(recurrent: speed.Scorer) -> torch.Tensor:
    """The whole text `[B, T]` of which a scorer reads segments."""
    segments = recurrent.text
    return segments.as_strided((segments.shape[1], segments.stride(1)), (segments.stride(1), 1), 0)


@pytest.mark.parametrize("segment", [1, 4, 12])
@torch.inference_mode()
def test_the_recurrent_side_scores_as_one_reading_of_the_whole_text(segment, monkeypatch):
    monkeypatch.setattr(speed, "CHUNK", 3)
    model, asked = small_model(), work(segment_length=segment)
    _, side = next(speed.scorers(model, model, asked))
    text_BT = text_of(side)
    scores_BT = torch.cat([side.step()[1] for _ in range(5)], dim=1)
    states_BTD, _ = model(
        text_BT[:, :-1], model.empty_memory(3, 0), 9
    )  # each token sees nine, itself included
    expected = -model.embedding.log_probabilities(states_BTD).gather(-1, text_BT[:, 1:, None])[..., 0]
    assert torch.allclose(scores_BT, expected[:, 8 : 8 + 5 * segment], atol=1e-10)


@torch.inference_mode()
def test_the_vanilla_side_reads_a_window_for_each_token_and_both_score_the_same_text():
    asked = work()
    vanilla = speed.vanilla_copy(small_model(), 9)
    (_, recurrent), (_, side) = speed.scorers(small_model(), vanilla, asked)
    text_BT = text_of(recurrent)
    scores = torch.cat([side.step()[1] for _ in range(3)])[:, 0]
    for place, score in enumerate(scores, start=9):
        window = text_BT[:1, place - 9 : place]
        states, _ = vanilla(window, vanilla.empty_memory(1, 0))
        assert score.item() == pytest.approx(
            -vanilla.embedding.log_probabilities(states)[0, -1, text_BT[0, place]].item(), abs=1e-10
        )
    assert recurrent.text.storage_offset() + 1 == 9  # its first target is the vanilla side's
    assert text_BT[:, :9].unique(dim=0).shape[0] == 1 < text_BT[:, 9:].unique(dim=0).shape[0]


def test_the_vanilla_model_is_the_same_shape_with_learned_positions():
    for model in (small_model(dtype=torch.float32), small_model(position=RotaryPosition)):
        vanilla = speed.vanilla_copy(model, 50)
        assert isinstance(vanilla.position, LearnedPosition)
        assert vanilla.position.vectors.shape == (2, 50, 12)
        assert vanilla.position.vectors.std() > 0.1
        assert {parameter.dtype for parameter in vanilla.parameters()} == {model.embedding.bias.dtype}
        assert not isinstance(model.position, LearnedPosition)
        kept = dict(vanilla.named_parameters())
        for name, parameter in model.named_parameters():
            assert name.startswith("position.") or torch.equal(parameter, kept[name])


@pytest.mark.parametrize(("attention", "segment"), [(9, 4), (33, 3), (41, 10), (80, 1), (100, 7)])
@torch.inference_mode()
def test_each_turn_moves_the_keys_once(attention, segment):
    asked = work(attention_length=attention, segment_length=segment)
    _, side = next(speed.scorers(small_model(), small_model(), asked))
    moved = []
    for _ in range(asked.all_rounds):
        ends = [side.reader.end]
        for _ in range(asked.segments_per_round):
            side.step()
            ends.append(side.reader.end)
        moved.append(sum(later <= sooner for sooner, later in itertools.pairwise(ends)))
    assert set(moved[1:]) == {1}


def test_what_is_measured(monkeypatch):
    # After a turn that does not count two rounds: 6 and 12 s with recurrence, 60 and 120 without.
    clock = iter([0, 1000, 1000, 2000, 0, 6, 100, 160, 200, 212, 300, 420])
    monkeypatch.setattr(speed.time, "perf_counter", lambda: next(clock))
    model, turns = small_model(), []
    found = speed.measure(model, speed.vanilla_copy(model, 9), work(segments=5), lambda: turns.append(1))
    assert len(turns) == 2 * 3
    assert found["attention_length"] == 9
    recurrent, vanilla = found["recurrent"], found["vanilla"]
    assert (recurrent["tokens_of_a_turn"], recurrent["tokens_measured"]) == (60, 120)
    assert (vanilla["tokens_of_a_turn"], vanilla["tokens_measured"]) == (6, 12)
    assert recurrent["milliseconds_per_token"]["all"] == [100, 200]
    assert vanilla["milliseconds_per_token"] == {
        "median": 15_000, "least": 10_000, "most": 20_000, "all": [10_000, 20_000]
    }  # fmt: skip
    assert found["slowdown"]["all"] == [100, 100]


@pytest.mark.parametrize("attention", [2, 9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_both_sides_are_checked_against_plain_forward_passes(attention, dtype):
    model, asked = small_model(dtype=dtype), work(attention_length=attention)
    found = speed.check(model, speed.vanilla_copy(model, 9), asked)
    assert set(found) == {"recurrent", "vanilla"}
    for side in found.values():
        assert max(side["states"], side["scores"]) < (1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("init_std", [0.3, 0.02])
@pytest.mark.parametrize("name", ["recurrent", "vanilla"])
def test_a_side_that_sees_a_key_less_is_refused_even_where_parameters_are_small(name, init_std, monkeypatch):
    class ShortSighted(CachedInference):
        def __init__(self, model, memory, attention_length=None):
            wrong = (memory.slots > 0) == (name == "recurrent")
            super().__init__(model, memory, 39 if wrong else attention_length)

    monkeypatch.setattr(speed, "CachedInference", ShortSighted)
    model = small_model(dtype=torch.float32)
    model.reset_parameters(init_std, init_std)
    with pytest.raises(ValueError, match=f"at attention length 40 the {name} side does not score as a plain"):
        speed.check(model, speed.vanilla_copy(model, 40), work(attention_length=40))


def test_in_bfloat16_it_measures_too():
    model = small_model(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = speed.measure(model, speed.vanilla_copy(model, 9), work())
    assert found["slowdown"]["least"] > 0
