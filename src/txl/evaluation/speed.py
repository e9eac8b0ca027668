"""How long the evaluation of a token takes, with recurrence and without (§4.5, Table 9).

Without recurrence each prediction needs a window of the attention length that is read anew: Al-Rfou et al.
(2018) slide it by one token and use the last prediction alone. With recurrence the keys and values of what
was read are kept, so that a token is read once (see `inference`).

Both read the same text, random tokens: time depends neither on what they are nor on the parameters. That each
side scores right is checked against plain forward passes.

`W` windows side by side; other letters: see
`txl.model`.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from txl.evaluation.inference import SPARE, CachedInference
from txl.model import LearnedPosition, Memory, TransformerXL

# How far a side may be from a plain forward pass: of what another past would change in the last states (since
# random parameters see little in it); and of a score, in nats, on average.
STATES_TOLERANCE, SCORES_TOLERANCE = 0.01, 1e-4
CHUNK = 512  # tokens of the past that are read at a time, before anything is measured


@dataclass(frozen=True)
class SpeedCase:
    """What is measured at one attention length.

    Attributes:
        attention_length: keys that a prediction sees, the last token included.
        segment_length: L, tokens that the recurrent side reads at a time.
        batch_size: B, rows it reads side by side.
        segments: how many it reads in a turn; `None` for as many as there are between two moves of its keys,
            so that each turn has one of these, see `CachedInference`.
        windows: W, windows that the side without recurrence reads side by side.
        passes: how many forward passes it makes in a turn.
        rounds: turns of each side that count.
    """

    attention_length: int
    segment_length: int
    batch_size: int
    segments: int | None
    windows: int
    passes: int
    rounds: int

    @property
    def segments_of_a_turn(self) -> int:
        """The segments that the recurrent side reads in a turn."""
        spare = max(self.segment_length, (self.attention_length - 1) // SPARE)
        return self.segments or spare // self.segment_length + 1

    @property
    def turns(self) -> int:
        """How many turns each side has: the first is not counted."""
        return self.rounds + 1


def vanilla_of(model: TransformerXL, longest: int) -> TransformerXL:
    """Return a model of the same shape and parameters, but with the positions of Al-Rfou et al. (2018).

    Args:
        model: any.
        longest: the window it can read; its learned positions are random.
    """
    shape = model.position
    vanilla = copy.deepcopy(model)
    vanilla.position = LearnedPosition(
        shape.n_layer, shape.n_head, shape.d_model, shape.d_head, key_length=longest
    )
    vanilla.position.reset_parameters(float(model.layers[0].attention.query.weight.detach().std()))
    return vanilla.to(model.embedding.bias).eval()


class Vanilla:
    """Scores one token after another, each with a forward pass over a window of its own.

    Args:
        model: in evaluation mode, where it shall compute.
        text_T: random tokens; the first that is scored is that at `work.attention_length`.
        work: what to measure.
    """

    def __init__(self, model: TransformerXL, text_T: Tensor, work: SpeedCase) -> None:
        self.model, self.work = model, work
        self.steps, self.scored, self.tokens = work.passes, 1, work.windows
        self.windows = text_T.unfold(0, work.attention_length + 1, 1)
        self.reader = CachedInference(model, model.empty_memory(work.windows, 0))
        self.next = 0

    def step(self) -> tuple[Tensor, Tensor]:
        """Return the states `[W, 1, D]` and scores `[W, 1]` of the next predictions."""
        window_WK = self.windows[self.next : self.next + self.work.windows]
        self.next += self.work.windows
        states_WLD = self.reader.read(window_WK[:, :-1])[:, -1:]
        return states_WLD, self.model.embedding.scores(states_WLD, window_WK[:, -1:].contiguous())

    def plain(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the model itself gives for the last of the first windows.

        Returns:
            The states `[1, 1, D]`, the scores `[1, 1]`, and the states after other tokens.
        """
        *_, window = self.windows[: self.work.windows, None]
        past, memory = window[:, :-1], self.model.empty_memory(1, 0)
        others = torch.cat([(past[:, :-1] + 1) % len(self.model.embedding.bias), past[:, -1:]], dim=1)
        states, other_states = (self.model(read, memory)[0][:, -1:] for read in (past, others))
        return states, _plain_scores(self.model, states, window[:, -1:]), other_states


