"""Dropout keeps the right share, scales it, has its gradient, and follows the seed."""

import pytest
import torch

from txl.model.dropout import Dropout, relu_dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [(301, 407), (100_001,)])
def test_the_right_share_is_kept_and_divided_by_it(rate, dtype, size):
    torch.manual_seed(0)
    x = torch.ones(size, dtype=dtype)
    out = Dropout(rate)(x)
    assert out.dtype is dtype
    out = out.double()
    kept = (out != 0).double()
    deviation = (rate * (1 - rate) / x.numel()) ** 0.5
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation + 1e-5
    torch.testing.assert_close(
        out[kept.bool()].unique(), torch.tensor([1 / (1 - rate)]).double(), rtol=0.005, atol=0
    )


def test_neighbours_are_independent():
    """The bits of one random number decide about four values in a row."""
    torch.manual_seed(0)
    kept = (Dropout(0.3)(torch.ones(400_000)) != 0).double() - 0.7
    for lag in range(1, 9):
        correlation = (kept[:-lag] * kept[lag:]).mean() / 0.21
        assert abs(correlation) < 5 / 400_000**0.5


@pytest.mark.parametrize("inplace", [False, True])
def test_the_gradient_is_that_of_the_values_kept(inplace):
    x = torch.randn(7, 5, requires_grad=True)
    given = x + 0
    out = Dropout(0.4, inplace)(given)
    assert (out is given) == inplace
    out.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), out.detach())


def test_the_seed_decides_and_each_call_differs():
    dropout, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_evaluation_and_a_rate_of_zero_leave_it_alone():
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert Dropout(0.5)(torch.ones(0)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_relu_and_dropout_together_are_one_after_the_other(dtype):
    dropout = Dropout(0.3)
    x = torch.randn(40, 30, dtype=dtype)
    direction = torch.randn(40, 30, dtype=dtype)
    results = []
    for together in (False, True):
        torch.manual_seed(1)
        own = x.clone().requires_grad_()
        out = relu_dropout(own + 0, dropout) if together else dropout(torch.relu(own))
        (out * direction).sum().backward()
        results.append((out.detach(), own.grad))
    for apart, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, apart)
    assert relu_dropout(x.clone(), dropout.eval()).equal(torch.relu(x))
