"""Dropout that does not wait for its random numbers.

On a CPU torch draws a Bernoulli number for each value, which takes as long as a small matrix product. Here 64
random bits decide about four values: the same but for a rate that is a multiple of 1/65536, and many times
as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEPS = 2**16  # a rate is a multiple of 1 / STEPS


class Dropout(nn.Dropout):
    """`nn.Dropout`, fast on a CPU. The random numbers come from torch's generator, and follow its seed."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with each value kept with probability 1 - p, and then divided by it, else zero."""
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        return x * self.noise(x)

    def noise(self, x: Tensor) -> Tensor:
        """Return what a tensor is multiplied with: zeros and 1 / (1 - p), of its shape and type."""
        count, dropped = x.numel(), round(self.p * STEPS)
        factor = torch.tensor(STEPS / (STEPS - dropped), dtype=x.dtype)
        bits = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        # In 16 bits the factor is a pattern like any other, and whole numbers are quicker than bfloat16.
        kind = torch.int16 if x.itemsize == 2 else x.dtype
        kept = torch.empty(count, dtype=kind, device=x.device)
        torch.ge(bits.view(torch.int16)[:count], dropped - STEPS // 2, out=kept)
        return kept.mul_(factor.view(kind).item()).view(x.dtype).view(x.shape)
