"""The relative encoding against a double loop over queries and keys, in float64."""

import math

import pytest
import torch

from txl.model import RelativePosition
from txl.model.positions.relative import relative_shift

N, H, D, C = 2, 3, 8, 4


def encoding(**options) -> RelativePosition:
    position = RelativePosition(N, H, D, C, **options).double()
    for parameter in position.parameters():
        torch.nn.init.normal_(parameter)
    return position


def sinusoid(distance: int) -> torch.Tensor:
    """R of the paper: sines, then cosines, of the distance over 10000^(2i/D)."""
    angles = [distance / 10000 ** (2 * i / D) for i in range(D // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def loop(position, layer, q, k, slots, clamp=None):
    """All four terms of §3.3, one entry at a time."""
    rows, length = q.shape[:2]
    u, v = (vectors[layer % len(vectors)] for vectors in (position.u, position.v))
    weight = position.distance_keys[layer].weight.view(H, C, D)
    scores = torch.full((rows, H, length, k.shape[1]), float("nan"), dtype=torch.float64)
    for b in range(rows):
        for h in range(H):
            for i in range(length):
                for j in range(slots + i + 1):
                    distance = slots + i - j
                    r = weight[h] @ sinusoid(distance if clamp is None else min(distance, clamp))
                    content = (q[b, i, h] + u[h]) @ k[b, j, h]
                    scores[b, h, i, j] = (content + (q[b, i, h] + v[h]) @ r) / math.sqrt(C)
    return scores


@pytest.mark.parametrize("slots", [0, 1, 7, 17])
@pytest.mark.parametrize("length", [1, 2, 7, 17])
@pytest.mark.parametrize("options", [{}, {"clamp_length": 5, "shared_biases": False}])
def test_scores_equal_the_double_loop(length, slots, options):
    torch.manual_seed(length * 100 + slots)
    position = encoding(**options)
    q, k = torch.randn(2, length, H, C).double(), torch.randn(2, slots + length, H, C).double()
    table = position.table(torch.zeros(2, length, D).double(), slots + length)
    for layer in range(N):
        shifted, keys = position.queries_and_keys(layer, q, k, table)
        content = torch.einsum("blhc,bkhc->bhlk", shifted, keys) / math.sqrt(C)
        fast = content + position.bias(layer, q, slots + length, table)
        slow = loop(position, layer, q, k, slots, options.get("clamp_length"))
        seen = ~slow.isnan()
        torch.testing.assert_close(fast[seen], slow[seen], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("length", "keys"), [(1, 1), (1, 8), (4, 4), (3, 10), (17, 34)])
def test_the_shift_is_exact_and_copies_nothing(length, keys):
    by_distance = torch.randn(2, 3, length, keys + 1)
    by_key = relative_shift(by_distance)
    assert by_key.untyped_storage().data_ptr() == by_distance.untyped_storage().data_ptr()
    for i in range(length):
        for j in range(keys - length + i + 1):
            distance = keys - length + i - j
            assert torch.equal(by_key[..., i, j], by_distance[..., i, keys - distance])


def test_an_odd_width_and_a_clamp_of_zero_are_refused():
    with pytest.raises(ValueError, match="d_model must be even"):
        RelativePosition(1, 1, 7, 7)
    with pytest.raises(ValueError, match="clamp_length must be positive"):
        RelativePosition(1, 1, 8, 8, clamp_length=0)
