"""Attention a block of queries at a time: the same as the plain one, fast on a CPU.

Why it is fast:

- A block of scores, of some heads and some hundred queries, stays in the processor's cache from the product
  that makes it to the product that uses it, and the next one is written over it. The plain way writes all
  scores of a layer to main memory and reads them again for each step: product, shift, mask, softmax.
- Keys after a block's last query, and those that no query of the block may see, are never looked at: most of
  the upper triangle, and the memory slots that are not real yet.
- Hiding costs next to nothing: only the columns with some hidden keys have -inf added.
- The shift of Appendix B is a view, on the way back too: the gradient is written through it.
- Of the size of the scores only the probabilities of the keys that are seen are kept for the way back, and
  where they are large, not even they: computing them again takes less than a tenth of a step.

Letters: see `txl.model`. `W` keys of a block, from the first that any of its queries sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.model.dropout import Dropout
from txl.model.positions.base import DistanceScores

QUERIES = 256  # of a block
BYTES = 2**23  # of the scores computed together, at most, where those of one head are not more already
KEPT = 2**26  # bytes of the probabilities of a layer that are kept, at most; more are computed again


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
        self.blocks, self.scratch = blocks_of(hidden_BLK, x_BLD.device), Scratch()

    def __call__(
        self, q_BLHC: Tensor, k_BKHC: Tensor, v_BKHC: Tensor, by_distance: DistanceScores, dropout: Dropout
    ) -> Tensor:
        """Return what the queries take from the values, `[B, L, H, C]`: see `PlainAttention`."""
        far_BLHC, near_RHC, biases_RH = by_distance
        tensors = (q_BLHC, k_BKHC, v_BKHC, far_BLHC, near_RHC)
        # One precision for all products, as autocast would choose it.
        same = [None if x is None else x.to(v_BKHC.dtype) for x in tensors]
        return _Blocked.apply(*same, biases_RH, self, dropout)


class Scratch:
    """Room for tensors of the size of a block's scores, which the blocks of all layers use in turn."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def room(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of a shape, of the type and device of another, where one of that name was."""
        count, there = math.prod(shape), self.tensors.get(name)
        if there is None or there.numel() < count or there.dtype != like.dtype:
            self.tensors[name] = there = like.new_empty(count)
        return there[:count].view(shape)

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return the products of matrices, written where one of that name was."""
        return torch.bmm(a, b, out=self.room(name, (*a.shape[:2], b.shape[2]), a))


class _Blocked(torch.autograd.Function):
    """`far` are the queries that meet `near`, the keys of the distances; `biases` what else these add."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        far: Tensor | None,
        near: Tensor | None,
        biases: Tensor | None,
        attend: BlockedAttention,
        dropout: Dropout,
    ) -> Tensor:
        """Return what the queries take from the values, `[B, L, H, C]`."""
        keep = q.shape[:3].numel() * k.shape[1] * k.itemsize <= KEPT
        out, saved = q.new_empty(q.shape), []
        for part in _parts(q, attend.blocks):
            probabilities = part.probabilities(attend.scratch, q, k, far, near, biases, new=keep)
            saved += [probabilities if keep else None, dropout.draw(probabilities)]
            part.queries(out).copy_(dropout.keep(probabilities, saved[-1]) @ part.keys(v).contiguous())
        ctx.attend, ctx.dropout = attend, dropout
        ctx.save_for_backward(q, k, v, far, near, biases, out, *saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors; `d_x` is that of `x`."""
        q, k, v, far, near, biases, out, *saved = ctx.saved_tensors
        scratch, keep = ctx.attend.scratch, ctx.dropout.keep
        d_q, d_far, d_biases = (None if x is None else x.new_zeros(x.shape) for x in (q, far, biases))
        d_k, d_v = _zeros_by_head(k), _zeros_by_head(v)
        # All rows and blocks add to this one: in bfloat16 it would be rounded each time.
        precise = torch.promote_types(q.dtype, torch.float32)
        d_near = None if near is None else _zeros_by_head(near).to(precise)
        # The softmax takes from each gradient their mean over the keys, weighted with the probabilities.
        mean = (d_out * out).sum(dim=-1, keepdim=True)
        pairs = zip(saved[::2], saved[1::2], strict=True)
        for part, (probabilities, kept) in zip(_parts(q, ctx.attend.blocks), pairs, strict=True):
            if probabilities is None:
                probabilities = part.probabilities(scratch, q, k, far, near, biases)
            d_taken, keys, values = part.queries(d_out), part.keys(k).contiguous(), part.keys(v).contiguous()
            part.keys(d_v).baddbmm_(keep(probabilities, kept).transpose(1, 2), d_taken)
            d_scores = keep(scratch.product("scores", d_taken, values.transpose(1, 2)), kept)
            d_scores -= part.queries(mean)
            d_scores *= probabilities
            part.queries(d_q).copy_(d_scores @ keys)
            part.keys(d_k).baddbmm_(d_scores.transpose(1, 2), part.queries(q))
            if far is None and biases is None:
                continue
            # Written through the shift. What its view leaves out, the first places, has no gradient.
            by_distance = scratch.room("by distance", d_scores.shape, d_scores)
            by_distance[:, 0, : d_scores.shape[1] - 1] = 0
            for by_key, shifted in zip(_by_key(d_scores), _by_key_of_distances(by_distance), strict=True):
                shifted.copy_(by_key)
            if far is not None:
                part.queries(d_far).copy_(by_distance @ part.distances(near))
                part.distances(d_near).add_(by_distance.transpose(1, 2) @ part.queries(far))
            if biases is not None:
                part.distances(d_biases).add_(by_distance.sum(dim=1))
        if near is not None:
            d_near = d_near.to(near.dtype)
        return d_q, d_k, d_v, d_far, d_near, d_biases, None, None


def _zeros_by_head(x: Tensor) -> Tensor:
    """Return zeros of the shape of `x`, `[…, H, C]`, each head's together, which is quicker to add to."""
    by_head = x.transpose(-3, -2)
    return by_head.new_zeros(by_head.shape).transpose(-3, -2)


class Part(NamedTuple):
    """What is computed together: some heads, of one row, of a block. All tensors then begin with the heads.

    Attributes:
        row: which.
        heads: which.
        block: of the segment.
    """

    row: int
    heads: slice
    block: Block

    def queries(self, x_BLHC: Tensor) -> Tensor:
        """Return what belongs to the queries, `[heads, queries, C]`."""
        return x_BLHC[self.row, self.block.queries, self.heads].transpose(0, 1)

    def keys(self, x_BKHC: Tensor) -> Tensor:
        """Return what belongs to the keys, `[heads, W, C]`."""
        return x_BKHC[self.row, self.block.keys, self.heads].transpose(0, 1)

    def distances(self, x_RH: Tensor) -> Tensor:
        """Return what belongs to the distances W - 1, W - 2, …, 0, `[heads, W]` or `[heads, W, C]`."""
        width = self.block.keys.stop - self.block.keys.start
        return x_RH[-width:, self.heads].transpose(0, 1)

    def probabilities(
        self,
        scratch: Scratch,
        q: Tensor,
        k: Tensor,
        far: Tensor | None,
        near: Tensor | None,
        biases: Tensor | None,
        new: bool = False,
    ) -> Tensor:
        """Return the probabilities of the keys, `[heads, queries, W]`, as a new tensor or in the scratch."""
        # The vectors of a head lie far apart: products are quicker with a copy of them.
        scores = scratch.product("scores", self.queries(q), self.keys(k).contiguous().transpose(1, 2))
        if far is not None:
            of_near = self.distances(near).transpose(1, 2)
            _add_shifted(scores, scratch.product("by distance", self.queries(far), of_near))
        if biases is not None:
            of_all = self.distances(biases)[:, None].expand(-1, scores.shape[1], -1)
            # In the precision of the biases: a slope times a distance has more digits than bfloat16.
            scores = scores.to(torch.promote_types(scores.dtype, of_all.dtype))
            _add_shifted(scores, of_all)
        for columns, hidden in self.block.hidden:
            scores[..., columns] += hidden[self.row].to(scores)
        if new or scores.dtype != k.dtype:
            return scores.softmax(dim=-1).to(k.dtype)
        return torch.softmax(scores, -1, out=scratch.room("probabilities", scores.shape, scores))


def _by_key(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores by key `[heads, L, W]` in two views: without the last key, and of the last query for it.

    No other query sees that key.
    """
    return scores[..., :-1], scores[:, -1, -1]


def _by_key_of_distances(by_distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same two views of scores by distance `[heads, L, W]`, of the distances W - 1, …, 0.

    It is `relative_shift` for as many distances as keys, so that all products have an even number of columns.
    """
    heads, length, width = by_distance.shape
    flat = by_distance.flatten(1)
    return flat[:, length - 1 : -1].view(heads, length, width - 1), flat[:, -1]


def _add_shifted(scores: Tensor, by_distance: Tensor) -> None:
    for by_key, shifted in zip(_by_key(scores), _by_key_of_distances(by_distance), strict=True):
        by_key += shifted


def _parts(q_BLHC: Tensor, blocks: list[Block]) -> Iterator[Part]:
    rows, _, heads, _ = q_BLHC.shape
    for block in blocks:
        one = (block.queries.stop - block.queries.start) * (block.keys.stop - block.keys.start)
        many = max(1, BYTES // (one * q_BLHC.itemsize))
        for row in range(rows):
            for head in range(0, heads, many):
                yield Part(row, slice(head, head + many), block)
