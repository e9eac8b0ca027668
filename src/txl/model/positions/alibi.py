"""Attention with linear biases (Press et al. 2022): scores fall with the distance, a slope for each head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from txl.model.positions.base import DistanceScores, PositionEncoding, distances


class AlibiPosition(PositionEncoding):
    """Subtracts slope · distance from the scores. Nothing is learned.

    Args:
        n_layer, n_head, d_model, d_head, dropout, key_length: see `PositionEncoding`.
    """

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor:
        """Return the biases `[K + 1, H]` of the distances K, K - 1, …, 0."""
        slope_H = torch.tensor(slopes(self.n_head), device=x_BLD.device, dtype=x_BLD.dtype)
        return -distances(key_length, x_BLD.device)[:, None] * slope_H

    def distance_scores(self, layer: int, q_BLHC: Tensor, layer_table: Tensor) -> DistanceScores:
        """Return the biases, the same in every layer."""
        return DistanceScores(biases=layer_table)


def slopes(heads: int) -> list[float]:
    """Return the slopes of the heads: 2^(-8/n), 2^(-16/n), … for n heads, a power of two.

    For another number of heads, those of the next smaller power of two, then every second one of twice as
    many, as Press et al. do.
    """
    power = 2 ** math.floor(math.log2(heads))
    regular = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return regular + between[: heads - power]
