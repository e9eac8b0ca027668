"""The sum of scores, from which every metric is computed."""

import math

import torch
from torch import Tensor


class ScoreSum:
    """Sums scores, the negative log-likelihoods of targets in nats, over batches and processes."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, scores_BL: Tensor, scored_BL: Tensor) -> None:
        """Add the scores `[B, L]` where `scored_BL` is true, summed in float64."""
        self.total += torch.where(scored_BL, scores_BL, 0.0).cpu().double().sum().item()
        self.count += int(scored_BL.sum())

    def gather(self) -> None:
        """Replace the sum with the total over all processes, in each of them."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            sums: list[tuple[float, int]] = [(0.0, 0)] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(sums, (self.total, self.count))
            self.total, self.count = math.fsum(total for total, _ in sums), sum(count for _, count in sums)

    @property
    def loss(self) -> float:
        """The mean score, in nats per token; nan if there is none."""
        return self.total / self.count if self.count else math.nan
