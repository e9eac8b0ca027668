"""Streams: which row of the batch reads which tokens, in which order.

Recurrence makes the order of the data part of the model: a row must read on where its memory ends. So the
streams own it, and no loader or sampler may shuffle them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class Streams(ABC):
    """An iterator over the batches of an epoch whose place can be saved and restored.

    Which tokens a batch holds is a function of the seed, the epoch and the number of the batch alone, so the
    place is two numbers, the same on every process. Each `iter()` begins an epoch: the first one, after a
    whole epoch the next, and where the last was left early the same again. After `load_state_dict` it goes on
    with the first batch that had not been given.

    Args:
        tokens: `[T]` integers.
        batch_size: B, the rows of the global batch.
        segment_length: L.
        rank, world_size: r and W. Process r of W reads rows r·B/W to (r+1)·B/W - 1.
        loss: "full", or "half": each target then has L/2 tokens of its own segment before it.

    Attributes:
        step: tokens from the beginning of one segment to that of the next; what a memory must take of each.
        rows: the numbers of the rows that this process reads.

    Raises:
        ValueError: fewer than two tokens, a size that is not positive, rows that W does not divide, or half
            loss of an odd segment.
    """

    policy: str

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
        self.tokens, self.segment_length, self.loss = tokens, segment_length, loss
        self.step = segment_step(segment_length, loss)
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.rows = np.arange(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
        self._epoch = self._given = 0  # the place: batches given of this epoch
        self._restored = False  # whether the next epoch begins at that place

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same in each and on every process."""

    @abstractmethod
    def batch(self, epoch: int, number: int) -> Batch:
        """Return this process's rows of a batch."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line that says what this process reads."""

    def __iter__(self) -> Iterator[Batch]:
        first = self._given if self._restored else 0
        self._restored, epoch, batches = False, self._epoch, len(self)
        for number in range(first, batches):
            batch = self.batch(epoch, number)
            # Before it is given: a trainer that knows the length never asks for what follows the last one.
            self._epoch, self._given = (epoch, number + 1) if number + 1 < batches else (epoch + 1, 0)
            yield batch

    def identity(self) -> dict[str, int | str]:
        """Return what a saved place depends on: it means nothing where these differ."""
        return {
            "policy": self.policy,
            "tokens": len(self.tokens),
            "batch_size": self.batch_size,
            "segment_length": self.segment_length,
            "loss": self.loss,
        }

    def state_dict(self) -> dict[str, int | str]:
        """Return the place: "epoch" and "batch", the number of the next batch, and the identity.

        It is the same on every process, and holds for any number of processes.
        """
        return {"epoch": self._epoch, "batch": self._given, **self.identity()}

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Let the next `iter()` go on at this place.

        Raises:
            ValueError: the place is one of other streams.
        """
        for key, here in self.identity().items():
            if state.get(key) != here:
                raise ValueError(
                    f"the saved place in the data is of {key} {state.get(key)}, here it is {here}; go on "
                    "with the same, or train from the beginning"
                )
        if not (state["epoch"] >= 0 and 0 <= state["batch"] < len(self)):
            raise ValueError(
                f"the saved place in the data is batch {state['batch']} of epoch {state['epoch']}, but an "
                f"epoch has {len(self)} batches"
            )
        self._epoch, self._given, self._restored = state["epoch"], state["batch"], True


class OrderedStreams(Streams):
    """One contiguous run of tokens for each row, read left to right; every token after the first is a target.

    T tokens have T - 1 targets. Row b of B gets targets b·(T-1)/B to (b+1)·(T-1)/B, so rows differ by one
    target at most and the last segment is padded. With half loss segments overlap by half and only the second
    half of each is scored, the first segment of a row whole.
    """

    policy = "ordered"

    def __init__(self, tokens: np.ndarray, *sizes: int, **options: int | str) -> None:
        super().__init__(tokens, *sizes, **options)
        targets = len(tokens) - 1
        self.begin = self.rows * targets // self.batch_size  # the first input of each row
        self.end = (self.rows + 1) * targets // self.batch_size  # the input after its last
        self.longest = -(-targets // self.batch_size)

    def __len__(self) -> int:
        """Return the number of segments in an epoch, the same on every process."""
        return 1 + max(0, -(-(self.longest - self.segment_length) // self.step))

    def batch(self, epoch: int, number: int) -> Batch:
        """Return this process's rows of a batch."""
        place = self.begin[:, None] + number * self.step + np.arange(self.segment_length + 1)
        taken = torch.from_numpy(self.tokens[np.minimum(place, len(self.tokens) - 1)].astype(np.int64))
        scored = torch.from_numpy(place[:, :-1] < self.end[:, None])
        if number > 0:
            scored[:, : self.segment_length - self.step] = False  # the segment before has scored these
        return Batch(taken[:, :-1], taken[:, 1:], scored, torch.full((len(self.rows),), number == 0))

    def describe(self) -> str:
        """Return one line that says what this process reads."""
        return (
            f"process {self.rank} of {self.world_size} reads rows {self.rows[0]} to {self.rows[-1]} of "
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
