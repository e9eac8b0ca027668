"""Attention by torch's FlexAttention, for GPUs: the same as the plain one, and no scores in memory.

Why it should be fast: one kernel makes a block of scores, adds to it, hides, takes the softmax and uses it at
once. Of the size of the scores only the products of queries and distance keys are in memory, read by distance
where they lie; blocks of keys that nobody sees are left out; the way back makes the scores again.

torch compiles the kernel for CUDA alone: elsewhere its FlexAttention has no way back. There the same two
functions, what is added and what is seen, are asked about all pairs at once, so that biases can be checked.

Letters: see `txl.model`. `R` distances that an encoding tells apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from txl.model.dropout import Dropout
from txl.model.positions.base import DistanceScores

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

SMALLEST = 16  # size of a head that the kernel takes


class FusedAttention:
    """Attention of one segment by FlexAttention. It gives what `PlainAttention` gives.

    Args:
        hidden_BLK: bool, the keys that a query must not see.
        x_BLD: the segment, whose device the scores have.
    """

    def __init__(self, hidden_BLK: Tensor, x_BLD: Tensor) -> None:
        seen_BLK = ~hidden_BLK.to(x_BLD.device)

        def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return seen_BLK[row, query, key]

        self.mask_mod, self.block_mask = mask_mod, None
        if has_kernel(x_BLD.device):
            rows, length, keys = seen_BLK.shape
            self.block_mask = create_block_mask(mask_mod, rows, None, length, keys, device=x_BLD.device)

    def __call__(
        self, q_BLHC: Tensor, k_BKHC: Tensor, v_BKHC: Tensor, by_distance: DistanceScores, dropout: Dropout
    ) -> Tensor:
        """Return what the queries take from the values, `[B, L, H, C]`: see `PlainAttention`.

        Raises:
            ValueError: probabilities are to be dropped, of which the kernel has none to drop.
        """
        if dropout.training and dropout.p:
            raise ValueError(
                f"flex attention cannot drop attention probabilities, and attention_dropout is {dropout.p}; "
                "use 0, or plain or blocked attention"
            )
        # One type for all three, as the kernel wants: that of the values, which autocast chose.
        q, k, v = (x.to(v_BKHC.dtype).transpose(1, 2) for x in (q_BLHC, k_BKHC, v_BKHC))
        score_mod = adding(by_distance, q.shape[2], k.shape[2])
        if self.block_mask is None:
            return _of_all_pairs(q, k, v, score_mod, self.mask_mod).transpose(1, 2)
        # The kernel computes with powers of two; not all versions of torch fill others up to one.
        size = q.shape[-1]
        missing = max(SMALLEST, 1 << (size - 1).bit_length()) - size
        q, k, v = (functional.pad(x, (0, missing)) if missing else x for x in (q, k, v))
        attend = flex_attention if torch.compiler.is_compiling() else compiled()
        out = attend(q, k, v, score_mod=score_mod, block_mask=self.block_mask, scale=1.0)
        return out[..., :size].transpose(1, 2)


def has_kernel(device: torch.device) -> bool:
    """Return whether torch compiles FlexAttention for a device, the way back included."""
    return device.type == "cuda"


@functools.cache
def compiled() -> Callable[..., Tensor]:
    """Return FlexAttention compiled: the shapes of a run are few, and fixed ones make the best kernels."""
    return torch.compile(flex_attention, dynamic=False)


def adding(by_distance: DistanceScores, length: int, key_length: int) -> ScoreMod:
    """Return the function that adds to a score what its distance does, in the form FlexAttention asks for.

    Args:
        by_distance: what the distances add. With R smaller than K + 1, farther ones count as R - 1.
        length: L.
        key_length: K.
    """
    _, keys_RHC, biases_RH = by_distance
    products_BHLR = by_distance.products()
    table = keys_RHC if biases_RH is None else biases_RH
    last = 0 if table is None else len(table) - 1  # where the distance 0 stands
    first = last - (key_length - length)

    def score_mod(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # Keys after the query are hidden, but the kernel reads for them too: within the table.
        place = (first + key - query).clamp(0, last)
        if products_BHLR is not None:
            score = score + products_BHLR[row, head, query, place]
        if biases_RH is not None:
            score = score + biases_RH[place, head]
        return score

    return score_mod


def _of_all_pairs(
    q_BHLC: Tensor, k_BHKC: Tensor, v_BHKC: Tensor, score_mod: ScoreMod, mask_mod: Callable[..., Tensor]
) -> Tensor:
    """Return what FlexAttention would, `[B, H, L, C]`, with all scores in memory."""
    sizes = (*q_BHLC.shape[:3], k_BHKC.shape[2])
    pairs = [
        torch.arange(size, device=q_BHLC.device).view(-1, *[1] * (3 - axis))
        for axis, size in enumerate(sizes)
    ]
    scores_BHLK = score_mod(q_BHLC @ k_BHKC.transpose(-1, -2), *pairs)
    scores_BHLK = scores_BHLK.masked_fill(~mask_mod(*pairs), float("-inf"))
    return scores_BHLK.softmax(dim=-1).to(v_BHKC.dtype) @ v_BHKC
