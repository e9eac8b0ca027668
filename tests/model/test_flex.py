"""Flex attention gives what the plain one gives: as it runs here, and in the form a GPU's kernel is given."""

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as of_torch

from conftest import TINY, small_model
from model.test_blocked import ENCODINGS, D, V, assert_same, assert_within_rounding, memory_of, results
from txl.model import flex
from txl.model.attention import PlainAttention, masked_keys
from txl.model.dropout import Dropout
from txl.model.positions.base import DistanceScores

as_if_fused = pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile",
    # torch keeps it from being shown, but not from being raised.
    "ignore:The .grad attribute of a Tensor that is not a leaf",
)


@pytest.fixture
def on_gpu(monkeypatch):
    """All that a GPU does but the compiler: torch's own arithmetic of FlexAttention, and its way back."""
    monkeypatch.setattr(flex, "has_kernel", lambda device: True)
    monkeypatch.setattr(flex, "compiled_kernel", lambda: flex.flex_attention)
    # It refuses gradients on a CPU, for the sake of its compiler.
    monkeypatch.setattr(of_torch, "_validate_device", lambda *tensors: None, raising=False)


def assert_as_plain(model, tokens, memory, attention_length=None):
    plain = results(model, "plain", tokens, memory, attention_length)
    found = results(model, "flex", tokens, memory, attention_length)
    assert_same(found, plain)


@pytest.mark.parametrize("position", ENCODINGS)
@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(1, 9),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    attention_length=st.none() | st.integers(1, 15),
)
def test_all_is_as_in_plain_attention(position, length, lengths, attention_length):
    model = small_model(position=position)
    tokens, memory = torch.randint(V, (len(lengths), length)), memory_of(model, lengths, 6)
    assert_as_plain(model, tokens, memory, attention_length)


@as_if_fused
@pytest.mark.parametrize("attention_length", [None, 5])
@pytest.mark.parametrize("position", ENCODINGS)
def test_the_kernels_arithmetic_is_that_of_plain_attention(position, attention_length, on_gpu):
    model = small_model(position=position)
    assert_as_plain(model, torch.randint(V, (3, 9)), memory_of(model, [0, 3, 6], 6), attention_length)


@as_if_fused
@pytest.mark.parametrize("d_head", [16, 41])
def test_a_head_of_any_size_is_given_as_a_power_of_two(d_head, on_gpu, monkeypatch):
    sizes, attend = [], flex.flex_attention
    monkeypatch.setattr(
        flex, "flex_attention", lambda q, *rest, **more: sizes.append(q.shape[-1]) or attend(q, *rest, **more)
    )
    model = small_model(n_head=2, d_head=d_head)
    assert_as_plain(model, torch.randint(V, (2, 7)), memory_of(model, [6, 2], 6))
    assert sizes == [16 if d_head == 16 else 64] * model.n_layer


@as_if_fused
def test_segments_and_memories_of_more_than_one_block(on_gpu):
    model = small_model(n_layer=1)
    assert_as_plain(model, torch.randint(V, (2, 150)), memory_of(model, [110, 0], 130))


