"""The optimizers against their published formulas, computed one number at a time."""

import math

import pytest
import torch

from txl.training.lamb import lamb
from txl.training.optimizers import adam, adamw

STEPS, LR, B1, B2, DECAY = 6, 0.03, 0.9, 0.98, 0.1


def start() -> tuple[list[torch.nn.Parameter], list[list[torch.Tensor]]]:
    chance = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (5,), (40, 40)]  # the last one is longer than 10
    values = [torch.nn.Parameter(torch.randn(shape, generator=chance)) for shape in shapes]
    return values, [[torch.randn(shape, generator=chance) for shape in shapes] for _ in range(STEPS)]


def moments(gradients: list[torch.Tensor]):
    mean = square = torch.zeros_like(gradients[0])
    for gradient in gradients:
        mean, square = B1 * mean + (1 - B1) * gradient, B2 * square + (1 - B2) * gradient**2
        yield mean, square


def by_adam(value, gradients, decay: float):
    for step, (mean, square) in enumerate(moments(gradients), 1):
        value = value * (1 - LR * decay)
        value = value - LR * (mean / (1 - B1**step)) / ((square / (1 - B2**step)).sqrt() + 1e-8)
    return value


def by_lamb(value, gradients, decay: float):
    """NVIDIA's lamb.py: no bias correction, decay inside the trust ratio, the weights' norm at most 10."""
    for mean, square in moments(gradients):
        update = mean / (square.sqrt() + 1e-6) + decay * value
        ratio = min(value.square().sum().sqrt().item(), 10.0) / (update.square().sum().sqrt().item() + 1e-6)
        value = value - LR * ratio * update
    return value


@pytest.mark.parametrize(
    ("make", "expected", "decay"),
    [
        (lambda p: adam(p, LR, B1, B2), by_adam, 0.0),
        (lambda p: adamw(p, LR, B1, B2, DECAY), by_adam, DECAY),
        (lambda p: lamb(p, LR, B1, B2, 1e-6, 0.0), by_lamb, 0.0),
        (lambda p: lamb(p, LR, B1, B2, 1e-6, DECAY), by_lamb, DECAY),
    ],
    ids=["adam", "adamw", "lamb", "lamb with decay"],
)
def test_steps_are_the_published_ones(make, expected, decay):
    values, gradients = start()
    begin = [value.detach().clone() for value in values]
    assert begin[2].norm() > 10
    optimizer = make(values)
    for step in gradients:
        for value, gradient in zip(values, step, strict=True):
            value.grad = gradient.clone()
        optimizer.step()
    for index, value in enumerate(values):
        wanted = expected(begin[index], [step[index] for step in gradients], decay)
        torch.testing.assert_close(value.detach(), wanted, rtol=1e-5, atol=1e-6)
    assert all(math.isfinite(value.sum().item()) for value in values)


def test_lamb_goes_on_from_its_state_by_the_bit(tmp_path):
    """Its state is plain tensors and numbers, so that a checkpoint can be read safely."""
    values, gradients = start()
    optimizer = lamb(values, LR, B1, B2, 1e-6, DECAY)
    for number, step in enumerate(gradients):
        if number == 3:
            torch.save({"values": values, "state": optimizer.state_dict()}, tmp_path / "kept")
        for value, gradient in zip(values, step, strict=True):
            value.grad = gradient.clone()
        optimizer.step()
    kept = torch.load(tmp_path / "kept", weights_only=True)
    again = [torch.nn.Parameter(value.detach().clone()) for value in kept["values"]]
    optimizer = lamb(again, LR, B1, B2, 1e-6, DECAY)
    optimizer.load_state_dict(kept["state"])
    for step in gradients[3:]:
        for value, gradient in zip(again, step, strict=True):
            value.grad = gradient.clone()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(values, again, strict=True))


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="learning rate: -1"):
        lamb(start()[0], -1.0, B1, B2, 1e-6, 0.0)
