"""Multi-head attention over the memory and the current segment (§3.2, Appendix B)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from txl.model.dropout import Dropout
from txl.model.positions.base import DistanceScores, PositionEncoding

# Of one segment: queries, keys, values, what distances add, dropout. See `PlainAttention.__call__`.
Attend = Callable[[Tensor, Tensor, Tensor, DistanceScores, Dropout], Tensor]


class Attention(nn.Module):
    """Queries from the segment; keys and values from the memory and the segment together.

    Args:
        d_model, n_head, d_head: D, H and C. H · C need not be D.
        dropout: dropout of the attention probabilities (the authors' `dropatt`).
    """

    def __init__(self, d_model: int, n_head: int, d_head: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_head, self.d_head = n_head, d_head
        self.query = nn.Linear(d_model, n_head * d_head, bias=False)
        self.key_value = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.output = nn.Linear(n_head * d_head, d_model, bias=False)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor,
        attend: Attend,
        position: PositionEncoding,
        layer: int,
        table: Tensor | None,
    ) -> Tensor:
        """Attend from the segment to the memory and the segment.

        Args:
            x_BLD: the segment.
            memory_BMD: the states of this layer that are remembered.
            attend: what takes from the values, for this segment.
            position: the position encoding of the model.
            layer: which layer this is.
            table: what `position.table` gave for this segment.

        Returns:
            `[B, L, D]`, before residual connection and normalization.
        """
        q_BLHC, k_BKHC, v_BKHC = self.project(x_BLD, memory_BMD)
        by_distance = position.distance_scores(layer, q_BLHC, position.layer_table(layer, table))
        q_BLHC, k_BKHC = position.queries_and_keys(layer, q_BLHC, k_BKHC, table)
        return self.output(attend(q_BLHC, k_BKHC, v_BKHC, by_distance, self.dropout).flatten(-2))

    def project(self, x_BLD: Tensor, memory_BMD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries `[B, L, H, C]`, scaled by 1/sqrt(C), and keys and values `[B, K, H, C]`."""
        # Two products and not one of both together: the states of the memory need no gradient.
        context_BKE = torch.cat([self.key_value(memory_BMD), self.key_value(x_BLD)], dim=1)
        return self.queries(x_BLD), *self.keys_and_values(context_BKE)

    def queries(self, x_BLD: Tensor) -> Tensor:
        """Return the queries `[B, L, H, C]`, scaled by 1/sqrt(C)."""
        return self.query(x_BLD).unflatten(-1, (self.n_head, self.d_head)) * self.d_head**-0.5

    def keys_and_values(self, projected_BKE: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values `[B, K, H, C]`: the two halves of what `key_value` gives."""
        return projected_BKE.unflatten(-1, (2, self.n_head, self.d_head)).unbind(2)


class PlainAttention:
    """All scores of a segment at once: the readable reference, and what torch.compile fuses.

    Args:
        hidden_BLK: bool, the keys that a query must not see.
        x_BLD: the segment, whose device and type the scores have, or the type of autocast.
    """

    def __init__(self, hidden_BLK: Tensor, x_BLD: Tensor) -> None:
        self.hidden_BLK = hidden_BLK.to(x_BLD.device)
        device, dtype = x_BLD.device.type, x_BLD.dtype
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)  # of the scores
        # Added to the scores, which is quicker than to fill them by a mask.
        nothing_BLK = torch.zeros(hidden_BLK.shape, dtype=dtype, device=x_BLD.device)
        self.penalty_B1LK = nothing_BLK.masked_fill(self.hidden_BLK, float("-inf"))[:, None]

    def __call__(
        self, q_BLHC: Tensor, k_BKHC: Tensor, v_BKHC: Tensor, by_distance: DistanceScores, dropout: Dropout
    ) -> Tensor:
        """Return what the queries take from the values, `[B, L, H, C]`; the other ways give the same.

        Args:
            q_BLHC: queries, scaled by 1/sqrt(C).
            k_BKHC: keys.
            v_BKHC: values.
            by_distance: what the distances add to the scores.
            dropout: of the probabilities.
        """
        scores_BHLK = q_BLHC.transpose(1, 2) @ k_BKHC.permute(0, 2, 3, 1)
        bias = by_distance.by_key(*self.hidden_BLK.shape[1:])
        if bias is not None:
            scores_BHLK = scores_BHLK + bias
        scores_BHLK += self.penalty_B1LK
        probabilities_BHLK = dropout(scores_BHLK.softmax(dim=-1))
        return (probabilities_BHLK @ v_BKHC.transpose(1, 2)).transpose(1, 2)


def hidden_keys(length: int, memory_length_B: Tensor, slots: int, attention_length: int | None) -> Tensor:
    """Return which keys each query must not see, bool `[B, L, K]`.

    A query sees itself and what came before it in its own text: not the keys after it, not the memory slots
    that are not real, and with `attention_length` only that many keys, itself included.

    Args:
        length: L, the queries.
        memory_length_B: how many of the memory's slots are real in each row.
        slots: M, the memory's slots.
        attention_length: how many keys a query may see (the authors' `same_length` with a memory of M is
            `attention_length=M`); `None` for all there are.
    """
    device = memory_length_B.device
    key_K = torch.arange(slots + length, device=device)
    distance_LK = torch.arange(slots, slots + length, device=device)[:, None] - key_K
    hidden_LK = distance_LK < 0
    if attention_length is not None:
        hidden_LK = hidden_LK | (distance_LK >= attention_length)
    unreal_BK = key_K < slots - memory_length_B[:, None]
    return hidden_LK | unreal_BK[:, None]
