"""A learned absolute table added before every layer (Al-Rfou et al. 2018, §3)."""

import torch
from torch import Tensor, nn

from txl.model.positions.base import PositionEncoding


class LearnedPosition(PositionEncoding):
    """One learned vector for each layer and position, counted from the start of each segment.

    States in the memory keep the vectors that were added when they were read. A segment can have at most
    `key_length` tokens.
    """

    absolute = True

    def __init__(
        self, n_layer: int, n_head: int, d_model: int, d_head: int, dropout: float = 0.0, key_length: int = 1
    ) -> None:
        super().__init__(n_layer, n_head, d_model, d_head, dropout, key_length)
        self.vectors = nn.Parameter(torch.empty(n_layer, key_length, d_model))

    def to_layer(self, layer: int, x_BLD: Tensor) -> Tensor:
        length = x_BLD.shape[1]
        if length > self.key_length:
            raise ValueError(
                f"a segment of {length} tokens is longer than the {self.key_length} learned positions; "
                "use a segment no longer than in training"
            )
        return x_BLD + self.vectors[layer, :length]
