"""Fast recurrent inference: the keys and values of the memory are kept, not its hidden states.

While parameters change, the memory must hold hidden states, and each segment projects all M of them again to
keys and values, and all distances to the position's keys. With fixed parameters these never change: a key is
the projection of a state that was computed once. So here each is computed once, when its token is read, and a
segment costs its own L projections and its attention, instead of M + L projections and its attention. The
projected distances are made once for all segments, and of those beyond a clamp only the first.

Letters: see `txl.model`. `S` places in a buffer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from txl.model import Memory, TransformerXL
from txl.model.attention import masked_keys
from txl.model.positions.base import DistanceScores, relative_shift

BYTES = 2**23  # of the scores computed together, where one row has not more
SPARE = 4  # a buffer has room for a quarter of the memory before what is kept moves to its front


class CachedInference:
    """Reads on, segment after segment, and gives the hidden states that the model gives with a memory.

    Keys and values lie in one buffer a layer, of more places than the memory has slots. New ones are written
    behind the old ones; only when the end is reached are the newest M moved to the front.

    Args:
        model: in evaluation mode; its parameters must not change from now on.
        memory: what was read before, of as many slots as are to be kept. It is not changed.
        attention_length: how many keys a query may see, itself included; `None` for the whole memory and all
            of the segment before it.
    """

    @torch.inference_mode()
    def __init__(self, model: TransformerXL, memory: Memory, attention_length: int | None = None) -> None:
        self.model, self.attention_length = model, attention_length
        reach = memory.slots if attention_length is None else attention_length - 1
        self.slots = min(memory.slots, reach)
        self.lengths = [min(length, self.slots) for length in memory.length.tolist()]  # real keys of each row
        self.end = self.place = self.kept  # of the next key: its place in the buffers, and in the text
        self.longest = 0  # the segment that there is room for
        self.tables: list[Tensor | None] = []  # what each layer makes of the distances
        self._hidden_for: tuple[int, ...] = ()  # see `_hide`
        self.keys, self.values = [], []  # of each layer, `[B, H, S, C]`
        for index, states_BMD in enumerate(memory.states):
            states_BMD = states_BMD[:, memory.slots - self.kept :].to(model.embedding.bias.dtype)
            *_, k_BMHC, v_BMHC = self._project(index, states_BMD, self._places(states_BMD, 0))
            self.keys.append(k_BMHC.transpose(1, 2))
            self.values.append(v_BMHC.transpose(1, 2))

    @property
    def kept(self) -> int:
        """How many keys of the past a segment looks at: those of the row that has most."""
        return max(self.lengths)

    @torch.inference_mode()
    def read(self, tokens_BL: Tensor, fresh_B: Tensor | None = None, remember: int | None = None) -> Tensor:
        """Return the last hidden states `[B, L, D]` of the next segment, and remember it.

        Args:
            tokens_BL: int64, the next L tokens of each row.
            fresh_B: bool, the rows that begin a new text here and forget what was before; `None` for none.
            remember: how many of the L tokens are remembered, from the first; `None` for all.

        Raises:
            ValueError: another number of rows than the memory has.
        """
        rows, length = tokens_BL.shape
        if rows != len(self.lengths):
            raise ValueError(f"the memory holds {len(self.lengths)} rows, the segment has {rows}")
        if fresh_B is not None:
            pairs = zip(self.lengths, fresh_B.tolist(), strict=True)
            self.lengths = [0 if fresh else known for known, fresh in pairs]
        x_BLD = self.model.position.to_input(self.model.embedding.embed(tokens_BL))
        self._make_room(x_BLD)
        self._hide(length)
        places = self._places(x_BLD, self.place)
        for index, layer in enumerate(self.model.layers):
            x_BLD = self.model.position.to_layer(index, x_BLD)
            x_BLD = layer.after_attention(x_BLD, self._attended(index, x_BLD, places))
        taken = length if remember is None else remember
        self.end, self.place = self.end + taken, self.place + taken
        self.lengths = [min(known + taken, self.slots) for known in self.lengths]
        return x_BLD

    def _places(self, x_BLD: Tensor, first: int) -> Tensor | None:
        """Return what turns queries and keys by the places of their tokens, if anything does."""
        position = self.model.position
        return position.table(x_BLD, x_BLD.shape[1], first) if position.by_place else None

    def _project(self, index: int, x_BLD: Tensor, places: Tensor | None) -> tuple[Tensor, ...]:
        """Return queries as projected, and queries, keys and values as scored, each `[B, L, H, C]`."""
        layer = self.model.layers[index]
        read_BLD = layer.attention_input(x_BLD)
        q_BLHC = layer.attention.queries(read_BLD)
        k_BLHC, v_BLHC = layer.attention.keys_and_values(layer.attention.key_value(read_BLD))
        return q_BLHC, *self.model.position.queries_and_keys(index, q_BLHC, k_BLHC, places), v_BLHC

    def _attended(self, index: int, x_BLD: Tensor, places: Tensor | None) -> Tensor:
        """Return what the attention of a layer gives for a segment, `[B, L, D]`, and keep keys and values."""
        projected_BLHC, *segment = self._project(index, x_BLD, places)
        q_BHLC, k_BHLC, v_BHLC = (tensor.transpose(1, 2) for tensor in segment)
        keys, values, end = self.keys[index], self.values[index], self.end + x_BLD.shape[1]
        keys[:, :, self.end : end] = k_BHLC
        values[:, :, self.end : end] = v_BHLC
        seen = slice(self.end - self.kept, end)
        keys, values, table = keys[:, :, seen], values[:, :, seen], self.tables[index]
        if table is not None:
            table = table[-keys.shape[2] - 1 :]
        added = self.model.position.distance_scores(index, projected_BLHC, table)
        if added.keys is None:
            bias = self._bias(index, added, x_BLD.shape[1])
            causal = bias is None and self._causal  # without a mask later keys are left out, not only hidden
            mixed_BHLC = scaled_dot_product_attention(
                q_BHLC, keys, values, attn_mask=bias, is_causal=causal, scale=1.0
            )
        else:
            mixed_BHLC = self._mixed(q_BHLC, keys, values, added)
        return self.model.layers[index].attention.output(mixed_BHLC.transpose(1, 2).flatten(-2))

    def _mixed(self, q_BHLC: Tensor, k_BHKC: Tensor, v_BHKC: Tensor, added: DistanceScores) -> Tensor:
        """Return what queries take from values, `[B, H, L, C]`, where they meet a vector for each distance.

        A segment looks at many more keys than there are distances that a clamp tells apart. A softmax sees
        differences alone: from all scores of a query that of the farthest distance is taken, so that only
        the keys nearer than that have anything added. Some rows at a time, whose scores stay in cache.
        """
        rows, heads, length, _ = q_BHLC.shape
        key_length, distances = k_BHKC.shape[2], len(added.keys)
        near = min(key_length, distances - 1 + length)
        farther = near + 1 - distances
        if farther:
            keys, biases = (None if x is None else x - x[:1] for x in (added.keys, added.biases))
            added = DistanceScores(added.queries, keys, biases)
        at_once = min(rows, max(1, BYTES // (heads * length * key_length * q_BHLC.itemsize)))
        # Scores by distance, with zeros before them for what is farther and yet among the near keys.
        by_distance = q_BHLC.new_zeros(at_once, heads, length, near + 1)
        mixed_BHLC = torch.empty_like(q_BHLC)
        for begin in range(0, rows, at_once):
            part = slice(begin, begin + at_once)
            scores_BHLK = q_BHLC[part] @ k_BHKC[part].transpose(-1, -2)
            of_part = added._replace(queries=added.queries[part])
            by_distance[: len(scores_BHLK), ..., farther:] = of_part.by_distance(length)
            scores_BHLK[..., key_length - near :] += relative_shift(by_distance[: len(scores_BHLK)])
            for columns in self._hidden_columns:
                hidden = self._hidden[part] if len(self._hidden) > 1 else self._hidden
                scores_BHLK[..., columns].masked_fill_(hidden[..., columns], float("-inf"))
            mixed_BHLC[part] = torch.softmax(scores_BHLK, -1, out=scores_BHLK) @ v_BHKC[part]
        return mixed_BHLC

    def _bias(self, index: int, added: DistanceScores, length: int) -> Tensor | None:
        """Return what is added to the scores of the keys that are looked at: minus infinity for hidden ones.

        It does not depend on the tokens, and is kept for the segments that hide alike, which are all of a
        long text but the first.
        """
        if index in self._kept_biases:
            return self._kept_biases[index]
        bias = added.by_key(length, self.kept + length)
        if bias is None:
            bias = ~self._hidden if self._hidden_columns and not self._causal else None
        else:
            bias = bias.masked_fill(self._hidden, float("-inf"))
        self._kept_biases[index] = bias
        return bias

    def _hide(self, length: int) -> None:
        """Find out which keys a segment of this length must not see, unless the one before hid the same."""
        state = (length, *self.lengths)
        if state == self._hidden_for:
            return
        self._hidden_for, self._kept_biases = state, {}
        known_B = torch.tensor(self.lengths, device=self.model.embedding.bias.device)
        if min(self.lengths) == self.kept:
            known_B = known_B[:1]  # all rows are alike
        self._hidden = masked_keys(length, known_B, self.kept, self.attention_length)[:, None]
        reach = self.attention_length or self.kept + length
        oldest = max(self.kept + length - reach, self.kept - min(self.lengths))
        columns = [(slice(0, oldest), oldest > 0), (slice(self.kept, None), length > 1)]
        self._hidden_columns = [which for which, used in columns if used]
        self._causal = self.kept == 0 and length <= reach  # of a segment by itself only later keys are hidden

    def _make_room(self, x_BLD: Tensor) -> None:
        """See to it that the keys of a segment have a place, and its distances a table."""
        length = x_BLD.shape[1]
        if length > self.longest:
            self.longest = length
            self.tables = self._distance_tables(x_BLD)
        elif self.end + length <= self.keys[0].shape[2]:
            return
        places = self.slots + self.longest + max(self.longest, self.slots // SPARE)
        recent = slice(self.end - self.kept, self.end)
        for buffers in (self.keys, self.values):
            for index, buffer in enumerate(buffers):
                moved = buffer[:, :, recent].clone()  # the two places may overlap
                if buffer.shape[2] < places:
                    rows, heads, _, width = buffer.shape
                    if buffers is self.keys and self.model.position.scores_distances:
                        # Products of queries and keys are quicker where a number of all keys lies together.
                        buffer = buffer.new_empty(rows, heads, width, places).transpose(2, 3)
                    else:
                        buffer = buffer.new_empty(rows, heads, places, width)
                    buffers[index] = buffer
                buffer[:, :, : self.kept] = moved
        self.end = self.kept

    def _distance_tables(self, x_BLD: Tensor) -> list[Tensor | None]:
        """Return what each layer makes of the distances that occur, without those the encoding clamps."""
        position = self.model.position
        if position.by_place:
            return [None] * len(self.keys)
        shared = position.table(x_BLD, self.slots + self.longest)
        tables = [position.layer_table(index, shared) for index in range(len(self.keys))]
        if position.farthest is not None:
            tables = [table[-position.farthest - 1 :].clone() for table in tables]
        return tables
