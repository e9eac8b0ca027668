"""Blocked attention gives what the plain one gives, forward and back, for every encoding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SMALL, small_model
from model.test_transformer import ABSOLUTE, RELATIVE
from txl.model import Memory, blocked
from txl.model.attention import PlainAttention, masked_keys
from txl.model.dropout import Dropout

CPU = torch.device("cpu")
V, D = SMALL["vocabulary"], SMALL["d_model"]
ENCODINGS = RELATIVE + ABSOLUTE


def results(model, way, tokens, memory, attention_length=None, autocast=False):
    """Hidden states, and the gradients of all parameters and of the memory, for a random direction."""
    model.attention = way
    model.zero_grad()
    states = tuple(state.clone().requires_grad_() for state in memory.states)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden, _ = model(tokens, Memory(states, memory.length), attention_length)
    direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (hidden * direction.to(hidden.dtype)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"hidden": hidden.detach(), "memory": torch.stack([state.grad for state in states])} | {
        name: gradient.clone() for name, gradient in gradients.items() if gradient is not None
    }


def memory_of(model, lengths, slots, dtype=torch.float64):
    states = tuple(torch.randn(len(lengths), slots, D, dtype=dtype) for _ in range(model.n_layer))
    return Memory(states, torch.tensor(lengths))


def assert_same(found, plain):
    """What `results` gave for one way is what it gave for the plain one."""
    assert found.keys() == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=name)


def assert_within_rounding(way, position):
    """In bfloat16 a way is about as far from float32 as the plain one is."""
    model = small_model(dtype=torch.float32, position=position)
    tokens, memory = torch.randint(V, (2, 12)), memory_of(model, [6, 2], 6, torch.float32)
    exact = results(model, "plain", tokens, memory)
    plain = results(model, "plain", tokens, memory, autocast=True)
    found = results(model, way, tokens, memory, autocast=True)
    for name, value in exact.items():
        error, usual = (
            (other[name] - value).norm() / value.norm().clamp(min=1e-6) for other in (found, plain)
        )
        assert error < 2 * usual + 0.01, f"{name}: {error:.4f}, the plain one {usual:.4f}"


@pytest.mark.parametrize("position", ENCODINGS)
@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(1, 9),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    attention_length=st.none() | st.integers(1, 15),
    queries=st.integers(1, 10),
    size=st.sampled_from([1, 200, 1000, 10**6]),
    kept=st.sampled_from([0, 10**6]),
)
def test_all_is_as_in_plain_attention(position, length, lengths, attention_length, queries, size, kept):
    model = small_model(position=position)
    tokens, memory = torch.randint(V, (len(lengths), length)), memory_of(model, lengths, 6)
    plain = results(model, "plain", tokens, memory, attention_length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "QUERIES", queries)
        patch.setattr(blocked, "SCORE_BYTES", size)
        patch.setattr(blocked, "SAVED_BYTES", kept)
        found = results(model, "blocked", tokens, memory, attention_length)
    assert_same(found, plain)


@pytest.mark.parametrize("position", ENCODINGS)
def test_bfloat16_agrees_within_its_rounding(position, monkeypatch):
    monkeypatch.setattr(blocked, "QUERIES", 5)
    assert_within_rounding("blocked", position)


def test_many_rows_do_not_round_what_they_all_add_to():
    """The keys of the distances serve all rows, and their gradient is the sum over them."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(128, 16, 2, 16), (128, 32, 2, 16), (128, 32, 2, 16), (128, 16, 2, 16), (33, 2, 16)]
    inputs = [torch.randn(size, generator=generator) * 0.5 for size in sizes]
    direction = torch.randn(sizes[0], generator=generator)
    hidden, off = masked_keys(16, torch.full((128,), 16), 16, None), Dropout(0.0)

    def gradient(way, dtype):
        q, k, v, far, near = (x.bfloat16().to(dtype).requires_grad_() for x in inputs)
        out = way(hidden, q)(q, k, v, blocked.DistanceScores(far, near), off)
        (out * direction.to(dtype)).sum().backward()
        return near.grad.double()

    exact = gradient(PlainAttention, torch.float64)
    plain, found = (gradient(way, torch.bfloat16) for way in (PlainAttention, blocked.BlockedAttention))
    assert (found - exact).norm() < 1.3 * (plain - exact).norm()


