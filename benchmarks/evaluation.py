"""Evaluation beside transformers' TransfoXL, the same weights and text: python benchmarks/evaluation.py.

Scores segment after segment with a full memory, float32, 2 threads, in turns in one process: some segments
here, some there. Both must give the same scores. --quick runs tiny shapes, to see that it works.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from peer import VOCABULARY, both, full_memory, report, spread
from torch import Tensor

from txl.evaluation.inference import CachedInference

# shape, segment, memory, clamp and batch; the speed there is to reach
CASES = [
    ("12 layers", 80, 2100, 820, 1, 4.0),
    ("12 layers", 80, 2100, 820, 10, 4.0),
    ("24 layers", 128, 3800, 1000, 1, 5.0),
]
QUICK = [("quick", 5, 20, 7, 2, 0.0)]
TOLERANCE = 1e-4  # of a score, in nats


@torch.inference_mode()
def measure(
    shape: str, segment: int, memory: int, clamp: int, rows: int, target: float, rounds: int
) -> dict[str, object]:
    """Return the tokens a second of both, in turns, and the largest difference of their scores."""
    theirs, ours = both(shape, memory, clamp, same_length=True)
    reader, mems = CachedInference(ours, full_memory(ours, rows, memory), memory), None
    generator = torch.Generator().manual_seed(1)
    ours_segments, theirs_segments = 8, 2  # so many here that keys are moved in each turn
    text = torch.randint(VOCABULARY, (rows, (1 + rounds) * ours_segments * segment + 1), generator=generator)

    def here(tokens: Tensor, targets: Tensor) -> Tensor:
        return ours.embedding.scores(reader.read(tokens), targets)

    def there(tokens: Tensor, targets: Tensor) -> Tensor:
        nonlocal mems
        output = theirs(tokens, mems=mems)
        mems = output.mems
        return -output.prediction_scores.gather(-1, targets[..., None])[..., 0]

    def read(score: Callable[[Tensor, Tensor], Tensor], first: int, count: int) -> tuple[float, Tensor]:
        found, began = [], time.perf_counter()
        for begin in range(first * segment, (first + count) * segment, segment):
            piece = text[:, begin : begin + segment + 1]
            found.append(score(piece[:, :-1], piece[:, 1:].contiguous()))
        return time.perf_counter() - began, torch.cat(found, dim=1)

    _, mine = read(here, 0, ours_segments)
    _, other = read(there, 0, theirs_segments)
    difference = float((mine[:, : other.shape[1]] - other).abs().max())
    speeds: dict[str, list[float]] = {"here": [], "there": []}
    for turn in range(1, rounds + 1):
        for name, score, first, count in (
            ("here", here, turn * ours_segments, ours_segments),
            ("there", there, turn * theirs_segments, theirs_segments),
        ):
            seconds, _ = read(score, first, count)
            speeds[name].append(rows * count * segment / seconds)
    ratios = [mine / other for mine, other in zip(speeds["here"], speeds["there"], strict=True)]
    return {
        "shape": shape, "segment": segment, "memory": memory, "clamp": clamp, "batch": rows,
        "tokens_per_second": {name: spread(values) for name, values in speeds.items()},
        "ratio": spread(ratios), "target": target, "largest_difference": difference,
        "same_scores": difference < TOLERANCE,
    }  # fmt: skip


def main() -> int:
    """Measure all cases; return 1 if scores differ or a ratio is below its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument("--case", type=int, help="only this one, from 0")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    cases = QUICK if asked.quick else CASES
    cases = cases if asked.case is None else cases[asked.case : asked.case + 1]
    found = [measure(*case, rounds=asked.rounds) for case in cases]
    report({"benchmark": "evaluation", "cases": found}, asked.out)
    return int(not all(case["same_scores"] and case["ratio"]["median"] >= case["target"] for case in found))


if __name__ == "__main__":
    raise SystemExit(main())
