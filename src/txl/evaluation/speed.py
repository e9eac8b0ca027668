"""Evaluation time per token, with and without recurrence (§4.5, Table 9).

Without recurrence each prediction reads a window of the attention length from scratch: Al-Rfou et al. (2018)
slide the window by one token and use only its last prediction. With recurrence the keys and values of earlier
tokens are cached, so that each token is read once (see `inference`). Both read the same random tokens: the
time depends neither on the tokens nor on the parameters.
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

# The largest differences from a plain forward pass, see `check`.
STATES_TOLERANCE, SCORES_TOLERANCE = 0.01, 1e-4
CHUNK = 512  # tokens of the initial context that are read at a time


@dataclass(frozen=True)
class SpeedCase:
    """What is measured at one attention length."""

    attention_length: int  # keys that a prediction sees, the last token included
    segment_length: int  # L of the recurrent scorer
    batch_size: int  # B of the recurrent scorer
    segments: int | None  # read in a round; `None` for one move of the cached keys, see `CachedInference`
    windows: int  # W windows in a batch of the vanilla scorer
    passes: int  # forward passes of the vanilla scorer in a round
    rounds: int  # timed rounds of each scorer

    @property
    def segments_per_round(self) -> int:
        spare = max(self.segment_length, (self.attention_length - 1) // SPARE)
        return self.segments or spare // self.segment_length + 1

    @property
    def all_rounds(self) -> int:
        return self.rounds + 1  # the first does not count


def vanilla_copy(model: TransformerXL, longest: int) -> TransformerXL:
    """Copy a model with the positions of Al-Rfou et al. (2018): learned, random here, up to `longest`."""
    vanilla, old = copy.deepcopy(model), model.position
    vanilla.position = LearnedPosition(old.n_layer, old.n_head, old.d_model, old.d_head, key_length=longest)
    vanilla.position.reset_parameters(float(model.layers[0].attention.query.weight.detach().std()))
    return vanilla.to(model.embedding.bias).eval()


@dataclass
class Scorer:
    """Scores the next targets of each row at every step, by `CachedInference`."""

    model: TransformerXL  # in evaluation mode
    memory: Memory  # the initial context of all rows, as one row
    attention_length: int
    text: Tensor  # the X tokens of each of R rows that a step reads, and the last target, `[S, R, X + 1]`
    scored: int  # how many of the X are scored, the last ones
    steps: int  # in a round
    checked: int  # how many first steps are compared with plain forward passes

    def __post_init__(self) -> None:
        rows = self.text.shape[1]
        self.tokens, self.done = self.steps * rows * self.scored, 0  # tokens of a round, steps done
        states = tuple(states_1MD.expand(rows, -1, -1) for states_1MD in self.memory.states)
        memory = Memory(states, self.memory.length.expand(rows))
        self.reader = CachedInference(self.model, memory, self.attention_length)

    def step(self) -> tuple[Tensor, Tensor]:
        """Return the states `[R, scored, D]` and scores `[R, scored]` of the next targets."""
        read_RX = self.text[self.done]
        self.done += 1
        states_RLD = self.reader.read(read_RX[:, :-1])[:, -self.scored :]
        return states_RLD, self.model.embedding.scores(states_RLD, read_RX[:, -self.scored :].contiguous())

    def difference(self) -> tuple[float, float]:
        """Return how far the last row of the first `checked` steps is from plain forward passes, see `check`.

        The other past has other tokens before those that are scored, and no memory.
        """
        model, memory, scored, found = self.model, self.memory, self.scored, []
        for row_1X in self.text[: self.checked, -1:]:
            own_states, own_scores = (part[-1:] for part in self.step())
            read, targets = row_1X[:, :-1], row_1X[:, -scored:]
            others = read.clone()
            others[:, :-scored] = (read[:, :-scored] + 1) % len(model.embedding.bias)
            other_states, _ = model(others, model.empty_memory(1, 0), self.attention_length)
            states, memory = model(read, memory, self.attention_length)
            states = states[:, -scored:]
            scores = -model.embedding.log_probabilities(states).gather(-1, targets[..., None])[..., 0]
            found.append((own_states - states, other_states[:, -scored:] - states, own_scores - scores))
        gap, change, score_gap = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return (gap.norm() / change.norm()).item(), score_gap.abs().mean().item()


@torch.inference_mode()
def check(model: TransformerXL, vanilla: TransformerXL, case: SpeedCase) -> dict[str, dict[str, float]]:
    """Return how far each scorer is from plain forward passes of its model, in single or double precision.

    Returns:
        For each scorer "states", the difference of the last states relative to what another past would change
        in them (little with random parameters), and "scores", the mean difference of the scores in nats.

    Raises:
        ValueError: a scorer differs from a plain forward pass by more than rounding.
    """
    found = {}
    for name, scorer in scorers(model, vanilla, case):
        states, scores = scorer.difference()
        if not (states <= STATES_TOLERANCE and scores <= SCORES_TOLERANCE):  # nan, too
            raise ValueError(
                f"at attention length {case.attention_length:,} the {name} side does not score as a plain "
                f"forward pass does: its states differ by {states:.1e} of what another past would "
                f"change (at most {STATES_TOLERANCE:g} expected), its scores by {scores:.1e} nats "
                f"(at most {SCORES_TOLERANCE:g} expected); its time would mean nothing"
            )
        found[name] = {"states": states, "scores": scores}
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
        vanilla: reads without recurrence, on the same device, see `vanilla_copy`.
        advance: called after each round of a scorer, 2 · `case.all_rounds` times.

    Returns:
        For JSON: of each scorer the milliseconds per token and the number of tokens timed, and the ratio of
        the times.
    """
    sides, device = dict(scorers(model, vanilla, case)), model.embedding.bias.device
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    for _ in range(case.all_rounds):
        for name, scorer in sides.items():
            synchronize(device)
            start = time.perf_counter()
            for _ in range(scorer.steps):
                scorer.step()
            synchronize(device)
            seconds[name].append((time.perf_counter() - start) / scorer.tokens)
            advance()
    seconds = {name: values[1:] for name, values in seconds.items()}  # the first round does not count
    ratios = [slow / fast for slow, fast in zip(seconds["vanilla"], seconds["recurrent"], strict=True)]
    measured = {
        name: {
            "milliseconds_per_token": summarize([1e3 * value for value in seconds[name]]),
            "tokens_measured": case.rounds * scorer.tokens,
            "tokens_of_a_turn": scorer.tokens,
        }
        for name, scorer in sides.items()
    }
    return {"attention_length": case.attention_length, **measured, "slowdown": summarize(ratios)}


