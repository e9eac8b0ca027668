"""Does the model compute what the authors' code computes? Compared on files of reference values.

A file (`.npz`, plain arrays) holds the authors' options as JSON (`config`), their parameters (`param/…`),
tokens `[batch, T]`, and what their code made of them: scores (`nll`), memories, gradients of one segment, and
losses of a few steps of training. Segment s begins at b = ext_len + s · tgt_len; its input is
tokens[b - ext_len : b + tgt_len], its targets the tgt_len tokens from b + 1 on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from txl.interop.authors_options import describe
from txl.interop.authors_parameters import from_authors, to_authors
from txl.interop.description import build
from txl.model import Memory

TOLERANCE = {"scores": 2e-5, "memories": 2e-5, "gradients": 2e-5, "training losses": 2e-4}
SEGMENTS_TRAINED = 5  # then back to the first, with an empty memory
LEARNING_RATE, CLIP = 1e-2, 0.25


@dataclass
class Comparison:
    """The largest absolute difference of each kind; `None` where the file has nothing of the kind."""

    largest: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(TOLERANCE))

    def add(self, kind: str, ours: Tensor, theirs: np.ndarray) -> None:
        """Compare two arrays. NaN, or another shape, counts as an infinite difference."""
        difference = float("inf")
        if tuple(ours.shape) == theirs.shape:
            gap = (ours.detach().double() - torch.from_numpy(np.asarray(theirs, dtype=np.float64))).abs()
            difference = gap.nan_to_num(nan=float("inf")).max().item() if gap.numel() else 0.0
        self.largest[kind] = max(self.largest[kind] or 0.0, difference)

    @property
    def passed(self) -> bool:
        return all(gap is None or gap <= TOLERANCE[kind] for kind, gap in self.largest.items())


class Reference:
    """One file of reference values, and the model that it describes, with its parameters.

    Raises:
        ValueError: the file is not of this format, or describes what this model does not do.
    """

    def __init__(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                self.arrays = {name: file[name] for name in file.files}
            self.config = json.loads(str(self.arrays["config"]))
            self.tokens = torch.from_numpy(self.arrays["tokens"].astype(np.int64))
            scores = self.arrays["nll"]
            self.target, self.extra = self.config["tgt_len"], self.config.get("ext_len", 0)
            if self.target < 1:
                raise ValueError(f"tgt_len is {self.target}, it must be positive")
        except (OSError, ValueError, LookupError, EOFError, TypeError, AttributeError, BadZipFile) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{path} is not a file of reference values ({reason})") from error
        self.segments = scores.shape[1] // self.target
        description = describe(self.config)
        self.reading = description["reading"]
        self.model = build(description)
        from_authors(self.model, {name: torch.tensor(value) for name, value in self.group("param").items()})

    def group(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays `name/…` by the rest of their names."""
        start = f"{name}/"
        return {key.removeprefix(start): value for key, value in self.arrays.items() if key.startswith(start)}

    def read(self, segment: int, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        """Return the scores of a segment, its last hidden states that are kept, and the memory after it."""
        begin = self.extra + segment * self.target
        inputs = self.tokens[:, begin - self.extra : begin + self.target]
        targets = self.tokens[:, begin + 1 : begin + self.target + 1]
        # The authors' _update_mems is called with two arguments swapped: with ext_len it keeps the extra
        # states too for as long as the memory is shorter than they are.
        keep = inputs.shape[1] - min(int(memory.length[0]), self.extra)
        hidden, memory = self.model(inputs, memory, self.reading["attention_length"], remember=keep)
        scores = self.model.embedding.scores(hidden[:, -self.target :], targets)
        return scores, hidden[:, :keep].detach(), memory

    def start(self) -> Memory:
        return self.model.empty_memory(len(self.tokens), self.reading["memory_length"])


def compare(path: Path, attention: str = "plain") -> Comparison:
    """Compare the model with one file.

    Args:
        attention: how it is computed, a key of `txl.model.transformer.ATTENTION_BACKENDS`.

    Raises:
        ValueError: see `Reference`.
    """
    reference, comparison = Reference(path), Comparison()
    reference.model.attention = attention
    reference.model.eval()
    _compare_reading(reference, comparison)
    reference.model.train()
    _compare_gradients(reference, comparison)
    if "train_loss" in reference.arrays:
        columns = zip(*_train(reference), strict=True)
        for name, ours in zip(("train_loss", "train_grad_norm"), columns, strict=True):
            if name in reference.arrays:
                comparison.add("training losses", torch.tensor(ours), reference.arrays[name])
    return comparison


@torch.no_grad()
def _compare_reading(reference: Reference, comparison: Comparison) -> None:
    """Scores of all segments, and the memory of each layer after the last."""
    memory, last, scores = reference.start(), [], []
    for segment in range(reference.segments):
        score, hidden, memory = reference.read(segment, memory)
        scores.append(score)
        last.append(hidden)
    comparison.add("scores", torch.cat(scores, dim=1), reference.arrays["nll"])
    states = [*memory.states, torch.cat(last, dim=1)]
    for layer, theirs in reference.group("final_memory").items():
        ours = states[int(layer)]
        comparison.add("memories", ours[:, max(0, ours.shape[1] - theirs.shape[1]) :], theirs)


def _compare_gradients(reference: Reference, comparison: Comparison) -> None:
    """Gradients of the mean score of the second segment, the memory coming from the first."""
    theirs, model = reference.group("grad"), reference.model
    if not theirs:
        return
    model.zero_grad()
    with torch.no_grad():
        *_, memory = reference.read(0, reference.start())
    scores, *_ = reference.read(1, memory)
    scores.mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    ours = to_authors(model, gradients)
    for name, value in theirs.items():
        comparison.add("gradients", ours[name], value)


def _train(reference: Reference) -> Iterator[tuple[float, float]]:
    """Yield loss and gradient norm of each step of Adam, one a segment."""
    parameters = list(reference.model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    memory = reference.start()
    for step in range(len(reference.arrays["train_loss"])):
        segment = step % SEGMENTS_TRAINED
        if segment == 0:
            memory = reference.start()
        optimizer.zero_grad()
        scores, _, memory = reference.read(segment, memory)
        scores.mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        yield scores.mean().item(), norm.item()
