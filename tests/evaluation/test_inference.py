"""Kept keys and values give what the model gives with its memory of hidden states, for every encoding."""

from functools import partial

import pytest
import torch

from conftest import SMALL, small_model
from txl.evaluation.inference import CachedInference
from txl.model import (
    AlibiPosition,
    LearnedPosition,
    PositionEncoding,
    RelativePosition,
    RotaryPosition,
    ShawPosition,
    SinusoidalPosition,
    T5Position,
)

V = SMALL["vocabulary"]
ENCODINGS = {
    "relative": RelativePosition,
    "relative, clamped, untied": partial(RelativePosition, clamp_length=5, shared_biases=False),
    "shaw": ShawPosition,
    "shaw of the authors' code, clamped": partial(ShawPosition, clamp_length=4, global_terms=True),
    "rotary": RotaryPosition,
    "alibi": AlibiPosition,
    "t5": partial(T5Position, buckets=6, max_distance=20),
    "none": PositionEncoding,
    "sinusoidal": SinusoidalPosition,
    "learned": LearnedPosition,
}
LENGTHS = [9, 1, 1, 4, 12, 2, 2, 2, 7, 1, 5, 5, 5]


@torch.no_grad()
def by_memory(model, tokens, lengths, slots, attention_length, fresh, remember):
    """The model's own forward, segment after segment."""
    memory, read, begin = model.empty_memory(len(tokens), slots), [], 0
    for number, length in enumerate(lengths):
        memory = memory.forget(fresh[number])
        hidden, memory = model(tokens[:, begin : begin + length], memory, attention_length, remember)
        read.append(hidden)
        begin += length if remember is None else min(length, remember)
    return torch.cat(read, dim=1)


def by_reader(model, tokens, lengths, slots, attention_length, fresh, remember):
    reader, read, begin = (
        CachedInference(model, model.empty_memory(len(tokens), slots), attention_length),
        [],
        0,
    )
    for number, length in enumerate(lengths):
        read.append(reader.read(tokens[:, begin : begin + length], fresh[number], remember))
        begin += length if remember is None else min(length, remember)
    return torch.cat(read, dim=1)


def both(model, lengths, slots, attention_length=None, remember=None, rows=3, fresh=True):
    torch.manual_seed(1)
    tokens = torch.randint(V, (rows, sum(lengths)))
    new = torch.zeros(len(lengths), rows, dtype=torch.bool)
    if fresh:
        new[3, 1] = new[4, 0] = new[-2, 2] = True
    arguments = (tokens, lengths, slots, attention_length, new, remember)
    return by_memory(model, *arguments), by_reader(model, *arguments)


@pytest.mark.parametrize(
    ("slots", "attention_length", "fresh", "lengths", "remember"),
    [
        (0, None, True, LENGTHS, None),
        (3, 1, True, LENGTHS, None),
        (17, None, True, LENGTHS, None),
        (17, 4, False, LENGTHS, None),
        (17, 18, True, LENGTHS, None),
        (17, None, False, [1] * 24, None),
        (6, 9, True, [6] * 6, 2),  # segments that overlap
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_reader_gives_what_the_model_gives(encoding, slots, attention_length, fresh, lengths, remember):
    model = small_model(position=ENCODINGS[encoding], pre_norm=slots == 3)
    model_gives, reader_gives = both(model, lengths, slots, attention_length, remember, fresh=fresh)
    assert (model_gives - reader_gives).abs().max() < 1e-10


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_in_float32_and_in_bfloat16_it_agrees_within_their_rounding(encoding):
    model = small_model(dtype=torch.float32, position=ENCODINGS[encoding], n_layer=4, cutoffs=[5])
    model_gives, reader_gives = both(model, [6] * 12, 13)
    assert (model_gives - reader_gives).abs().max() < 1e-5
    with torch.autocast("cpu", torch.bfloat16):
        rounded, reader_rounded = both(model, [6] * 12, 13)
    error = (rounded - model_gives).abs().mean()
    assert error > 1e-3
    assert (reader_rounded - model_gives).abs().mean() < 1.5 * error


def test_it_reads_on_from_a_memory_of_hidden_states():
    for encoding in (RelativePosition, RotaryPosition):
        model, tokens = small_model(position=encoding), torch.randint(V, (2, 40))
        with torch.no_grad():
            _, memory = model(tokens[:, :11], model.empty_memory(2, 8))
            memory = memory.forget(torch.tensor([False, True]))
            expected, _ = model(tokens[:, 11:], memory, 7)
        read = CachedInference(model, memory, 7).read(tokens[:, 11:])
        torch.testing.assert_close(read, expected, rtol=0, atol=1e-12)


def test_what_does_not_change_is_computed_once(monkeypatch):
    """A segment projects its own tokens, and the distances have been projected before."""
    model, projected = small_model(), []
    for layer in model.layers:
        layer.attention.key_value.register_forward_hook(lambda m, x, y: projected.append(x[0].shape[1]))
    for keys in model.position.distance_keys:
        keys.register_forward_hook(lambda m, x, y: projected.append(-len(x[0])))
    reader = CachedInference(model, model.empty_memory(1, 50))
    reader.read(torch.zeros(1, 5, dtype=torch.int64))
    assert sorted(projected) == [-56, -56, 0, 0, 5, 5]
    projected.clear()
    for _ in range(40):
        reader.read(torch.zeros(1, 5, dtype=torch.int64))
    assert set(projected) == {5}
    assert len(projected) == 80


def test_memory_that_is_full_is_rarely_moved():
    model = small_model()
    reader, moves = CachedInference(model, model.empty_memory(1, 40)), 0
    for _ in range(200):
        before = reader.end
        reader.read(torch.zeros(1, 1, dtype=torch.int64))
        moves += reader.end <= before
    assert 0 < moves < 30


def test_another_number_of_rows_is_refused():
    model = small_model()
    with pytest.raises(ValueError, match="the memory holds 2 rows, the segment has 3"):
        CachedInference(model, model.empty_memory(2, 4)).read(torch.zeros(3, 2, dtype=torch.int64))
