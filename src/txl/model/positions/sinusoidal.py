"""Absolute sinusoids, added once to the input (Vaswani et al. 2017, §3.5)."""

import torch
from torch import Tensor

from txl.model.positions.base import PositionEncoding, check_clamp, sinusoids


class SinusoidalPosition(PositionEncoding):
    """Adds the sinusoids of the positions 0, 1, …, counted from the start of each segment.

    With recurrence, states in the memory still carry positions of an earlier segment, and nothing tells a
    query which segment a key is from: the failure that §3.3 explains.

    Args:
        clamp_length: larger positions count as this one; `None` for no limit.
        from_end: count back from the segment's last token, which is 0, as the authors' code does.
    """

    absolute = True

    def __init__(
        self,
        n_layer: int,
        n_head: int,
        d_model: int,
        d_head: int,
        dropout: float = 0.0,
        key_length: int = 1,
        clamp_length: int | None = None,
        from_end: bool = False,
    ) -> None:
        super().__init__(n_layer, n_head, d_model, d_head, dropout, key_length)
        if d_model % 2:
            raise ValueError(f"d_model must be even for sinusoids, not {d_model}")
        check_clamp(clamp_length)
        self.clamp_length, self.from_end = clamp_length, from_end

    def to_input(self, x_BLD: Tensor) -> Tensor:
        position = torch.arange(x_BLD.shape[1], device=x_BLD.device)
        if self.from_end:
            position = position.flip(0)
        if self.clamp_length is not None:
            position = position.clamp(max=self.clamp_length)
        return x_BLD + sinusoids(position, self.d_model, x_BLD.dtype)
