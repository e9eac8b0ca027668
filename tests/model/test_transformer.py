"""What must hold of the whole model, over random shapes."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from conftest import SMALL, small_model
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
model_of = small_model


def read(model, tokens, lengths, slots, attention_length=None):
    """Read tokens in segments of the given lengths; return all hidden states and the memory."""
    memory = model.empty_memory(tokens.shape[0], slots)
    hidden, begin = [], 0
    for length in lengths:
        out, memory = model(tokens[:, begin : begin + length], memory, attention_length)
        hidden.append(out)
        begin += length
    assert begin == tokens.shape[1]
    return torch.cat(hidden, dim=1), memory


ADAPTIVE = {"cutoffs": [4, 8], "div_val": 2, "tie_projections": [False, True, True]}
RELATIVE = [RelativePosition, ShawPosition, RotaryPosition, AlibiPosition, T5Position, PositionEncoding]
ABSOLUTE = [SinusoidalPosition, LearnedPosition]

shapes = {
    "position": st.sampled_from(RELATIVE),
    "lengths": st.lists(st.integers(1, 9), min_size=2, max_size=5),
    "rows": st.integers(1, 3),
    "pre_norm": st.booleans(),
    "seed": st.integers(0, 99),
}


@settings(max_examples=25, deadline=None)
@given(**shapes)
def test_segments_with_enough_memory_equal_one_long_segment(lengths, rows, pre_norm, seed, position):
    model, total = model_of(seed, torch.float32, position, pre_norm=pre_norm), sum(lengths)
    tokens = torch.randint(V, (rows, total))
    parts, _ = read(model, tokens, lengths, slots=total)
    whole, _ = read(model, tokens, [total], slots=0)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", ABSOLUTE)
def test_absolute_encodings_do_not_survive_the_cut_into_segments(position):
    """The failure that §3.3 explains: a cached state carries the position of another segment."""
    model, tokens = model_of(position=position), torch.randint(V, (1, 12))
    parts, _ = read(model, tokens, [6, 6], slots=12)
    whole, _ = read(model, tokens, [12], slots=0)
    torch.testing.assert_close(parts[:, :6], whole[:, :6], rtol=0, atol=1e-12)
    assert (parts[:, 6:] - whole[:, 6:]).abs().amax() > 1e-3


@settings(max_examples=40, deadline=None)
@given(**shapes | {"position": st.sampled_from(RELATIVE + ABSOLUTE)})
def test_a_later_token_changes_no_earlier_output_by_a_bit(lengths, rows, pre_norm, seed, position):
    model, total = model_of(seed, torch.float32, position, pre_norm=pre_norm), sum(lengths)
    tokens = torch.randint(V, (rows, total))
    before, _ = read(model, tokens, lengths, slots=4)
    for t in range(total - 1):
        changed = tokens.clone()
        changed[:, t + 1] = (changed[:, t + 1] + 1) % V
        after, _ = read(model, changed, lengths, slots=4)
        assert torch.equal(before[:, : t + 1], after[:, : t + 1])
    assert not torch.equal(before[:, total - 1], after[:, total - 1])


@settings(max_examples=25, deadline=None)
@given(slots=st.integers(0, 12), **shapes | {"position": st.sampled_from(RELATIVE + ABSOLUTE)})
def test_the_rows_of_a_batch_do_not_know_each_other(lengths, rows, pre_norm, seed, slots, position):
    model, total = model_of(seed, position=position, pre_norm=pre_norm), sum(lengths)
    tokens = torch.randint(V, (rows, total))
    together, _ = read(model, tokens, lengths, slots)
    alone = torch.cat([read(model, row[None], lengths, slots)[0] for row in tokens])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(slots=st.integers(0, 9), **shapes | {"position": st.sampled_from(RELATIVE + ABSOLUTE)})
def test_a_memory_is_never_changed_and_fresh_rows_read_as_if_new(
    lengths, rows, pre_norm, seed, position, slots
):
    model = model_of(seed, position=position, pre_norm=pre_norm)
    tokens = torch.randint(V, (rows, sum(lengths)))
    first, rest = tokens[:, : lengths[0]], tokens[:, lengths[0] :]
    _, memory = read(model, first, [lengths[0]], slots)
    states, length = [s.clone() for s in memory.states], memory.length.clone()
    fresh = torch.arange(rows) % 2 == 0
    after, _ = model(rest, memory.forget(fresh))
    assert all(torch.equal(s, before) for s, before in zip(memory.states, states, strict=True))
    assert torch.equal(memory.length, length)
    new, _ = read(model, rest, [rest.shape[1]], slots)
    torch.testing.assert_close(after[fresh], new[fresh], rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    first=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    reach=st.integers(1, 7),
    seed=st.integers(0, 99),
    position=st.sampled_from(RELATIVE),
)
def test_with_a_fixed_attention_length_the_cut_into_segments_does_not_matter(first, reach, seed, position):
    model, total = model_of(seed, position=position), sum(first)
    tokens = torch.randint(V, (2, total))
    parts, _ = read(model, tokens, first, slots=reach, attention_length=reach)
    whole, _ = read(model, tokens, [1] * total, slots=reach, attention_length=reach)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", RELATIVE + ABSOLUTE)
@pytest.mark.parametrize("pre_norm", [False, True])
def test_an_empty_memory_equals_no_memory(pre_norm, position):
    model = model_of(position=position, pre_norm=pre_norm)
    tokens = torch.randint(V, (2, 7))
    empty, _ = read(model, tokens, [7], slots=9)
    none, _ = read(model, tokens, [7], slots=0)
    torch.testing.assert_close(empty, none, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", RELATIVE + ABSOLUTE)
def test_a_memory_changes_what_comes_and_fresh_rows_forget_it(position):
    model = model_of(position=position)
    tokens = torch.randint(V, (2, 12))
    _, memory = read(model, tokens[:, :6], [6], slots=6)
    remembered, _ = model(tokens[:, 6:], memory)
    half, _ = model(tokens[:, 6:], memory.forget(torch.tensor([True, False])))
    nothing, _ = read(model, tokens[:, 6:], [6], slots=6)
    torch.testing.assert_close(half[0], nothing[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(half[1], remembered[1], rtol=0, atol=1e-12)
    assert (remembered - nothing).abs().amax() > 1e-3


@pytest.mark.parametrize("reach", [1, 3, 5])
def test_an_attention_length_hides_what_is_farther(reach):
    """With one layer a query sees itself and the `reach - 1` tokens before it, and no more."""
    model = model_of(n_layer=1)
    tokens = torch.randint(V, (1, 10))
    before, _ = read(model, tokens, [4, 6], slots=8, attention_length=reach)
    for t in range(10):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % V
        after, _ = read(model, changed, [4, 6], slots=8, attention_length=reach)
        differs = ((before - after).abs().amax(dim=(0, 2)) > 1e-9).nonzero().flatten().tolist()
        assert differs == list(range(t, min(t + reach, 10)))


@pytest.mark.parametrize("changes", [{}, {"pre_norm": True}, {"d_embed": 6}, ADAPTIVE], ids=str)
@pytest.mark.parametrize(
    "position",
    RELATIVE
    + ABSOLUTE
    + [partial(ShawPosition, global_terms=True), partial(RelativePosition, shared_biases=False)],
)
def test_after_two_segments_every_parameter_has_a_gradient(position, changes):
    """Of every variant, without exception: the keys of all distances and the words of all parts occur."""
    model = model_of(position=partial(position, key_length=8), **changes).train()
    tokens = torch.arange(22).view(2, 11) % V
    memory = read(model, tokens[:, :5], [5], slots=4)[1]
    hidden, _ = model(tokens[:, 5:10], memory)
    model.embedding.scores(hidden, tokens[:, 6:11]).mean().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_the_gradient_stays_in_its_segment():
    model = model_of()
    tokens = torch.randint(V, (1, 8))
    memory = read(model, tokens[:, :4], [4], slots=4)[1]
    assert not any(states.requires_grad for states in memory.states)


def test_scores_are_cross_entropy_in_float32_under_autocast():
    model = model_of(dtype=torch.float32)
    tokens = torch.randint(V, (2, 6))
    with torch.autocast("cpu", torch.bfloat16):
        hidden, _ = model(tokens[:, :-1], model.empty_memory(2, 0))
        scores = model.embedding.scores(hidden, tokens[:, 1:])
    logits = hidden.double() @ model.embedding.weights[0].double().T + model.embedding.bias.double()
    expected = logits.logsumexp(-1) - logits.gather(-1, tokens[:, 1:, None])[..., 0]
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=1e-5)


def test_sharp_logits_have_finite_scores():
    model = model_of(dtype=torch.float32)
    hidden = torch.randn(1, 4, 12) * 1e4
    assert model.embedding.scores(hidden, torch.tensor([[0, 1, 2, 3]])).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 0}, "n_layer must be positive"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"projection_init_std": float("nan")}, "projection_init_std must be 0 or more, not nan"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        model_of(**changes)


def test_a_memory_of_other_rows_is_refused():
    model = model_of(dtype=torch.float32)
    with pytest.raises(ValueError, match="the memory holds 3 rows, the segment has 2"):
        model(torch.zeros(2, 4, dtype=torch.int64), model.empty_memory(3, 4))


def test_layers_computed_again_give_the_same_gradients_dropout_included():
    gradients = []
    for again in (False, True):
        model = small_model(dropout=0.3, attention_dropout=0.2).train()
        model.recompute = again
        torch.manual_seed(5)
        tokens, memory = torch.arange(10).view(2, 5), model.empty_memory(2, 4)
        for _ in range(2):
            hidden, memory = model(tokens, memory)
            hidden.square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) > 10
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("recompute", [False, True])
def test_one_graph_serves_all_segments_while_the_memory_fills(recompute):
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    model, plain = small_model(), small_model()
    model.recompute = recompute
    model.compile(backend=counter, dynamic=False)
    memory = expected_memory = model.empty_memory(2, 12)
    for segment in torch.arange(60).remainder(13).view(6, 2, 5):
        memory = memory.forget(torch.tensor([False, memory.length[0].item() == 10]))
        hidden, memory = model(segment, memory)
        hidden.sum().backward()
        expected_memory = expected_memory.forget(
            torch.tensor([False, expected_memory.length[0].item() == 10])
        )
        expected, expected_memory = plain(segment, expected_memory)
        torch.testing.assert_close(hidden, expected)
    assert 1 <= counter.frame_count <= 2
