"""Streams: which row of the batch reads which tokens, in which order.

Recurrence makes the order of the data part of the model: a row must read on where its memory ends. So the
streams own it, and no loader or sampler may shuffle them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SHORTEST, VARIATION = 5, 5  # of segments of variable length: tokens, and their standard deviation


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
        step: tokens from the beginning of one segment to that of the next; `None` for L. Segments overlap by
            L - step, and of each but the first of a text the last `step` targets are scored: each has at
            least L - step tokens of its own segment before it. With half loss that is L/2.
        seed: of what is random.

    Attributes:
        step: the same; also what a memory must take of each segment.
        rows: the numbers of the rows that this process reads.

    Raises:
        ValueError: fewer than two tokens, a size that is not positive, rows that W does not divide, or a step
            beyond the segment.
    """

    policy: str

    def __init__(
        self,
        tokens: np.ndarray,
        batch_size: int,
        segment_length: int,
        rank: int = 0,
        world_size: int = 1,
        step: int | None = None,
        seed: int = 0,
    ) -> None:
        if len(tokens) < 2:
            raise ValueError(
                f"a stream needs at least 2 tokens, one to read and one to predict, not {len(tokens)}"
            )
        if batch_size < 1 or segment_length < 1:
            raise ValueError(f"batch_size {batch_size} and segment_length {segment_length} must be positive")
        if batch_size % world_size:
            raise ValueError(f"batch_size {batch_size} must be a multiple of the {world_size} processes")
        self.step = segment_length if step is None else step
        if not 1 <= self.step <= segment_length:
            raise ValueError(f"step {step} must be from 1 to the segment_length {segment_length}")
        self.tokens, self.segment_length, self.seed = np.asarray(tokens), segment_length, seed
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.rows = np.arange(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
        self._epoch = self._given = 0  # the place: batches given of this epoch
        self._plan: tuple[int, Any] | None = None  # of which epoch, and what was drawn for it
        self._restored = False  # whether the next epoch begins at that place

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same in each and on every process."""

    @abstractmethod
    def batch(self, epoch: int, number: int) -> Batch:
        """Return this process's rows of a batch."""

    def describe(self) -> str:
        """Return which rows this process reads; policies say how."""
        return (
            f"process {self.rank} of {self.world_size} reads rows {self.rows[0]} to {self.rows[-1]} of "
            f"{self.batch_size}"
        )

    def draw(self, random: np.random.Generator) -> Any:
        """Return what is random in an epoch: here nothing."""
        return None

    def plan(self, epoch: int) -> Any:
        """Return what `draw` gave for this epoch. It is drawn once."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = epoch, self.draw(np.random.default_rng([self.seed, epoch]))
        return self._plan[1]

    def taken(self, place: np.ndarray, scored: np.ndarray, fresh: np.ndarray) -> Batch:
        """Return the batch of the tokens at `place` `[B, L + 1]`; padding lies beyond the text."""
        taken = torch.from_numpy(self.tokens.take(place, mode="clip").astype(np.int64))
        return Batch(taken[:, :-1], taken[:, 1:], torch.from_numpy(scored), torch.from_numpy(fresh))

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
            "step": self.step,
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
    target at most and the last segment is padded. Where segments overlap, the first one of a row is scored
    whole.

    Args:
        tokens, sizes: see `Streams`.
        random_start: read the text as a ring, in each epoch from another random token on, so that rows and
            segments begin elsewhere. Still every token after the first is a target once.
        variable_length: segments of `variable_lengths`, in another order in each epoch.
        options: see `Streams`.

    Raises:
        ValueError: variable lengths that overlap, and what `Streams` raises.
    """

    policy = "ordered"

    def __init__(
        self,
        tokens: np.ndarray,
        *sizes: int,
        random_start: bool = False,
        variable_length: bool = False,
        **options: int | str,
    ) -> None:
        super().__init__(tokens, *sizes, **options)
        if variable_length and self.step != self.segment_length:
            raise ValueError("segments of variable length cannot overlap; use the full loss")
        self.random_start, self.variable_length = random_start, variable_length
        edges = self.edges()
        self.begin, self.end = edges[self.rows], edges[self.rows + 1]  # first input of each row, and after it
        self.longest = int(np.diff(edges).max())
        if variable_length:
            self.lengths = variable_lengths(self.longest, self.segment_length, self.seed)

    def edges(self) -> np.ndarray:
        """Return `[B + 1]`, the input with which each row begins, and the one after the last."""
        inputs = len(self.tokens) - (not self.random_start)  # in a ring the last token is read as well
        return np.arange(self.batch_size + 1) * inputs // self.batch_size

    def __len__(self) -> int:
        """Return the number of segments in an epoch, the same in each and on every process."""
        if self.variable_length:
            return len(self.lengths)
        return 1 + max(0, -(-(self.longest - self.segment_length) // self.step))

    def batch(self, epoch: int, number: int) -> Batch:
        """Return this process's rows of a batch."""
        offset, length = number * self.step, self.segment_length
        if self.variable_length:
            edges = self.plan(epoch)[1]
            offset, length = edges[number], edges[number + 1] - edges[number]
        place = self.begin[:, None] + np.arange(offset, offset + length + 1)
        scored = place[:, :-1] < self.end[:, None]
        if number > 0:
            scored[:, : self.segment_length - self.step] = False  # the segment before has scored these
        if self.random_start:
            place = (place + self.plan(epoch)[0]) % len(self.tokens)
            scored &= place[:, :-1] != len(self.tokens) - 1  # the first token follows nothing
        return self.taken(place, scored, np.full(len(self.rows), number == 0))

    def draw(self, random: np.random.Generator) -> tuple[int, np.ndarray]:
        """Return where an epoch starts and the edges of its segments in a row."""
        start = int(random.integers(len(self.tokens))) if self.random_start else 0
        order = random.permutation(self.lengths) if self.variable_length else np.zeros(0, np.int64)
        return start, np.append(0, np.cumsum(order))

    def identity(self) -> dict[str, int | str]:
        """Return what a saved place depends on: the seed too, where something is random."""
        options = {"random_start": self.random_start, "variable_length": self.variable_length}
        return super().identity() | options | ({"seed": self.seed} if any(options.values()) else {})

    def describe(self) -> str:
        """Return one line that says what this process reads."""
        length = (
            f"variable length around {self.segment_length}" if self.variable_length else self.segment_length
        )
        start = ", from another random token on in each epoch" if self.random_start else ""
        return (
            f"{super().describe()} in order: tokens {self.begin[0]:,} to {self.end[-1]:,}, about "
            f"{self.longest:,} a row in {len(self):,} segments of {length}{start}"
        )


def variable_lengths(total: int, segment_length: int, seed: int) -> np.ndarray:
    """Return lengths of segments that vary and add up to `total`.

    The authors' draw (`get_varlen_iter` of data_utils.py): normal with standard deviation 5 around the
    segment length, or with probability 5 % around half of it; at least 5, at most 15 more than the segment
    length. They are drawn once, so that every epoch has as many segments.
    """
    random, drawn = np.random.default_rng([seed, segment_length]), np.zeros(0, np.int64)
    while drawn.sum() < total:
        mean = np.where(random.random(1 + total // segment_length) < 0.95, segment_length, segment_length / 2)
        more = random.normal(mean, VARIATION).astype(np.int64)
        shortest = min(SHORTEST, segment_length)
        drawn = np.append(drawn, more.clip(shortest, longest_segment(segment_length)))
    edges = np.cumsum(drawn)
    last = int(np.searchsorted(edges, total))
    drawn[last] -= edges[last] - total
    return drawn[: last + 1]


def longest_segment(segment_length: int) -> int:
    """Return the greatest length that `variable_lengths` draws."""
    return segment_length + 3 * VARIATION
