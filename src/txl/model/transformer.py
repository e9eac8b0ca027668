"""Transformer-XL: the whole model (§3.4, Appendix B)."""

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.model.attention import Attend, Attention, PlainAttention, masked_keys
from txl.model.blocked import BlockedAttention
from txl.model.dropout import Dropout, relu_dropout
from txl.model.embedding import TiedEmbedding
from txl.model.flex import FusedAttention
from txl.model.memory import Memory
from txl.model.positions.base import PositionEncoding

# Ways to compute attention, by their names in the settings.
ATTENTION_BACKENDS: dict[str, Callable[[Tensor, Tensor], Attend]] = {
    "plain": PlainAttention,
    "blocked": BlockedAttention,
    "flex": FusedAttention,
}


class FeedForward(nn.Sequential):
    """The position-wise network: D → d_inner → D, ReLU, dropout after each (Vaswani et al. 2017, §3.3)."""

    def __init__(self, d_model: int, d_inner: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(d_model, d_inner),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(d_inner, d_model),
            Dropout(dropout, inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        # `relu_dropout` includes the ReLU, which stays in the list for the names of the parameters.
        inner, _, dropout, outer, last = self
        # As a matrix: of anything else `nn.Linear` returns a view, and the backward pass copies a view that
        # was written over.
        states = x.flatten(end_dim=-2)
        return last(outer(relu_dropout(inner(states), cast(Dropout, dropout)))).view_as(x)


class Layer(nn.Module):
    """Attention and feed-forward network, each with residual connection and layer normalization."""

    def __init__(
        self,
        d_model: int,
        n_head: int,
        d_head: int,
        d_inner: int,
        dropout: float,
        attention_dropout: float,
        pre_norm: bool,
    ) -> None:
        super().__init__()
        self.attention = Attention(d_model, n_head, d_head, attention_dropout)
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_inner, dropout)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout, inplace=True)  # overwrites the output of attention
        self.pre_norm = pre_norm

    def forward(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor,
        attend: Attend,
        position: PositionEncoding,
        layer: int,
        table: Tensor | None,
    ) -> Tensor:
        """Return the states `[B, L, D]` that enter the next layer."""
        inputs = self.attention_input(x_BLD), self.attention_input(memory_BMD.to(x_BLD.dtype))
        return self.after_attention(x_BLD, self.attention(*inputs, attend, position, layer, table))

    def attention_input(self, states: Tensor) -> Tensor:
        return self.attention_norm(states) if self.pre_norm else states

    def after_attention(self, x_BLD: Tensor, attended_BLD: Tensor) -> Tensor:
        """Return the output of the layer, given its input and the output of its attention."""
        x_BLD = x_BLD + self.dropout(attended_BLD)
        if self.pre_norm:
            return x_BLD + self.feed_forward(self.feed_forward_norm(x_BLD))
        x_BLD = self.attention_norm(x_BLD)
        return self.feed_forward_norm(x_BLD + self.feed_forward(x_BLD))


