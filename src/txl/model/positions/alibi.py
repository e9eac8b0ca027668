"""Attention with linear biases (Press et al. 2022): scores fall linearly with the distance."""

import math

import torch
from torch import Tensor

from txl.model.positions.base import DistanceScores, PositionEncoding, distances


class AlibiPosition(PositionEncoding):
    """Subtracts slope · distance from the scores; each head has a fixed slope. Nothing is learned."""

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor:
        """Return the distance biases `[K + 1, H]`."""
        slope_H = torch.tensor(slopes(self.n_head), device=x_BLD.device, dtype=x_BLD.dtype)
        return -distances(key_length, x_BLD.device)[:, None] * slope_H

    def distance_scores(self, layer: int, q_BLHC: Tensor, layer_table: Tensor) -> DistanceScores:
        return DistanceScores(biases=layer_table)


def slopes(heads: int) -> list[float]:
    """Return the slopes 2^(-8/n), 2^(-16/n), … of n heads, where n is a power of two.

    For other numbers of heads, Press et al. take the slopes of the next smaller power of two and fill up with
    every second slope of twice that power.
    """
    power = 2 ** math.floor(math.log2(heads))
    regular = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return regular + between[: heads - power]
