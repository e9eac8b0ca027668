"""The score of every token of a text, whatever the lengths, the batch and the way of reading."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from txl.data import Streams
from txl.evaluation.inference import Reader
from txl.model import TransformerXL

BLOCKS = 50  # of a confidence interval, at most


@dataclass(frozen=True)
class Reading:
    """How a text is read.

    Attributes:
        batch_size: B, parts of the text that are read side by side.
        segment_length: L, tokens of a segment.
        memory_length: M, slots of the memory; 0 for none.
        attention_length: how many keys a query may see, itself included; `None` for all there are.
        stride: targets scored of each segment, its last; below L segments overlap, and of each the memory
            takes what the next one does not read again. With 1 and M = 0 each prediction is a forward pass of
            its own (Al-Rfou et al. 2018).
        reset_every: forget the memory before every so many segments of the text; `None` for never.
        warm_up: tokens read, unscored, before the part of each row, so that it begins with a memory; `None`
            for as many as a score can depend on.
    """

    batch_size: int
    segment_length: int
    memory_length: int
    attention_length: int | None
    stride: int
    reset_every: int | None
    warm_up: int | None

    @property
    def longest_attention(self) -> int:
        """The largest number of keys a query may see."""
        reach = self.memory_length + self.segment_length
        return min(reach, self.attention_length or reach)

    def warm_up_segments(self, layers: int) -> int:
        """Return how many segments each row reads before its part.

        A state of one layer depends on the memory of that layer: on the states that entered it up to M tokens
        (or one less than the attention length) before its segment. So a score depends on that many segments
        a layer, and whoever has read them has, up to rounding, the memory of one who read the whole text.
        """
        if self.warm_up is not None:
            return -(-self.warm_up // self.stride) if self.memory_length else 0
        kept = min(self.memory_length, self.longest_attention - 1)
        return layers * -(-kept // self.stride)


class WarmedStreams(Streams):
    """One grid of segments over the text, of which each row has a run, and reads some segments before it.

    A target lies in the same segment at the same place, whatever the number of rows; so the rows change which
    products are computed together and not what is computed.

    Args:
        tokens: `[T]` integers.
        reading: how they are read.
        layers: of the model.
    """

    policy = "warmed"

    def __init__(self, tokens: np.ndarray, reading: Reading, layers: int) -> None:
        super().__init__(tokens, reading.batch_size, reading.segment_length, step=reading.stride)
        self.segments = 1 + max(0, -(-(len(tokens) - 1 - self.segment_length) // self.step))
        edges = np.arange(self.batch_size + 1) * self.segments // self.batch_size
        self.first, self.last = edges[:-1], edges[1:]
        self.begin = np.maximum(0, self.first - reading.warm_up_segments(layers))
        self.reset_every = reading.reset_every
        if self.reset_every:
            self.begin = np.maximum(self.begin, self.first // self.reset_every * self.reset_every)

    def __len__(self) -> int:
        """Return the number of segments of the row that reads most."""
        return int((self.last - self.begin).max())

    def places(self, number: int) -> np.ndarray:
        """Return where the inputs of a batch and the last target stand in the text, `[B, L + 1]`."""
        return ((self.begin + number) * self.step)[:, None] + np.arange(self.segment_length + 1)

    def batch(self, epoch: int, number: int):
        """Return the rows of a batch, see `Streams`."""
        segment, place = self.begin + number, self.places(number)
        own = (segment >= self.first) & (segment < self.last)
        scored = own[:, None] & (place[:, :-1] < len(self.tokens) - 1)
        scored[segment > 0, : self.segment_length - self.step] = False
        fresh = np.full(len(segment), number == 0)
        if self.reset_every:
            fresh |= segment % self.reset_every == 0
        return self.taken(place, scored, fresh)


@torch.inference_mode()
def score_text(
    model: TransformerXL,
    tokens: np.ndarray,
    reading: Reading,
    scores: np.ndarray,
    advance: Callable[[int], object] = lambda count: None,
) -> int:
    """Fill `scores` with the score of each target of a text.

    Args:
        model: in evaluation mode, where it shall compute.
        tokens: `[T]` integers.
        reading: how they are read.
        scores: `[T - 1]` floats; what is not scored (yet) is left as it is, so that whoever is interrupted
            has what was done.
        advance: called with the number of targets that were scored.

    Returns:
        How many tokens the rows read, unscored, before their parts.
    """
    streams = WarmedStreams(tokens, reading, model.n_layer)
    device = model.embedding.bias.device
    memory = model.empty_memory(reading.batch_size, reading.memory_length)
    reader = Reader(model, memory, reading.attention_length)
    for number in range(len(streams)):
        batch = streams.batch(0, number)
        hidden_BLD = reader.read(batch.inputs.to(device), batch.fresh, reading.stride)
        if not (columns := batch.scored.any(dim=0)).any():
            continue
        begin = int(columns.int().argmax())  # only the last targets of segments that overlap are scored
        targets_BL = batch.targets[:, begin:].to(device).contiguous()
        found_BL = model.embedding.scores(hidden_BLD[:, begin:], targets_BL).cpu().numpy()
        mask_BL = batch.scored[:, begin:].numpy()
        scores[streams.places(number)[:, begin:-1][mask_BL]] = found_BL[mask_BL]
        advance(int(mask_BL.sum()))
    return int((streams.first - streams.begin)[streams.last > streams.first].sum()) * streams.step


def half_interval(scores: np.ndarray) -> float:
    """Return half the width of a 95 % confidence interval of the mean score, in nats.

    Neighbouring scores are alike, so that single ones would promise too much: the text is cut in up to 50
    blocks of equal length, and the interval is that of their means, as if these were independent and normal.

    Args:
        scores: `[T]`, in the order of the text; nan where there is none.

    Returns:
        nan where fewer than 20 blocks of 20 scores can be made.
    """
    known = scores[~np.isnan(scores)].astype(np.float64)
    blocks = min(BLOCKS, len(known) // 20)
    if blocks < 20:
        return math.nan
    means = known[: len(known) // blocks * blocks].reshape(blocks, -1).mean(axis=1)
    return 1.96 * means.std(ddof=1) / math.sqrt(blocks)
