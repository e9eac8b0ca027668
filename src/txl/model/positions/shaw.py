"""Learned relative positions (Shaw et al. 2018), which the paper compares with its own in Tables 6 and 7."""

import torch
from torch import Tensor, nn

from txl.model.positions.base import DistanceScores, PositionEncoding, check_clamp, distances


class ShawPosition(PositionEncoding):
    """A learned vector for each layer, head and distance: terms (a) and (b) of §3.3.

    Args:
        key_length: the number of distances with a vector; larger ones use the vector of the largest.
        clamp_length: how many of these distances to tell apart; `None` for all.
        global_terms: add the terms (c), with one u per layer and head, and (d), with one bias per layer, head
            and distance. The paper says that Shaw et al. have neither; the authors' code (`attn_type` 1) has
            both.
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
        global_terms: bool = False,
    ) -> None:
        super().__init__(n_layer, n_head, d_model, d_head, dropout, key_length)
        check_clamp(clamp_length)
        self.clamp_length = clamp_length
        self.vectors = nn.Parameter(torch.empty(n_layer, key_length, n_head, d_head))
        self.global_terms = global_terms
        if global_terms:
            self.u = nn.Parameter(torch.empty(n_layer, n_head, d_head))
            self.distance_bias = nn.Parameter(torch.zeros(n_layer, key_length, n_head))

    @property
    def farthest(self) -> int:
        return min(self.key_length, self.clamp_length or self.key_length) - 1

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor:
        """Return which of the vectors each distance uses, `[K + 1]`."""
        return distances(key_length, x_BLD.device).clamp(max=self.farthest)

    def layer_table(self, layer: int, table: Tensor) -> Tensor:
        """Return the distance keys `[K + 1, H, C]`."""
        return self.vectors[layer, table]

    def queries_and_keys(
        self, layer: int, q_BLHC: Tensor, k_BKHC: Tensor, table: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return q + u, or q without term (c), and k."""
        return (q_BLHC + self.u[layer] * self.scale if self.global_terms else q_BLHC), k_BKHC

    def distance_scores(self, layer: int, q_BLHC: Tensor, layer_table: Tensor) -> DistanceScores:
        biases_RH = None
        if self.global_terms:
            biases_RH = self.distance_bias[layer, self.table(q_BLHC, len(layer_table) - 1)] * self.scale
        return DistanceScores(q_BLHC, layer_table, biases_RH)
