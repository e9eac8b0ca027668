"""Streams: which row of the batch reads which tokens, in which order.

Recurrence makes the order of the data part of the model: a row must continue where its memory ends. So the
streams own the order, and no loader or sampler may shuffle them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SHORTEST, DEVIATION = 5, 5  # tokens of the shortest segment of variable length, and the standard deviation


class Batch(NamedTuple):
    """One segment of every row.

    Attributes:
        inputs: `[B, L]` int64.
        targets: `[B, L]` int64, the tokens that follow the inputs.
        scored: `[B, L]` bool, which targets count; the others are padding.
        fresh: `[B]` bool, the rows that begin a new text here and must clear their memory.
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    fresh: Tensor


class Streams(ABC):
    """An iterator over the batches of an epoch whose position can be saved and restored.

    The tokens of a batch depend on the seed, the epoch and the number of the batch alone, so the position is
    two numbers, the same on every process. Each `iter()` begins an epoch: the next one after a complete
    epoch, the same one after one that was left early. After `load_state_dict` it continues with the next
    batch.

    Args:
        tokens: `[T]` integers.
        batch_size: B, the rows of the global batch.
        segment_length: L.
        rank, world_size: r and W. Process r of W reads rows r·B/W to (r+1)·B/W - 1.
        step: tokens from the beginning of one segment to that of the next; `None` for L. Segments overlap by
            L - step, and each but the first of a text scores its last `step` targets, so that each target has
            at least L - step tokens of its own segment before it. With half loss that is L/2.
        seed: of random orders and lengths.

    Attributes:
        step: the same; also the number of tokens that a memory keeps of each segment.
        rows: the numbers of the rows that this process reads.

    Raises:
        ValueError: fewer than two tokens, a size that is not positive, B not a multiple of W, or step > L.
    """

    policy: str
    border: list[int] | None = None  # the ids that separate texts, where the order depends on them

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
        self._epoch = self._next = 0  # the position: the epoch and its next batch
        self._plan: tuple[int, Any] | None = None  # an epoch, and what was drawn for it
        self._restored = False  # whether the next epoch begins at that position

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches, the same in every epoch and on every process."""

    @abstractmethod
    def batch(self, epoch: int, number: int) -> Batch:
        """Return this process's rows of a batch."""

    def describe(self) -> str:
        """Return one line that says what this process reads; subclasses add how."""
        return (
            f"process {self.rank} of {self.world_size} reads rows {self.rows[0]} to {self.rows[-1]} of "
            f"{self.batch_size}"
        )

    def draw(self, random: np.random.Generator) -> Any:
        """Draw what is random in an epoch: here nothing."""
        return None

    def plan(self, epoch: int) -> Any:
        if self._plan is None or self._plan[0] != epoch:
            self._plan = epoch, self.draw(np.random.default_rng([self.seed, epoch]))
        return self._plan[1]

    def gather(self, place: np.ndarray, scored: np.ndarray, fresh: np.ndarray) -> Batch:
        """Return the batch of the tokens at `place` `[B, L + 1]`; padding lies beyond the text."""
        tokens = torch.from_numpy(self.tokens.take(place, mode="clip").astype(np.int64))
        return Batch(tokens[:, :-1], tokens[:, 1:], torch.from_numpy(scored), torch.from_numpy(fresh))

    def __iter__(self) -> Iterator[Batch]:
        first = self._next if self._restored else 0
        self._restored, epoch, batches = False, self._epoch, len(self)
        for number in range(first, batches):
            batch = self.batch(epoch, number)
            # Before the yield: a trainer that knows the length never asks for more than the last batch.
            self._epoch, self._next = (epoch, number + 1) if number + 1 < batches else (epoch + 1, 0)
            yield batch

    def identity(self) -> dict[str, int | str]:
        """Return what a saved position depends on: it is valid only where these are equal."""
        border = {} if self.border is None else {"border": " ".join(map(str, self.border))}
        sizes = {key: getattr(self, key) for key in ("batch_size", "segment_length", "step")}
        return {"policy": self.policy, "tokens": len(self.tokens), **sizes, **border}

    def state_dict(self) -> dict[str, int | str]:
        """Return the position: "epoch", "batch" (the number of the next one) and the identity.

        It is the same on every process and valid for any number of processes.
        """
        return {"epoch": self._epoch, "batch": self._next, **self.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next `iter()` continue at this position.

        Raises:
            ValueError: the position belongs to other streams.
        """
        for key, here in self.identity().items():
            if state.get(key) != here:
                raise ValueError(
                    f"the saved position in the data has {key} {state.get(key)}, here it is {here}; keep "
                    "the same settings, or train from the beginning"
                )
        if not (state["epoch"] >= 0 and 0 <= state["batch"] < len(self)):
            raise ValueError(
                f"the saved position in the data is batch {state['batch']} of epoch {state['epoch']}, but an "
                f"epoch has {len(self)} batches"
            )
        self._epoch, self._next, self._restored = state["epoch"], state["batch"], True


class OrderedStreams(Streams):
    """One contiguous run of tokens for each row, read left to right; every token after the first is a target.

    T tokens have T - 1 targets. Row b of B gets targets b·(T-1)/B to (b+1)·(T-1)/B, so rows differ by at most
    one target and the last segment is padded. Of overlapping segments, the first of a row is scored entirely.

    Args:
        tokens, sizes, options: see `Streams`.
        random_start: read the text as a ring, each epoch from another random token on, so that rows and
            segments begin elsewhere. Still every token after the first is a target once.
        variable_length: segments of `variable_lengths`, each epoch in another order.

    Raises:
        ValueError: segments of variable length that overlap, and what `Streams` raises.
    """

    policy = "ordered"

    def __init__(
        self,
        tokens: np.ndarray,
        *sizes: int,
        random_start: bool = False,
        variable_length: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(tokens, *sizes, **options)
        if variable_length and self.step != self.segment_length:
            raise ValueError("segments of variable length cannot overlap; use the full loss")
        self.random_start, self.variable_length = random_start, variable_length
        edges = self.edges()
        self.begin, self.end = edges[self.rows], edges[self.rows + 1]  # of the inputs of each row
        self.longest = int(np.diff(edges).max())
        if variable_length:
            self.lengths = variable_lengths(self.longest, self.segment_length, self.seed)

    def edges(self) -> np.ndarray:
        """Return `[B + 1]`, the first input of each row, and the one after the last."""
        inputs = len(self.tokens) - (not self.random_start)  # in a ring the last token is read as well
        return np.arange(self.batch_size + 1) * inputs // self.batch_size

    def __len__(self) -> int:
        if self.variable_length:
            return len(self.lengths)
        return 1 + max(0, -(-(self.longest - self.segment_length) // self.step))

    def batch(self, epoch: int, number: int) -> Batch:
        offset, length = number * self.step, self.segment_length
        if self.variable_length:
            edges = self.plan(epoch)[1]
            offset, length = edges[number], edges[number + 1] - edges[number]
        place = self.begin[:, None] + np.arange(offset, offset + length + 1)
        scored = place[:, :-1] < self.end[:, None]
        if number > 0:
            scored[:, : self.segment_length - self.step] = False  # scored in the segment before
        if self.random_start:
            place = (place + self.plan(epoch)[0]) % len(self.tokens)
            scored &= place[:, :-1] != len(self.tokens) - 1  # the first token follows nothing
        return self.gather(place, scored, np.full(len(self.rows), number == 0))

    def draw(self, random: np.random.Generator) -> tuple[int, np.ndarray]:
        """Draw the start of an epoch and the edges of its segments in a row."""
        start = int(random.integers(len(self.tokens))) if self.random_start else 0
        order = random.permutation(self.lengths) if self.variable_length else np.zeros(0, np.int64)
        return start, np.append(0, np.cumsum(order))

    def identity(self) -> dict[str, int | str]:
        options = {"random_start": self.random_start, "variable_length": self.variable_length}
        return super().identity() | options | ({"seed": self.seed} if any(options.values()) else {})

    def describe(self) -> str:
        length = (
            f"variable length around {self.segment_length}" if self.variable_length else self.segment_length
        )
        start = ", starting at a new random token each epoch" if self.random_start else ""
        return (
            f"{super().describe()} in order: tokens {self.begin[0]:,} to {self.end[-1]:,}, about "
            f"{self.longest:,} a row in {len(self):,} segments of {length}{start}"
        )


def variable_lengths(total: int, segment_length: int, seed: int) -> np.ndarray:
    """Return varying lengths of segments that add up to `total`.

    They are drawn as the authors do (`get_varlen_iter` of data_utils.py): normal with standard deviation 5
    around the segment length, or with probability 5 % around half of it; at least 5, at most 15 more than the
    segment length. They are drawn once, so that every epoch has the same number of segments.
    """
    random, drawn = np.random.default_rng([seed, segment_length]), np.zeros(0, np.int64)
    while drawn.sum() < total:
        mean = np.where(random.random(1 + total // segment_length) < 0.95, segment_length, segment_length / 2)
        more = random.normal(mean, DEVIATION).astype(np.int64)
        shortest = min(SHORTEST, segment_length)
        drawn = np.append(drawn, more.clip(shortest, longest_segment(segment_length)))
    edges = np.cumsum(drawn)
    last = int(np.searchsorted(edges, total))
    drawn[last] -= edges[last] - total
    return drawn[: last + 1]


def longest_segment(segment_length: int) -> int:
    """Return the greatest length that `variable_lengths` draws."""
    return segment_length + 3 * DEVIATION
