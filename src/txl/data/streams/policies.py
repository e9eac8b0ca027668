"""Other orders than one run of text a row: by documents, by sentences, shuffled.

A *border* is a sequence of tokens that separates documents or sentences: the end of a line, a blank line. Its
last token ends the text before it, as a target, and is the first input of the text after it, whose own tokens
are all targets. So every token after the first of the corpus is scored once here too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from txl.data.streams.base import Batch, OrderedStreams, Streams


def border_places(tokens: np.ndarray, border: Sequence[int], piece: int = 2**24) -> np.ndarray:
    """Return, for each place where `tokens` hold the `border`, that of its last token.

    Args:
        tokens: `[T]` integers, looked at piece by piece, so that a large array stays on disk.
        border: the ids that separate texts.
        piece: tokens looked at at once.

    Raises:
        ValueError: a border of no token.
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


def border_text(said: str) -> str:
    """Return the border that a setting says.

    A backslash and an n are a newline, which a command line cannot say otherwise.
    """
    return said.replace("\\n", "\n")


def beginnings(tokens: np.ndarray, border: Sequence[int]) -> np.ndarray:
    """Return the first input of each text: 0, and every border that something follows."""
    places = border_places(tokens, border)
    return np.unique(np.append(0, places[places < len(tokens) - 1]))


class DocumentStreams(Streams):
    """Documents in order, of which none sees another: memory and segments end where a document ends.

    A document is cut in segments, the last one padded. Of all S segments, in the order of the text, row b of
    B gets b·S/B to (b+1)·S/B, so rows differ by one segment at most. A row is `fresh` where a document begins
    and at its own beginning, where perhaps a document goes on.

    Args:
        tokens, sizes, options: see `Streams`.
        border: the ids that separate documents; `None` if the text is one document.
    """

    policy = "documents"

    def __init__(
        self, tokens: np.ndarray, *sizes: int, border: Sequence[int] | None, **options: int | str
    ) -> None:
        super().__init__(tokens, *sizes, **options)
        self.border = list(border or ())
        self.starts = np.zeros(1, np.int64) if border is None else beginnings(self.tokens, border)
        self.ends = np.append(self.starts[1:], len(tokens) - 1)
        segments = 1 + np.maximum(0, -(-(self.ends - self.starts - self.segment_length) // self.step))
        self.first = np.append(0, np.cumsum(segments))  # the number of the first segment of each document
        self.begin = self.rows * self.first[-1] // self.batch_size
        self.end = (self.rows + 1) * self.first[-1] // self.batch_size

    def __len__(self) -> int:
        """Return the number of segments of the longest row."""
        return int(-(-self.first[-1] // self.batch_size))

    def located(self, segment: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where segments stand in the text.

        Args:
            segment: `[B]`, their numbers.
            own: `[B]`, which of them belong to their rows; of the others no target is scored.

        Returns:
            How far from its document's beginning each begins, `[B]`; the places of its inputs and of its last
            target, `[B, L + 1]`; which targets are scored, `[B, L]`.
        """
        segment = np.minimum(segment, self.first[-1] - 1)
        document = self.document_of(segment)
        offset = (segment - self.first[document]) * self.step
        place = (self.starts[document] + offset)[:, None] + np.arange(self.segment_length + 1)
        scored = place[:, :-1] < np.where(own, self.ends[document], 0)[:, None]
        scored[offset > 0, : self.segment_length - self.step] = False  # the segment before has scored these
        return offset, place, scored

    def document_of(self, segment: np.ndarray) -> np.ndarray:
        """Return in which document each of the segments is."""
        return np.searchsorted(self.first, segment, side="right") - 1

    def batch(self, epoch: int, number: int) -> Batch:
        """Return this process's rows of a batch."""
        segment = self.begin + number
        offset, place, scored = self.located(segment, segment < self.end)
        return self.taken(place, scored, (offset == 0) | (number == 0))

    def identity(self) -> dict[str, int | str]:
        """Return what a saved place depends on: the border too."""
        return super().identity() | {"border": " ".join(map(str, self.border))}

    def describe(self) -> str:
        """Return one line that says what this process reads."""
        used = (len(self.tokens) - 1) / (len(self) * self.batch_size * self.segment_length)
        return (
            f"{super().describe()} by documents: {len(self.starts):,} of them, none sees another, in "
            f"{len(self):,} segments of {self.segment_length}, {used:.0%} of whose positions are scored"
        )


class SentenceStreams(OrderedStreams):
    """Sentences packed one after the other: rows begin with a sentence, memory and context go on across them.

    As the authors read One Billion Word (`LMShuffledIterator` of data_utils.py), where each sentence stands
    between two `<S>` and the second is no input: here one border is both. Their rows take turns in taking the
    next sentence and they drop the last batch; here each row has a run of sentences of its own, and every
    target is kept.

    Args:
        tokens, sizes, options: see `OrderedStreams`; a random start is none of them.
        border: the ids that separate sentences.
    """

    policy = "sentences"

    def __init__(
        self, tokens: np.ndarray, *sizes: int, border: Sequence[int], **options: int | str | bool
    ) -> None:
        self.border, self.starts = list(border), beginnings(tokens, border)
        super().__init__(tokens, *sizes, random_start=False, **options)

    def edges(self) -> np.ndarray:
        """Return the even edges, each moved on to where a sentence begins."""
        starts = np.append(self.starts, len(self.tokens) - 1)
        return starts[np.searchsorted(starts, super().edges())]

    def identity(self) -> dict[str, int | str]:
        """Return what a saved place depends on: the border too."""
        return super().identity() | {"border": " ".join(map(str, self.border))}

    def describe(self) -> str:
        """Return one line that says what this process reads."""
        return super().describe().replace(" in order: ", " in order, each from the beginning of a sentence: ")


class ShuffledStreams(Streams):
    """Independent segments in another random order in each epoch, for training without recurrence.

    Row b of batch i reads segment i·B + b of the order; every row is `fresh`. Every token after the first is
    a target once in each epoch.
    """

    policy = "shuffled"

    def __init__(self, tokens: np.ndarray, *sizes: int, **options: int | str) -> None:
        super().__init__(tokens, *sizes, **options)
        self.segments = 1 + max(0, -(-(len(tokens) - 1 - self.segment_length) // self.step))

    def __len__(self) -> int:
        """Return the number of batches, the last of them padded with rows of nothing."""
        return -(-self.segments // self.batch_size)

    def batch(self, epoch: int, number: int) -> Batch:
        """Return this process's rows of a batch."""
        turn = number * self.batch_size + self.rows
        segment = self.plan(epoch).take(turn, mode="clip")
        place = (segment * self.step)[:, None] + np.arange(self.segment_length + 1)
        end = np.where(turn < self.segments, len(self.tokens) - 1, 0)
        scored = place[:, :-1] < end[:, None]
        scored[segment > 0, : self.segment_length - self.step] = False  # these are scored in another segment
        return self.taken(place, scored, np.ones(len(self.rows), bool))

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Return the order of the segments."""
        return random.permutation(self.segments)

    def identity(self) -> dict[str, int | str]:
        """Return what a saved place depends on: the seed too."""
        return super().identity() | {"seed": self.seed}

    def describe(self) -> str:
        """Return one line that says what this process reads."""
        return (
            f"{super().describe()} shuffled: {self.segments:,} segments of {self.segment_length} in "
            f"{len(self):,} batches, in another order in each epoch, nothing remembered"
        )


POLICIES = {
    streams.policy: streams for streams in (OrderedStreams, DocumentStreams, SentenceStreams, ShuffledStreams)
}