@as_if_fused
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("distances", [1, 4, 10])  # of 10
@pytest.mark.parametrize(("keys", "numbers"), [(True, True), (True, False), (False, True), (False, False)])
def test_distances_beyond_the_table_count_as_its_farthest(keys, numbers, distances, fused, request):
    if fused:
        request.getfixturevalue("on_gpu")
    q, k, v = (torch.randn(2, n, 2, 16, dtype=torch.float64, requires_grad=True) for n in (5, 9, 9))
    far = torch.randn(2, 5, 2, 16, dtype=torch.float64, requires_grad=True) if keys else None
    near = torch.randn(distances, 2, 16, dtype=torch.float64, requires_grad=True) if keys else None
    added = torch.randn(distances, 2, dtype=torch.float64, requires_grad=True) if numbers else None
    by_distance = DistanceScores(far, near, added)
    inputs = [x for x in (q, k, v, *by_distance) if x is not None]
    hidden = masked_keys(5, torch.tensor([4, 1]), 4, 7)
    direction, found = torch.randn(2, 5, 2, 16, dtype=torch.float64), []
    for way in (PlainAttention, flex.FusedAttention):
        out = way(hidden, q)(q, k, v, by_distance, Dropout(0.0))
        found.append([out, *torch.autograd.grad((out * direction).sum(), inputs)])
    for ours, plain in zip(*found[::-1], strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_blocks_of_keys_that_nobody_sees_are_left_out(on_gpu):
    hidden = masked_keys(256, torch.tensor([0, 100, 512]), 512, 300)
    mask = flex.FusedAttention(hidden, torch.zeros(3, 256, D)).block_mask
    visited = mask.to_dense()[:, 0].bool()
    assert torch.equal(visited, (~hidden).unflatten(2, (-1, 128)).unflatten(1, (-1, 128)).any(4).any(2))
    assert not visited.all(dim=(1, 2)).any()


@pytest.mark.parametrize("position", ENCODINGS)
def test_bfloat16_agrees_within_its_rounding(position):
    assert_within_rounding("flex", position)


@pytest.mark.parametrize("position", ENCODINGS)
def test_the_kernel_is_given_one_type_under_autocast(position, on_gpu, monkeypatch):
    types = []

    def attend(q, k, v, **_):
        types.extend((q.dtype, k.dtype, v.dtype))
        return q

    monkeypatch.setattr(flex, "flex_attention", attend)
    model = small_model(dtype=torch.float32, position=position)
    model.attention = "flex"
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randint(V, (2, 5)), memory_of(model, [3, 0], 3, torch.float32))
    assert set(types) == {torch.bfloat16}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # what torch's compiler imports
def test_what_the_compiler_makes_of_it_agrees(monkeypatch):
    """On a CPU it compiles the way there alone; the functions that enter are those that a GPU is given."""
    monkeypatch.setattr(flex, "has_kernel", lambda device: True)
    model = small_model(dtype=torch.float32)
    tokens, memory = torch.randint(V, (2, 9)), memory_of(model, [6, 2], 6, torch.float32)
    with torch.no_grad():
        plain, _ = model(tokens, memory)
        model.attention = "flex"
        found, _ = model(tokens, memory)
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")  # so torch does as it traces
def test_a_compiled_model_takes_it_in_whole(on_gpu):
    model = small_model()
    tokens, memory = torch.randint(V, (2, 9)), memory_of(model, [6, 2], 6)
    with torch.no_grad():
        plain, _ = model(tokens, memory)
        model.attention = "flex"
        whole = copy.deepcopy(model)
        whole.compile(dynamic=False, backend="eager", fullgraph=True)  # a part left out is an error
        found, _ = whole(tokens, memory)
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-10)


def test_probabilities_cannot_be_dropped():
    model = small_model(attention_dropout=0.3)
    model.attention = "flex"
    tokens, memory = torch.randint(V, (2, 9)), memory_of(model, [6, 2], 6)
    model(tokens, memory)  # nothing is dropped in evaluation
    with pytest.raises(
        ValueError, match=r"flex attention cannot drop .*, and attention_dropout is 0\.3; use"
    ):
        model.train()(tokens, memory)


def test_a_run_ends_as_one_with_plain_attention(run_here, text_file, tmp_path):
    found = {}
    for way in ("plain", "flex"):
        words = [*TINY, f"data.path={text_file}", "trainer.precision=32-true", f"trainer.attention={way}"]
        found[way] = run_here(*words, directory=tmp_path / way)
    results = {way: json.loads((directory / "results.json").read_text()) for way, directory in found.items()}
    assert results["flex"]["status"] == "completed"
    assert results["flex"]["test"]["loss"] == pytest.approx(results["plain"]["test"]["loss"], abs=1e-4)


def test_a_run_that_drops_probabilities_is_refused(train, text_file):
    words = [*TINY, f"data.path={text_file}", "trainer.attention=flex", "model.attention_dropout=0.1"]
    done = train(*words)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "error: trainer.attention=flex cannot drop attention probabilities, and" in said
    assert "model.attention_dropout=0.1; use model.attention_dropout=0, or" in said
