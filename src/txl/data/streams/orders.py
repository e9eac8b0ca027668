"""The other orders of reading: by documents, by sentences, shuffled.

A *border* is a sequence of tokens that separates documents or sentences: the end of a line, a blank line. Its
last token ends the text before it, as a target, and is the first input of the text after it, all of whose
own tokens are targets. So here too every token after the first of the corpus is scored once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from txl.data.streams.base import Batch, OrderedStreams, Streams


def border_places(tokens: np.ndarray, border: Sequence[int], piece: int = 2**24) -> np.ndarray:
    """Return the position of the last token of each `border` in `tokens`.

    Args:
        tokens: `[T]` integers, read piece by piece, so that a large array stays on disk.
        border: the ids that separate texts.

    Raises:
        ValueError: an empty border.
    """
    if not len(border):
        raise ValueError("a border needs at least one token")
    width, found = len(border), []
    for begin in range(0, len(tokens) - width + 1, piece):
        part = np.asarray(tokens[begin : begin + piece + width - 1])
        matches = part[: len(part) - width + 1] == border[0]
        for index in range(1, width):
            matches &= part[index : len(part) - width + 1 + index] == border[index]
        found.append(np.flatnonzero(matches) + begin + width - 1)
    return np.concatenate([np.zeros(0, np.int64), *found])


def border_text(setting: str) -> str:
    r"""Return the border that a setting means: `\n` stands for a newline, hard to type on a command line."""
    return setting.replace("\\n", "\n")


def beginnings(tokens: np.ndarray, border: Sequence[int]) -> np.ndarray:
    """Return the first input of each text: 0, and the end of every border but one at the very end."""
    places = border_places(tokens, border)
    return np.unique(np.append(0, places[places < len(tokens) - 1]))


class DocumentStreams(Streams):
    """Documents in order, none of which sees another: memory and segments end where a document ends.

    A document is divided into segments, the last one padded. Of all S segments, in the order of the text, row
    b of B gets b·S/B to (b+1)·S/B, so rows differ by at most one segment. A row is `fresh` where a document
    begins and at its own beginning, even inside a document.

    Args:
        tokens, sizes, options: see `Streams`.
        border: the ids that separate documents; `None` if the text is one document.
    """

    policy = "documents"

    def __init__(self, tokens: np.ndarray, *sizes: int, border: Sequence[int] | None, **options: Any) -> None:
        super().__init__(tokens, *sizes, **options)
        self.border = list(border or ())
        self.starts = np.zeros(1, np.int64) if border is None else beginnings(self.tokens, border)
        self.ends = np.append(self.starts[1:], len(tokens) - 1)
        segments = 1 + np.maximum(0, -(-(self.ends - self.starts - self.segment_length) // self.step))
        self.first = np.append(0, np.cumsum(segments))  # the number of the first segment of each document
        self.begin = self.rows * self.first[-1] // self.batch_size
        self.end = (self.rows + 1) * self.first[-1] // self.batch_size

    def __len__(self) -> int:
        return int(-(-self.first[-1] // self.batch_size))

    def locate(self, segment: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Locate segments in the text.

        Args:
            segment: `[B]`, their numbers.
            own: `[B]`, which of them belong to their rows; the others score no target.

        Returns:
            Their offsets in their documents, `[B]`; the positions of their inputs and of the last target,
            `[B, L + 1]`; which targets are scored, `[B, L]`.
        """
        segment = np.minimum(segment, self.first[-1] - 1)
        document = self.document_of(segment)
        offset = (segment - self.first[document]) * self.step
        place = (self.starts[document] + offset)[:, None] + np.arange(self.segment_length + 1)
        scored = place[:, :-1] < np.where(own, self.ends[document], 0)[:, None]
        scored[offset > 0, : self.segment_length - self.step] = False  # scored in the segment before
        return offset, place, scored

    def document_of(self, segment: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.first, segment, side="right") - 1

    def batch(self, epoch: int, number: int) -> Batch:
        segment = self.begin + number
        offset, place, scored = self.locate(segment, segment < self.end)
        return self.gather(place, scored, (offset == 0) | (number == 0))

    def describe(self) -> str:
        used = (len(self.tokens) - 1) / (len(self) * self.batch_size * self.segment_length)
        return (
            f"{super().describe()} by document: {len(self.starts):,} documents, each read on its own, in "
            f"{len(self):,} segments of {self.segment_length}, {used:.0%} of whose positions are scored"
        )


class SentenceStreams(OrderedStreams):
    """Sentences packed one after the other: rows begin with a sentence, memory and context span sentences.

    As the authors read One Billion Word (`LMShuffledIterator` of data_utils.py), where each sentence stands
    between two `<S>` and the second is no input: here one border is both. There each row takes the next
    sentence in turn and the last batch is dropped; here each row has its own run of sentences, and every
    target is kept.

    Args:
        tokens, sizes, options: see `OrderedStreams`, except for `random_start`.
    """

    policy = "sentences"

    def __init__(self, tokens: np.ndarray, *sizes: int, border: Sequence[int], **options: Any) -> None:
        self.border, self.starts = list(border), beginnings(tokens, border)
        super().__init__(tokens, *sizes, random_start=False, **options)

    def edges(self) -> np.ndarray:
        """Return even edges, each moved on to the beginning of a sentence."""
        starts = np.append(self.starts, len(self.tokens) - 1)
        return starts[np.searchsorted(starts, super().edges())]

    def describe(self) -> str:
        return super().describe().replace(" in order: ", " in order, each from the beginning of a sentence: ")


class ShuffledStreams(DocumentStreams):
    """Independent segments of the whole text, each epoch in another random order, without recurrence.

    Row b of batch i reads segment i·B + b of the order, rows of the last batch may be empty; every row is
    `fresh`. Every token after the first is a target once in each epoch.
    """

    policy = "shuffled"

    def __init__(self, tokens: np.ndarray, *sizes: int, **options: Any) -> None:
        super().__init__(tokens, *sizes, border=None, **options)
        self.border = None  # no part of `identity`

    def batch(self, epoch: int, number: int) -> Batch:
        turn = number * self.batch_size + self.rows
        segment = self.plan(epoch).take(turn, mode="clip")
        _, place, scored = self.locate(segment, turn < self.first[-1])
        return self.gather(place, scored, np.ones(len(self.rows), bool))

    def draw(self, random: np.random.Generator) -> np.ndarray:
        return random.permutation(self.first[-1])

    def identity(self) -> dict[str, int | str]:
        return super().identity() | {"seed": self.seed}

    def describe(self) -> str:
        return (
            f"{Streams.describe(self)} shuffled: {self.first[-1]:,} segments of {self.segment_length} in "
            f"{len(self):,} batches, reshuffled every epoch, without memory"
        )


STREAM_ORDERS = {
    streams.policy: streams for streams in (OrderedStreams, DocumentStreams, SentenceStreams, ShuffledStreams)
}
