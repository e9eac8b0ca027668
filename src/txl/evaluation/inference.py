"""Fast recurrent inference: it caches keys and values instead of hidden states.

While parameters change, the memory must hold hidden states, and each segment projects all M of them, and all
distances, again. With fixed parameters each projection is computed once: keys and values when their token is
read, distance tables for all segments together. A segment then costs L projections and its attention, not M +
L projections and its attention.

Shapes as in `txl.model`, and `S` slots in a buffer.
"""

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from txl.model import Memory, TransformerXL
from txl.model.attention import masked_keys
from txl.model.positions.base import DistanceScores, relative_shift

CHUNK_BYTES = 2**23  # of scores that are computed together; at least one row
SPARE = 4  # buffers have room for 1/SPARE of the memory before the cached keys move to the front


class CachedInference:
    """Reads segment after segment and returns the hidden states that the model returns with a memory.

    Each layer has a buffer for keys and one for values, larger than the memory. New ones are written behind
    the old ones; at the end of the buffer the newest M are moved to the front.

    Args:
        model: in evaluation mode; its parameters must not change from now on.
        memory: the text read so far; its slots are the most that are cached. It is not changed.
        attention_length: how many keys a query may see, itself included; `None` for the whole memory and all
            earlier tokens of the segment.
    """

    @torch.inference_mode()
    def __init__(self, model: TransformerXL, memory: Memory, attention_length: int | None = None) -> None:
        self.model, self.layers, self.attention_length = model, model.layers, attention_length
        reach = memory.slots if attention_length is None else attention_length - 1
        self.slots = min(memory.slots, reach)  # the most keys of earlier segments that are cached
        self.lengths = [min(length, self.slots) for length in memory.length.tolist()]  # cached, of each row
        self.end = self.text_position = self.kept  # `end` is the first free slot of the buffers
        self.longest = 0  # the longest segment that the buffers have room for
        self.tables: list[Tensor | None] = []  # the distance table of each layer
        self._masked_for: tuple[int, ...] = ()  # see `_update_mask`
        self._biases: dict[int, Tensor | None] = {}
        self.keys: list[Tensor] = []  # of each layer, `[B, H, S, C]`
        self.values: list[Tensor] = []
        for index, states_BMD in enumerate(memory.states):
            states_BMD = states_BMD[:, memory.slots - self.kept :].to(model.embedding.bias.dtype)
            *_, k_BMHC, v_BMHC = self._project(index, states_BMD, self._place_table(states_BMD, 0))
            self.keys.append(k_BMHC.transpose(1, 2))
            self.values.append(v_BMHC.transpose(1, 2))

    @property
    def kept(self) -> int:
        """How many cached keys a segment attends to: those of the row that has most."""
        return max(self.lengths)

    @torch.inference_mode()
    def read(self, tokens_BL: Tensor, fresh_B: Tensor | None = None, remember: int | None = None) -> Tensor:
        """Read the next segment and return its last hidden states, `[B, L, D]`.

        Args:
            tokens_BL: int64, the next L tokens of each row.
            fresh_B: bool, the rows that begin a new text here and forget what came before; `None` for none.
            remember: how many of the L tokens to cache, from the first; `None` for all.

        Raises:
            ValueError: the number of rows differs from the memory's.
        """
        rows, length = tokens_BL.shape
        if rows != len(self.lengths):
            raise ValueError(f"the memory holds {len(self.lengths)} rows, the segment has {rows}")
        if fresh_B is not None:
            self.lengths = (torch.tensor(self.lengths) * ~fresh_B.cpu()).tolist()
        x_BLD = self.model.position.to_input(self.model.embedding.embed(tokens_BL))
        self._make_room(x_BLD)
        self._update_mask(length)
        place_table = self._place_table(x_BLD, self.text_position)
        for index, layer in enumerate(self.layers):
            x_BLD = self.model.position.to_layer(index, x_BLD)
            x_BLD = layer.after_attention(x_BLD, self._attend(index, x_BLD, place_table))
        added = length if remember is None else remember
        self.end, self.text_position = self.end + added, self.text_position + added
        self.lengths = [min(known + added, self.slots) for known in self.lengths]
        return x_BLD

    def _place_table(self, x_BLD: Tensor, first: int) -> Tensor | None:
        """Return the table for positions from `first`, for encodings that have one `by_place`."""
        position = self.model.position
        return position.table(x_BLD, x_BLD.shape[1], first) if position.by_place else None

    def _project(self, index: int, x_BLD: Tensor, place_table: Tensor | None) -> tuple[Tensor, ...]:
        """Return queries as projected, then queries, keys and values as scored, each `[B, L, H, C]`."""
        attention, read_BLD = self.layers[index].attention, self.layers[index].attention_input(x_BLD)
        q_BLHC = attention.queries(read_BLD)
        k_BLHC, v_BLHC = attention.keys_and_values(attention.key_value(read_BLD))
        return q_BLHC, *self.model.position.queries_and_keys(index, q_BLHC, k_BLHC, place_table), v_BLHC

    def _attend(self, index: int, x_BLD: Tensor, place_table: Tensor | None) -> Tensor:
        """Cache a segment's keys and values, and return the attention output `[B, L, D]` of a layer."""
        projected_BLHC, *segment = self._project(index, x_BLD, place_table)
        q_BHLC, k_BHLC, v_BHLC = (tensor.transpose(1, 2) for tensor in segment)
        keys, values, end = self.keys[index], self.values[index], self.end + x_BLD.shape[1]
        keys[:, :, self.end : end] = k_BHLC
        values[:, :, self.end : end] = v_BHLC
        seen = slice(self.end - self.kept, end)
        keys, values, table = keys[:, :, seen], values[:, :, seen], self.tables[index]
        if table is not None:
            table = table[-keys.shape[2] - 1 :]
        distance_scores = self.model.position.distance_scores(index, projected_BLHC, table)
        if distance_scores.keys is None:
            bias = self._bias(index, distance_scores, x_BLD.shape[1])
            causal = bias is None and self._causal  # faster than a mask: later keys are skipped
            mixed_BHLC = scaled_dot_product_attention(
                q_BHLC, keys, values, attn_mask=bias, is_causal=causal, scale=1.0
            )
        else:
            mixed_BHLC = self._attend_by_distance(q_BHLC, keys, values, distance_scores)
        return self.layers[index].attention.output(mixed_BHLC.transpose(1, 2).flatten(-2))

    def _attend_by_distance(
        self, q_BHLC: Tensor, k_BHKC: Tensor, v_BHKC: Tensor, distance_scores: DistanceScores
    ) -> Tensor:
        """Return the attention-weighted values `[B, H, L, C]` for an encoding with distance keys.

        With a clamp there are many more keys than distances. A softmax depends on differences alone, so the
        score of the largest distance is subtracted from all scores of a query: then only nearer keys have
        anything to add. Rows are processed in chunks whose scores fit in the processor's cache.
        """
        queries_BLHC, distance_keys, biases = cast(tuple[Tensor, Tensor, Tensor | None], distance_scores)
        rows, heads, length, _ = q_BHLC.shape
        key_length, distances = k_BHKC.shape[2], len(distance_keys)
        near = min(key_length, distances - 1 + length)
        clamped = near + 1 - distances
        if clamped:
            distance_keys = distance_keys - distance_keys[:1]
            biases = None if biases is None else biases - biases[:1]
        chunk = min(rows, max(1, CHUNK_BYTES // (heads * length * key_length * q_BHLC.itemsize)))
        # Scores by distance; the first `clamped` columns stay 0.
        by_distance = q_BHLC.new_zeros(chunk, heads, length, near + 1)
        mixed_BHLC = torch.empty_like(q_BHLC)
        for begin in range(0, rows, chunk):
            part = slice(begin, begin + chunk)
            scores_BHLK = q_BHLC[part] @ k_BHKC[part].transpose(-1, -2)
            part_scores = DistanceScores(queries_BLHC[part], distance_keys, biases)
            by_distance[: len(scores_BHLK), ..., clamped:] = cast(Tensor, part_scores.by_distance(length))
            scores_BHLK[..., key_length - near :] += relative_shift(by_distance[: len(scores_BHLK)])
            for columns in self._masked_columns:
                masked = self._masked[part] if len(self._masked) > 1 else self._masked
                scores_BHLK[..., columns].masked_fill_(masked[..., columns], float("-inf"))
            mixed_BHLC[part] = torch.softmax(scores_BHLK, -1, out=scores_BHLK) @ v_BHKC[part]
        return mixed_BHLC

    def _bias(self, index: int, distance_scores: DistanceScores, length: int) -> Tensor | None:
        """Return what is added to the content scores, minus infinity for masked keys; `None` for nothing.

        It does not depend on the tokens, and is cached until the mask changes.
        """
        if index not in self._biases:
            bias = distance_scores.by_key(length, self.kept + length)
            if bias is not None:
                bias = bias.masked_fill(self._masked, float("-inf"))
            elif self._masked_columns and not self._causal:
                bias = ~self._masked
            self._biases[index] = bias
        return self._biases[index]

    def _update_mask(self, length: int) -> None:
        """Compute which keys a segment of this length must not see, unless the last mask still holds."""
        state = (length, *self.lengths)
        if state == self._masked_for:
            return
        self._masked_for, self._biases = state, {}
        known_B = torch.tensor(self.lengths, device=self.model.embedding.bias.device)
        if min(self.lengths) == self.kept:
            known_B = known_B[:1]  # all rows have the same mask
        self._masked = masked_keys(length, known_B, self.kept, self.attention_length)[:, None]
        reach = self.attention_length or self.kept + length
        oldest = max(self.kept + length - reach, self.kept - min(self.lengths))
        columns = [(slice(0, oldest), oldest > 0), (slice(self.kept, None), length > 1)]
        self._masked_columns = [which for which, used in columns if used]
        self._causal = self.kept == 0 and length <= reach  # only later keys of the segment are masked

    def _make_room(self, x_BLD: Tensor) -> None:
        """Make room in the buffers for a segment, and in the tables for its distances."""
        length = x_BLD.shape[1]
        if length > self.longest:
            self.longest = length
            self.tables = self._distance_tables(x_BLD)
        elif self.end + length <= self.keys[0].shape[2]:
            return
        size = self.slots + self.longest + max(self.longest, self.slots // SPARE)
        recent = slice(self.end - self.kept, self.end)
        for buffers in (self.keys, self.values):
            for index, buffer in enumerate(buffers):
                moved = buffer[:, :, recent].clone()  # source and target may overlap
                if buffer.shape[2] < size:
                    rows, heads, _, width = buffer.shape
                    if buffers is self.keys and self.model.position.scores_distances:
                        # The product of queries and keys is faster if each component is contiguous over keys.
                        buffer = buffer.new_empty(rows, heads, width, size).transpose(2, 3)
                    else:
                        buffer = buffer.new_empty(rows, heads, size, width)
                    buffers[index] = buffer
                buffer[:, :, : self.kept] = moved
        self.end = self.kept

    def _distance_tables(self, x_BLD: Tensor) -> list[Tensor | None]:
        """Return the table of each layer for all distances that occur, without those beyond a clamp."""
        position = self.model.position
        if position.by_place:
            return [None] * len(self.keys)
        shared = position.table(x_BLD, self.slots + self.longest)
        tables = [position.layer_table(index, shared) for index in range(len(self.keys))]
        if position.farthest is not None:
            tables = [None if table is None else table[-position.farthest - 1 :].clone() for table in tables]
        return tables