class Recurrent:
    """Scores one segment after another, each with a full memory.

    Args:
        model: in evaluation mode, where it shall compute.
        text_BT: random tokens, the first `work.attention_length` of all rows alike: what they have read
            before. The first that is scored is the one after these.
        work: what to measure.
    """

    def __init__(self, model: TransformerXL, text_BT: Tensor, work: SpeedCase) -> None:
        self.model, self.work, self.text_BT = model, work, text_BT
        self.steps, self.scored = work.segments_of_a_turn, work.segment_length
        self.tokens = work.batch_size * self.scored
        rows, slots = work.batch_size, work.attention_length - 1
        memory = model.empty_memory(1, slots)
        for past in text_BT[:1, :slots].split(min(CHUNK, model.position.key_length), dim=1):
            _, memory = model(past, memory, work.attention_length)  # one row, as all have the same past
        states = tuple(states_BMD.expand(rows, -1, -1) for states_BMD in memory.states)
        self.reader = CachedInference(
            model, Memory(states, memory.length.expand(rows)), work.attention_length
        )
        self.memory, self.next = memory, slots

    def step(self) -> tuple[Tensor, Tensor]:
        """Return the states `[B, L, D]` and scores `[B, L]` of the next segment."""
        read_BL = self.text_BT[:, self.next : self.next + self.work.segment_length + 1]
        self.next += self.work.segment_length
        states_BLD = self.reader.read(read_BL[:, :-1])
        return states_BLD, self.model.embedding.scores(states_BLD, read_BL[:, 1:].contiguous())

    def plain(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the model itself gives for the last row's first two segments, memory in hand.

        Returns:
            The states `[1, 2 L, D]`, the scores `[1, 2 L]`, and the states of each segment without a past.
        """
        reach, length, memory, found = self.work.attention_length, self.work.segment_length, self.memory, []
        for place in (reach - 1, reach - 1 + length):
            row = self.text_BT[-1:, place : place + length + 1]
            other_states, _ = self.model(row[:, :-1], self.model.empty_memory(1, 0), reach)
            states, memory = self.model(row[:, :-1], memory, reach)
            found.append((states, _plain_scores(self.model, states, row[:, 1:]), other_states))
        states, scores, other_states = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return states, scores, other_states


def _plain_scores(model: TransformerXL, states_BLD: Tensor, targets_BL: Tensor) -> Tensor:
    """Return the scores `[B, L]` of the targets, picked from the probabilities of all tokens."""
    return -model.embedding.log_probabilities(states_BLD).gather(-1, targets_BL[..., None])[..., 0]


@torch.inference_mode()
def check(model: TransformerXL, vanilla: TransformerXL, work: SpeedCase) -> dict[str, dict[str, float]]:
    """Return how far each side is from plain forward passes of its model.

    Args:
        model: see `measure`; in single precision or double, where rounding hides no mistake.
        vanilla: the same.
        work: what is to be measured.

    Returns:
        Of each side "states", the difference of the last states relative to what another past would change in
        them, and "scores", the mean difference of scores in nats.

    Raises:
        ValueError: a side that does not score as a plain forward pass does.
    """
    found = {}
    for name, side in _sides(model, vanilla, work):
        plain_states, plain_scores, other_states = side.plain()
        made = [side.step() for _ in range(plain_states.shape[1] // side.scored)]
        states, scores = (
            torch.cat([part[-1:] for part in parts], dim=1) for parts in zip(*made, strict=True)
        )
        apart = ((states - plain_states).norm() / (other_states - plain_states).norm()).item()
        apart_scores = (scores - plain_scores).abs().mean().item()
        if not (apart <= STATES_TOLERANCE and apart_scores <= SCORES_TOLERANCE):  # nan, too
            raise ValueError(
                f"at attention length {work.attention_length:,} the {name} side does not score as a plain "
                f"forward pass: its states differ by {apart:.1e} of what another past would change, where "
                f"{STATES_TOLERANCE:g} is the most expected, and its scores by {apart_scores:.1e} nats, "
                f"where {SCORES_TOLERANCE:g} is; its time would mean nothing"
            )
        found[name] = {"states": apart, "scores": apart_scores}
    return found


@torch.inference_mode()
def measure(
    model: TransformerXL,
    vanilla: TransformerXL,
    work: SpeedCase,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Return the time of a token on both sides, in turns, at one attention length.

    Args:
        model: read with recurrence; in evaluation mode, where it shall compute.
        vanilla: read without, in the same place, see `vanilla_of`.
        work: what to measure.
        advance: called after each turn, of which there are 2 · `work.turns`.

    Returns:
        For JSON: of each side the milliseconds of a token and how many were measured, and how many times
        longer one takes than the other.
    """
    sides = dict(_sides(model, vanilla, work))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(work.turns):
        for name, side in sides.items():
            took = _timed(side, model.embedding.bias.device)
            if turn > 0:
                seconds[name].append(took / (side.steps * side.tokens))
            advance()
    ratios = [slow / fast for slow, fast in zip(seconds["vanilla"], seconds["recurrent"], strict=True)]
    measured = {
        name: {
            "milliseconds_per_token": spread([1e3 * value for value in seconds[name]]),
            "tokens_measured": work.rounds * side.steps * side.tokens,
            "tokens_of_a_turn": side.steps * side.tokens,
        }
        for name, side in sides.items()
    }
    return {"attention_length": work.attention_length, **measured, "slowdown": spread(ratios)}


def _sides(
    model: TransformerXL, vanilla: TransformerXL, work: SpeedCase
) -> Iterator[tuple[str, Recurrent | Vanilla]]:
    """Yield the two sides by their names, each before its first step."""
    text_BT = _text(len(model.embedding.bias), work).to(model.embedding.bias.device)
    yield "recurrent", Recurrent(model, text_BT, work)
    yield "vanilla", Vanilla(vanilla, text_BT[0], work)


def _text(vocabulary: int, work: SpeedCase) -> Tensor:
    """Return random tokens for both sides `[B, T]`, the first attention length of all rows alike."""
    segments = max(2, work.turns * work.segments_of_a_turn)  # the check reads two
    length = max(segments * work.segment_length, work.turns * work.passes * work.windows)
    generator = torch.Generator().manual_seed(work.attention_length)
    text_BT = torch.randint(
        vocabulary, (work.batch_size, work.attention_length + length), generator=generator
    )
    text_BT[1:, : work.attention_length] = text_BT[0, : work.attention_length]
    return text_BT


def _timed(side: Vanilla | Recurrent, device: torch.device) -> float:
    """Return the seconds of a turn, all of its work done."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    wait(device)
    began = time.perf_counter()
    for _ in range(side.steps):
        side.step()
    wait(device)
    return time.perf_counter() - began


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the median, the extremes, and all of some measurements."""
    return {
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "all": list(values),
    }
