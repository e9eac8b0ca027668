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
        if self.here(x):
            return _Dropped.apply(x, self)
        return super().forward(x)

    def here(self, x: Tensor) -> bool:
        """Return whether anything is dropped, and by what is written here."""
        return bool(self.training and self.p) and x.device.type == "cpu" and not torch.compiler.is_compiling()

    def draw(self, x: Tensor, small: bool = True) -> Tensor | None:
        """Return which values of a tensor are kept this time, for `keep`; `None` for all of them.

        Zeros and 1 / (1 - p) in the type of `x`; or where a byte a value is less than half of that, and
        `small` is asked for, 0 and 1 in uint8.
        """
        if not self.training or not self.p:
            return None
        count = x.numel()
        bits = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        # In 16 bits the factor is a pattern like any other, and whole numbers are quicker than bfloat16.
        kind = torch.int16 if x.itemsize == 2 else torch.uint8 if small else x.dtype
        kept = torch.empty(count, dtype=kind, device=x.device)
        torch.ge(bits.view(torch.int16)[:count], self.dropped - STEPS // 2, out=kept)
        if kind is not torch.uint8:
            kept = kept.mul_(torch.tensor(self.factor, dtype=x.dtype).view(kind).item()).view(x.dtype)
        return kept.view(x.shape)

    def keep(self, x: Tensor, kept: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Return the kept values of `x`, divided by 1 - p, and zeros, in `out` if given; `x` for `None`."""
        if kept is None:
            return x
        out = torch.mul(x, kept, out=out)
        return out.mul_(self.factor) if kept.dtype is torch.uint8 else out


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.dropout, kept = dropout, dropout.draw(x)
        ctx.save_for_backward(kept)
        if not dropout.inplace:
            return dropout.keep(x, kept)
        ctx.mark_dirty(x)
        return dropout.keep(x, kept, out=x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        return ctx.dropout.keep(d_out, *ctx.saved_tensors), None


def relu_dropped(x: Tensor, dropout: Dropout) -> Tensor:
    """Return `dropout(relu(x))`, of which the way back needs the result alone, written over `x`.

    What is above zero in the result was above zero before, and kept: its gradient is multiplied with
    1 / (1 - p), and the others' with zero. Neither what was drawn nor the values between are held.
    """
    return _ReluDropped.apply(x, dropout) if dropout.here(x) else dropout(torch.relu_(x))


class _ReluDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.factor = dropout.factor
        ctx.mark_dirty(x)
        out = dropout.keep(x.relu_(), dropout.draw(x, small=False), out=x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(d_out, out, 0).mul_(ctx.factor), None
