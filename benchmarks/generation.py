"""Generation beside transformers' TransfoXL, the same weights: python benchmarks/generation.py.

Writes 2,000 tokens greedily, batch 1, memory 1,600, float32, 2 threads, in turns in one process: to the next
mark here, some tokens there, whose cost does not depend on how many came before. Both must write the same
tokens. --quick runs a tiny shape, to see that it works.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peer import both, full_memory, report, spread

from txl.evaluation.generation import generate

MARKS = (10, 100, 500, 1000, 1500, 2000)
AROUND = 10  # tokens up to a mark whose times are its
TARGET, FLAT = 50.0, 1.5  # times the peer's speed; the slowest mark beside the fastest, at most


@torch.inference_mode()
def greedy(model: Any, token: int) -> Iterator[int]:
    """Yield the peer's tokens after one, its memory carried."""
    mems, read = None, torch.tensor([[token]])
    while True:
        output = model(read, mems=mems)
        mems, read = output.mems, output.prediction_scores[:, -1:].argmax(dim=-1)
        yield read.item()


def timed(tokens: Iterator[Any], count: int) -> tuple[list[int], list[float]]:
    """Return the next tokens and the seconds that each took."""
    found, seconds = [], []
    for _ in range(count):
        began = time.perf_counter()
        found.append(int(next(tokens)))
        seconds.append(time.perf_counter() - began)
    return found, seconds


def main() -> int:
    """Measure; return 1 if the tokens differ or a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny shape, few tokens")
    parser.add_argument("--peer-tokens", type=int, default=4, help="of the peer in each turn (4)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    marks, memory, shape = (10, 30), 12, "quick"
    if not asked.quick:
        marks, memory, shape = MARKS, 1600, "12 layers"
    theirs, ours = both(shape, memory, clamp_length=820, same_length=False)
    start = 5
    here = generate(ours, torch.tensor([[start]]), full_memory(ours, 1, memory), 1, temperature=0.0)
    there = greedy(theirs, start)
    mine, other, at_mark, of_peer = [], [], {}, []
    for before, mark in itertools.pairwise((0, *marks)):
        tokens, seconds = timed(here, mark - before)
        mine += tokens
        at_mark[mark] = spread([1e3 * second for second in seconds[-AROUND:]])
        tokens, seconds = timed(there, asked.peer_tokens)
        other += tokens
        of_peer += seconds[1:] if before == 0 else seconds  # the first one warms up
    peer = spread([1e3 * second for second in of_peer])
    medians = [times["median"] for times in at_mark.values()]
    ratios = {mark: peer["median"] / times["median"] for mark, times in at_mark.items()}
    result = {
        "benchmark": "generation", "shape": shape, "memory": memory, "batch": 1,
        "milliseconds_per_token": {"here, up to token": at_mark, "there": peer},
        "ratio_at_token": ratios, "target": None if asked.quick else TARGET,
        "slowest_mark_over_fastest": max(medians) / min(medians), "flat_below": FLAT,
        "tokens_compared": len(other), "same_tokens": mine[: len(other)] == other,
    }  # fmt: skip
    report(result, asked.out)
    reached = asked.quick or (min(ratios.values()) >= TARGET and max(medians) / min(medians) < FLAT)
    return int(not (reached and result["same_tokens"]))


if __name__ == "__main__":
    raise SystemExit(main())
