"""The score of every token of a text, whatever the lengths, the batch and the way of reading."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from txl.data import Batch, DocumentStreams
from txl.evaluation.inference import CachedInference
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
        reset_every: forget the memory before every so many segments of a document; `None` for never.
        warm_up: tokens read, unscored, before the part of each row, so that it begins with a memory; `None`
            for as many as a score can depend on.
        border: the ids that end a document, of which none sees another; `None` if the text is one.
    """

    batch_size: int
    segment_length: int
    memory_length: int
    attention_length: int | None
    stride: int
    reset_every: int | None
    warm_up: int | None
    border: Sequence[int] | None = None

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


class WarmedStreams(DocumentStreams):
    """One grid of segments over the text, of which each row has a run, and reads some segments before it.

    A target lies in the same segment at the same place, whatever the number of rows; so the rows change which
    products are computed together and not what is computed. No row reads what its first segment forgets.

    Args:
        tokens: `[T]` integers.
        reading: how they are read.
        layers: of the model.
    """

    policy = "warmed"

    def __init__(self, tokens: np.ndarray, reading: Reading, layers: int) -> None:
        super().__init__(
            tokens, reading.batch_size, reading.segment_length, step=reading.stride, border=reading.border
        )
        self.reset_every = reading.reset_every
        self.own = self.begin  # the first segment of a row's part; what it reads begins before
        forgotten = self.first[self.document_of(self.own)]
        if self.reset_every:
            forgotten = forgotten + (self.own - forgotten) // self.reset_every * self.reset_every
        self.begin = np.maximum(forgotten, self.own - reading.warm_up_segments(layers))

    def __len__(self) -> int:
        """Return the number of segments of the row that reads most."""
        return int((self.end - self.begin).max())

    def read(self, number: int) -> tuple[Batch, np.ndarray]:
        """Return the rows of a batch, and where its inputs and its last target stand, `[B, L + 1]`."""
        segment = self.begin + number
        offset, place, scored = self.locate(segment, (segment >= self.own) & (segment < self.end))
        fresh = (offset == 0) | (number == 0)
        if self.reset_every:
            fresh |= offset // self.step % self.reset_every == 0
        return self.gather(place, scored, fresh), place

    def batch(self, epoch: int, number: int) -> Batch:
        """Return the rows of a batch, see `Streams`."""
        return self.read(number)[0]


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
    reader = CachedInference(model, memory, reading.attention_length)
    for number in range(len(streams)):
        batch, place_BL = streams.read(number)
        hidden_BLD = reader.read(batch.inputs.to(device), batch.fresh, reading.stride)
        if not (columns := batch.scored.any(dim=0)).any():
            continue
        begin = int(columns.int().argmax())  # only the last targets of segments that overlap are scored
        targets_BL = batch.targets[:, begin:].to(device).contiguous()
        found_BL = model.embedding.scores(hidden_BLD[:, begin:], targets_BL).cpu().numpy()
        mask_BL = batch.scored[:, begin:].numpy()
        scores[place_BL[:, begin:-1][mask_BL]] = found_BL[mask_BL]
        advance(int(mask_BL.sum()))
    return int((streams.own - streams.begin)[streams.end > streams.own].sum()) * streams.step


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
