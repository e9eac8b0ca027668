"""Rotary positions (Su et al. 2021): rotated queries and keys, whose products depend on distances alone."""

import torch
from torch import Tensor

from txl.model.positions.base import PositionEncoding, sinusoids


class RotaryPosition(PositionEncoding):
    """Rotates each pair of coordinates (i, i + C/2) by an angle proportional to the position."""

    by_place = True

    def __init__(
        self, n_layer: int, n_head: int, d_model: int, d_head: int, dropout: float = 0.0, key_length: int = 1
    ) -> None:
        super().__init__(n_layer, n_head, d_model, d_head, dropout, key_length)
        if d_head % 2:
            raise ValueError(f"d_head must be even for rotary positions, not {d_head}")

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor:
        """Return sines and cosines `[K, C]` of the positions of the keys, the oldest memory slot at `first`.

        Any `first` gives the same scores, if the angles of large positions are computed precisely.
        """
        position = torch.arange(first, first + key_length, device=x_BLD.device)
        return sinusoids(position, self.d_head, torch.float64 if first else x_BLD.dtype).to(x_BLD.dtype)

    def queries_and_keys(
        self, layer: int, q_BLHC: Tensor, k_BKHC: Tensor, table: Tensor
    ) -> tuple[Tensor, Tensor]:
        return rotate(q_BLHC, table[len(table) - q_BLHC.shape[1] :]), rotate(k_BKHC, table)


def rotate(x_BLHC: Tensor, table_LC: Tensor) -> Tensor:
    """Rotate vectors by the angles whose sines and cosines are in the table."""
    sine, cosine = (part[:, None] for part in table_LC.chunk(2, dim=-1))
    first, second = x_BLHC.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
