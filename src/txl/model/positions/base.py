"""What a position encoding may do, and what it is given to do it with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from txl.model.dropout import Dropout


class DistanceScores(NamedTuple):
    """What a distance adds to the score of a query and a key: `queries · keys + biases`, as far as there.

    Attributes:
        queries: `[B, L, H, C]`, scaled by 1/sqrt(C).
        keys: one for each distance, `[R, H, C]`: R - 1, R - 2, …, 0.
        biases: one for each distance, `[R, H]`.
    """

    queries: Tensor | None = None
    keys: Tensor | None = None
    biases: Tensor | None = None

    def by_key(self, length: int, key_length: int) -> Tensor | None:
        """Return what is added to the content scores, `[B or 1, H, L, K]`; `None` for nothing.

        R may be smaller than K + 1: farther distances then count as R - 1. What the result holds for keys
        after the query (`j > M + i`) does not matter: attention hides them.
        """
        by_distance = self.by_distance(length)
        return None if by_distance is None else scores_by_key(by_distance, key_length)

    def by_distance(self, length: int) -> Tensor | None:
        """Return the same by distance, `[B or 1, H, L, R]`, of the distances R - 1, R - 2, …, 0."""
        products = self.products()
        if self.biases is None:
            return products
        biases = self.biases.T[:, None].expand(-1, length, -1)
        return biases if products is None else products + biases

    def products(self) -> Tensor | None:
        """Return the queries times the keys of the distances, `[B, H, L, R]`; `None` without keys."""
        return None if self.keys is None else self.queries.transpose(1, 2) @ self.keys.permute(1, 2, 0)


class PositionEncoding(nn.Module):
    """How a model knows where a token stands. By itself: not at all; an encoding overrides what it needs.

    One object serves the whole model and owns the parameters of all layers. Keys are counted from the oldest
    memory slot: key `j` of `K = M + L`, query `i` of `L`, so that query `i` is key `M + i` and stands at
    distance `M + i - j` after key `j`.

    Args:
        n_layer, n_head, d_model, d_head: the shape of the model it serves.
        dropout: the model's dropout, for what the encoding adds.
        key_length: the largest K of training, for encodings that learn one vector a position.

    Attributes:
        scale: 1/sqrt(C), by which attention has multiplied the queries already.
        absolute: whether a token's place in its segment changes what is read: a segment then cannot be read
            a token at a time.
        by_place: whether `queries_and_keys` depends on the places of the tokens; all others depend on
            distances alone, or on nothing.
        scores_distances: whether queries are multiplied with one vector for each distance, which costs as
            much as the content scores.
        clamp_length: where an encoding has it, how far it tells distances apart.
        farthest: the distance beyond which all are the same to it; `None` for no limit.
    """

    absolute = False
    by_place = False
    scores_distances = False
    farthest: int | None = None

    def __init__(
        self, n_layer: int, n_head: int, d_model: int, d_head: int, dropout: float = 0.0, key_length: int = 1
    ) -> None:
        super().__init__()
        self.n_layer, self.n_head, self.d_model, self.d_head = n_layer, n_head, d_model, d_head
        self.key_length, self.scale = key_length, d_head**-0.5
        self.dropout = Dropout(dropout)

    def reset_parameters(self, std: float) -> None:
        """Initialize as the authors' code: N(0, std), and what is named a bias 0."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, 0.0, std)

    def to_input(self, x_BLD: Tensor) -> Tensor:
        """Return the embeddings of a segment with what the encoding adds to them, once."""
        return x_BLD

    def to_layer(self, layer: int, x_BLD: Tensor) -> Tensor:
        """Return the states of a segment with what the encoding adds before each layer.

        The result is what the layer reads and what the memory keeps of it.
        """
        return x_BLD

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor | None:
        """Return what all layers share for this segment, computed once (`None`: nothing).

        Its rows belong to the distances K, K - 1, …, 0, or with `by_place` to the K places from `first` on.
        """
        return None

    def layer_table(self, layer: int, table: Tensor | None) -> Tensor | None:
        """Return what a layer makes of the table: the same for all tokens, so it can be kept for long."""
        return table

    def queries_and_keys(
        self, layer: int, q_BLHC: Tensor, k_BKHC: Tensor, table: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the queries and keys whose products are the content scores of this layer.

        The queries come scaled by 1/sqrt(C), and so must be whatever is added to them.
        """
        return q_BLHC, k_BKHC

    def distance_scores(self, layer: int, q_BLHC: Tensor, layer_table: Tensor | None) -> DistanceScores:
        """Return what the distances add to the content scores of this layer.

        The queries come scaled by 1/sqrt(C), before `queries_and_keys`. `layer_table` may lack its first
        rows: distances beyond those it has then count as the farthest of them.
        """
        return DistanceScores()


def sinusoids(position: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return the sinusoids `[…, width]` of positions `[…]`: all sines, then all cosines, as the authors do.

    Position p has sin and cos of p / 10000^(2i / width) for i = 0 … width/2 - 1 (Vaswani et al. 2017, §3.5),
    computed in float32 at least.
    """
    precise = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, width, 2, device=position.device, dtype=precise) / width
    angle = position.to(precise)[..., None] * 10000.0**-exponent
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)


def relative_shift(by_distance: Tensor) -> Tensor:
    """Turn scores by distance into scores by key, without copying them (Appendix B).

    Args:
        by_distance: `[…, L, K + 1]`; column r belongs to the distance K - r.

    Returns:
        `[…, L, K]`; row i, column j holds the score of the distance K - L + i - j. Entries with a negative
        distance (keys after the query) are meaningless and must be hidden.
    """
    *_, length, columns = by_distance.shape
    # Row i has to move left by L - i. In the flat array, dropping the first L entries and reading rows that
    # are one column shorter does just that: entry (i, j) of the result is entry (i, j + L - i) of the input.
    return by_distance.flatten(-2)[..., length:].unflatten(-1, (length, columns - 1))


def scores_by_key(by_distance: Tensor, key_length: int) -> Tensor:
    """Turn scores of the nearest distances into scores by key; farther keys get the score of the farthest.

    Args:
        by_distance: `[…, L, R]`, of the distances R - 1, R - 2, …, 0.
        key_length: K, at least R - 1.

    Returns:
        `[…, L, K]`, see `relative_shift`.
    """
    missing = key_length + 1 - by_distance.shape[-1]
    if missing > 0:
        farthest = by_distance[..., :1].expand(*by_distance.shape[:-1], missing)
        by_distance = torch.cat([farthest, by_distance], dim=-1)
    return relative_shift(by_distance)


def check_clamp(clamp_length: int | None) -> None:
    """Raise ValueError unless a clamp is positive or `None`."""
    if clamp_length is not None and clamp_length < 1:
        raise ValueError(f"clamp_length must be positive or null, not {clamp_length}")


def distances(key_length: int, device: torch.device) -> Tensor:
    """Return the distances K, K - 1, …, 0 `[K + 1]` in the order `relative_shift` reads them."""
    return torch.arange(key_length, -1, -1, device=device)
