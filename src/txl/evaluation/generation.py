"""Text from a model: read a prompt, then draw token after token, the memory carrying what was read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from txl.evaluation.inference import CachedInference
from txl.model import Memory, TransformerXL


@torch.inference_mode()
def generate(
    model: TransformerXL,
    prompt_BL: Tensor,
    memory: Memory,
    segment_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    top_p: float | None = None,
    begins: Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """Yield the tokens that follow a prompt, one `[B]` after the other, without end.

    Each token reads the M states before it and itself, whether it came from the prompt or was drawn, so that
    a prompt with a memory of its beginning goes on as the whole prompt does, and a token costs the same
    however many came before. With an absolute position encoding, which knows places only within a segment,
    the last `segment_length` tokens are read again for each token, as one segment without memory.

    Args:
        model: in evaluation mode.
        prompt_BL: at least one token a row.
        memory: what was read before the prompt; an empty one for nothing.
        segment_length: how many tokens of the prompt are read at once.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: only the k likeliest tokens can be drawn.
        generator: of the random numbers, on the model's device.
        top_p: only the fewest likeliest tokens whose probabilities add up to this can be drawn.
        begins: where the prompt of each row begins, for prompts of different lengths (see `side_by_side`);
            what stands before is not read, and neither is the memory of a row that does not begin at 0.
    """
    begins = [0] * len(prompt_BL) if begins is None else list(begins)
    if model.position.absolute:
        hidden = _by_reading_again(model, prompt_BL, begins, segment_length)
    else:
        hidden = _by_memory(model, prompt_BL, begins, segment_length, memory)
    hidden_BD = next(hidden)
    while True:
        log_probabilities_BV = model.embedding.log_probabilities(hidden_BD)
        token_B = draw(log_probabilities_BV, temperature, top_k, top_p, generator)
        yield token_B
        hidden_BD = hidden.send(token_B)


def _by_memory(
    model: TransformerXL, prompt_BL: Tensor, begins: list[int], segment_length: int, memory: Memory
) -> Iterator[Tensor]:
    """Yield the last states `[B, D]` after the prompt, and after each token that is sent."""
    reader = CachedInference(model, memory, memory.slots + 1)
    first_B, length = torch.tensor(begins), prompt_BL.shape[1]
    edges = sorted({*range(0, length, segment_length), *begins, length})
    for begin, end in itertools.pairwise(edges):
        fresh_B = (first_B == begin) if begin else None  # what stood there before was no prompt of the row
        hidden_BLD = reader.read(prompt_BL[:, begin:end], fresh_B)
    while True:
        token_B = yield hidden_BLD[:, -1]
        hidden_BLD = reader.read(token_B[:, None])


def _by_reading_again(
    model: TransformerXL, prompt_BL: Tensor, begins: list[int], segment_length: int
) -> Iterator[Tensor]:
    """Yield the last states `[B, D]` after the last segment of each row, read anew for each token sent."""
    recent_BL = prompt_BL
    while True:
        dropped = max(0, recent_BL.shape[1] - segment_length)
        recent_BL, begins = recent_BL[:, dropped:], [max(0, begin - dropped) for begin in begins]
        segments = [recent_BL]
        if any(begins):  # places differ, and each row is read by itself
            segments = [row[None, begin:] for row, begin in zip(recent_BL, begins, strict=True)]
        hidden = [model(rows_BL, model.empty_memory(len(rows_BL), 0))[0][:, -1] for rows_BL in segments]
        token_B = yield torch.cat(hidden)
        recent_BL = torch.cat([recent_BL, token_B[:, None]], dim=1)


def side_by_side(prompts: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Return prompts `[L]` of different lengths as the rows of one tensor, and where each of them begins.

    They end together, so that they go on together.
    """
    longest = max(len(prompt) for prompt in prompts)
    rows = [torch.cat([prompt.new_zeros(longest - len(prompt)), prompt]) for prompt in prompts]
    return torch.stack(rows), [longest - len(prompt) for prompt in prompts]


def draw(
    log_probabilities_BV: Tensor,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return one token `[B]` for each row; for the arguments see `generate`."""
    if temperature == 0.0:
        return log_probabilities_BV.argmax(dim=-1)
    logits_BV = log_probabilities_BV / temperature
    if top_k is not None and top_k < logits_BV.shape[-1]:
        smallest_B1 = logits_BV.topk(top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_B1, float("-inf"))
    probabilities_BV = logits_BV.softmax(dim=-1)
    if top_p is not None:
        sorted_BV, order_BV = probabilities_BV.sort(dim=-1, descending=True)
        before_BV = sorted_BV.cumsum(dim=-1) - sorted_BV
        sorted_BV = sorted_BV.masked_fill(before_BV >= top_p, 0.0)
        probabilities_BV = torch.zeros_like(probabilities_BV).scatter(-1, order_BV, sorted_BV)
    return torch.multinomial(probabilities_BV, 1, generator=generator)[:, 0]
