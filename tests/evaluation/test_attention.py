"""Maps of attention against the model read token by token, with plain loops over queries and keys."""

import math
import weakref

import numpy as np
import pytest
import torch

from conftest import SMALL, small_model
from txl.evaluation import attention as maps
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

N, H, C, D = SMALL["n_layer"], SMALL["n_head"], SMALL["d_head"], SMALL["d_model"]
M = 5
TEXT = np.random.default_rng(0).integers(SMALL["vocabulary"], size=41).astype(np.uint8)


class ShawWithAll(ShawPosition):
    """With the terms (c) and (d), which begin at 0."""

    def __init__(self, *words, **options):
        super().__init__(*words, **options, global_terms=True)

    def reset_parameters(self, std):
        super().reset_parameters(std)
        torch.nn.init.normal_(self.distance_bias)


def layers_by_hand(model: torch.nn.Module) -> list[list[torch.Tensor]]:
    """The attention `[H, M + 1]` by distance of each layer and each token with M tokens before it.

    With the relative encoding, post-norm and no memory at all: each layer computed for the whole text, one
    query and one key at a time. Also the softmax over the same span of each of the four terms.
    """
    position, total = model.position, len(TEXT)
    x_TD = model.embedding.embed(torch.from_numpy(TEXT.astype(np.int64)))
    found = []
    for index, layer in enumerate(model.layers):
        attention, seen = layer.attention, []
        q_THC = attention.query(x_TD).view(total, H, C)
        k_THC, v_THC = attention.key_value(x_TD).view(total, 2, H, C).unbind(1)
        mixed = torch.zeros(total, H, C, dtype=torch.float64)
        for i in range(total):
            span = min(M, i) + 1
            terms = torch.zeros(4, H, span, dtype=torch.float64)
            for h in range(H):
                weight = position.distance_keys[index].weight.view(H, C, D)[h]
                u, v = position.u[0, h], position.v[0, h]
                for distance in range(span):
                    q, k = q_THC[i, h], k_THC[i - distance, h]
                    angles = [distance / 10000 ** (2 * j / D) for j in range(D // 2)]
                    r = weight @ torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]).double()
                    terms[:, h, distance] = torch.stack([q @ k, q @ r, u @ k, v @ r]) / math.sqrt(C)
            probabilities = terms.sum(0).softmax(-1)
            for h in range(H):
                mixed[i, h] = sum(probabilities[h, d] * v_THC[i - d, h] for d in range(span))
            if i >= M:
                seen.append(torch.stack([probabilities, *terms.softmax(-1)]))
        found.append(seen)
        x_TD = layer.attention_norm(x_TD + attention.output(mixed.flatten(1)))
        x_TD = layer.feed_forward_norm(x_TD + layer.feed_forward(x_TD))
    return found


@pytest.fixture(scope="module")
def relative():
    """A model and its attention by hand, `[N, tokens, 5, H, M + 1]`."""
    model = small_model()
    with torch.inference_mode():
        return model, torch.stack([torch.stack(layer) for layer in layers_by_hand(model)])


def read(model, **changes) -> maps.AttentionMeans:
    options = {"memory_length": M, "segment_length": 4, "batch_size": 3} | changes
    *_, means = maps.mean_attention(model, TEXT, **options)
    return means


@pytest.mark.parametrize(
    ("segment_length", "batch_size"), [(1, 1), (4, 3), (7, 5), (64, 1), (3, 36), (4, 1000)]
)
def test_means_are_those_of_a_plain_loop_however_the_text_is_read(relative, segment_length, batch_size):
    model, by_hand = relative
    means = read(model, segment_length=segment_length, batch_size=batch_size)
    assert means.tokens == len(TEXT) - M
    assert means.progress == 1.0
    assert means.terms == ("a", "b", "c", "d")
    for place, name in enumerate(("attention", "a", "b", "c", "d")):
        expected = by_hand[:, :, place].mean(1).flatten(0, 1).numpy()
        np.testing.assert_allclose(means.mean(name), expected, atol=1e-12)
        np.testing.assert_allclose(means.mean(name).sum(-1), 1.0, atol=1e-12)
    entropy = -(by_hand[:, :, 0] * by_hand[:, :, 0].log()).sum(-1).mean(1)
    np.testing.assert_allclose(means.mean("entropy"), entropy.flatten().numpy(), atol=1e-12)


def test_the_sums_after_each_segment_are_those_of_the_tokens_so_far(relative):
    model, by_hand = relative
    for means in maps.mean_attention(model, TEXT, M, 4, batch_size=1):
        if means.tokens:
            expected = by_hand[:, : means.tokens, 0].mean(1).flatten(0, 1).numpy()
            np.testing.assert_allclose(means.mean("attention"), expected, atol=1e-12)
    assert means.tokens == len(TEXT) - M


