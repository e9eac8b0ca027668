"""Where the heads look: attention by distance, the terms of the scores apart, single heads (Figures 5 to 7).

Every token that is looked at sees itself and the M tokens before it, so that all are alike: distance 0 is the
token itself, distance M the oldest slot of its memory. Heads are numbered through all layers, from 0: head
`layer * H + head`.

Letters, beside those of `txl.model`: `S = M + 1`, the distances 0 … M.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from txl.model import PositionEncoding, TransformerXL
from txl.model.attention import Attention

TERMS = ("a", "b", "c", "d")  # of §3.3, where the paper names them


@dataclass(frozen=True)
class AttentionMeans:
    """Sums over the tokens read so far; the means are what they divide to.

    Attributes:
        tokens: how many tokens were looked at.
        read: which share of the reading is done, 0 to 1.
        sums: `"attention"` and, for each of `TERMS` where they were asked for, its softmax, `[N, H, S]`;
            `"entropy"` of the attention of each token in nats, `[N, H]`. float64.
        terms: the terms that the scores of this model have: those that were not 0 everywhere.
    """

    tokens: int
    read: float
    sums: Mapping[str, Tensor]
    terms: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What there are means of by distance: the attention, and the terms that the scores have."""
        return ("attention", *self.terms)

    def mean(self, name: str) -> np.ndarray:
        """Return the mean over the tokens, `[N · H, S]` or `[N · H]`: a row for each head."""
        return (self.sums[name] / max(self.tokens, 1)).flatten(0, 1).numpy()


@torch.inference_mode()
def mean_attention(
    model: TransformerXL,
    tokens: np.ndarray,
    memory_length: int,
    segment_length: int,
    batch_size: int = 1,
    terms: bool = True,
) -> Iterator[AttentionMeans]:
    """Read a text and yield the sums so far, after each segment.

    The tokens that are counted are those with M tokens before them: all of the text but its first M. The text
    is divided among the rows of the batch; each row first reads, uncounted, the N · M tokens before its part,
    which are all that can reach it through the memories of the layers. So neither the batch nor the length of
    the segments changes the result, but for rounding, unless the encoding counts places within a segment
    (`position.absolute`). Never more than one layer's attention in one segment is held.

    Args:
        model: in evaluation mode.
        tokens: `[T]`, the text.
        memory_length: M.
        segment_length: L, tokens that are read at once.
        batch_size: B, the rows that read at the same time.
        terms: whether the terms of the scores are taken apart as well.

    Raises:
        ValueError: no token has M before it, or a length below 1.
    """
    check_lengths(len(tokens), memory_length, segment_length, batch_size)
    rows = min(batch_size, len(tokens) - memory_length)
    edges = memory_length + np.arange(rows + 1) * (len(tokens) - memory_length) // rows
    begin, end = edges[:-1, None], edges[1:, None]
    start = np.maximum(0, begin - reach(model, memory_length))
    longest = int((end - start).max())
    memory = model.empty_memory(rows, memory_length)
    shape = (model.n_layer, model.position.n_head, memory_length + 1)
    names = ("attention", *(TERMS if terms else ()))
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name in names}
    sums["entropy"] = torch.zeros(shape[:2], dtype=torch.float64)
    means = AttentionMeans(0, 0.0, sums)
    for offset in range(0, longest, segment_length):
        place = start + np.arange(offset, offset + segment_length)
        counted = (place >= begin) & (place < end)
        look = _Look(counted, memory_length, terms, device=memory.length.device)
        text_BL = torch.from_numpy(tokens.take(place, mode="clip").astype(np.int64)).to(memory.length.device)
        with watched(model, look) if counted.any() else nullcontext():
            _, memory = model(text_BL, memory, attention_length=memory_length + 1)
        means = AttentionMeans(
            means.tokens + int(counted.sum()),
            min(1.0, (offset + segment_length) / longest),
            {name: total + look.added(name, total) for name, total in means.sums.items()},
            tuple(sorted({*means.terms, *look.terms})),
        )
        yield means


