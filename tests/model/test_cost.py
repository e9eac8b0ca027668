"""Counted costs against torch's own counters, and without allocating anything."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conftest import small_model
from txl.model import AlibiPosition, RelativePosition, ShawPosition
from txl.model.cost import (
    activation_bytes,
    flops_per_token,
    memory_bytes,
    parameter_counts,
    softmax_bytes,
    training_flops_per_token,
)
from txl.model.transformer import ATTENTION_BACKENDS

B, L, M = 3, 8, 5


def counted(model, backward: bool = False) -> int:
    """What torch counts for one segment."""
    tokens = torch.randint(13, (B, L))
    memory = model.empty_memory(B, M)
    counter = FlopCounterMode(display=False)
    with counter:
        hidden, _ = model(tokens, memory)
        scores = model.embedding.scores(hidden, tokens)
        if backward:
            scores.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("position", [RelativePosition, ShawPosition, AlibiPosition])
def test_forward_operations_are_those_torch_counts(position):
    model = small_model(position=position)
    expected = counted(model)
    scores = 2
    if position in (RelativePosition, ShawPosition):  # scores by distance have one column more than keys
        expected -= 2 * model.n_layer * B * L * 12
        scores = 3
    expected -= 2 * model.n_layer * B * scores * 12 * L * (L - 1) // 2  # of keys after their query
    assert flops_per_token(model, L, M, B) * B * L == pytest.approx(expected, rel=1e-12)


def test_training_costs_about_three_times_as_much():
    model = small_model().train()
    ratio = counted(model, backward=True) / counted(model)
    assert 2.6 < ratio <= 3.0
    assert training_flops_per_token(model, L, M, B) == 3 * flops_per_token(model, L, M, B)


def test_parameters_are_counted_as_the_authors_do():
    total, layers = parameter_counts(small_model())
    shared = 13 * 12 + 13 + 2 * 12  # embedding, softmax bias, u and v
    assert total - layers == shared
    assert total == sum(parameter.numel() for parameter in small_model().parameters())


@pytest.mark.parametrize("attention", ATTENTION_BACKENDS)
@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_meta_model_keeps_the_same_bytes_and_allocates_none(pre_norm, attention):
    model = small_model(dtype=torch.float32, pre_norm=pre_norm)
    model.attention = attention
    expected = activation_bytes(model, B, L, M)
    assert expected > 4 * B * L * 20 * 2  # at least the feed-forward networks' inner states
    assert activation_bytes(model.to("meta"), B, L, M) == expected
    assert activation_bytes(model, 2 * B, L, M) > 1.9 * expected


def test_the_softmax_keeps_its_logarithms():
    model = small_model(dtype=torch.float32)
    hidden, tokens = torch.randn(B, L, 12), torch.randint(13, (B, L))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda t: t):
        model.embedding.scores(hidden, tokens)
    assert softmax_bytes(model, B, L) in [tensor.nbytes for tensor in saved]


def test_the_memory_is_counted():
    model = small_model(dtype=torch.float32)
    states = model.empty_memory(B, M).states
    assert memory_bytes(model, B, M) == sum(state.nbytes for state in states)
