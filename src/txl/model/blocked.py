"""Attention over one block of queries at a time: the same result as plain attention, faster on a CPU.

Why it is fast:

- The scores of some hundred queries and a few heads stay in the processor's cache from the product that makes
  them to the product that uses them; the next block overwrites them. Plain attention writes all scores of a
  layer to main memory and reads them again for each step: product, shift, mask, softmax.
- Keys that no query of a block sees are skipped: most of the upper triangle, and empty memory slots.
- Masking costs next to nothing: -inf is added only to the columns in which some keys are masked.
- The shift of Appendix B is a view, in the backward pass, too: gradients are written through it.
- For the backward pass nothing of the size of the scores is saved but the probabilities of the keys seen, and
  if they are large, not even they: recomputing them takes less than a tenth of a training step.

Letters: see `txl.model`. `W` is the number of keys of a block, from the first that any of its queries sees.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.model.dropout import Dropout
from txl.model.positions.base import DistanceScores

QUERIES = 256  # per block
SCORE_BYTES = 2**23  # limit for the scores computed together, unless those of a single head exceed it
SAVED_BYTES = 2**26  # limit for the probabilities that a layer saves; above it, they are recomputed


class Block(NamedTuple):
    """Consecutive queries, and the keys they see.

    Attributes:
        queries: their positions in the segment.
        keys: from the first that any of the queries sees to the last.
        penalties: for each run of columns with masked keys, what to add to the scores there, 0 or -inf,
            `[B, queries, columns]`.
    """

    queries: slice
    keys: slice
    penalties: list[tuple[slice, Tensor]]


def split_into_blocks(masked_BLK: Tensor, device: torch.device) -> list[Block]:
    """Return the blocks of a segment, whose scores are on `device`.

    Reads the values of `masked_BLK` (see `masked_keys`), so it must not be on the device "meta".
    """
    _, length, key_length = masked_BLK.shape
    blocks = []
    for begin in range(0, length, QUERIES):
        end = min(begin + QUERIES, length)
        last = key_length - length + end
        masked = masked_BLK[:, begin:end, :last]
        first = int((~masked).flatten(0, 1).any(dim=0).int().argmax())
        masked = masked[..., first:]
        partly = masked.flatten(0, 1).any(dim=0).int()
        edges = torch.cat([partly.new_zeros(1), partly, partly.new_zeros(1)]).diff().nonzero()[:, 0]
        penalties = []
        for start, stop in edges.view(-1, 2).tolist():
            penalty = torch.zeros(()).masked_fill(masked[..., start:stop].cpu(), float("-inf"))
            penalties.append((slice(start, stop), penalty.to(device)))
        blocks.append(Block(slice(begin, end), slice(first, last), penalties))
    return blocks


class BlockedAttention:
    """Attention within one segment, block by block. Arguments and result are those of `PlainAttention`."""

    def __init__(self, masked_BLK: Tensor, x_BLD: Tensor) -> None:
        self.blocks, self.scratch = split_into_blocks(masked_BLK, x_BLD.device), Scratch()

    def __call__(
        self,
        q_BLHC: Tensor,
        k_BKHC: Tensor,
        v_BKHC: Tensor,
        distance_scores: DistanceScores,
        dropout: Dropout,
    ) -> Tensor:
        distance_queries_BLHC, distance_keys_RHC, biases_RH = distance_scores
        factors = (q_BLHC, k_BKHC, v_BKHC, distance_queries_BLHC, distance_keys_RHC)
        # One precision for all products, as autocast would choose it.
        same = [None if x is None else x.to(v_BKHC.dtype) for x in factors]
        return _Blocked.apply(*same, biases_RH, self, dropout)


class Scratch:
    """Buffers of the size of a block's scores, which the blocks of all layers use in turn."""

    def __init__(self) -> None:
        self.buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the named buffer in the given shape, with the type and device of `like`."""
        size, buffer = math.prod(shape), self.buffers.get(name)
        if buffer is None or buffer.numel() < size or buffer.dtype != like.dtype:
            self.buffers[name] = buffer = like.new_empty(size)
        return buffer[:size].view(shape)

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return the batched matrix product, written to the named buffer."""
        return torch.bmm(a, b, out=self.buffer(name, (*a.shape[:2], b.shape[2]), a))


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        distance_queries: Tensor | None,
        distance_keys: Tensor | None,
        biases: Tensor | None,
        attend: BlockedAttention,
        dropout: Dropout,
    ) -> Tensor:
        save = q.shape[:3].numel() * k.shape[1] * k.itemsize <= SAVED_BYTES
        distance_scores = DistanceScores(distance_queries, distance_keys, biases)
        out, saved = q.new_empty(q.shape), []
        for part in _parts(q, attend.blocks):
            probabilities = part.probabilities(attend.scratch, q, k, distance_scores, new=save)
            mask = dropout.draw_mask(probabilities)
            saved += [probabilities if save else None, mask]
            part.queries(out).copy_(dropout.apply_mask(probabilities, mask) @ part.keys(v).contiguous())
        ctx.attend, ctx.dropout = attend, dropout
        ctx.save_for_backward(q, k, v, *distance_scores, out, *saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        # `d_x` is the gradient of `x`.
        q, k, v, distance_queries, distance_keys, biases, out, *saved = ctx.saved_tensors
        distance_scores = DistanceScores(distance_queries, distance_keys, biases)
        scratch, apply_mask = ctx.attend.scratch, ctx.dropout.apply_mask
        d_q, d_k, d_v = q.new_zeros(q.shape), _zeros_by_head(k), _zeros_by_head(v)
        d_distance_queries = d_distance_keys = d_biases = None
        if distance_keys is not None:
            d_distance_queries = distance_queries.new_zeros(distance_queries.shape)
            # All rows and blocks add to this gradient: bfloat16 would round each sum.
            precise = torch.promote_types(q.dtype, torch.float32)
            d_distance_keys = _zeros_by_head(distance_keys).to(precise)
        if biases is not None:
            d_biases = biases.new_zeros(biases.shape)
        # The softmax subtracts from each gradient their mean over the keys, weighted by the probabilities.
        mean = (d_out * out).sum(dim=-1, keepdim=True)
        pairs = zip(saved[::2], saved[1::2], strict=True)
        for part, (probabilities, mask) in zip(_parts(q, ctx.attend.blocks), pairs, strict=True):
            if probabilities is None:
                probabilities = part.probabilities(scratch, q, k, distance_scores)
            d_part, keys, values = part.queries(d_out), part.keys(k).contiguous(), part.keys(v).contiguous()
            part.keys(d_v).baddbmm_(apply_mask(probabilities, mask).transpose(1, 2), d_part)
            d_scores = apply_mask(scratch.product("scores", d_part, values.transpose(1, 2)), mask)
            d_scores -= part.queries(mean)
            d_scores *= probabilities
            part.queries(d_q).copy_(d_scores @ keys)
            part.keys(d_k).baddbmm_(d_scores.transpose(1, 2), part.queries(q))
            if distance_keys is None and biases is None:
                continue
            # Written through the shift; the first entries, which its view leaves out, have no gradient.
            by_distance = scratch.buffer("by distance", d_scores.shape, d_scores)
            by_distance[:, 0, : d_scores.shape[1] - 1] = 0
            for by_key, shifted in zip(_by_key(d_scores), _shifted(by_distance), strict=True):
                shifted.copy_(by_key)
            if d_distance_queries is not None and d_distance_keys is not None:
                part.queries(d_distance_queries).copy_(by_distance @ part.distances(distance_keys))
                part.distances(d_distance_keys).add_(
                    by_distance.transpose(1, 2) @ part.queries(distance_queries)
                )
            if d_biases is not None:
                part.distances(d_biases).add_(by_distance.sum(dim=1))
        if d_distance_keys is not None:
            d_distance_keys = d_distance_keys.to(distance_keys.dtype)
        return d_q, d_k, d_v, d_distance_queries, d_distance_keys, d_biases, None, None


def _zeros_by_head(x: Tensor) -> Tensor:
    """Return zeros in the shape of `x`, `[…, H, C]`, each head contiguous, which is faster to add to."""
    by_head = x.transpose(-3, -2)
    return by_head.new_zeros(by_head.shape).transpose(-3, -2)


class Part(NamedTuple):
    """What is computed together: some heads of a block, in one row. Heads come first in all its tensors."""

    row: int
    heads: slice
    block: Block

    def queries(self, x_BLHC: Tensor) -> Tensor:
        """Select this part of a tensor with one vector per query, `[heads, queries, C]`."""
        return x_BLHC[self.row, self.block.queries, self.heads].transpose(0, 1)

    def keys(self, x_BKHC: Tensor) -> Tensor:
        """Select this part of a tensor with one vector per key, `[heads, W, C]`."""
        return x_BKHC[self.row, self.block.keys, self.heads].transpose(0, 1)

    def distances(self, x_RH: Tensor) -> Tensor:
        """Select the entries of the distances W - 1, W - 2, …, 0, `[heads, W]` or `[heads, W, C]`."""
        width = self.block.keys.stop - self.block.keys.start
        return x_RH[-width:, self.heads].transpose(0, 1)

    def probabilities(
        self, scratch: Scratch, q: Tensor, k: Tensor, distance_scores: DistanceScores, new: bool = False
    ) -> Tensor:
        """Return the attention probabilities, `[heads, queries, W]`, in a new tensor or in the scratch."""
        queries, keys, biases = distance_scores
        # The vectors of a head lie far apart: the product is faster with a contiguous copy.
        scores = scratch.product("scores", self.queries(q), self.keys(k).contiguous().transpose(1, 2))
        if queries is not None and keys is not None:
            keys = self.distances(keys).transpose(1, 2)
            _add_shifted(scores, scratch.product("by distance", self.queries(queries), keys))
        if biases is not None:
            biases = self.distances(biases)[:, None].expand(-1, scores.shape[1], -1)
            # In the precision of the biases: a slope times a distance has more digits than bfloat16.
            scores = scores.to(torch.promote_types(scores.dtype, biases.dtype))
            _add_shifted(scores, biases)
        for columns, penalty in self.block.penalties:
            scores[..., columns] += penalty[self.row].to(scores)
        if new or scores.dtype != k.dtype:
            return scores.softmax(dim=-1).to(k.dtype)
        return torch.softmax(scores, -1, out=scratch.buffer("probabilities", scores.shape, scores))


def _by_key(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Split scores by key `[heads, L, W]` into two views: all keys but the last, and the last.

    Of the last key only the score of the last query is returned: no other query sees it.
    """
    return scores[..., :-1], scores[:, -1, -1]


def _shifted(by_distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two views of `_by_key` for scores of the distances W - 1, …, 0, `[heads, L, W]`.

    This is `relative_shift` with only as many distances as keys, so that all products have an even number of
    columns.
    """
    heads, length, width = by_distance.shape
    flat = by_distance.flatten(1)
    return flat[:, length - 1 : -1].view(heads, length, width - 1), flat[:, -1]


def _add_shifted(scores: Tensor, by_distance: Tensor) -> None:
    for by_key, shifted in zip(_by_key(scores), _shifted(by_distance), strict=True):
        by_key += shifted


def _parts(q_BLHC: Tensor, blocks: list[Block]) -> Iterator[Part]:
    rows, _, heads, _ = q_BLHC.shape
    for block in blocks:
        scores = (block.queries.stop - block.queries.start) * (block.keys.stop - block.keys.start)
        together = max(1, SCORE_BYTES // (scores * q_BLHC.itemsize))
        for row in range(rows):
            for head in range(0, heads, together):
                yield Part(row, slice(head, head + together), block)