@torch.inference_mode()
def attention_at(
    model: TransformerXL,
    tokens: np.ndarray,
    position: int,
    memory_length: int,
    segment_length: int,
    heads: Sequence[int],
) -> np.ndarray:
    """Return how single heads look from one segment, `[heads, L, M + L]`, float32.

    Args:
        model: in evaluation mode.
        tokens: `[T]`, the text.
        position: the place in the text of the segment's first token.
        memory_length: M. Each token sees itself and the M before it, as in `mean_attention`.
        segment_length: L.
        heads: numbered through all layers.

    Raises:
        ValueError: a head that is not there, a place without M tokens before it or L tokens from it on.
    """
    check_place(model, len(tokens), position, memory_length, segment_length, heads)
    per_layer = model.position.n_head
    before = position - max(0, position - reach(model, memory_length))
    lengths = [before % segment_length, *[segment_length] * (before // segment_length)]
    memory = model.empty_memory(1, memory_length)
    place = position - before
    for length in [*filter(None, lengths), segment_length]:
        text_1L = torch.from_numpy(tokens[None, place : place + length].astype(np.int64))
        seen: dict[int, Tensor] = {}

        def look(layer: int, probabilities_BHLK: Tensor, *_: object, seen: dict = seen) -> None:
            for index, attention_LK in enumerate(probabilities_BHLK[0], layer * per_layer):
                if index in heads:
                    seen[index] = attention_LK.float().cpu()

        with watched(model, look) if place == position else nullcontext():
            _, memory = model(text_1L.to(memory.length.device), memory, attention_length=memory_length + 1)
        place += length
    return torch.stack([seen[head] for head in heads]).numpy()


def score_terms(
    q_BLHC: Tensor, k_BKHC: Tensor, position: PositionEncoding, layer: int, table: Tensor | None
) -> dict[str, Tensor]:
    """Take the scores of a layer apart into the four terms of §3.3, which add up to them.

    With (c) and (d) what is left of the scores when the query is 0, and (a) and (b) what the query adds to
    the key's and to the distance's part: for `RelativePosition` the terms of the paper, and defined for every
    encoding whose parts are linear in the query but for a constant, as all of ours are.

    Args:
        q_BLHC: the queries of `Attention.project`.
        k_BKHC: its keys.
        position: the encoding.
        layer: which layer.
        table: what `position.table` gave.

    Returns:
        For each of `TERMS` that the encoding can have, a tensor that broadcasts to `[B, H, L, K]`; what it
        holds for keys after the query is meaningless.
    """

    def content(q_BLHC: Tensor) -> Tensor:
        q_BLHC, keys_BKHC = position.queries_and_keys(layer, q_BLHC, k_BKHC, table)
        return q_BLHC.transpose(1, 2) @ keys_BKHC.permute(0, 2, 3, 1)

    nothing_1LHC = torch.zeros_like(q_BLHC[:1])
    c_BHLK = content(nothing_1LHC)
    terms = {"a": content(q_BLHC) - c_BHLK, "c": c_BHLK}
    lengths, layer_table = (q_BLHC.shape[1], k_BKHC.shape[1]), position.layer_table(layer, table)
    bias = position.distance_scores(layer, q_BLHC, layer_table).by_key(*lengths)
    if bias is not None:
        d_HLK = position.distance_scores(layer, nothing_1LHC, layer_table).by_key(*lengths)
        terms |= {"b": bias - d_HLK, "d": d_HLK}
    return terms


def by_distance(by_key: Tensor, memory_length: int) -> Tensor:
    """Turn `[…, L, M + L]` by key into `[…, L, M + 1]` by distance, without copying what is contiguous.

    Query i is key M + i, so that row i holds its distances M … 0 in the columns i … M + i: the window begins
    one place further right in each row, which is every K + 1 places of the flat array.
    """
    keys = by_key.shape[-1]
    return by_key.flatten(-2).unfold(-1, memory_length + 1, keys + 1).flip(-1)


def choose_heads(entropy: np.ndarray) -> dict[int, str]:
    """Return the heads of a Figure 6 and why: by the entropy of their attention, averaged over the tokens.

    The head with the highest entropy is the most uniform, the one with the lowest the most sparse, and
    between them stands the one in the middle of the order.

    Args:
        entropy: of each head, one-dimensional.
    """
    order = np.argsort(-entropy, kind="stable").tolist()
    chosen = {order[0]: "most uniform"}
    if len(order) > 2:
        chosen[order[len(order) // 2]] = "between"
    if len(order) > 1:
        chosen[order[-1]] = "most sparse"
    return chosen


def places(tokens: int, memory_length: int, segment_length: int) -> tuple[int, int]:
    """Return the first and the last place of a text where a segment can begin that has M tokens before it.

    Raises:
        ValueError: the text is too short for any.
    """
    if tokens < memory_length + segment_length:
        raise ValueError(
            f"the text has {tokens} tokens, too few for a memory of {memory_length} and a segment of "
            f"{segment_length}; use a shorter memory_length or segment_length"
        )
    return memory_length, tokens - segment_length


def check_place(
    model: TransformerXL,
    tokens: int,
    position: int,
    memory_length: int,
    segment_length: int,
    heads: Sequence[int],
) -> None:
    """Raise ValueError unless `attention_at` can look at these heads at this place of so many tokens."""
    check_lengths(tokens, memory_length, segment_length)
    per_layer = model.position.n_head
    count = model.n_layer * per_layer
    if not heads or not all(0 <= head < count for head in heads):
        raise ValueError(
            f"heads={list(heads)}: the model has the heads 0 to {count - 1}, {per_layer} in each of "
            f"{model.n_layer} layers"
        )
    first, last = places(tokens, memory_length, segment_length)
    if not first <= position <= last:
        raise ValueError(
            f"position={position}: a segment of {segment_length} tokens with {memory_length} before it can "
            f"begin at {first} to {last} of this text"
        )


def reach(model: TransformerXL, memory_length: int) -> int:
    """Return how many tokens before a token can reach its attention: M through each of the N layers."""
    return model.n_layer * memory_length


def check_lengths(tokens: int, memory_length: int, segment_length: int, batch_size: int = 1) -> None:
    """Raise ValueError unless there is a token with a full memory, and all lengths are positive."""
    for name, value in {"segment_length": segment_length, "batch_size": batch_size}.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if memory_length < 1:
        raise ValueError(
            f"memory_length={memory_length}: the maps show the attention over the memory, which must be at "
            "least 1; the model can read with another memory than in training: memory_length=64"
        )
    if tokens <= memory_length:
        raise ValueError(
            f"the text has {tokens} tokens: none has the {memory_length} before it that memory_length asks "
            "for; use a shorter memory_length or a longer text"
        )


Watcher = Callable[[int, Tensor, Callable[[], dict[str, Tensor]]], None]


@contextmanager
def watched(model: TransformerXL, look: Watcher) -> Iterator[None]:
    """While a model reads, call `look(layer, probabilities_BHLK, terms)` in each layer.

    The probabilities are the model's own, as they go into its attention dropout; `terms()` gives
    `score_terms` of the same queries and keys.
    """
    handles, entered, way = [], {}, model.attention
    model.attention = "plain"  # the one that has them all at once

    def enter(index: int, attention: Attention, inputs: tuple) -> None:
        entered[index] = (attention, inputs)

    def leave(index: int, probabilities_BHLK: Tensor) -> None:
        attention, (x_BLD, memory_BMD, _, position, layer, table) = entered.pop(index)

        def terms() -> dict[str, Tensor]:
            q_BLHC, k_BKHC, _ = attention.project(x_BLD, memory_BMD)
            return score_terms(q_BLHC, k_BKHC, position, layer, table)

        look(index, probabilities_BHLK, terms)

    try:
        for index, layer in enumerate(model.layers):
            attention = layer.attention
            handles += [
                attention.register_forward_pre_hook(lambda module, x, i=index: enter(i, module, x)),
                attention.dropout.register_forward_pre_hook(lambda _, x, i=index: leave(i, x[0])),
            ]
        yield
    finally:
        model.attention = way
        for handle in handles:
            handle.remove()


class _Look:
    """The sums of one segment, layer by layer.

    Args:
        counted_BL: which of its tokens count.
        memory_length: M.
        terms: whether the scores are taken apart as well.
        device: where the model is.
    """

    def __init__(self, counted_BL: np.ndarray, memory_length: int, terms: bool, device: torch.device) -> None:
        self.counted_BL = torch.from_numpy(counted_BL).to(device)
        self.memory_length, self.apart = memory_length, terms
        self.layers: dict[str, list[Tensor]] = {}
        self.terms: set[str] = set()

    def __call__(
        self, layer: int, probabilities_BHLK: Tensor, terms: Callable[[], dict[str, Tensor]]
    ) -> None:
        # Tokens that are not counted may see fewer keys, and padding sees what it likes: they weigh nothing.
        probabilities_BHLS = by_distance(probabilities_BHLK, self.memory_length)
        self._add("attention", probabilities_BHLS)
        self._add("entropy", torch.special.entr(probabilities_BHLS).sum(-1, keepdim=True))
        if not self.apart:
            return
        found, shape = terms(), probabilities_BHLK.shape
        zero = probabilities_BHLK.new_zeros(())
        for name in TERMS:
            term_BHLS = by_distance(found.get(name, zero).expand(shape), self.memory_length)
            self._add(name, term_BHLS.softmax(-1))
            if bool(term_BHLS.any()):
                self.terms.add(name)

    def _add(self, name: str, value_BHLS: Tensor) -> None:
        weight_BL = self.counted_BL.to(value_BHLS.dtype)
        total_HS = torch.einsum("bhls,bl->hs", value_BHLS, weight_BL)
        self.layers.setdefault(name, []).append(total_HS.cpu().double())

    def added(self, name: str, total: Tensor) -> Tensor:
        """Return what this segment adds to a total of its name."""
        if name not in self.layers:
            return torch.zeros_like(total)
        return torch.stack(self.layers[name]).reshape(total.shape)
