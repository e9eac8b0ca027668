"""Generates text: reads a prompt, then draws token after token."""

import itertools
from collections.abc import Generator, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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
    starts: Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """Yield the tokens that follow a prompt, `[B]` at a time, without end.

    Each token attends to itself and the M tokens before it, whether they come from the prompt or were drawn.
    So a prompt split into memory and remainder continues as the whole prompt does. With an absolute position
    encoding, the last `segment_length` tokens are read again for each token, as one segment without memory.

    Args:
        model: in evaluation mode.
        prompt_BL: at least one token a row.
        memory: the text before the prompt; an empty one for none.
        segment_length: how many tokens of the prompt are read at a time.
        temperature: divides the logits; 0 for greedy decoding.
        top_k: draw only from the k likeliest tokens.
        top_p: draw only from the smallest set of likeliest tokens whose probabilities add up to this.
        starts: where the prompt of each row starts, for prompts of different lengths (see `left_pad`). The
            padding before it is ignored, as is the memory of a row that does not start at 0.
    """
    starts = [0] * len(prompt_BL) if starts is None else list(starts)
    read = _rereading if model.position.absolute else _with_memory
    hidden = read(model, prompt_BL, starts, segment_length, memory)
    hidden_BD = next(hidden)
    while True:
        log_probabilities_BV = model.embedding.log_probabilities(hidden_BD)
        token_B = draw(log_probabilities_BV, temperature, top_k, top_p, generator)
        yield token_B
        hidden_BD = hidden.send(token_B)


def _with_memory(
    model: TransformerXL, prompt_BL: Tensor, starts: list[int], segment_length: int, memory: Memory
) -> Generator[Tensor, Tensor, None]:
    """Yield the last states `[B, D]` after the prompt, then after each `[B]` tokens sent."""
    reader = CachedInference(model, memory, memory.slots + 1)
    start_B, length = torch.tensor(starts), prompt_BL.shape[1]
    edges = sorted({*range(0, length, segment_length), *starts, length})
    for begin, end in itertools.pairwise(edges):
        fresh_B = (start_B == begin) if begin else None  # forgets the padding
        hidden_BLD = reader.read(prompt_BL[:, begin:end], fresh_B)
    while True:
        token_B = yield hidden_BLD[:, -1]
        hidden_BLD = reader.read(token_B[:, None])


def _rereading(
    model: TransformerXL, prompt_BL: Tensor, starts: list[int], segment_length: int, memory: Memory
) -> Generator[Tensor, Tensor, None]:
    """Do the same by reading the last `segment_length` tokens of each row anew every time."""
    recent_BL = prompt_BL
    while True:
        dropped = max(0, recent_BL.shape[1] - segment_length)
        recent_BL, starts = recent_BL[:, dropped:], [max(0, start - dropped) for start in starts]
        segments = [recent_BL]
        if any(starts):  # positions differ between rows
            segments = [row[None, start:] for row, start in zip(recent_BL, starts, strict=True)]
        hidden = [model(rows_BL, model.empty_memory(len(rows_BL), 0))[0][:, -1] for rows_BL in segments]
        token_B = yield torch.cat(hidden)
        recent_BL = torch.cat([recent_BL, token_B[:, None]], dim=1)


def left_pad(prompts: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Return prompts `[L]` of different lengths as rows that end together, and where each of them starts."""
    rows_BL = pad_sequence(list(prompts), batch_first=True, padding_side="left")
    return rows_BL, [rows_BL.shape[1] - len(prompt) for prompt in prompts]


def draw(
    log_probabilities_BV: Tensor,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return one token `[B]` for each row; the arguments are those of `generate`."""
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
