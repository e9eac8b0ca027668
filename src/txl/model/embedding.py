"""The way in and the way out: token embeddings, and the softmax that shares their weights.

With `cutoffs` both are adaptive: the vocabulary, the commonest tokens first, is cut into a shortlist and
tails. A token of a tail is predicted in two steps, first its tail among the shortlist, then the token in the
tail (Grave et al. 2017); with `div_val` the embeddings of later tails are smaller (Baevski and Auli 2018).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear


class TiedEmbedding(nn.Module):
    """One matrix for each part of the vocabulary that embeds its tokens and, with a bias, predicts them.

    Args:
        vocabulary: V.
        d_model: D. Embeddings are scaled by its square root (Vaswani et al. 2017, §3.4).
        d_embed: width of the embeddings; `None` for D. Where an embedding's width is not D, and everywhere
            with `div_val` above 1, a projection leads from it to D and another back.
        cutoffs: where the tails begin: `[20000, 40000, 200000]` makes a shortlist of 20,000 tokens and three
            tails; none for a plain softmax.
        div_val: part i has embeddings of width `d_embed // div_val**i`.
        tie_projections: for each part, whether the way out uses the projection of the way in.

    Raises:
        ValueError: cutoffs that do not rise or lie beyond the vocabulary, or widths that vanish.
    """

    def __init__(
        self,
        vocabulary: int,
        d_model: int,
        d_embed: int | None = None,
        cutoffs: Sequence[int] = (),
        div_val: int = 1,
        tie_projections: Sequence[bool] = (),
    ) -> None:
        super().__init__()
        d_embed = d_model if d_embed is None else d_embed
        ends = [0, *cutoffs, vocabulary]
        if any(low >= high for low, high in itertools.pairwise(ends)):
            raise ValueError(
                f"cutoffs {list(cutoffs)} must rise, be positive and lie below the vocabulary of {vocabulary}"
                "; use smaller ones, fewer, or null for a plain softmax"
            )
        parts = len(ends) - 1
        if div_val < 1 or d_embed // div_val ** (parts - 1) < 1:
            raise ValueError(f"d_embed {d_embed} cannot be divided by div_val {div_val} for {parts} parts")
        if len(tie_projections) not in (0, parts):
            raise ValueError(f"tie_projections must have one value for each of the {parts} parts, or none")
        self.vocabulary, self.ends, self.scale = vocabulary, ends, d_model**0.5
        self.parts = list(
            itertools.pairwise(ends)
        )  # the shortlist and each tail: first id, id after the last
        widths = [d_embed // div_val**part for part in range(parts)]
        split = div_val > 1
        sizes = [
            (high - low, width) for (low, high), width in zip(itertools.pairwise(ends), widths, strict=True)
        ]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(*size)) for size in (sizes if split else [(vocabulary, d_embed)])
        )
        self.bias = nn.Parameter(torch.empty(vocabulary))
        self.projections = nn.ParameterList()  # D × width: the way in
        self.output_projections = nn.ParameterDict()  # D × width: the way out, where it is not tied
        if split or d_embed != d_model:
            for width in widths if split else widths[:1]:
                self.projections.append(nn.Parameter(torch.empty(d_model, width)))
            for part, width in enumerate(widths):
                if not (tie_projections and tie_projections[part]):
                    self.output_projections[str(part)] = nn.Parameter(torch.empty(d_model, width))
        if parts > 1:
            self.tail_weight = nn.Parameter(torch.empty(parts - 1, d_embed))
            self.tail_bias = nn.Parameter(torch.empty(parts - 1))

    def embed(self, tokens_BL: Tensor) -> Tensor:
        """Return the embeddings `[B, L, D]` of `tokens_BL`."""
        if len(self.weights) == 1:
            vectors = embedding(tokens_BL, self.weights[0])
            return (linear(vectors, self.projections[0]) if self.projections else vectors) * self.scale
        flat, out = tokens_BL.flatten(), 0.0
        # Each part looks up all tokens, those of other parts as its first, and hides what is not its own:
        # so every parameter has a gradient on every process, and shapes do not depend on the tokens.
        for part, (low, high) in enumerate(self.parts):
            own = (flat >= low) & (flat < high)
            vectors = embedding((flat - low).where(own, 0), self.weights[part])
            out = out + linear(vectors, self.projections[part]) * own[:, None]
        return out.unflatten(0, tokens_BL.shape) * self.scale

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of all tokens, `[…, V]`, for hidden states `[…, D]`."""
        with torch.autocast(hidden.device.type, enabled=False):
            hidden, short, matrices = _precise(hidden), self.ends[1], self._matrices()
            head = self._head(hidden, matrices).log_softmax(dim=-1)
            parts = [head[..., :short]]
            for tail in range(1, len(self.parts)):
                within = self._logits(tail, hidden, *matrices[tail]).log_softmax(dim=-1)
                parts.append(head[..., short + tail - 1, None] + within)
            return torch.cat(parts, dim=-1)

    def scores(self, hidden_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target, `[B, L]`, in nats, in the tokens' order."""
        target = targets_BL.flatten()
        with torch.autocast(hidden_BLD.device.type, enabled=False):
            hidden, short, matrices = _precise(hidden_BLD.flatten(0, 1)), self.ends[1], self._matrices()
            part = torch.bucketize(target, target.new_tensor(self.ends[1:]), right=True)
            in_head = torch.where(part == 0, target, short + part - 1)
            score = cross_entropy(self._head(hidden, matrices), in_head, reduction="none")
            for tail in range(1, len(self.parts)):
                # A tail that no target touches is computed for no rows: its parameters get a gradient, of
                # zero, so that processes whose batches differ do not wait for each other.
                rows = (part == tail).nonzero()[:, 0]
                logits = self._logits(tail, hidden[rows], *matrices[tail])
                within = cross_entropy(logits, target[rows] - self.ends[tail], reduction="none")
                score = score.index_add(0, rows, within)
        return score.view_as(targets_BL)

    def _matrices(self) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of each part; what all share is split once, so that its gradient is too."""
        sizes = [high - low for low, high in self.parts]
        weights = self.weights if len(self.weights) > 1 else self.weights[0].split(sizes)
        return list(zip(weights, self.bias.split(sizes), strict=True))

    def _head(self, hidden: Tensor, matrices: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the logits of the shortlist, and after them those of the tails."""
        weight, bias = matrices[0]
        if len(self.parts) > 1:
            weight, bias = torch.cat([weight, self.tail_weight]), torch.cat([bias, self.tail_bias])
        return self._logits(0, hidden, weight, bias)

    def _logits(self, part: int, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the logits that the weight and bias of one part give."""
        if self.projections:
            own, shared = str(part), self.projections[part if len(self.projections) > 1 else 0]
            hidden = hidden @ self.output_projections.get(own, shared).to(hidden.dtype)
        return linear(hidden, weight.to(hidden.dtype), bias.to(hidden.dtype))


def _precise(hidden: Tensor) -> Tensor:
    """Return hidden states in float32 at least.

    bfloat16 has 8 bits of precision: logits rounded to it shift a perplexity in its third digit.
    """
    return hidden.to(torch.promote_types(hidden.dtype, torch.float32))
