"""Scores of single tokens from contexts of exactly c tokens, for many c at once.

A *window* is a run of text that a model reads from an empty memory: one pass scores, for every c, the token
after the first c from a context of c tokens. The tokens to score lie `step` apart, in *stretches* of the
text. So windows that begin `step` apart score all of them at all lengths, and a token costs little more than
reading its longest context once. The scores equal those of contexts read separately, unless states depend on
later tokens (`reads_ahead`).
"""

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from txl.model import TransformerXL
from txl.records.files import atomic_path

STRETCH = 64  # tokens in a stretch: more need fewer windows, fewer cover the text more evenly
TOLERANCE = 1e-3  # nats by which two computations of the same score may differ in float32


class WindowScorer(Protocol):
    def scores(self, window_BW: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return for each c of the J `lengths` the score of the token after the first c, given only these.

        `window_BW` has `max(lengths) + 1` tokens a row, int64. The scores are `[B, J]`, in nats, on the CPU.
        """


@dataclass
class TransformerScorer:
    """Scores windows with a `TransformerXL`."""

    model: TransformerXL  # in evaluation mode
    attention_length: int | None = None  # keys a query may see, itself included; `None` for the whole context
    # Tokens read at a time, with absolute positions as many as in training; `None` for the whole window.
    segment_length: int | None = None
    memory_length: int = 0  # M, the states of each layer that the next segment sees

    @torch.inference_mode()
    def scores(self, window_BW: Tensor, lengths: Sequence[int]) -> Tensor:
        window_BW = window_BW.to(self.model.embedding.bias.device)
        memory = self.model.empty_memory(len(window_BW), self.memory_length)
        read = []
        for segment_BL in window_BW[:, :-1].split(self.segment_length or window_BW.shape[1], dim=1):
            hidden_BLD, memory = self.model(segment_BL, memory, self.attention_length)
            read.append(hidden_BLD)
        after = torch.tensor(lengths, device=window_BW.device)
        hidden_BJD = torch.cat(read, dim=1)[:, after - 1]
        return self.model.embedding.scores(hidden_BJD, window_BW[:, after]).cpu()


@dataclass
class SeparateContexts:
    """Scores windows by reading each context separately, for models whose states depend on later tokens."""

    scorer: WindowScorer

    def scores(self, window_BW: Tensor, lengths: Sequence[int]) -> Tensor:
        return torch.cat([self.scorer.scores(window_BW[:, : c + 1], [c]) for c in lengths], dim=1)


def reads_ahead(scorer: WindowScorer, window_BW: Tensor, lengths: Sequence[int]) -> bool:
    """Return whether a window gives other scores than its contexts read separately.

    That happens if positions are counted from the end of a segment, or if the model is not causal.
    """
    separate_BJ = SeparateContexts(scorer).scores(window_BW, lengths)
    return not torch.allclose(scorer.scores(window_BW, lengths), separate_BJ, rtol=0, atol=TOLERANCE)


def context_lengths(start: int, step: int, longest: int) -> list[int]:
    """Return start, start + step, … up to `longest`.

    Raises:
        ValueError: a size that is not positive, or no room for a second length.
    """
    for name, size in {"start": start, "step": step, "longest": longest}.items():
        if size < 1:
            raise ValueError(f"{name}={size} must be positive")
    if longest < start + step:
        raise ValueError(f"longest={longest} must be at least start + step = {start + step}")
    return list(range(start, longest + 1, step))


def choose_positions(tokens: int, longest: int, step: int, count: int, seed: int) -> np.ndarray:
    """Return `count` distinct positions to score, int64, ascending: random stretches of tokens `step` apart.

    Args:
        tokens: the length of the text.
        longest: how many tokens precede each position at least.
        step: the difference of two lengths of context.

    Raises:
        ValueError: the text is shorter than the longest context, or has too few tokens after it.
    """
    if tokens <= longest:
        raise ValueError(f"the text has {tokens:,} tokens, no more than the longest context, {longest:,}")
    if not 1 <= count <= tokens - longest:
        raise ValueError(
            f"positions={count} must be from 1 to {tokens - longest:,}, the tokens of the text with a "
            f"context of {longest:,}"
        )
    # Stretch n begins at token n % step of the (n // step)-th run of STRETCH steps.
    stretches = np.random.default_rng(seed).permutation(-(-(tokens - longest) // (STRETCH * step)) * step)
    begin = longest + stretches // step * STRETCH * step + stretches % step
    chosen = (begin[:, None] + step * np.arange(STRETCH)).reshape(-1)
    return np.sort(chosen[chosen < tokens][:count])


def score(
    scorer: WindowScorer,
    tokens: np.ndarray,
    positions_P: np.ndarray,
    lengths: Sequence[int],
    batch_size: int,
    scores_JP: np.ndarray,
) -> Iterator[tuple[int, int]]:
    """Compute the missing scores.

    Args:
        positions_P: of the tokens to score, ascending.
        lengths: the J lengths of context, ascending; no position is smaller than the last.
        scores_JP: nan where a score is missing; filled batch by batch.

    Yields:
        Before the first batch and after each: how many tokens have been read, and how many there are.

    Raises:
        ValueError: a score is not finite. It is not stored.
    """
    lengths_J = np.asarray(lengths)
    starts, start_index = np.unique(positions_P - lengths_J[:, None], return_inverse=True)
    longest = np.zeros(len(starts), dtype=np.int64)  # missing context from each start; 0 for none
    needed_JP = np.where(np.isnan(scores_JP), lengths_J[:, None], 0)
    np.maximum.at(longest, start_index.reshape(-1), needed_JP.reshape(-1))
    done, total = 0, int(longest.sum())
    yield done, total
    for length in lengths_J[::-1]:
        (chosen,) = np.nonzero(longest == length)
        shorter = lengths_J[lengths_J <= length]
        for begin in range(0, len(chosen), batch_size):
            batch_B = starts[chosen[begin : begin + batch_size]]
            window_BW = tokens[batch_B[:, None] + np.arange(length + 1)].astype(np.int64)
            found_BJ = scorer.scores(torch.from_numpy(window_BW), shorter.tolist()).numpy()
            target_BJ = batch_B[:, None] + shorter
            place_BJ = np.searchsorted(positions_P, target_BJ).clip(max=len(positions_P) - 1)
            wanted_BJ = positions_P[place_BJ] == target_BJ
            if (wrong_BJ := wanted_BJ & ~np.isfinite(found_BJ)).any():
                context = int(shorter[wrong_BJ.any(axis=0)][0])
                raise ValueError(
                    f"a score from {context:,} tokens of context is {found_BJ[wrong_BJ][0]}: the model gives "
                    "a token the probability 0, or nan"
                )
            _, length_index = np.nonzero(wanted_BJ)
            scores_JP[length_index, place_BJ[wanted_BJ]] = found_BJ[wanted_BJ]
            done += len(batch_B) * int(length)
            yield done, total


def load_scores(path: Path, key: str, shape: tuple[int, int]) -> np.ndarray:
    """Return the scores of shape `[J, P]` that `save_scores` wrote under this key, nan where missing.

    All are missing if the file does not exist or has another key or shape.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if str(stored["key"]) == key and stored["scores"].shape == shape:
                return stored["scores"]
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it to score again") from error
    return np.full(shape, np.nan, dtype=np.float32)


def save_scores(
    path: Path, key: str, scores_JP: np.ndarray, positions_P: np.ndarray, lengths: Sequence[int]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as part, part.open("wb") as file:
        np.savez(file, key=np.array(key), scores=scores_JP, positions=positions_P, lengths=lengths)
