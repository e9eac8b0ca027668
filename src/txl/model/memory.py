"""Segment-level recurrence (§3.2): what the model remembers of the segments it has read.

For each layer the memory holds the last M hidden states that entered it, without gradient. Its shape never
changes: until M tokens have been read, only the newest `length` slots are filled, and attention must mask the
empty ones. So compiled code sees a single shape, and the first segment attends to nothing but itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """The hidden states of the past.

    Attributes:
        states: for each of the N layers the states that entered it, `[B, M, D]`, the newest last.
        length: `[B]` int64, how many of the M slots are filled; they are the last ones.
    """

    states: tuple[Tensor, ...]
    length: Tensor

    @classmethod
    def empty(
        cls,
        layers: int,
        rows: int,
        slots: int,
        width: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Memory:
        states = tuple(torch.zeros(rows, slots, width, device=device, dtype=dtype) for _ in range(layers))
        return cls(states, torch.zeros(rows, dtype=torch.int64, device=device))

    @property
    def slots(self) -> int:
        return self.states[0].shape[1]

    @property
    def rows(self) -> int:
        return self.length.shape[0]

    def select_rows(self, rows: slice) -> Memory:
        return Memory(tuple(states[rows] for states in self.states), self.length[rows])

    @classmethod
    def concatenate(cls, parts: Sequence[Memory]) -> Memory:
        states = zip(*(part.states for part in parts), strict=True)
        return cls(tuple(torch.cat(layer) for layer in states), torch.cat([part.length for part in parts]))

    def forget(self, fresh_B: Tensor) -> Memory:
        """Return the memory with the rows emptied that begin a new text (`fresh_B`, bool)."""
        return Memory(self.states, self.length.masked_fill(fresh_B, 0))

    def append(self, hidden: Sequence[Tensor]) -> Memory:
        """Return the memory after one more segment.

        `hidden` holds for each layer the states `[B, L, D]` that entered it. They are detached: the
        stop-gradient SG(·) of §3.2. L may be smaller or larger than M.
        """
        if len(hidden) != len(self.states):
            raise ValueError(f"the memory holds {len(self.states)} layers, not the {len(hidden)} given")
        slots, read = self.slots, hidden[0].shape[1]
        states = tuple(
            new.detach()[:, max(0, read - slots) :].to(old.dtype)
            for old, new in zip(self.states, hidden, strict=True)
        )
        if read < slots:  # otherwise no old state remains, and nothing is copied
            states = tuple(
                torch.cat([old[:, read:], new], dim=1) for old, new in zip(self.states, states, strict=True)
            )
        return Memory(states, (self.length + read).clamp(max=slots))
