"""Attention by torch's FlexAttention, for GPUs: the same result as plain attention, no scores in memory.

Why it should be fast: one kernel computes a block of scores, adds the distance scores, masks, takes the
softmax and uses the probabilities at once. Of the size of the scores only the products of queries and
distance keys are in memory, and they are read by distance, without a shift; blocks of keys that no query sees
are skipped; the backward pass recomputes the scores.

torch compiles the kernel, with its backward pass, for CUDA only. Elsewhere `score_mod` and `mask_mod` are
applied to all pairs of queries and keys at once, so that they can be tested without a GPU.

Letters: see `txl.model`. `R` is the number of distances that an encoding tells apart.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from txl.model.dropout import Dropout
from txl.model.positions.base import DistanceScores

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

MIN_HEAD_SIZE = 16  # that the kernel accepts


class FusedAttention:
    """Attention within one segment by FlexAttention. Arguments and result are those of `PlainAttention`."""

    def __init__(self, masked_BLK: Tensor, x_BLD: Tensor) -> None:
        seen_BLK = ~masked_BLK.to(x_BLD.device)

        def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return seen_BLK[row, query, key]

        self.mask_mod, self.block_mask = mask_mod, None
        if has_kernel(x_BLD.device):
            rows, length, keys = seen_BLK.shape
            self.block_mask = create_block_mask(mask_mod, rows, None, length, keys, device=x_BLD.device)

    def __call__(
        self,
        q_BLHC: Tensor,
        k_BKHC: Tensor,
        v_BKHC: Tensor,
        distance_scores: DistanceScores,
        dropout: Dropout,
    ) -> Tensor:
        if dropout.training and dropout.p:  # the kernel does not expose its probabilities
            raise ValueError(
                f"flex attention cannot drop attention probabilities, and attention_dropout is {dropout.p}; "
                "use 0, or plain or blocked attention"
            )
        # The kernel needs one type for all three: that of the values, which autocast chose.
        q, k, v = (x.to(v_BKHC.dtype).transpose(1, 2) for x in (q_BLHC, k_BKHC, v_BKHC))
        score_mod = make_score_mod(distance_scores, q.shape[2], k.shape[2])
        if self.block_mask is None:
            return _attend_to_all_pairs(q, k, v, score_mod, self.mask_mod).transpose(1, 2)
        # The kernel needs a power of two; not all versions of torch pad other head sizes.
        size = q.shape[-1]
        missing = max(MIN_HEAD_SIZE, 1 << (size - 1).bit_length()) - size
        q, k, v = (functional.pad(x, (0, missing)) if missing else x for x in (q, k, v))
        attend: Any = flex_attention if torch.compiler.is_compiling() else compiled_kernel()
        out = attend(q, k, v, score_mod=score_mod, block_mask=self.block_mask, scale=1.0)
        return out[..., :size].transpose(1, 2)


def has_kernel(device: torch.device) -> bool:
    """Return whether torch compiles FlexAttention for a device, with its backward pass."""
    return device.type == "cuda"


@functools.cache
def compiled_kernel() -> Callable[..., Tensor]:
    """Compile FlexAttention. A run has few shapes, and fixed shapes make the fastest kernels."""
    return torch.compile(flex_attention, dynamic=False)


def make_score_mod(distance_scores: DistanceScores, length: int, key_length: int) -> ScoreMod:
    """Return the function by which FlexAttention adds the distance scores of L queries and K keys.

    If R is less than K + 1, larger distances score as R - 1.
    """
    _, keys_RHC, biases_RH = distance_scores
    products_BHLR = distance_scores.products()
    table = keys_RHC if biases_RH is None else biases_RH
    last = 0 if table is None else len(table) - 1  # the index of the distance 0
    first = last - (key_length - length)

    def score_mod(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # Keys after the query are masked, but the kernel reads an entry for them, too: clamped to the table.
        index = (first + key - query).clamp(0, last)
        if products_BHLR is not None:
            score = score + products_BHLR[row, head, query, index]
        if biases_RH is not None:
            score = score + biases_RH[index, head]
        return score

    return score_mod


def _attend_to_all_pairs(
    q_BHLC: Tensor, k_BHKC: Tensor, v_BHKC: Tensor, score_mod: ScoreMod, mask_mod: Callable[..., Tensor]
) -> Tensor:
    """Return the result of FlexAttention, `[B, H, L, C]`, with all scores in memory."""
    sizes = (*q_BHLC.shape[:3], k_BHKC.shape[2])
    pairs = [
        torch.arange(size, device=q_BHLC.device).view(-1, *[1] * (3 - axis))
        for axis, size in enumerate(sizes)
    ]
    scores_BHLK = score_mod(q_BHLC @ k_BHKC.transpose(-1, -2), *pairs)
    scores_BHLK = scores_BHLK.masked_fill(~mask_mod(*pairs), float("-inf"))
    return scores_BHLK.softmax(dim=-1).to(v_BHKC.dtype) @ v_BHKC
