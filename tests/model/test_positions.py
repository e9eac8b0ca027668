"""Every encoding against a double loop over queries and keys, one entry at a time, in float64."""

import cmath
import itertools
import math
import random

import pytest
import torch

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
from txl.model.attention import masked_keys
from txl.model.dropout import Dropout
from txl.model.positions.alibi import slopes
from txl.model.positions.base import relative_shift
from txl.model.transformer import ATTENTION_BACKENDS

N, H, D, C = 2, 3, 8, 4
SCALE = 1 / math.sqrt(C)


def made(kind, key_length=9, **options) -> PositionEncoding:
    position = kind(N, H, D, C, key_length=key_length, **options).double()
    for parameter in position.parameters():
        torch.nn.init.normal_(parameter)
    return position


def sinusoid(place: int, width: int = D) -> torch.Tensor:
    """Sines, then cosines, of the place over 10000^(2i/width)."""
    angles = [place / 10000 ** (2 * i / width) for i in range(width // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def relative(position, layer, h, q, k, distance):
    """All four terms of §3.3."""
    u, v = (vectors[layer % len(vectors)][h] for vectors in (position.u, position.v))
    weight = position.distance_keys[layer].weight.view(H, C, D)[h]
    r = weight @ sinusoid(min(distance, position.clamp_length or distance))
    return (q @ k + q @ r + u @ k + v @ r) * SCALE


def shaw(position, layer, h, q, k, distance):
    """Terms (a) and (b), and (c) and (d) where they are kept."""
    row = min(distance, position.farthest)
    score = q @ k + q @ position.vectors[layer, row, h]
    if position.global_terms:
        score = score + position.u[layer, h] @ k + position.distance_bias[layer, row, h]
    return score * SCALE


def rotary(position, layer, h, q, k, distance):
    """Pairs of coordinates as complex numbers: the score is the real part of q · conj(k), turned."""
    score = 0.0
    for i in range(C // 2):
        a, b = (complex(x[i], x[i + C // 2]) for x in (q, k))
        score += (a * b.conjugate() * cmath.exp(1j * distance / 10000 ** (2 * i / C))).real
    return torch.tensor(score * SCALE, dtype=torch.float64)


def alibi(position, layer, h, q, k, distance):
    return q @ k * SCALE - slopes(H)[h] * distance


def t5(position, layer, h, q, k, distance):
    exact = position.buckets // 2
    bucket = distance
    if distance >= exact:
        reach = math.log(distance / exact) / math.log(position.max_distance / exact)
        bucket = min(exact + int(reach * (position.buckets - exact)), position.buckets - 1)
    return q @ k * SCALE + position.numbers[bucket, h]


def plain(position, layer, h, q, k, distance):
    return q @ k * SCALE


CASES = {
    "relative": (RelativePosition, {}, relative),
    "relative clamped, untied": (RelativePosition, {"clamp_length": 5, "shared_biases": False}, relative),
    "shaw": (ShawPosition, {}, shaw),
    "shaw clamped": (ShawPosition, {"clamp_length": 4}, shaw),
    "shaw of the authors' code": (ShawPosition, {"global_terms": True}, shaw),
    "rotary": (RotaryPosition, {}, rotary),
    "alibi": (AlibiPosition, {}, alibi),
    "t5": (T5Position, {"buckets": 6, "max_distance": 20}, t5),
    "none": (PositionEncoding, {}, plain),
    "sinusoidal": (SinusoidalPosition, {}, plain),
    "learned": (LearnedPosition, {}, plain),
}


@pytest.mark.parametrize("slots", [0, 1, 2, 7, 16, 17])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 16, 17])
@pytest.mark.parametrize("case", CASES)
def test_scores_equal_the_double_loop(case, length, slots):
    kind, options, formula = CASES[case]
    torch.manual_seed(length * 100 + slots)
    position = made(kind, **options)
    q, k = torch.randn(2, length, H, C).double(), torch.randn(2, slots + length, H, C).double()
    table = position.table(torch.zeros(2, length, D).double(), slots + length)
    for layer in range(N if length * slots < 50 else 1):
        queries, keys = position.queries_and_keys(layer, q * SCALE, k, table)
        fast = torch.einsum("blhc,bkhc->bhlk", queries, keys)
        added = position.distance_scores(layer, q * SCALE, position.layer_table(layer, table))
        bias = added.by_key(length, slots + length)
        fast = fast if bias is None else fast + bias
        for b in range(1 if length * slots > 50 else 2):
            for h in range(H):
                for i in range(length):
                    for j in range(slots + i + 1):
                        slow = formula(position, layer, h, q[b, i, h], k[b, j, h], slots + i - j)
                        assert abs(fast[b, h, i, j] - slow) < 1e-10


@pytest.mark.parametrize("case", CASES)
def test_at_every_length_from_0_to_17_entries_equal_the_formula(case):
    """Every query length with every memory length; of each, entries drawn at random and the two corners."""
    kind, options, formula = CASES[case]
    torch.manual_seed(0)
    position, chance = made(kind, **options), random.Random(0)
    for length, slots in itertools.product(range(1, 18), range(18)):
        q, k = torch.randn(1, length, H, C).double(), torch.randn(1, slots + length, H, C).double()
        table = position.table(torch.zeros(1, length, D).double(), slots + length)
        queries, keys = position.queries_and_keys(1, q * SCALE, k, table)
        fast = torch.einsum("blhc,bkhc->bhlk", queries, keys)
        added = position.distance_scores(1, q * SCALE, position.layer_table(1, table))
        bias = added.by_key(length, slots + length)
        fast = fast if bias is None else fast + bias
        drawn = [chance.randrange(length) for _ in range(6)]
        places = [(i, chance.randrange(slots + i + 1)) for i in drawn]
        for i, j in [*places, (0, 0), (length - 1, 0), (length - 1, slots + length - 1)]:
            h = chance.randrange(H)
            slow = formula(position, 1, h, q[0, i, h], k[0, j, h], slots + i - j)
            assert abs(fast.expand(1, H, -1, -1)[0, h, i, j] - slow) < 1e-10


@pytest.mark.parametrize("case", ["relative clamped, untied", "shaw clamped", "shaw of the authors' code"])
def test_distances_beyond_the_farthest_need_no_rows_of_the_table(case):
    kind, options, _ = CASES[case]
    position, q = made(kind, **options), torch.randn(2, 3, H, C).double()
    whole = position.layer_table(1, position.table(q, 20))
    cut = whole[-position.farthest - 1 :]
    assert len(cut) < len(whole)
    visible = torch.ones(3, 20, dtype=torch.bool).tril(17)
    biases = [
        position.distance_scores(1, q, table).by_key(q.shape[1], 20)[..., visible] for table in (whole, cut)
    ]
    torch.testing.assert_close(*biases, rtol=0, atol=1e-12)


def test_places_far_into_a_text_turn_queries_and_keys_as_near_ones_do():
    position, q, k = made(RotaryPosition).float(), torch.randn(1, 5, H, C), torch.randn(1, 5, H, C)
    scores = []
    for first in (0, 10_000_000):
        queries, keys = position.queries_and_keys(0, q, k, position.table(q, 5, first))
        scores.append(torch.einsum("blhc,bkhc->bhlk", queries, keys))
    torch.testing.assert_close(*scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [1, 5])
def test_absolute_encodings_count_from_the_start_of_every_segment(length):
    x = torch.randn(2, length, D).double()
    expected = torch.stack([sinusoid(place) for place in range(length)])
    torch.testing.assert_close(made(SinusoidalPosition).to_input(x) - x, expected.expand(2, -1, -1))
    backwards = made(SinusoidalPosition, from_end=True).to_input(x) - x
    torch.testing.assert_close(backwards, expected.flip(0).expand(2, -1, -1))
    learned = made(LearnedPosition, key_length=5)
    assert torch.equal(learned.to_layer(1, x), x + learned.vectors[1, :length])


def test_a_segment_beyond_the_learned_positions_is_refused():
    with pytest.raises(ValueError, match="a segment of 6 tokens is longer than the 5 learned positions"):
        made(LearnedPosition, key_length=5).to_layer(0, torch.zeros(1, 6, D))


@pytest.mark.parametrize(("length", "keys"), [(1, 1), (1, 8), (4, 4), (3, 10), (17, 34)])
def test_the_shift_is_exact_and_copies_nothing(length, keys):
    by_distance = torch.randn(2, 3, length, keys + 1)
    by_key = relative_shift(by_distance)
    assert by_key.untyped_storage().data_ptr() == by_distance.untyped_storage().data_ptr()
    for i in range(length):
        for j in range(keys - length + i + 1):
            distance = keys - length + i - j
            assert torch.equal(by_key[..., i, j], by_distance[..., i, keys - distance])


# T5's own settings, 32 buckets up to 128, of text read forwards: distances 0 to 15 have a bucket each,
# and bucket 16 + n begins where 16 · 8^(n/16) has been reached, which by hand is at
T5_BEGIN = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def test_buckets_are_those_of_t5():
    bucket = T5Position(1, 1, 8, 8).bucket(torch.arange(300)).tolist()
    assert bucket == [sum(begin <= distance for begin in T5_BEGIN) - 1 for distance in range(300)]


def test_slopes_are_those_of_the_paper():
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    assert slopes(1) == [2.0**-8]
    assert slopes(2) == [2.0**-4, 2.0**-8]
    assert slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]
    assert slopes(12) == [2.0**-i for i in range(1, 9)] + [2.0 ** -(i + 0.5) for i in range(4)]


@pytest.mark.parametrize("backend", ATTENTION_BACKENDS)
@pytest.mark.parametrize("kind", [AlibiPosition, T5Position])
def test_biases_and_their_gradient_are_those_of_a_loop_over_the_keys_there_are(kind, backend):
    """A memory that is full, that is filled in part, and that is empty: distances count from the query."""
    torch.manual_seed(0)
    length, slots, real = 4, 30, [30, 9, 0]
    position = made(kind)
    q, k, v = (torch.randn(len(real), n, H, C).double() for n in (length, slots + length, slots + length))
    table = position.table(q.flatten(-2), slots + length)
    added = position.distance_scores(1, q * SCALE, position.layer_table(1, table))
    attend = ATTENTION_BACKENDS[backend](masked_keys(length, torch.tensor(real), slots, None), q)
    found = attend(q * SCALE, k, v, added, Dropout(0.0))
    expected = torch.zeros_like(found)
    for b, h, i in itertools.product(range(len(real)), range(H), range(length)):
        weights = []
        for distance in range(real[b] + i + 1):
            if kind is AlibiPosition:
                bias = torch.tensor(-distance * [1 / 16, 1 / 256, 1 / 4][h])
            else:
                bias = position.numbers[sum(begin <= distance for begin in T5_BEGIN) - 1, h]
            weights.append((q[b, i, h] @ k[b, slots + i - distance, h] * SCALE + bias).exp())
        taken = sum(weight * v[b, slots + i - d, h] for d, weight in enumerate(weights))
        expected[b, i, h] = taken / sum(weights)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    if kind is T5Position:
        direction = torch.randn_like(found)
        gradients = [
            torch.autograd.grad((one * direction).sum(), position.numbers) for one in (found, expected)
        ]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "shape", "options", "message"),
    [
        (RelativePosition, (1, 1, 7, 7), {}, "d_model must be even"),
        (RelativePosition, (1, 1, 8, 8), {"clamp_length": 0}, "clamp_length must be positive"),
        (ShawPosition, (1, 1, 8, 8), {"clamp_length": -1}, "clamp_length must be positive"),
        (RotaryPosition, (1, 1, 7, 7), {}, "d_head must be even"),
        (T5Position, (1, 1, 8, 8), {"buckets": 1}, "t5 needs 2 buckets or more"),
    ],
)
def test_impossible_settings_are_refused(kind, shape, options, message):
    with pytest.raises(ValueError, match=message):
        kind(*shape, **options)
