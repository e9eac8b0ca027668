"""What a position encoding may do, and what it is given to do it with."""

from __future__ import annotations

from torch import Tensor, nn


class PositionEncoding(nn.Module):
    """How a model knows where a token stands. By itself: not at all; an encoding overrides what it needs.

    One object serves the whole model and owns the parameters of all layers. Keys are counted from the oldest
    memory slot: key `j` of `K = M + L`, query `i` of `L`, so that query `i` is key `M + i` and stands at
    distance `M + i - j` after key `j`.

    Args:
        n_layer, n_head, d_model, d_head: the shape of the model it serves.
        dropout: the model's dropout, for what the encoding adds.
    """

    def __init__(self, n_layer: int, n_head: int, d_model: int, d_head: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_layer, self.n_head, self.d_model, self.d_head = n_layer, n_head, d_model, d_head
        self.dropout = nn.Dropout(dropout)

    def table(self, x_BLD: Tensor, key_length: int) -> Tensor | None:
        """Return what all layers share for this segment, computed once (`None`: nothing)."""
        return None

    def queries_and_keys(
        self, layer: int, q_BLHC: Tensor, k_BKHC: Tensor, table: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the queries and keys whose products are the content scores of this layer."""
        return q_BLHC, k_BKHC

    def bias(self, layer: int, q_BLHC: Tensor, key_length: int, table: Tensor | None) -> Tensor | None:
        """Return what is added to the scaled scores, a shape that broadcasts to `[B, H, L, K]`, or `None`.

        What it holds for keys after the query (`j > M + i`) does not matter: attention hides them.
        """
        return None