class TransformerXL(nn.Module):
    """A stack of layers that reads a text segment by segment and remembers earlier segments.

    Args:
        vocabulary: V, the number of distinct tokens.
        position: builds the position encoding from `n_layer`, `n_head`, `d_model`, `d_head` and `dropout`.
        n_layer, d_model, n_head, d_head, d_inner: N, D, H, C and the width of the feed-forward networks.
        dropout: after the embedding, the attention, inside and after the feed-forward network, on the
            position table and on the last hidden states (the authors' `dropout`).
        attention_dropout: on the attention probabilities (the authors' `dropatt`).
        d_embed, cutoffs, div_val, tie_projections: see `TiedEmbedding`.
        pre_norm: normalize the input of attention and feed-forward network instead of the sum after them
            (`pre_lnorm`; as in the authors' code, the last states are not normalized).
        init_std: standard deviation of the initial weights and vectors.
        projection_init_std: the same for the embedding's projections (`proj_init_std`).

    Attributes:
        recompute: save only the input of each layer and recompute the rest in the backward pass: less memory,
            more time, the same gradients, dropout included.
        attention: a key of `ATTENTION_BACKENDS`; all give the same result.

    Raises:
        ValueError: a size that is not positive, or a dropout outside [0, 1).
    """

    def __init__(
        self,
        vocabulary: int,
        position: Callable[..., PositionEncoding],
        n_layer: int,
        d_model: int,
        n_head: int,
        d_head: int,
        d_inner: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        d_embed: int | None = None,
        cutoffs: list[int] | None = None,
        div_val: int = 1,
        tie_projections: list[bool] | None = None,
        pre_norm: bool = False,
        init_std: float = 0.02,
        projection_init_std: float = 0.01,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "n_layer": n_layer, "d_model": d_model, "n_head": n_head}
        for name, size in {**sizes, "d_head": d_head, "d_inner": d_inner}.items():
            if size < 1:
                raise ValueError(f"{name} must be positive, not {size}")
        for name, rate in {"dropout": dropout, "attention_dropout": attention_dropout}.items():
            if not 0.0 <= rate < 1.0:
                raise ValueError(f"{name} must be at least 0 and below 1, not {rate}")
        for name, std in {"init_std": init_std, "projection_init_std": projection_init_std}.items():
            if not 0.0 <= std < math.inf:
                raise ValueError(f"{name} must be 0 or more, not {std}")
        self.n_layer, self.d_model = n_layer, d_model
        self.recompute, self.attention = False, "plain"
        self.embedding = TiedEmbedding(
            vocabulary, d_model, d_embed, cutoffs or (), div_val, tie_projections or ()
        )
        self.position = position(
            n_layer=n_layer, n_head=n_head, d_model=d_model, d_head=d_head, dropout=dropout
        )
        layers = nn.ModuleList(
            Layer(d_model, n_head, d_head, d_inner, dropout, attention_dropout, pre_norm)
            for _ in range(n_layer)
        )
        self.layers = cast(Sequence[Layer], layers)
        self.dropout = Dropout(dropout)
        self.reset_parameters(init_std, projection_init_std)

    def reset_parameters(self, std: float, projection_std: float) -> None:
        """Initialize as the authors' code: N(0, std), LayerNorm gains N(1, std), biases 0."""
        self.position.reset_parameters(std)
        for name, parameter in self.named_parameters():
            if name.startswith("position."):
                continue
            if name.endswith("norm.weight"):
                nn.init.normal_(parameter, 1.0, std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, 0.0, projection_std if "projections" in name else std)

    def empty_memory(self, rows: int, slots: int) -> Memory:
        """Return an empty memory on the device of the model."""
        weight = self.embedding.bias
        return Memory.empty(self.n_layer, rows, slots, self.d_model, weight.device, weight.dtype)

    def forward(
        self,
        tokens_BL: Tensor,
        memory: Memory,
        attention_length: int | None = None,
        remember: int | None = None,
    ) -> tuple[Tensor, Memory]:
        """Read one segment.

        Args:
            tokens_BL: int64, the next L tokens of each row.
            memory: not changed.
            attention_length: how many keys a query may see, its own included; `None` for no limit.
            remember: how many of the L states, from the first, enter the memory; `None` for all. Fewer where
                the next segment overlaps with this one (half loss).

        Returns:
            The last hidden states `[B, L, D]`, for `embedding.scores` or `embedding.log_probabilities`, and
            the memory after this segment.

        Raises:
            ValueError: the memory has a different number of rows.
        """
        rows, length = tokens_BL.shape
        if memory.rows != rows:
            raise ValueError(f"the memory holds {memory.rows} rows, the segment has {rows}")
        x_BLD = self.dropout(self.position.to_input(self.embedding.embed(tokens_BL)))
        masked_BLK = masked_keys(length, memory.length, memory.slots, attention_length)
        attend = ATTENTION_BACKENDS[self.attention](masked_BLK, x_BLD)
        table = self.position.table(x_BLD, memory.slots + length)
        entered = []
        for index, (layer, memory_BMD) in enumerate(zip(self.layers, memory.states, strict=True)):
            x_BLD = self.position.to_layer(index, x_BLD)
            entered.append(x_BLD)
            inputs = (x_BLD, memory_BMD, attend, self.position, index, table)
            if self.recompute and torch.is_grad_enabled():
                x_BLD = checkpoint(layer, *inputs, use_reentrant=False)
            else:
                x_BLD = layer(*inputs)
        return self.dropout(x_BLD), memory.append([states[:, :remember] for states in entered])
