"""Scores every token of a text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from txl.data.streams import Batch, DocumentStreams
from txl.evaluation.inference import CachedInference
from txl.model import TransformerXL

MAX_BLOCKS = 50  # of a confidence interval


@dataclass(frozen=True)
class Reading:
    """How a text is read.

    Attributes:
        batch_size: B, parts of the text that are read in parallel.
        memory_length: M, slots of the memory; 0 for none.
        attention_length: how many keys a query may see, itself included; `None` for all.
        stride: how many targets of each segment are scored, the last ones. Below L, segments overlap, and the
            memory holds only tokens that the next one does not read again. With 1 and M = 0 each prediction
            is a forward pass of its own (Al-Rfou et al. 2018).
        reset_every: segments of a document after which the memory is cleared; `None` for never.
        warm_up: tokens that each row reads, unscored, before its part, to fill its memory; `None` for all
            that a score can depend on.
        border: the ids that end a document; no document sees another. `None` if the text is one document.
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

        A state depends on the memory of its layer, which reaches back M tokens (or one less than the
        attention length), so a score depends on that many tokens for each layer. A row that has read them
        has, up to rounding, the memory of a row that has read the whole text.
        """
        if self.warm_up is not None:
            return -(-self.warm_up // self.stride) if self.memory_length else 0
        kept = min(self.memory_length, self.longest_attention - 1)
        return layers * -(-kept // self.stride)


class WarmedStreams(DocumentStreams):
    """Divides the grid of segments among the rows; each first reads some segments as warm-up.

    A target has the same place in the same segment for any number of rows: they change which products are
    computed together, not what is computed. No row reads what its first segment forgets.

    Args:
        layers: of the model.
    """

    def __init__(self, tokens: np.ndarray, reading: Reading, layers: int) -> None:
        super().__init__(
            tokens, reading.batch_size, reading.segment_length, step=reading.stride, border=reading.border
        )
        self.reset_every = reading.reset_every
        self.own = self.begin  # the first segment of a row's part, after its warm-up
        forgotten = self.first[self.document_of(self.own)]
        if self.reset_every:
            forgotten = forgotten + (self.own - forgotten) // self.reset_every * self.reset_every
        self.begin = np.maximum(forgotten, self.own - reading.warm_up_segments(layers))

    def __len__(self) -> int:
        return int((self.end - self.begin).max())

    def read(self, number: int) -> tuple[Batch, np.ndarray]:
        """Return a batch, and the positions in the text of its inputs and its last target, `[B, L + 1]`."""
        segment = self.begin + number
        offset, place, scored = self.locate(segment, (segment >= self.own) & (segment < self.end))
        fresh = (offset == 0) | (number == 0)
        if self.reset_every:
            fresh |= offset // self.step % self.reset_every == 0
        return self.gather(place, scored, fresh), place

    def batch(self, epoch: int, number: int) -> Batch:
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
        model: in evaluation mode, on the device to use.
        tokens: `[T]` integers.
        scores: `[T - 1]` floats, filled batch by batch: after an interruption they hold what was scored.
        advance: called with the number of targets scored in each batch.

    Returns:
        How many tokens were read as warm-up, in all rows.
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
        begin = int(columns.int().argmax())  # overlapping segments score only their last targets
        targets_BL = batch.targets[:, begin:].to(device).contiguous()
        found_BL = model.embedding.scores(hidden_BLD[:, begin:], targets_BL).cpu().numpy()
        mask_BL = batch.scored[:, begin:].numpy()
        scores[place_BL[:, begin:-1][mask_BL]] = found_BL[mask_BL]
        advance(int(mask_BL.sum()))
    return int((streams.own - streams.begin)[streams.end > streams.own].sum()) * streams.step


def half_interval(scores: np.ndarray) -> float:
    """Return half the width of a 95 % confidence interval of the mean score, in nats.

    Neighboring scores are correlated, so that an interval from single scores would be too narrow: the text is
    divided into up to 50 blocks of equal length, whose means are taken as independent and normal.

    Args:
        scores: `[T]`, in the order of the text; nan where a token has none.

    Returns:
        nan if there are fewer than 20 blocks of 20 scores.
    """
    known = scores[~np.isnan(scores)].astype(np.float64)
    blocks = min(MAX_BLOCKS, len(known) // 20)
    if blocks < 20:
        return math.nan
    means = known[: len(known) // blocks * blocks].reshape(blocks, -1).mean(axis=1)
    return 1.96 * means.std(ddof=1) / math.sqrt(blocks)
