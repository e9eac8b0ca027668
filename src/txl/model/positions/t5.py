"""T5's relative bias (Raffel et al. 2020, §2.1): a learned number for each head and bucket of distances."""

import math

import torch
from torch import Tensor, nn

from txl.model.positions.base import DistanceScores, PositionEncoding, distances


class T5Position(PositionEncoding):
    """The first half of the buckets hold one distance each; the others widen logarithmically.

    All layers share the learned biases (`numbers`), as in T5.

    Args:
        buckets: their number.
        max_distance: distances from this one on share the last bucket.
    """

    def __init__(
        self,
        n_layer: int,
        n_head: int,
        d_model: int,
        d_head: int,
        dropout: float = 0.0,
        key_length: int = 1,
        buckets: int = 32,
        max_distance: int = 128,
    ) -> None:
        super().__init__(n_layer, n_head, d_model, d_head, dropout, key_length)
        if buckets < 2 or max_distance <= buckets // 2:
            raise ValueError(
                "t5 needs 2 buckets or more and max_distance above half of them, "
                f"not {buckets} and {max_distance}"
            )
        self.buckets, self.max_distance = buckets, max_distance
        self.numbers = nn.Parameter(torch.empty(buckets, n_head))

    def bucket(self, distance: Tensor) -> Tensor:
        exact = self.buckets // 2
        ratio = torch.log(distance.clamp(min=exact) / exact) / math.log(self.max_distance / exact)
        wide = exact + (ratio * (self.buckets - exact)).long()
        return torch.where(distance < exact, distance, wide.clamp(max=self.buckets - 1))

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor:
        """Return the distance biases `[K + 1, H]`."""
        return self.numbers[self.bucket(distances(key_length, x_BLD.device))]

    def distance_scores(self, layer: int, q_BLHC: Tensor, layer_table: Tensor) -> DistanceScores:
        return DistanceScores(biases=layer_table)
