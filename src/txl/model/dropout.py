"""Dropout with fast random numbers on a CPU.

There torch draws a Bernoulli number for each value, which takes as long as a small matrix product. Here 64
random bits decide about four values: many times as fast, and the rate is rounded to a multiple of 1/65536.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STEPS = 2**16  # a rate is a multiple of 1 / STEPS


class Dropout(nn.Dropout):
    """`nn.Dropout`, fast on a CPU. The random numbers come from torch's generator and follow its seed."""

    @property
    def dropped(self) -> int:
        """How many of STEPS values are dropped on average."""
        return min(STEPS - 1, round(self.p * STEPS))

    @property
    def factor(self) -> float:
        """1 / (1 - p), by which the values that are not dropped are multiplied."""
        return STEPS / (STEPS - self.dropped)

    def forward(self, x: Tensor) -> Tensor:
        return _Dropped.apply(x, self) if self.is_fast(x) else super().forward(x)

    def is_fast(self, x: Tensor) -> bool:
        """Return whether values of `x` are dropped by this class rather than by torch, or not at all."""
        return bool(self.training and self.p) and x.device.type == "cpu" and not torch.compiler.is_compiling()

    def draw_mask(self, x: Tensor, compact: bool = True) -> Tensor | None:
        """Draw a random mask in the shape of `x`, for `apply_mask`; `None` if nothing is dropped.

        Its values are 0 and 1 / (1 - p) in the type of `x`. With `compact`, and if `x` takes more than two
        bytes per value, they are 0 and 1 in uint8.
        """
        if not self.training or not self.p:
            return None
        count = x.numel()
        bits = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        # In 16 bits the factor is a bit pattern like any other, and integers are faster than bfloat16.
        dtype = torch.int16 if x.itemsize == 2 else torch.uint8 if compact else x.dtype
        mask = torch.empty(count, dtype=dtype, device=x.device)
        torch.ge(bits.view(torch.int16)[:count], self.dropped - STEPS // 2, out=mask)
        if dtype is not torch.uint8:
            mask = mask.mul_(torch.tensor(self.factor, dtype=x.dtype).view(dtype).item()).view(x.dtype)
        return mask.view(x.shape)

    def apply_mask(self, x: Tensor, mask: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Return `x` with values dropped and the others divided by 1 - p, in `out` if given."""
        if mask is None:
            return x
        out = torch.mul(x, mask, out=out)
        return out.mul_(self.factor) if mask.dtype is torch.uint8 else out


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.dropout, mask = dropout, dropout.draw_mask(x)
        ctx.save_for_backward(mask)
        if not dropout.inplace:
            return dropout.apply_mask(x, mask)
        ctx.mark_dirty(x)
        return dropout.apply_mask(x, mask, out=x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        return ctx.dropout.apply_mask(d_out, *ctx.saved_tensors), None


def relu_dropout(x: Tensor, dropout: Dropout) -> Tensor:
    """Return `dropout(relu(x))`, written over `x`. The backward pass needs only the result.

    Values above zero in the result passed both ReLU and dropout: their gradient is multiplied by 1 / (1 - p),
    that of all others is zero. Neither the mask nor the values in between are saved.
    """
    return _ReluDropout.apply(x, dropout) if dropout.is_fast(x) else dropout(torch.relu_(x))


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.factor = dropout.factor
        ctx.mark_dirty(x)
        out = dropout.apply_mask(x.relu_(), dropout.draw_mask(x, compact=False), out=x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(d_out, out, 0).mul_(ctx.factor), None
