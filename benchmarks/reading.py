"""How fast batches come from a prepared array, in one process: python benchmarks/reading.py [--seconds 1].

The array lies in a file and is read by memory map, as in training. Whatever is slower than 20 million tokens
a second makes the command fail: data should never limit a training step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from txl.data.streams import STREAM_ORDERS, Streams

REQUIRED = 20e6  # tokens a second
TOKENS = 20_000_000  # of the array
# batch size and segment length: the default, enwik8, WikiText-103 base and One Billion Word
SHAPES = [(32, 64), (22, 512), (60, 150), (224, 32), (64, 512)]
KINDS = {
    "ordered": {},
    "ordered, variable_length": {"variable_length": True},
    "ordered, random_start": {"random_start": True},
    "documents": {"border": [0]},
    "sentences": {"border": [0]},
    "shuffled": {},
}


def tokens_per_second(streams: Streams, seconds: float) -> float:
    """Return how many scored tokens a second come out of the streams."""
    batches, scored, began = iter(streams), 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        batch = next(batches, None)
        if batch is None:
            batches = iter(streams)
        else:
            scored += int(batch.scored.sum())
    return scored / spent


def main() -> int:
    """Print a line for each order and shape; return 1 if one is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    seconds, slow = parser.parse_args().seconds, 0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.npy"
        text = np.random.default_rng(0).integers(1, 50_000, TOKENS).astype(np.uint16)
        text[::2000] = 0  # a border
        np.save(path, text)
        for kind, options in KINDS.items():
            order = STREAM_ORDERS[kind.split(",")[0]]
            for rows, length in SHAPES:
                tokens = np.load(path, mmap_mode="r")
                speed = tokens_per_second(order(tokens, rows, length, **options), seconds)
                slow += speed < REQUIRED
                print(f"{kind:26} B={rows:<4} L={length:<4} {speed / 1e6:8.1f} million tokens/s", flush=True)
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
