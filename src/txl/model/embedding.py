"""Input embedding and output softmax, which share their weights (tied embeddings).

With `cutoffs` both are adaptive: the vocabulary, most frequent tokens first, is split into a shortlist and
tails. A token of a tail is predicted in two steps: its tail among the shortlist, then the token within the
tail (Grave et al. 2017). With `div_val` the embeddings of later tails are smaller (Baevski and Auli 2018).
"""

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
        d_embed: width of the embeddings; `None` for D. If a width is not D, and always with `div_val` above
            1, one projection maps embeddings to D and another maps hidden states back.
        cutoffs: the first token of each tail: `[20000, 40000, 200000]` makes a shortlist of 20,000 tokens and
            three tails; none for a plain softmax.
        div_val: part i has embeddings of width `d_embed // div_val**i`.
        tie_projections: for each part, whether the output uses the projection of the input.

    Attributes:
        parts: first token and end of the shortlist and of each tail.

    Raises:
        ValueError: cutoffs that do not rise or exceed the vocabulary, or a width below 1.
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
        self.parts = list(itertools.pairwise(ends))
        widths = [d_embed // div_val**part for part in range(parts)]
        shapes = [(vocabulary, d_embed)]
        if div_val > 1:
            shapes = [(high - low, width) for (low, high), width in zip(self.parts, widths, strict=True)]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(*shape)) for shape in shapes)
        self.bias = nn.Parameter(torch.empty(vocabulary))
        self.projections = nn.ParameterList()  # D × width, of the input
        self.output_projections = nn.ParameterDict()  # D × width, of the output where it is not tied
        if div_val > 1 or d_embed != d_model:
            for _, width in shapes:
                self.projections.append(nn.Parameter(torch.empty(d_model, width)))
            for part, width in enumerate(widths):
                if not (tie_projections and tie_projections[part]):
                    self.output_projections[str(part)] = nn.Parameter(torch.empty(d_model, width))
        if parts > 1:
            self.tail_weight = nn.Parameter(torch.empty(parts - 1, d_embed))
            self.tail_bias = nn.Parameter(torch.empty(parts - 1))

    def embed(self, tokens_BL: Tensor) -> Tensor:
        """Return the embeddings `[B, L, D]`."""
        if len(self.weights) == 1:
            vectors = embedding(tokens_BL, self.weights[0])
            return (linear(vectors, self.projections[0]) if self.projections else vectors) * self.scale
        flat = tokens_BL.flatten()
        total = self.bias.new_zeros(())
        # Each part looks up all tokens (tokens of other parts as its first) and zeroes those of other parts:
        # so every parameter has a gradient on every process, and shapes do not depend on the tokens.
        for part, (low, high) in enumerate(self.parts):
            own = (flat >= low) & (flat < high)
            vectors = embedding((flat - low).where(own, 0), self.weights[part])
            total = total + linear(vectors, self.projections[part]) * own[:, None]
        return total.unflatten(0, tokens_BL.shape) * self.scale

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Return the log-probabilities of all tokens, `[…, V]`, for hidden states `[…, D]`."""
        with torch.autocast(hidden.device.type, enabled=False):
            hidden, short, matrices = _at_least_float32(hidden), self.ends[1], self.matrices()
            head = self._head_logits(hidden, matrices).log_softmax(dim=-1)
            parts = [head[..., :short]]
            for tail in range(1, len(self.parts)):
                within = self._logits(tail, hidden, *matrices[tail]).log_softmax(dim=-1)
                parts.append(head[..., short + tail - 1, None] + within)
            return torch.cat(parts, dim=-1)

    def scores(self, hidden_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target, `[B, L]`, in nats."""
        target = targets_BL.flatten()
        with torch.autocast(hidden_BLD.device.type, enabled=False):
            hidden, matrices = _at_least_float32(hidden_BLD.flatten(0, 1)), self.matrices()
            part = torch.bucketize(target, target.new_tensor(self.ends[1:]), right=True)
            in_head = torch.where(part == 0, target, self.ends[1] + part - 1)
            score = cross_entropy(self._head_logits(hidden, matrices), in_head, reduction="none")
            for tail in range(1, len(self.parts)):
                # A tail without targets is computed for zero rows: its parameters get a gradient of zero, so
                # that processes with different batches do not wait for each other.
                rows = (part == tail).nonzero()[:, 0]
                logits = self._logits(tail, hidden[rows], *matrices[tail])
                within = cross_entropy(logits, target[rows] - self.ends[tail], reduction="none")
                score = score.index_add(0, rows, within)
        return score.view_as(targets_BL)

    def matrices(self) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of each part. A shared weight is split once, so that its gradient is too."""
        sizes = [high - low for low, high in self.parts]
        weights = self.weights if len(self.weights) > 1 else self.weights[0].split(sizes)
        return list(zip(weights, self.bias.split(sizes), strict=True))

    def _head_logits(self, hidden: Tensor, matrices: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the logits of the shortlist, followed by one for each tail."""
        weight, bias = matrices[0]
        if len(self.parts) > 1:
            weight, bias = torch.cat([weight, self.tail_weight]), torch.cat([bias, self.tail_bias])
        return self._logits(0, hidden, weight, bias)

    def _logits(self, part: int, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.projections:
            tied = self.projections[part if len(self.projections) > 1 else 0]
            hidden = hidden @ self.output_projections.get(str(part), tied).to(hidden.dtype)
        return linear(hidden, weight.to(hidden.dtype), bias.to(hidden.dtype))


def _at_least_float32(hidden: Tensor) -> Tensor:
    # bfloat16 has 8 bits of precision: logits rounded to it shift a perplexity in its third digit.
    return hidden.to(torch.promote_types(hidden.dtype, torch.float32))
