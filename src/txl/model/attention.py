"""Multi-head attention over the memory and the current segment (§3.2, Appendix B)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from txl.model.dropout import Dropout
from txl.model.positions.base import DistanceScores, PositionEncoding

# Attends within one segment: queries, keys, values, distance scores, dropout. See `PlainAttention.__call__`.
Attend = Callable[[Tensor, Tensor, Tensor, DistanceScores, Dropout], Tensor]


class Attention(nn.Module):
    """Queries come from the segment, keys and values from the memory and the segment.

    Args:
        d_model, n_head, d_head: D, H and C. H · C need not be D.
        dropout: of the attention probabilities (the authors' `dropatt`).
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
        """Return `[B, L, D]`, before residual connection and normalization.

        `attend` is the attention backend, set up for this segment, and `table` is `position.table` of it.
        """
        q_BLHC, k_BKHC, v_BKHC = self.project(x_BLD, memory_BMD)
        distance_scores = position.distance_scores(layer, q_BLHC, position.layer_table(layer, table))
        q_BLHC, k_BKHC = position.queries_and_keys(layer, q_BLHC, k_BKHC, table)
        return self.output(attend(q_BLHC, k_BKHC, v_BKHC, distance_scores, self.dropout).flatten(-2))

    def project(self, x_BLD: Tensor, memory_BMD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries `[B, L, H, C]`, scaled by 1/sqrt(C), and keys and values `[B, K, H, C]`."""
        # Two products rather than one of the concatenation, because the memory needs no gradient.
        context_BKE = torch.cat([self.key_value(memory_BMD), self.key_value(x_BLD)], dim=1)
        return self.queries(x_BLD), *self.keys_and_values(context_BKE)

    def queries(self, x_BLD: Tensor) -> Tensor:
        return self.query(x_BLD).unflatten(-1, (self.n_head, self.d_head)) * self.d_head**-0.5

    def keys_and_values(self, projected_BKE: Tensor) -> tuple[Tensor, Tensor]:
        """Split the output of `key_value` into keys and values `[B, K, H, C]`."""
        k_BKHC, v_BKHC = projected_BKE.unflatten(-1, (2, self.n_head, self.d_head)).unbind(2)
        return k_BKHC, v_BKHC


class PlainAttention:
    """Computes all scores of a segment at once: the readable reference, and what torch.compile fuses.

    The other attention backends take the same arguments and give the same result.

    Args:
        masked_BLK: bool, the keys that each query must not see (`masked_keys`).
        x_BLD: the segment; the scores have its device and, unless autocast sets another, its type.
    """

    def __init__(self, masked_BLK: Tensor, x_BLD: Tensor) -> None:
        self.masked_BLK = masked_BLK.to(x_BLD.device)
        device, dtype = x_BLD.device.type, x_BLD.dtype
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        # Adding -inf to the scores is faster than `masked_fill`.
        zeros_BLK = torch.zeros(masked_BLK.shape, dtype=dtype, device=x_BLD.device)
        self.penalty_B1LK = zeros_BLK.masked_fill(self.masked_BLK, float("-inf"))[:, None]

    def __call__(
        self,
        q_BLHC: Tensor,
        k_BKHC: Tensor,
        v_BKHC: Tensor,
        distance_scores: DistanceScores,
        dropout: Dropout,
    ) -> Tensor:
        """Return the values weighted by the attention probabilities and summed, `[B, L, H, C]`.

        The queries are already scaled by 1/sqrt(C). `dropout` is applied to the probabilities.
        """
        scores_BHLK = q_BLHC.transpose(1, 2) @ k_BKHC.permute(0, 2, 3, 1)
        bias = distance_scores.by_key(*self.masked_BLK.shape[1:])
        if bias is not None:
            scores_BHLK = scores_BHLK + bias
        scores_BHLK += self.penalty_B1LK
        probabilities_BHLK = dropout(scores_BHLK.softmax(dim=-1))
        return (probabilities_BHLK @ v_BKHC.transpose(1, 2)).transpose(1, 2)


def masked_keys(length: int, memory_length_B: Tensor, slots: int, attention_length: int | None) -> Tensor:
    """Return which keys each query must not see, bool `[B, L, K]`.

    A query sees its own token and earlier ones, in the segment and in the filled memory slots: no more than
    `attention_length` keys, its own included, or all for `None`. The authors' `same_length` with a memory of
    M is `attention_length=M`.
    """
    device = memory_length_B.device
    key_K = torch.arange(slots + length, device=device)
    distance_LK = torch.arange(slots, slots + length, device=device)[:, None] - key_K
    masked_LK = distance_LK < 0
    if attention_length is not None:
        masked_LK = masked_LK | (distance_LK >= attention_length)
    empty_BK = key_K < slots - memory_length_B[:, None]
    return masked_LK | empty_BK[:, None]
