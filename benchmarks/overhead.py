"""How much of a training step is not the model, the loss or the optimizer: python benchmarks/overhead.py.

Runs train.py in this process, with all that a run writes and shows, and adds up the time inside the model's
forward pass, the softmax's scores, the backward pass, the clipping and the optimizer. The rest of a step,
from one call of `training_step` to the next, is Lightning's, the data's and the log's. 6 layers, d_model 256,
segment and memory 128, 16 rows; --quick takes a tiny model.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peer import report

from txl.model import TransformerXL
from txl.model.embedding import TiedEmbedding
from txl.training.module import LanguageModel

TRAIN = Path(__file__).parents[1] / "train.py"
TARGET = 0.03
SKIPPED = 5  # steps at the beginning
SHAPE = [
    "model.n_layer=6", "model.d_model=256", "model.n_head=4", "model.d_head=64", "model.d_inner=1024",
    "model.dropout=0.1", "training.batch_size=16", "training.segment_length=128",
    "training.memory_length=128", "trainer.gradient_clip=0.25",
]  # fmt: skip
QUICK = [
    "model.n_layer=2", "model.d_model=32", "model.n_head=2", "model.d_head=16", "model.d_inner=64",
    "training.batch_size=2", "training.segment_length=8", "training.memory_length=8",
]  # fmt: skip
SHORT = [
    "training.loss=full", "evaluation.batch_size=4", "evaluation.segment_length=8",
    "evaluation.memory_length=8", "trainer.evaluation_batches=1", "sample.prompt_tokens=8", "sample.tokens=1",
]  # fmt: skip


class Clock:
    """The seconds inside of what is measured, and when each step began."""

    def __init__(self) -> None:
        self.inside: dict[str, float] = {}
        self.steps: list[tuple[float, dict[str, float]]] = []

    def around(self, owner: Any, name: str, part: str) -> None:
        """Measure a function, each time that it is called through its owner."""
        called = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return called(*arguments, **named)
            finally:
                self.inside[part] = self.inside.get(part, 0.0) + time.perf_counter() - began

        setattr(owner, name, timed)

    def at_each(self, owner: Any, name: str) -> None:
        """Note the time at which a function is called."""
        called: Callable = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            self.steps.append((time.perf_counter(), dict(self.inside)))
            return called(*arguments, **named)

        setattr(owner, name, noted)


def measure(words: list[str]) -> dict[str, Any]:
    """Return the seconds of a step and of its parts, from a run with these settings."""
    clock = Clock()
    clock.around(TransformerXL, "forward", "model")
    clock.around(TiedEmbedding, "scores", "loss")
    clock.around(torch.autograd, "backward", "backward")
    clock.around(torch.nn.utils, "clip_grad_norm_", "clipping")
    clock.around(importlib.import_module("torch.optim.adam"), "adam", "optimizer")
    clock.at_each(LanguageModel, "training_step")
    before, sys.argv = sys.argv, [str(TRAIN), *words]
    try:
        runpy.run_path(str(TRAIN), run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.argv = before
    steps = clock.steps[SKIPPED:]
    walls = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(steps)]
    parts = {
        part: statistics.median(
            later[part] - sooner[part] for (_, sooner), (_, later) in itertools.pairwise(steps)
        )
        for part in clock.inside
    }
    outside = (steps[-1][0] - steps[0][0]) - sum(steps[-1][1][part] - steps[0][1][part] for part in parts)
    return {
        "steps": len(walls), "seconds_of_a_step": statistics.median(walls),
        "seconds_of_its_parts": parts,
        "share_outside": outside / (steps[-1][0] - steps[0][0]),
    }  # fmt: skip


def main() -> int:
    """Measure; return 1 if the share is above its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--steps", type=int, default=60, help="of the run (60)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument("--precision", default="auto", help="trainer.precision (auto)")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        # Only steps between validations are measured: the first, and the last before the one at the end.
        words = [*(QUICK if asked.quick else SHAPE), *SHORT, f"hydra.run.dir={folder}/run"]
        words += [f"trainer.max_steps={asked.steps}", f"trainer.validate_every={asked.steps}"]
        words += [f"trainer.checkpoint_every={asked.steps}", f"trainer.precision={asked.precision}"]
        result = measure(words)
    result |= {"benchmark": "overhead", "target": None if asked.quick else TARGET}
    report(result, asked.out)
    return int(not asked.quick and result["share_outside"] > TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
