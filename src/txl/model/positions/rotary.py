"""Rotary positions (Su et al. 2021): queries and keys turned by their place, so that scores see distances."""

from __future__ import annotations

import torch
from torch import Tensor

from txl.model.positions.base import PositionEncoding, sinusoids


class RotaryPosition(PositionEncoding):
    """Turns pairs of coordinates (i, i + C/2) of queries and keys by angles that grow with the place.

    Args:
        n_layer, n_head, d_model, d_head, dropout, key_length: see `PositionEncoding`. `d_head` must be even.
    """

    by_place = True

    def __init__(
        self, n_layer: int, n_head: int, d_model: int, d_head: int, dropout: float = 0.0, key_length: int = 1
    ) -> None:
        super().__init__(n_layer, n_head, d_model, d_head, dropout, key_length)
        if d_head % 2:
            raise ValueError(f"d_head must be even for rotary positions, not {d_head}")

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor:
        """Return sines and cosines `[K, C]` of the places of the keys, the oldest slot at `first`.

        Scores depend on distances alone, so that any place will do, as long as far ones keep their digits.
        """
        place = torch.arange(first, first + key_length, device=x_BLD.device)
        return sinusoids(place, self.d_head, torch.float64 if first else x_BLD.dtype).to(x_BLD.dtype)

    def queries_and_keys(
        self, layer: int, q_BLHC: Tensor, k_BKHC: Tensor, table: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys, each turned by its place: the queries are the last L keys."""
        return turn(q_BLHC, table[len(table) - q_BLHC.shape[1] :]), turn(k_BKHC, table)


def turn(x_BLHC: Tensor, table_LC: Tensor) -> Tensor:
    """Return vectors turned by the angles whose sines and cosines the table holds."""
    sine, cosine = (part[:, None] for part in table_LC.chunk(2, dim=-1))
    first, second = x_BLHC.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