@pytest.mark.parametrize("position", [M, 17, len(TEXT) - 6])
def test_a_segment_shows_each_token_by_its_place(relative, position):
    model, by_hand = relative
    heads = [5, 0, 3]
    attention = maps.attention_at(model, TEXT, position, M, 6, heads)
    assert attention.shape == (3, 6, M + 6)
    expected = np.zeros_like(attention)
    for row, head in enumerate(heads):
        for i in range(6):
            for distance in range(M + 1):
                token = position + i - M
                expected[row, i, M + i - distance] = by_hand[head // H, token, 0, head % H, distance]
    np.testing.assert_allclose(attention, expected, atol=1e-6)


ENCODINGS = {
    RelativePosition: ("a", "b", "c", "d"),
    ShawPosition: ("a", "b"),
    ShawWithAll: ("a", "b", "c", "d"),
    AlibiPosition: ("a", "d"),
    T5Position: ("a", "d"),
    RotaryPosition: ("a",),
    PositionEncoding: ("a",),
    SinusoidalPosition: ("a",),
    LearnedPosition: ("a",),
}


@pytest.mark.parametrize(("encoding", "names"), ENCODINGS.items())
@pytest.mark.parametrize("pre_norm", [False, True])
def test_terms_add_up_to_the_scores_that_give_the_output_of_the_layer(encoding, names, pre_norm):
    model = small_model(position=encoding, pre_norm=pre_norm)
    tokens = torch.from_numpy(TEXT[:14].astype(np.int64)).view(2, 7)
    memory = model.empty_memory(2, M)
    outputs, seen, entered = {}, {}, {}

    def keep(layer, inputs, output):
        outputs[layer], entered[layer] = output, inputs

    def look(layer, probabilities, terms):
        seen[layer] = probabilities, terms()

    for index, layer in enumerate(model.layers):
        layer.attention.register_forward_hook(lambda _, *of_layer, i=index: keep(i, *of_layer))
    with torch.inference_mode():
        for piece in tokens.split(4, dim=1):
            with maps.attention_hooks(model, look):
                _, memory = model(piece, memory, attention_length=M + 1)
        assert list(seen) == [0, 1]
        for index, (probabilities, terms) in seen.items():
            attention, (x, remembered, plain, *_) = model.layers[index].attention, entered[index]
            scores = sum(terms.values()).masked_fill(plain.masked_BLK[:, None], float("-inf"))
            torch.testing.assert_close(scores.softmax(-1), probabilities, atol=1e-12, rtol=0)
            values = attention.project(x, remembered)[2]
            mixed = torch.einsum("bhlk,bkhc->blhc", probabilities, values)
            torch.testing.assert_close(attention.output(mixed.flatten(2)), outputs[index], atol=1e-12, rtol=0)
    assert read(model).terms == names


def test_nothing_watches_afterwards_even_if_reading_fails():
    model = small_model()

    def fails(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), maps.attention_hooks(model, fails):
        model(torch.zeros(1, 3, dtype=torch.int64), model.empty_memory(1, M))
    model(torch.zeros(1, 3, dtype=torch.int64), model.empty_memory(1, M))


def test_only_one_layer_of_one_segment_is_held():
    model, alive = small_model(), []

    def look(layer, probabilities, terms):
        assert all(reference() is None for reference in alive)
        alive.append(weakref.ref(probabilities))

    with torch.inference_mode(), maps.attention_hooks(model, look):
        model(torch.zeros(2, 4, dtype=torch.int64), model.empty_memory(2, M))
    assert len(alive) == N


def test_without_terms_there_are_none():
    means = read(small_model(), terms=False)
    assert set(means.sums) == {"attention", "entropy"}
    assert means.terms == ()


@pytest.mark.parametrize(
    ("entropy", "expected"),
    [
        ([1.0, 3.0, 2.0, 0.5, 2.5], {1: "most uniform", 2: "between", 3: "most sparse"}),
        ([1.0, 1.0], {0: "most uniform", 1: "most sparse"}),
        ([1.0], {0: "most uniform"}),
    ],
)
def test_heads_are_chosen_by_entropy(entropy, expected):
    assert maps.representative_heads(np.array(entropy)) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_length": 0}, "memory_length=0: the maps show the attention over the memory"),
        ({"memory_length": 41}, "the text has 41 tokens: none has the 41 before it"),
        ({"segment_length": 0}, "segment_length=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_what_cannot_be_read_is_said(changes, message):
    with pytest.raises(ValueError, match=message):
        read(small_model(), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": 4}, r"position=4: a segment of 6 tokens with 5 before it can begin at 5 to 35"),
        ({"position": 36}, r"position=36: .* at 5 to 35 of this text"),
        ({"heads": [6]}, r"heads=\[6\]: the model has the heads 0 to 5, 3 in each of 2 layers"),
        ({"heads": []}, r"heads=\[\]: the model has"),
        ({"segment_length": 37}, "the text has 41 tokens, too few for a memory of 5 and a segment of 37"),
    ],
)
def test_what_cannot_be_shown_is_said(changes, message):
    options = {"position": 10, "memory_length": M, "segment_length": 6, "heads": [0]} | changes
    with pytest.raises(ValueError, match=message):
        maps.attention_at(small_model(), TEXT, **options)
