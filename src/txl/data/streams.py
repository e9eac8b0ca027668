"""Streams: which row of the batch reads which tokens, in which order.

Recurrence makes the order of the data part of the model: a row must read on where its memory ends. So the
streams own it, and no loader or sampler may shuffle them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Batch(NamedTuple):
    """One segment of every row.

    Attributes:
        inputs: `[B, L]` int64.
        targets: `[B, L]` int64, the tokens that follow the inputs.
        scored: `[B, L]` bool, which targets count. The others are padding at a row's end.
        fresh: `[B]` bool, the rows that begin a new text here and must forget what they remember.
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    fresh: Tensor


class OrderedStreams:
    """One contiguous run of tokens for each row, read left to right; every token after the first is a target.

    T tokens have T - 1 targets. Row b of B gets targets b·(T-1)/B to (b+1)·(T-1)/B, so rows differ by one
    target at most and the last segment is padded. Process r of W reads rows r·B/W to (r+1)·B/W - 1 of the
    same global batch, and every process makes the same number of batches. With half loss segments overlap by
    half and only the second half of each is scored, the first segment of a row whole. Each iteration is one
    epoch.

    Args:
        tokens: `[T]` integers.
        batch_size: B, the rows of the global batch.
        segment_length: L.
        rank, world_size: r and W.
        loss: "full", or "half": each target then has L/2 tokens of its own segment before it.

    Attributes:
        step: tokens from the beginning of one segment to that of the next; what a memory must take of each.

    Raises:
        ValueError: fewer than two tokens, a size that is not positive, rows that W does not divide, or half
            loss of an odd segment.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        batch_size: int,
        segment_length: int,
        rank: int = 0,
        world_size: int = 1,
        loss: str = "full",
    ) -> None:
        if len(tokens) < 2:
            raise ValueError(
                f"a stream needs at least 2 tokens, one to read and one to predict, not {len(tokens)}"
            )
        if batch_size < 1 or segment_length < 1:
            raise ValueError(f"batch_size {batch_size} and segment_length {segment_length} must be positive")
        if batch_size % world_size:
            raise ValueError(f"batch_size {batch_size} must be a multiple of the {world_size} processes")
        self.tokens, self.segment_length = tokens, segment_length
        self.step = segment_step(segment_length, loss)
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        rows = np.arange(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
        targets = len(tokens) - 1
        self.begin = rows * targets // batch_size  # the first input of each row
        self.end = (rows + 1) * targets // batch_size  # the input after its last
        self.longest = -(-targets // batch_size)

    def __len__(self) -> int:
        """Return the number of segments in an epoch, the same on every process."""
        return 1 + max(0, -(-(self.longest - self.segment_length) // self.step))

    def __iter__(self) -> Iterator[Batch]:
        for segment in range(len(self)):
            place = self.begin[:, None] + segment * self.step + np.arange(self.segment_length + 1)
            taken = torch.from_numpy(self.tokens[np.minimum(place, len(self.tokens) - 1)].astype(np.int64))
            scored = torch.from_numpy(place[:, :-1] < self.end[:, None])
            if segment > 0:
                scored[:, : self.segment_length - self.step] = False  # the segment before has scored these
            fresh = torch.full((len(self.begin),), segment == 0)
            yield Batch(taken[:, :-1], taken[:, 1:], scored, fresh)

    def describe(self) -> str:
        """Return one line that says what this process reads."""
        first, last = self.rank * self.batch_size // self.world_size, len(self.begin) - 1
        return (
            f"process {self.rank} of {self.world_size} reads rows {first} to {first + last} of "
            f"{self.batch_size} in order: tokens {self.begin[0]:,} to {self.end[-1]:,}, about "
            f"{self.longest:,} a row in {len(self):,} segments of {self.segment_length}"
        )


def segment_step(segment_length: int, loss: str) -> int:
    """Return how far apart segments begin: their length, or with "half" loss half of it.

    Raises:
        ValueError: another word than "full" or "half", or half of an odd length.
    """
    if loss not in ("full", "half"):
        raise ValueError(f"loss must be full or half, not {loss!r}")
    if loss == "half" and segment_length % 2:
        raise ValueError(f"half loss needs an even segment_length, not {segment_length}")
    return segment_length // 2 if loss == "half" else segment_length