def scorers(model: TransformerXL, vanilla: TransformerXL, case: SpeedCase) -> Iterator[tuple[str, Scorer]]:
    """Yield the scorer with recurrence, then that without, by name; both score the same token first."""
    reach, length, windows = case.attention_length, case.segment_length, case.windows
    segments = max(2, case.all_rounds * case.segments_per_round)  # `check` reads two
    tokens = reach + max(segments * length, case.all_rounds * case.passes * windows)
    vocabulary, device = len(model.embedding.bias), model.embedding.bias.device
    generator = torch.Generator().manual_seed(reach)
    text_BT = torch.randint(vocabulary, (case.batch_size, tokens), generator=generator).to(device)
    text_BT[1:, :reach] = text_BT[0, :reach]  # the initial context, the same in all rows
    memory = model.empty_memory(1, reach - 1)
    for past in text_BT[:1, : reach - 1].split(min(CHUNK, model.position.key_length), dim=1):
        _, memory = model(past, memory, reach)
    text_SBL = text_BT[:, reach - 1 :].unfold(1, length + 1, length).transpose(0, 1)
    yield "recurrent", Scorer(model, memory, reach, text_SBL, length, case.segments_per_round, checked=2)
    text_SWK = text_BT[0].unfold(0, reach + 1, 1).unfold(0, windows, windows).mT
    yield "vanilla", Scorer(vanilla, vanilla.empty_memory(1, 0), reach, text_SWK, 1, case.passes, checked=1)


def summarize(values: Sequence[float]) -> dict[str, Any]:
    median = statistics.median(values)
    return {"median": median, "least": min(values), "most": max(values), "all": list(values)}
