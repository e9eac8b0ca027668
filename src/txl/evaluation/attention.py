"""What the heads attend to: attention by distance, the terms of the scores, single heads (Figures 5 to 7).

Each token sees itself (distance 0) and the M tokens before it. Heads are numbered through all layers, from 0:
`layer * H + head`. Shapes as in `txl.model`, and `S = M + 1` for the distances 0 … M.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from txl.model import PositionEncoding, TransformerXL
from txl.model.attention import Attention
from txl.model.dropout import Dropout

TERMS = ("a", "b", "c", "d")  # of §3.3, where the paper names them
Terms = Callable[[], dict[str, Tensor]]  # computes `score_terms` of a layer


@dataclass
class AttentionMeans:
    """Sums over the counted tokens read so far, and their means.

    Attributes:
        progress: the fraction of the text that has been read.
        sums: float64, of `"attention"` and, on request, the softmax of each of `TERMS`, `[N, H, S]`; of the
            `"entropy"` of the attention in nats, `[N, H]`.
        terms: those of `TERMS` that were not 0 everywhere.
    """

    tokens: int
    progress: float
    sums: dict[str, Tensor]
    terms: tuple[str, ...] = ()

    def mean(self, name: str) -> np.ndarray:
        """Return a row for each head, `[N · H, S]` or `[N · H]`."""
        return (self.sums[name] / max(self.tokens, 1)).flatten(0, 1).numpy()

    def add(self, counted_BL: Tensor, layer: int, probabilities_BHLK: Tensor, terms: Terms) -> None:
        """Add the counted tokens of one segment in one layer."""
        # Uncounted tokens may see fewer keys, and padding may see anything: both have the weight 0.
        for name, value_BHLS in self._values(probabilities_BHLK, terms):
            total_HS = torch.einsum("bhls,bl->hs", value_BHLS, counted_BL.to(value_BHLS.dtype))
            sums = self.sums[name][layer]
            sums += total_HS.cpu().double().view_as(sums)

    def _values(self, probabilities_BHLK: Tensor, terms: Terms) -> Iterator[tuple[str, Tensor]]:
        memory_length = self.sums["attention"].shape[-1] - 1
        probabilities_BHLS = by_distance(probabilities_BHLK, memory_length)
        yield "attention", probabilities_BHLS
        yield "entropy", torch.special.entr(probabilities_BHLS).sum(-1, keepdim=True)
        if "a" not in self.sums:
            return
        found, zero = terms(), probabilities_BHLK.new_zeros(())
        for name in TERMS:
            term_BHLK = found.get(name, zero).expand(probabilities_BHLK.shape)
            term_BHLS = by_distance(term_BHLK, memory_length)
            if bool(term_BHLS.any()):
                self.terms = tuple(sorted({*self.terms, name}))
            yield name, term_BHLS.softmax(-1)


@torch.inference_mode()
def mean_attention(
    model: TransformerXL,
    tokens: np.ndarray,
    memory_length: int,
    segment_length: int,
    batch_size: int = 1,
    terms: bool = True,
) -> Iterator[AttentionMeans]:
    """Read `[T]` tokens and yield the sums so far after each segment, those of the terms too on request.

    All tokens count but the first M, which have no full memory. The text is divided among the rows of the
    batch; each row first reads, uncounted, the N · M tokens before its part, all that can affect it through
    the memories of the layers. So batch and segment length change the result by rounding only, unless
    positions are absolute (`position.absolute`). At most the attention of one layer is in memory.

    Raises:
        ValueError: no token has M before it, or a length is below 1.
    """
    check_lengths(len(tokens), memory_length, segment_length, batch_size)
    rows = min(batch_size, len(tokens) - memory_length)
    edges = memory_length + np.arange(rows + 1) * (len(tokens) - memory_length) // rows
    begin, end = edges[:-1, None], edges[1:, None]
    start = np.maximum(0, begin - model.n_layer * memory_length)
    longest = int((end - start).max())
    memory, device = model.empty_memory(rows, memory_length), model.embedding.bias.device
    shape = (model.n_layer, model.position.n_head, memory_length + 1)
    names = ("attention", *(TERMS if terms else ()))
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name in names}
    sums["entropy"] = torch.zeros(shape[:2], dtype=torch.float64)
    means = AttentionMeans(0, 0.0, sums)
    for offset in range(0, longest, segment_length):
        position = start + np.arange(offset, offset + segment_length)
        counted = (position >= begin) & (position < end)
        means = AttentionMeans(
            means.tokens + int(counted.sum()),
            min(1.0, (offset + segment_length) / longest),
            {name: total.clone() for name, total in means.sums.items()},
            means.terms,
        )
        add = partial(means.add, torch.from_numpy(counted).to(device))
        text_BL = torch.from_numpy(tokens.take(position, mode="clip").astype(np.int64)).to(device)
        with attention_hooks(model, add) if counted.any() else nullcontext():
            _, memory = model(text_BL, memory, attention_length=memory_length + 1)
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
    """Return the attention of single heads in the segment from `position`, `[heads, L, M + L]`, float32.

    For the errors see `check_segment`.
    """
    check_segment(model, len(tokens), position, memory_length, segment_length, heads)
    memory, found = model.empty_memory(1, memory_length), {}

    def collect(layer: int, probabilities_BHLK: Tensor, terms: object) -> None:
        for head, attention_LK in enumerate(probabilities_BHLK[0], layer * model.position.n_head):
            if head in heads:
                found[head] = attention_LK.float().cpu()

    start = max(0, position - model.n_layer * memory_length)
    edges = start, *reversed(range(position, start, -segment_length)), position + segment_length
    for begin, end in itertools.pairwise(edges):
        text_1L = torch.from_numpy(tokens[None, begin:end].astype(np.int64)).to(memory.length.device)
        with attention_hooks(model, collect) if begin == position else nullcontext():
            _, memory = model(text_1L, memory, attention_length=memory_length + 1)
    return torch.stack([found[head] for head in heads]).numpy()


def score_terms(
    q_BLHC: Tensor, k_BKHC: Tensor, position: PositionEncoding, layer: int, table: Tensor | None
) -> dict[str, Tensor]:
    """Split the scores of a layer into the terms of §3.3, which add up to them: those the encoding can have.

    (c) and (d) are the scores of a query of zeros, (a) and (b) what the query adds to the parts of key and
    distance. For `RelativePosition` these are the terms of the paper; they are defined for every encoding
    whose parts are affine in the query, as all of ours are.

    Queries and keys are those of `Attention.project`, the table that of `position.table`. The terms broadcast
    to `[B, H, L, K]`; their values for keys after the query are meaningless.
    """

    def content(q_BLHC: Tensor) -> Tensor:
        q_BLHC, keys_BKHC = position.queries_and_keys(layer, q_BLHC, k_BKHC, table)
        return q_BLHC.transpose(1, 2) @ keys_BKHC.permute(0, 2, 3, 1)

    zero_1LHC = torch.zeros_like(q_BLHC[:1])
    c_BHLK = content(zero_1LHC)
    terms = {"a": content(q_BLHC) - c_BHLK, "c": c_BHLK}
    lengths, layer_table = (q_BLHC.shape[1], k_BKHC.shape[1]), position.layer_table(layer, table)
    bias, d_HLK = (
        position.distance_scores(layer, queries, layer_table).by_key(*lengths)
        for queries in (q_BLHC, zero_1LHC)
    )
    if bias is not None and d_HLK is not None:
        terms |= {"b": bias - d_HLK, "d": d_HLK}
    return terms


def by_distance(by_key: Tensor, memory_length: int) -> Tensor:
    """Turn `[…, L, M + L]` by key into `[…, L, M + 1]` by distance, a view of a contiguous tensor.

    The distances M … 0 of query i are the columns i … M + i: in the flattened tensor, the window of each row
    begins K + 1 elements after the previous one.
    """
    keys = by_key.shape[-1]
    return by_key.flatten(-2).unfold(-1, memory_length + 1, keys + 1).flip(-1)


def representative_heads(entropy: np.ndarray) -> dict[int, str]:
    """Return the heads to plot (Figure 6) and why: those of the highest, median and lowest entropy."""
    order = np.argsort(-entropy, kind="stable").tolist()
    chosen = {order[len(order) // 2]: "between", order[-1]: "most sparse", order[0]: "most uniform"}
    return {head: chosen[head] for head in order if head in chosen}


def segment_positions(tokens: int, memory_length: int, segment_length: int) -> range:
    """Return the positions in a text where a segment with a full memory can begin.

    Raises:
        ValueError: the text is too short for any, or a length is below 1.
    """
    check_lengths(tokens, memory_length, segment_length)
    if tokens < memory_length + segment_length:
        raise ValueError(
            f"the text has {tokens} tokens, too few for a memory of {memory_length} and a segment of "
            f"{segment_length}; use a shorter memory_length or segment_length"
        )
    return range(memory_length, tokens - segment_length + 1)


def check_segment(
    model: TransformerXL,
    tokens: int,
    position: int,
    memory_length: int,
    segment_length: int,
    heads: Sequence[int],
) -> None:
    """Raise ValueError unless these heads exist and a segment with a full memory can begin at `position`."""
    positions, per_layer = segment_positions(tokens, memory_length, segment_length), model.position.n_head
    every = range(model.n_layer * per_layer)
    if not heads or not set(heads) <= set(every):
        raise ValueError(
            f"heads={list(heads)}: the model has the heads 0 to {every[-1]}, {per_layer} in each of "
            f"{model.n_layer} layers"
        )
    if position not in positions:
        raise ValueError(
            f"position={position}: a segment of {segment_length} tokens with {memory_length} before it can "
            f"begin at {positions[0]} to {positions[-1]} of this text"
        )


def check_lengths(tokens: int, memory_length: int, segment_length: int, batch_size: int = 1) -> None:
    """Raise ValueError unless there is a token with a full memory, and all lengths are positive."""
    problems = {
        f"segment_length={segment_length} must be at least 1": segment_length < 1,
        f"batch_size={batch_size} must be at least 1": batch_size < 1,
        f"memory_length={memory_length}: the maps show the attention over the memory, which must be at least "
        "1; the model can read with another memory than in training: memory_length=64": memory_length < 1,
        f"the text has {tokens} tokens: none has the {memory_length} before it that memory_length asks for; "
        "use a shorter memory_length or a longer text": tokens <= memory_length,
    }
    for problem, present in problems.items():
        if present:
            raise ValueError(problem)


@contextmanager
def attention_hooks(model: TransformerXL, hook: Callable[[int, Tensor, Terms], None]) -> Iterator[None]:
    """While a model reads, call `hook(layer, probabilities_BHLK, terms)` in each layer.

    The probabilities are those that enter the attention dropout; `terms()` returns their `score_terms`.
    """
    inputs: dict[int, tuple] = {}

    def enter(index: int, _: Attention, arguments: tuple) -> None:
        inputs[index] = arguments

    def leave(index: int, attention: Attention, _: Dropout, arguments: tuple) -> None:
        x_BLD, memory_BMD, _, position, layer, table = inputs.pop(index)

        def terms() -> dict[str, Tensor]:
            q_BLHC, k_BKHC, _ = attention.project(x_BLD, memory_BMD)
            return score_terms(q_BLHC, k_BKHC, position, layer, table)

        hook(index, arguments[0], terms)

    with ExitStack() as stack:
        stack.callback(setattr, model, "attention", model.attention)
        model.attention = "plain"  # the only backend that holds all probabilities
        for index, layer in enumerate(model.layers):
            attention = layer.attention
            stack.enter_context(attention.register_forward_pre_hook(partial(enter, index)))
            stack.enter_context(attention.dropout.register_forward_pre_hook(partial(leave, index, attention)))
        yield
