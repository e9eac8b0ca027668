"""Text from a model: read a prompt, then draw token after token, the memory carrying what was read."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

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
    """
    reach = memory.slots + 1
    if model.position.absolute:
        memory = model.empty_memory(len(prompt_BL), 0)
        recent_BL = prompt_BL[:, -segment_length:]
    else:
        for piece_BL in prompt_BL.split(segment_length, dim=1):
            hidden_BLD, memory = model(piece_BL, memory, attention_length=reach)
    while True:
        if model.position.absolute:
            hidden_BLD, _ = model(recent_BL, memory)
        logits_BV = model.embedding.log_probabilities(hidden_BLD[:, -1])
        token_B = _draw(logits_BV, temperature, top_k, generator)
        yield token_B
        if model.position.absolute:
            recent_BL = torch.cat([recent_BL, token_B[:, None]], dim=1)[:, -segment_length:]
        else:
            hidden_BLD, memory = model(token_B[:, None], memory, attention_length=reach)


def _draw(
    logits_BV: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """Return one token `[B]` for each row of logits."""
    if temperature == 0.0:
        return logits_BV.argmax(dim=-1)
    if top_k is not None and top_k < logits_BV.shape[-1]:
        smallest_B1 = logits_BV.topk(top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_B1, float("-inf"))
    return torch.multinomial((logits_BV / temperature).softmax(dim=-1), 1, generator=generator)[:, 0]
