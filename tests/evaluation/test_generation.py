"""Drawing tokens: the memory stands for the text before, and the settings do what they say."""

import itertools

import pytest
import torch

from conftest import SMALL, small_model
from txl.evaluation.generation import generate
from txl.model import LearnedPosition, SinusoidalPosition

V = SMALL["vocabulary"]


def draw(model, prompt, memory, count, **settings):
    return torch.stack(list(itertools.islice(generate(model, prompt, memory, 7, **settings), count)), dim=1)


@pytest.mark.parametrize("cut", [1, 7, 29])
def test_a_prompt_goes_on_from_the_memory_of_its_beginning(cut):
    model = small_model()
    text = torch.randint(V, (2, 30))
    whole = draw(model, text, model.empty_memory(2, 8), 60, temperature=0.0)
    memory = model.empty_memory(2, 8)
    for t in range(cut):
        _, memory = model(text[:, t : t + 1], memory, attention_length=9)
    assert torch.equal(draw(model, text[:, cut:], memory, 60, temperature=0.0), whole)


def test_greedy_drawing_equals_reading_everything_again():
    """With memory for all of the text, each token is the likeliest after the whole text so far."""
    model = small_model()
    text = torch.randint(V, (1, 5))
    drawn = draw(model, text, model.empty_memory(1, 64), 40, temperature=0.0)
    for token in drawn[0]:
        hidden, _ = model(text, model.empty_memory(1, 0))
        assert model.embedding.log_probabilities(hidden[:, -1]).argmax() == token
        text = torch.cat([text, token.view(1, 1)], dim=1)


@pytest.mark.parametrize("position", [SinusoidalPosition, LearnedPosition])
def test_absolute_encodings_read_the_last_segment_again(position):
    model = small_model(position=position)
    text = torch.randint(V, (1, 12))
    for token in draw(model, text, model.empty_memory(1, 8), 12, temperature=0.0)[0]:
        hidden, _ = model(text[:, -7:], model.empty_memory(1, 0))
        assert model.embedding.log_probabilities(hidden[:, -1]).argmax() == token
        text = torch.cat([text, token.view(1, 1)], dim=1)


def test_top_k_draws_only_the_likeliest_and_a_seed_repeats():
    model = small_model()
    prompt = torch.randint(V, (1, 4))
    hidden, _ = model(prompt, model.empty_memory(1, 8), attention_length=9)
    likeliest = set(model.embedding.log_probabilities(hidden[0, -1]).topk(3).indices.tolist())

    def first(seed, **settings):
        generator = torch.Generator().manual_seed(seed)
        return draw(model, prompt, model.empty_memory(1, 8), 1, generator=generator, **settings).item()

    assert {first(seed, top_k=3, temperature=5.0) for seed in range(60)} == likeliest
    assert not {first(seed, temperature=5.0) for seed in range(60)} <= likeliest
    assert first(3) == first(3)


def test_rows_are_drawn_apart():
    model = small_model()
    prompts = torch.randint(V, (3, 6))
    together = draw(model, prompts, model.empty_memory(3, 8), 20, temperature=0.0)
    alone = [draw(model, row[None], model.empty_memory(1, 8), 20, temperature=0.0) for row in prompts]
    assert torch.equal(together, torch.cat(alone))
