"""The interface of a position encoding, and the functions that several encodings share."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from txl.model.dropout import Dropout


class DistanceScores(NamedTuple):
    """What the distance of a query and a key adds to their score: `queries · keys + biases`.

    An encoding may use either term, both or none. Rows belong to the distances R - 1, R - 2, …, 0.

    Attributes:
        queries: distance queries `[B, L, H, C]`, scaled by 1/sqrt(C).
        keys: distance keys `[R, H, C]`.
        biases: distance biases `[R, H]`.
    """

    queries: Tensor | None = None
    keys: Tensor | None = None
    biases: Tensor | None = None

    def by_key(self, length: int, key_length: int) -> Tensor | None:
        """Return what to add to the content scores, `[B or 1, H, L, K]`, or `None` for nothing.

        If R is less than K + 1, larger distances score as R - 1. Values for keys after the query
        (`j > M + i`) are meaningless; attention masks them.
        """
        by_distance = self.by_distance(length)
        if by_distance is None:
            return None
        missing = key_length + 1 - by_distance.shape[-1]
        if missing > 0:
            farthest = by_distance[..., :1].expand(*by_distance.shape[:-1], missing)
            by_distance = torch.cat([farthest, by_distance], dim=-1)
        return relative_shift(by_distance)

    def by_distance(self, length: int) -> Tensor | None:
        """Return the same scores indexed by distance, `[B or 1, H, L, R]`."""
        products = self.products()
        if self.biases is None:
            return products
        biases = self.biases.T[:, None].expand(-1, length, -1)
        return biases if products is None else products + biases

    def products(self) -> Tensor | None:
        """Return `queries · keys`, `[B, H, L, R]`, or `None` without distance keys."""
        if self.queries is None or self.keys is None:
            return None
        return self.queries.transpose(1, 2) @ self.keys.permute(1, 2, 0)


class PositionEncoding(nn.Module):
    """How a model knows the positions of its tokens. This base class adds nothing; subclasses override.

    One object serves the whole model and owns the position parameters of all layers. Keys are numbered from
    the oldest memory slot: query `i` of `L` is also key `M + i` of `K = M + L`, and its distance to key `j`
    is `M + i - j`.

    Args:
        n_layer, n_head, d_model, d_head: the shape of the model.
        dropout: the model's dropout, for what the encoding adds.
        key_length: the largest K in training, for encodings that learn a vector per position or distance.

    Attributes:
        scale: 1/sqrt(C), which attention has already applied to the queries.
        absolute: the output depends on where in its segment a token stands, so a segment cannot be read one
            token at a time.
        by_place: `queries_and_keys` depends on the positions of the tokens, not only on distances.
        scores_distances: there are distance keys; their scores cost as much as the content scores.
        clamp_length: how far distances are told apart; only on encodings with that setting.
        farthest: the distance beyond which all distances are equivalent; `None` for no limit.
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
        """Initialize as the authors' code does: biases 0, everything else N(0, std)."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, 0.0, std)

    def to_input(self, x_BLD: Tensor) -> Tensor:
        """Encode positions in the embeddings of a segment, once, before the first layer."""
        return x_BLD

    def to_layer(self, layer: int, x_BLD: Tensor) -> Tensor:
        """Encode positions in the states that enter a layer. The memory stores the result."""
        return x_BLD

    def table(self, x_BLD: Tensor, key_length: int, first: int = 0) -> Tensor | None:
        """Return what all layers share for this segment, computed once, or `None` for nothing.

        Its rows belong to the distances K, K - 1, …, 0 or, with `by_place`, to the K positions from `first`.
        """
        return None

    def layer_table(self, layer: int, table: Tensor | None) -> Tensor | None:
        """Return what a layer derives from `table`. It does not depend on the tokens: inference caches it."""
        return table

    def queries_and_keys(
        self, layer: int, q_BLHC: Tensor, k_BKHC: Tensor, table: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the queries and keys whose products are the content scores of this layer.

        The queries are already scaled by 1/sqrt(C); anything added to them must be scaled, too.
        """
        return q_BLHC, k_BKHC

    def distance_scores(self, layer: int, q_BLHC: Tensor, layer_table: Tensor | None) -> DistanceScores:
        """Return what distances add to the content scores of this layer.

        The queries are scaled by 1/sqrt(C), and not yet changed by `queries_and_keys`. `layer_table` may lack
        its first rows: larger distances then score as the largest it has.
        """
        return DistanceScores()


def sinusoids(position: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return the sinusoids `[…, width]` of positions `[…]`: all sines, then all cosines, as the authors do.

    Position p has sin and cos of p / 10000^(2i / width) for i = 0 … width/2 - 1 (Vaswani et al. 2017, §3.5),
    computed in float32 or better.
    """
    precise = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, width, 2, device=position.device, dtype=precise) / width
    angle = position.to(precise)[..., None] * 10000.0**-exponent
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)


def relative_shift(by_distance: Tensor) -> Tensor:
    """Turn scores by distance `[…, L, K + 1]` into scores by key `[…, L, K]`, without a copy (Appendix B).

    Column r of the input belongs to the distance K - r. Row i, column j of the result holds the score of the
    distance K - L + i - j; entries with a negative distance (keys after the query) are meaningless and must
    be masked.
    """
    *_, length, columns = by_distance.shape
    # Row i has to move left by L - i. Dropping the first L entries of the flat array and reading rows that
    # are one column shorter does just that: entry (i, j) of the result is entry (i, j + L - i) of the input.
    return by_distance.flatten(-2)[..., length:].unflatten(-1, (length, columns - 1))


def check_clamp(clamp_length: int | None) -> None:
    if clamp_length is not None and clamp_length < 1:
        raise ValueError(f"clamp_length must be positive or null, not {clamp_length}")


def distances(key_length: int, device: torch.device) -> Tensor:
    """Return the distances K, K - 1, …, 0, in the order `relative_shift` reads them."""
    return torch.arange(key_length, -1, -1, device=device)
