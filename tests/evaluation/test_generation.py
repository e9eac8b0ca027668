"""Drawing tokens: the memory stands for the text before, and the settings do what they say."""

import itertools

import pytest
import torch

from conftest import SMALL, small_model
from txl.evaluation.generation import draw as drawn_from
from txl.evaluation.generation import generate, left_pad
from txl.model import LearnedPosition, RelativePosition, RotaryPosition, SinusoidalPosition

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


@pytest.mark.parametrize("cut", [50, 43, 20])
@pytest.mark.parametrize("position", [RelativePosition, RotaryPosition])
def test_a_prompt_after_a_memory_equals_both_as_one_prompt(position, cut):
    """For prompts of one token, of more than a segment and of more than the memory, 200 tokens long."""
    model = small_model(position=position)
    text = torch.randint(V, (1, 51))
    reader_memory = model.empty_memory(1, 16)
    with torch.no_grad():
        for piece in text[:, :cut].split(1, dim=1):
            _, reader_memory = model(piece, reader_memory, attention_length=17)
    after = draw(model, text[:, cut:], reader_memory, 200, temperature=0.0)
    assert torch.equal(after, draw(model, text, model.empty_memory(1, 16), 200, temperature=0.0))


@pytest.mark.parametrize("position", [RelativePosition, RotaryPosition, SinusoidalPosition, LearnedPosition])
def test_prompts_of_different_lengths_go_on_as_each_alone(position):
    model = small_model(position=position)
    prompts = [torch.randint(V, (length,)) for length in (1, 9, 30, 4)]
    rows, starts = left_pad(prompts)
    assert starts == [29, 21, 0, 26]
    together = draw(model, rows, model.empty_memory(4, 12), 40, temperature=0.0, starts=starts)
    for row, prompt in zip(together, prompts, strict=True):
        alone = draw(model, prompt[None], model.empty_memory(1, 12), 40, temperature=0.0)
        assert torch.equal(row[None], alone)


def test_top_p_draws_the_fewest_tokens_that_reach_it():
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    generator = torch.Generator().manual_seed(0)

    def possible(**settings):
        tokens = [
            drawn_from(probabilities.log(), 1.0, generator=generator, **settings).item() for _ in range(200)
        ]
        return set(tokens)

    assert possible(top_p=0.39) == {1}
    assert possible(top_p=0.65) == {1, 3}
    assert possible(top_p=0.75) == {1, 2, 3}
    assert possible(top_p=1.0) == {0, 1, 2, 3}
    assert possible(top_k=2, top_p=0.9) == {1, 3}
