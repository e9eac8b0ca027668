"""Evaluation time per token, with and without recurrence (§4.5, Table 9).

Without recurrence each prediction reads a window of the attention length from scratch: Al-Rfou et al. (2018)
slide the window by one token and use only its last prediction. With recurrence the keys and values of earlier
tokens are cached, so that each token is read once (see `inference`).

Both read the same random tokens: the time depends neither on the tokens nor on the parameters. The scores of
both are checked against plain forward passes.

Shapes as in `txl.model`, and `W` windows in a batch.
"""

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

# The largest differences from a plain forward pass: of the last states, relative to what another past would
# change in them (with random parameters that is little); and of the scores, their mean, in nats.
STATES_TOLERANCE, SCORES_TOLERANCE = 0.01, 1e-4
CHUNK = 512  # tokens of the initial context that are read at a time, before anything is measured


@dataclass(frozen=True)
class SpeedCase:
    """What is measured at one attention length, in rounds of which the first is not timed.

    Attributes:
        attention_length: keys that a prediction sees, the last token included.
        segment_length: L, tokens that the recurrent scorer reads at a time.
        batch_size: B, its rows.
        segments: how many it reads in a round; `None` for as many as lie between two moves of its cached
            keys, so that each round has one move, see `CachedInference`.
        windows: W, windows in a batch of the sliding-window scorer.
        passes: its forward passes in a round.
        rounds: timed rounds of each scorer.
    """

    attention_length: int
    segment_length: int
    batch_size: int
    segments: int | None
    windows: int
    passes: int
    rounds: int

    @property
    def segments_per_round(self) -> int:
        spare = max(self.segment_length, (self.attention_length - 1) // SPARE)
        return self.segments or spare // self.segment_length + 1

    @property
    def all_rounds(self) -> int:
        """The rounds of each scorer, with the first, which is not timed."""
        return self.rounds + 1


def vanilla_copy(model: TransformerXL, longest: int) -> TransformerXL:
    """Copy a model with the positions of Al-Rfou et al. (2018): learned, random here, up to `longest`."""
    shape = model.position
    vanilla = copy.deepcopy(model)
    vanilla.position = LearnedPosition(
        shape.n_layer, shape.n_head, shape.d_model, shape.d_head, key_length=longest
    )
    layer: Any = model.layers[0]
    vanilla.position.reset_parameters(float(layer.attention.query.weight.detach().std()))
    return vanilla.to(model.embedding.bias).eval()


class SlidingWindowScorer:
    """Scores token after token, each with a forward pass over its own window.

    The first token scored is `text_T[case.attention_length]`. The model is in evaluation mode.
    """

    def __init__(self, model: TransformerXL, text_T: Tensor, case: SpeedCase) -> None:
        self.model, self.case = model, case
        self.steps, self.scored, self.tokens = case.passes, 1, case.windows
        self.windows = text_T.unfold(0, case.attention_length + 1, 1)
        self.reader = CachedInference(model, model.empty_memory(case.windows, 0))
        self.next = 0

    def step(self) -> tuple[Tensor, Tensor]:
        """Return the states `[W, 1, D]` and scores `[W, 1]` of the next predictions."""
        window_WK = self.windows[self.next : self.next + self.case.windows]
        self.next += self.case.windows
        states_WLD = self.reader.read(window_WK[:, :-1])[:, -1:]
        return states_WLD, self.model.embedding.scores(states_WLD, window_WK[:, -1:].contiguous())

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last of the first W predictions by a plain forward pass of the model.

        Returns:
            The states `[1, 1, D]`, the scores `[1, 1]`, and the states after other tokens.
        """
        *_, window = self.windows[: self.case.windows, None]
        past, memory = window[:, :-1], self.model.empty_memory(1, 0)
        others = torch.cat([(past[:, :-1] + 1) % len(self.model.embedding.bias), past[:, -1:]], dim=1)
        states, other_states = (self.model(read, memory)[0][:, -1:] for read in (past, others))
        return states, _plain_scores(self.model, states, window[:, -1:]), other_states


class RecurrentScorer:
    """Scores segment after segment, each with a full memory.

    The first `case.attention_length` tokens of `text_BT` are the initial context, the same in all rows; the
    token after them is the first one scored. The model is in evaluation mode.
    """

    def __init__(self, model: TransformerXL, text_BT: Tensor, case: SpeedCase) -> None:
        self.model, self.case, self.text_BT = model, case, text_BT
        self.steps, self.scored = case.segments_per_round, case.segment_length
        self.tokens = case.batch_size * self.scored
        rows, slots = case.batch_size, case.attention_length - 1
        memory = model.empty_memory(1, slots)
        for past in text_BT[:1, :slots].split(min(CHUNK, model.position.key_length), dim=1):
            _, memory = model(past, memory, case.attention_length)  # one row: the context is the same in all
        states = tuple(states_BMD.expand(rows, -1, -1) for states_BMD in memory.states)
        self.reader = CachedInference(
            model, Memory(states, memory.length.expand(rows)), case.attention_length
        )
        self.memory, self.next = memory, slots

    def step(self) -> tuple[Tensor, Tensor]:
        """Return the states `[B, L, D]` and scores `[B, L]` of the next segment."""
        read_BL = self.text_BT[:, self.next : self.next + self.case.segment_length + 1]
        self.next += self.case.segment_length
        states_BLD = self.reader.read(read_BL[:, :-1])
        return states_BLD, self.model.embedding.scores(states_BLD, read_BL[:, 1:].contiguous())

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last row's first two segments by plain forward passes of the model with a memory.

        Returns:
            The states `[1, 2 L, D]`, the scores `[1, 2 L]`, and the states of each segment without memory.
        """
        reach, length, memory, found = self.case.attention_length, self.case.segment_length, self.memory, []
        for begin in (reach - 1, reach - 1 + length):
            row = self.text_BT[-1:, begin : begin + length + 1]
            other_states, _ = self.model(row[:, :-1], self.model.empty_memory(1, 0), reach)
            states, memory = self.model(row[:, :-1], memory, reach)
            found.append((states, _plain_scores(self.model, states, row[:, 1:]), other_states))
        states, scores, other_states = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return states, scores, other_states


def _plain_scores(model: TransformerXL, states_BLD: Tensor, targets_BL: Tensor) -> Tensor:
    """Return the scores `[B, L]` of the targets, taken from the log-probabilities of all tokens."""
    return -model.embedding.log_probabilities(states_BLD).gather(-1, targets_BL[..., None])[..., 0]


@torch.inference_mode()
def check(model: TransformerXL, vanilla: TransformerXL, case: SpeedCase) -> dict[str, dict[str, float]]:
    """Return how far each scorer is from plain forward passes of its model.

    Run it in single or double precision, where rounding hides no mistake.

    Returns:
        For each scorer "states", the difference of the last states relative to what another past would change
        in them, and "scores", the mean difference of the scores in nats.

    Raises:
        ValueError: a scorer differs from a plain forward pass by more than rounding.
    """
    found = {}
    for name, scorer in _scorers(model, vanilla, case):
        plain_states, plain_scores, other_states = scorer.reference()
        steps = [scorer.step() for _ in range(plain_states.shape[1] // scorer.scored)]
        states, scores = (
            torch.cat([part[-1:] for part in parts], dim=1) for parts in zip(*steps, strict=True)
        )
        state_difference = ((states - plain_states).norm() / (other_states - plain_states).norm()).item()
        score_difference = (scores - plain_scores).abs().mean().item()
        if not (state_difference <= STATES_TOLERANCE and score_difference <= SCORES_TOLERANCE):  # nan, too
            raise ValueError(
                f"at attention length {case.attention_length:,} the {name} side does not score as a plain "
                f"forward pass does: its states differ by {state_difference:.1e} of what another past would "
                f"change (at most {STATES_TOLERANCE:g} expected), its scores by {score_difference:.1e} nats "
                f"(at most {SCORES_TOLERANCE:g} expected); its time would mean nothing"
            )
        found[name] = {"states": state_difference, "scores": score_difference}
    return found


@torch.inference_mode()
def measure(
    model: TransformerXL,
    vanilla: TransformerXL,
    case: SpeedCase,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Time both scorers in turn at one attention length.

    Args:
        model: read with recurrence, in evaluation mode.
        vanilla: read without, on the same device, see `vanilla_copy`.
        advance: called 2 · `case.all_rounds` times, after each round of a scorer.

    Returns:
        For JSON: of each scorer the milliseconds per token and the number of tokens timed, and the ratio of
        the times.
    """
    scorers = dict(_scorers(model, vanilla, case))
    seconds: dict[str, list[float]] = {name: [] for name in scorers}
    for number in range(case.all_rounds):
        for name, scorer in scorers.items():
            elapsed = _time_round(scorer, model.embedding.bias.device)
            if number > 0:
                seconds[name].append(elapsed / (scorer.steps * scorer.tokens))
            advance()
    ratios = [slow / fast for slow, fast in zip(seconds["vanilla"], seconds["recurrent"], strict=True)]
    measured = {
        name: {
            "milliseconds_per_token": summarize([1e3 * value for value in seconds[name]]),
            "tokens_measured": case.rounds * scorer.steps * scorer.tokens,
            "tokens_of_a_turn": scorer.steps * scorer.tokens,
        }
        for name, scorer in scorers.items()
    }
    return {"attention_length": case.attention_length, **measured, "slowdown": summarize(ratios)}


def _scorers(
    model: TransformerXL, vanilla: TransformerXL, case: SpeedCase
) -> Iterator[tuple[str, RecurrentScorer | SlidingWindowScorer]]:
    text_BT = _text(len(model.embedding.bias), case).to(model.embedding.bias.device)
    yield "recurrent", RecurrentScorer(model, text_BT, case)
    yield "vanilla", SlidingWindowScorer(vanilla, text_BT[0], case)


def _text(vocabulary: int, case: SpeedCase) -> Tensor:
    """Return random tokens for both scorers `[B, T]`, the initial context the same in all rows."""
    segments = max(2, case.all_rounds * case.segments_per_round)  # `check` reads two
    length = max(segments * case.segment_length, case.all_rounds * case.passes * case.windows)
    generator = torch.Generator().manual_seed(case.attention_length)
    text_BT = torch.randint(
        vocabulary, (case.batch_size, case.attention_length + length), generator=generator
    )
    text_BT[1:, : case.attention_length] = text_BT[0, : case.attention_length]
    return text_BT


def _time_round(scorer: SlidingWindowScorer | RecurrentScorer, device: torch.device) -> float:
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    synchronize(device)
    start = time.perf_counter()
    for _ in range(scorer.steps):
        scorer.step()
    synchronize(device)
    return time.perf_counter() - start


def summarize(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "all": list(values),
    }
