"""The way in and the way out: token embeddings, and the softmax that shares their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TiedEmbedding(nn.Module):
    """One matrix that embeds the tokens and, with a bias, predicts them.

    Args:
        vocabulary: V.
        d_model: D. Embeddings are scaled by its square root (Vaswani et al. 2017, §3.4).
    """

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, d_model))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.scale = d_model**0.5

    def embed(self, tokens_BL: Tensor) -> Tensor:
        """Return the embeddings `[B, L, D]` of `tokens_BL`."""
        return nn.functional.embedding(tokens_BL, self.weight) * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[…, V]` of hidden states `[…, D]`, at least in float32, also under autocast.

        bfloat16 has 8 bits of precision: logits rounded to it shift a perplexity in its third digit.
        """
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            return nn.functional.linear(hidden.to(dtype), self.weight.to(dtype), self.bias.to(dtype))

    def scores(self, hidden_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target, `[B, L]`, in nats, in the tokens' order."""
        logits = self.logits(hidden_BLD)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), targets_BL.flatten(), reduction="none"
        ).view_as(targets_BL)