@pytest.mark.parametrize("kept", [0, 10**6])
def test_dropout_has_its_gradient_and_its_rate(kept, monkeypatch):
    monkeypatch.setattr(blocked, "QUERIES", 3)
    monkeypatch.setattr(blocked, "SAVED_BYTES", kept)
    tensors = [torch.randn(2, n, 2, 3, dtype=torch.float64, requires_grad=True) for n in (5, 9, 9)]
    far = torch.randn(2, 5, 2, 3, dtype=torch.float64, requires_grad=True)
    near = torch.randn(10, 2, 3, dtype=torch.float64, requires_grad=True)
    numbers = torch.randn(10, 2, dtype=torch.float64, requires_grad=True)
    attend = blocked.BlockedAttention(masked_keys(5, torch.tensor([4, 1]), 4, None), tensors[0])
    dropout = Dropout(0.4)

    def with_dropout(*inputs):
        torch.manual_seed(0)
        return attend(*inputs[:3], blocked.DistanceScores(*inputs[3:]), dropout)

    assert torch.autograd.gradcheck(with_dropout, (*tensors, far, near, numbers))
    q, k, v = (tensor.detach() for tensor in tensors)
    v.fill_(1.0)
    taken = torch.stack([attend(q, k, v, blocked.DistanceScores(), dropout) for _ in range(4000)])
    assert (taken != 1.0).any()
    torch.testing.assert_close(taken.mean(dim=0), torch.ones_like(q), rtol=0, atol=0.06)
    dropout.eval()
    torch.testing.assert_close(attend(q, k, v, blocked.DistanceScores(), dropout), torch.ones_like(q))


def test_keys_that_nobody_sees_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(blocked, "QUERIES", 4)
    q, k, v = (torch.randn(2, n, 1, 3) for n in (8, 14, 14))
    hidden = masked_keys(8, torch.tensor([3, 1]), 6, None)
    attend, off = blocked.BlockedAttention(hidden, q), Dropout(0.0)
    before = attend(q, k, v, blocked.DistanceScores(), off)
    for tensor in (k, v):
        tensor[:, :3] = float("nan")  # of no row real
    torch.testing.assert_close(attend(q, k, v, blocked.DistanceScores(), off), before, rtol=0, atol=0)
    for tensor in (k, v):
        tensor[:, 10:] = float("nan")  # after the first block
    torch.testing.assert_close(attend(q, k, v, blocked.DistanceScores(), off)[:, :4], before[:, :4])


def test_what_is_computed_together_is_no_larger_than_it_may_be(monkeypatch):
    monkeypatch.setattr(blocked, "QUERIES", 4)
    monkeypatch.setattr(blocked, "SCORE_BYTES", 1000)
    q = torch.zeros(5, 8, 7, 2)  # rows, queries, heads
    blocks = blocked.split_into_blocks(masked_keys(8, torch.full((5,), 6), 6, None), CPU)
    seen = torch.zeros(5, 8, 7, 2, dtype=torch.int64)
    for part in blocked._parts(q, blocks):
        part.queries(seen).add_(1)
        heads, queries, _ = part.queries(q).shape
        assert 4 * heads * queries * part.keys(torch.zeros(5, 14, 7, 1)).shape[1] <= 1000
    assert (seen == 1).all()


def test_large_probabilities_are_computed_again(monkeypatch):
    """Nothing of the size of the scores is kept then."""
    monkeypatch.setattr(blocked, "QUERIES", 4)
    q, k, v = (torch.randn(2, n, 1, 3, requires_grad=True) for n in (64, 64, 64))
    attend = blocked.BlockedAttention(masked_keys(64, torch.tensor([0, 0]), 0, None), q)
    largest = []
    for limit in (2**30, 2 * 64 * 64 * 4 - 1):
        monkeypatch.setattr(blocked, "SAVED_BYTES", limit)
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, held=held: held.append(x) or x, lambda x: x):
            attend(q, k, v, blocked.DistanceScores(), Dropout(0.0))
        largest.append(sum(x.untyped_storage().nbytes() for x in held))
    assert largest[0] - largest[1] > 2 * 64 * 64 * 4 // 2
