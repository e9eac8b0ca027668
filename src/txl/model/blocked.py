"""Attention a block of queries at a time: the same as the plain one, fast on a CPU.

Why it is fast:

- A block of scores, of some heads and some hundred queries, stays in the processor's cache from the product
  that makes it to the product that uses it. The plain way writes all scores of a layer to main memory and
  reads them again for each step: product, shift, mask, softmax.
- Keys after a block's last query, and those that no query of the block may see, are never looked at: most of
  the upper triangle, and the memory slots that are not real yet.
- Hiding costs next to nothing: only the columns with some hidden keys have -inf added.
- The shift of Appendix B is a view, on the way back too: the gradient is written through it.
- Of the size of the scores only the probabilities of the keys that are seen are kept for the way back.

Letters: see `txl.model`. `W` keys of a block, from the first that any of its queries sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.model.dropout import Dropout
from txl.model.positions.base import ByDistance, relative_shift

Index = tuple[slice, slice, slice]  # of heads, rows, and tokens

QUERIES = 256  # of a block
BYTES = 2**23  # of the scores of a block, at most, where one head of one row is not more already


class Block(NamedTuple):
    """Some queries, and the keys that they see.

    Attributes:
        queries: their places in the segment.
        keys: from the first that one of them sees to the last of them.
        hidden: the columns where some queries must not see some keys, and what is added there, 0 or -inf,
            `[B, queries, columns]`.
    """

    queries: slice
    keys: slice
    hidden: list[tuple[slice, Tensor]]


def blocks_of(hidden_BLK: Tensor, device: torch.device) -> list[Block]:
    """Return the blocks of a segment, from which keys each query must not see (`hidden_keys`).

    Args:
        hidden_BLK: bool. Its values are looked at here, so it must not be on the device "meta".
        device: of the scores.
    """
    _, length, keys = hidden_BLK.shape
    blocks = []
    for begin in range(0, length, QUERIES):
        end = min(begin + QUERIES, length)
        hidden = hidden_BLK[:, begin:end]
        last = keys - length + end
        first = int((~hidden).flatten(0, 1).any(dim=0).int().argmax())
        partly = hidden[..., first:last].flatten(0, 1).any(dim=0).int()
        edges = torch.cat([partly.new_zeros(1), partly, partly.new_zeros(1)]).diff().nonzero()[:, 0]
        columns = [slice(*run) for run in edges.view(-1, 2).tolist()]
        parts = [
            (
                run,
                torch.zeros(())
                .masked_fill(hidden[..., first:last][..., run].cpu(), float("-inf"))
                .to(device),
            )
            for run in columns
        ]
        blocks.append(Block(slice(begin, end), slice(first, last), parts))
    return blocks


class BlockedAttention:
    """Attention of one segment, a block of queries at a time. It gives what `PlainAttention` gives.

    Args:
        hidden_BLK: bool, the keys that a query must not see.
        x_BLD: the segment, whose device the scores have.
    """

    def __init__(self, hidden_BLK: Tensor, x_BLD: Tensor) -> None:
        self.blocks = blocks_of(hidden_BLK, x_BLD.device)

    def __call__(
        self, q_BLHC: Tensor, k_BKHC: Tensor, v_BKHC: Tensor, by_distance: ByDistance, dropout: Dropout
    ) -> Tensor:
        """Return what the queries take from the values, `[B, L, H, C]`: see `PlainAttention`."""
        far_BLHC, near_RHC, numbers_RH = by_distance
        tensors = (q_BLHC, k_BKHC, v_BKHC, far_BLHC)
        # One precision for all products, as autocast would choose it.
        moved = [None if x is None else x.permute(2, 0, 1, 3).to(v_BKHC.dtype) for x in tensors]
        near = None if near_RHC is None else near_RHC.transpose(0, 1).to(v_BKHC.dtype)
        numbers = None if numbers_RH is None else numbers_RH.T
        noise = dropout.noise if dropout.training and dropout.p else None
        return _Blocked.apply(*moved, near, numbers, self.blocks, noise).permute(1, 2, 0, 3)


class _Blocked(torch.autograd.Function):
    """All tensors begin with heads and rows: queries `[H, B, L, C]`, keys and values `[H, B, K, C]`.

    `far` are the queries `[H, B, L, C]` that meet `near`, the keys of the distances `[H, K + 1, C]`;
    `numbers` are what else the distances add, `[H, K + 1]`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        far: Tensor | None,
        near: Tensor | None,
        numbers: Tensor | None,
        blocks: list[Block],
        noise: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:
        """Return what the queries take from the values, `[H, B, L, C]`."""
        q, k, v, far, near = (None if x is None else x.contiguous() for x in (q, k, v, far, near))
        out, kept = torch.empty_like(q), []
        for block, here, there in _parts(q, blocks):
            heads, rows, _ = here
            width = block.keys.stop - block.keys.start
            scores = q[here] @ k[there].transpose(-1, -2)
            if far is not None:
                queries = far[here]
                products = queries.flatten(1, 2) @ near[heads, -width - 1 :].transpose(-1, -2)
                scores += relative_shift(products.view(*queries.shape[:3], width + 1))
            if numbers is not None:
                of_all = numbers[heads, None, None, -width - 1 :]
                # In the precision of the numbers: a slope times a distance has more digits than bfloat16.
                scores = scores + relative_shift(of_all.expand(-1, -1, scores.shape[2], -1))
            for columns, hidden in block.hidden:
                scores[..., columns] += hidden[rows].to(scores)
            probabilities = scores.softmax(dim=-1).to(v.dtype)
            factors = None if noise is None else noise(probabilities)
            kept += [probabilities, factors]
            out[here] = (probabilities if factors is None else probabilities * factors) @ v[there]
        ctx.blocks = blocks
        ctx.no_numbers = None if numbers is None else torch.zeros_like(numbers)
        ctx.save_for_backward(q, k, v, far, near, out, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors; `d_x` is that of `x`."""
        q, k, v, far, near, out, *kept = ctx.saved_tensors
        d_out = d_out.contiguous()
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        d_far, d_near = (None, None) if far is None else (torch.empty_like(far), torch.zeros_like(near))
        d_numbers = None if ctx.no_numbers is None else ctx.no_numbers.clone()
        # The softmax takes from each gradient their mean over the keys, weighted with the probabilities.
        mean = (d_out * out).sum(dim=-1, keepdim=True)
        pairs = zip(kept[::2], kept[1::2], strict=True)
        for (_, here, there), (probabilities, factors) in zip(_parts(q, ctx.blocks), pairs, strict=True):
            heads, width, length = here[0], probabilities.shape[-1], probabilities.shape[-2]
            d_scores, used = d_out[here] @ v[there].transpose(-1, -2), probabilities
            if factors is not None:
                d_scores, used = d_scores * factors, probabilities * factors
            d_v[there] += used.transpose(-1, -2) @ d_out[here]
            d_scores -= mean[here]
            d_scores *= probabilities
            d_q[here] = d_scores @ k[there]
            d_k[there] += d_scores.transpose(-1, -2) @ q[here]
            if far is not None or d_numbers is not None:
                # Written through the shift. What its view leaves out, the first places, has no gradient.
                flat = d_scores.new_empty(*d_scores.shape[:2], length * (width + 1))
                flat[..., :length] = 0
                by_distance = flat.unflatten(-1, (length, width + 1))
                relative_shift(by_distance).copy_(d_scores)
            if far is not None:
                of_rows, queries = by_distance.flatten(1, 2), far[here]
                d_far[here] = (of_rows @ near[heads, -width - 1 :]).view_as(queries)
                d_near[heads, -width - 1 :] += of_rows.transpose(-1, -2) @ queries.flatten(1, 2)
            if d_numbers is not None:
                d_numbers[heads, -width - 1 :] += by_distance.sum(dim=(1, 2))
        return d_q, d_k, d_v, d_far, d_near, d_numbers, None, None


def _parts(q: Tensor, blocks: list[Block]) -> Iterator[tuple[Block, Index, Index]]:
    """Yield which heads and rows of a block are computed together: the index of its queries, and its keys."""
    heads, rows = q.shape[:2]
    for block in blocks:
        one = (block.queries.stop - block.queries.start) * (block.keys.stop - block.keys.start) * q.itemsize
        many = heads * rows if q.is_meta else max(1, BYTES // one)
        of_heads, of_rows = (many // rows, rows) if many >= rows else (1, many)
        for head in range(0, heads, of_heads):
            for row in range(0, rows, of_rows):
                part = slice(head, head + of_heads), slice(row, row + of_rows)
                yield block, (*part, block.queries), (*part, block.keys)
