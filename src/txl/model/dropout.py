"""Dropout that does not wait for its random numbers.

On a CPU torch draws a Bernoulli number for each value, which takes as long as a small matrix product. Here 64
random bits decide about four values: the same but for a rate that is a multiple of 1/65536, and many times
as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STEPS = 2**16  # a rate is a multiple of 1 / STEPS


class Dropout(nn.Dropout):
    """`nn.Dropout`, fast on a CPU. The random numbers come from torch's generator, and follow its seed."""

    @property
    def dropped(self) -> int:
        """How many of STEPS values are dropped on average."""
        return min(STEPS - 1, round(self.p * STEPS))

    @property
    def factor(self) -> float:
        """1 / (1 - p), of what is kept."""
        return STEPS / (STEPS - self.dropped)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with each value kept with probability 1 - p, and then divided by it, else zero."""
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        return x * self.noise(x)

    def noise(self, x: Tensor) -> Tensor:
        """Return what a tensor is multiplied with: zeros and 1 / (1 - p), of its shape and type."""
        count = x.numel()
        factor = torch.tensor(self.factor, dtype=x.dtype)
        bits = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        # In 16 bits the factor is a pattern like any other, and whole numbers are quicker than bfloat16.
        kind = torch.int16 if x.itemsize == 2 else x.dtype
        kept = torch.empty(count, dtype=kind, device=x.device)
        torch.ge(bits.view(torch.int16)[:count], self.dropped - STEPS // 2, out=kept)
        return kept.mul_(factor.view(kind).item()).view(x.dtype).view(x.shape)


def relu_dropped(x: Tensor, dropout: Dropout) -> Tensor:
    """Return `dropout(relu(x))`, of which the way back needs the result alone.

    What is above zero in the result was above zero before, and kept: its gradient is multiplied with
    1 / (1 - p), and the others' with zero. Neither what was drawn nor the values between are held.
    """
    if not dropout.training or not dropout.p or x.device.type != "cpu" or torch.compiler.is_compiling():
        return dropout(torch.relu(x))
    return _ReluDropped.apply(x, dropout)


class _ReluDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.factor = dropout.factor
        out = dropout.noise(x).mul_(x.relu())
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(d_out, out, 0).mul_(ctx.factor), None
