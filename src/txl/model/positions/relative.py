"""The paper's relative positional encoding (§3.3, Appendix B).

The score of a query at position i and a key at position j has four terms:

    (a) q_i · k_j     content                     (c) u · k_j     global content bias
    (b) q_i · W_R R   content-dependent distance  (d) v · W_R R   global distance bias

where R is the sinusoid of the distance i - j, each layer has its own W_R (`distance_keys`), and u and v are
learned. Two products give all four: (a) + (c) is (q + u) · k, and (b) + (d) is (q + v) · W_R R.
"""

import torch
from torch import Tensor, nn

from txl.model.positions.base import DistanceScores, PositionEncoding, check_clamp, distances, sinusoids


class RelativePosition(PositionEncoding):
    """Sinusoids of the distance, projected in each layer, with the global biases u and v.

    Args:
        dropout: of the sinusoids, as in the authors' code.
        clamp_length: larger distances count as this one (the authors' `clamp_len`); `None` for no limit.
        shared_biases: one u and one v for all layers, as in the paper and the authors' PyTorch code; `False`
            for one pair per layer, as in their TensorFlow code for WikiText-103 and One Billion Word.
    """

    scores_distances = True

    def __init__(
        self,
        n_layer: int,
        n_head: int,
        d_model: int,
        d_head: int,
        dropout: float = 0.0,
        key_length: int = 1,
        clamp_length: int | None = None,
        shared_biases: bool = True,
    ) -> None:
        super().__init__(n_layer, n_head, d_model, d_head, dropout, key_length)
        if d_model % 2:
            raise ValueError(f"d_model must be even for sinusoids, not {d_model}")
        check_clamp(clamp_length)
        self.clamp_length = clamp_length
        pairs = 1 if shared_biases else n_layer
        self.u = nn.Parameter(torch.empty(pairs, n_head, d_head))
        self.v = nn.Parameter(torch.empty(pairs, n_head, d_head))
        self.distance_keys = nn.ModuleList(
            nn.Linear(d_model, n_head * d_head, bias=False) for _ in range(n_layer)
        )

    @property
    def farthest(self) -> int | None:
        return self.clamp_length

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor:
        """Return R, `[K + 1, D]`."""
        distance = distances(key_length, x_BLD.device).clamp(max=self.clamp_length or key_length)
        return self.dropout(sinusoids(distance, self.d_model, x_BLD.dtype))

    def layer_table(self, layer: int, table: Tensor) -> Tensor:
        """Return W_R R, `[K + 1, H, C]`."""
        return self.distance_keys[layer](table).unflatten(-1, (self.n_head, self.d_head))

    def queries_and_keys(
        self, layer: int, q_BLHC: Tensor, k_BKHC: Tensor, table: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return q + u and k, whose product is (a) + (c)."""
        return q_BLHC + (self.u[layer % len(self.u)] * self.scale).to(q_BLHC.dtype), k_BKHC

    def distance_scores(self, layer: int, q_BLHC: Tensor, layer_table: Tensor) -> DistanceScores:
        """Return q + v and W_R R, whose product is (b) + (d)."""
        return DistanceScores(
            q_BLHC + (self.v[layer % len(self.v)] * self.scale).to(q_BLHC.dtype), layer_table
        )
