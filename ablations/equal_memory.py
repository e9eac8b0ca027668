"""Find the segments with which models without recurrence need as much memory as the one with it (Table 10).

python ablations/equal_memory.py                                  # laptop scale
python ablations/equal_memory.py scale=paper                      # on the GPU that is to train them
python ablations/equal_memory.py training.batch_size=64           # further overrides, for every row

Each candidate trains a few steps by `train.py` in a process of its own, because memory that a process has
had once is never given back whole. What counts is the peak that the run reports: of the GPU, or of the
process on a CPU, where the libraries take several hundred MiB before anything is trained; so the table also
shows what training adds to a process that has only started.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from txl.sweeps.definition import last_of_each, read

ROOT = Path(__file__).resolve().parents[1]
NAME = "table10"
STEP = 4  # tokens: lengths that are multiples of it, and even, as half loss needs them
MIB = 2**20
# A few steps: the memory is full after the first, gradients and moments exist after the second.
SHORT = [
    "trainer.max_steps=4",
    "trainer.validate_every=4",
    "trainer.evaluation_batches=1",
    "trainer.peak_flops=1e12",
    "evaluation.batch_size=1",
    "evaluation.attention_lengths=[]",
    "sample.tokens=1",
]
START = """
import torch
from txl.runs import assemble
from txl.runs import finish
from txl.training import hardware
print(hardware.peak_memory(torch.device("cpu")))
"""


def closest(needs: Callable[[int], int], target: int, start: int, step: int = STEP) -> int:
    """Return the length, `start` plus a multiple of `step`, that needs the nearest to the target.

    Args:
        needs: measures a length; grows with it.
        target: in the same unit.
        start: a length to begin with, which needs no more than the target.
        step: how fine the answer is.

    Raises:
        ValueError: the start needs more.
    """
    if needs(start) > target:
        raise ValueError(f"a segment of {start} tokens already needs more than {target:,} bytes")
    short, stride = start, step
    while needs(short + stride) <= target:
        short, stride = short + stride, 2 * stride
    long = short + stride
    while long - short > step:
        middle = short + (long - short) // (2 * step) * step
        short, long = (middle, long) if needs(middle) <= target else (short, middle)
    return min(short, long, key=lambda length: abs(needs(length) - target))


def peak(overrides: list[str]) -> tuple[int, int]:
    """Return the largest memory, in bytes, that a few steps of a training need, and its segment length.

    Raises:
        RuntimeError: the training failed; with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = last_of_each([*overrides, *SHORT])
        command = [sys.executable, str(ROOT / "train.py"), f"hydra.run.dir={folder}", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-2000:]}")
        results = json.loads((Path(folder) / "results.json").read_text("utf-8"))
    return results["training"]["peak_memory_bytes"], results["config"]["training"]["segment_length"]


def started() -> int:
    """Return the memory, in bytes, of a process that has imported what `train.py` does, and no more."""
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    return int(done.stdout)


def main(words: list[str]) -> None:
    """Measure the rows, search the lengths, and print them."""
    scale = next((word.removeprefix("scale=") for word in words if word.startswith("scale=")), "laptop")
    more = [word for word in words if not word.startswith("scale=")]
    ablation = read(NAME, scale)
    reference, *others = ablation.jobs
    console = Console(highlight=False)
    idle = started() if scale == "laptop" else 0  # a GPU holds nothing before
    table = Table("row", "segment", "peak", "added to the start", box=box.SIMPLE_HEAVY)

    def show(row: str, length: int, used: int) -> None:
        table.add_row(row, f"{length}", f"{used / MIB:,.0f} MiB", f"{(used - idle) / MIB:,.0f} MiB")
        console.print(f"{row}: segment {length}, {used / MIB:,.0f} MiB")

    target, shortest = peak([*ablation.jobs[reference], *more])
    show(reference, shortest, target)
    for row in others:
        overrides = [*ablation.jobs[row], *more]
        if "training.memory_length=0" not in overrides:
            used, length = peak(overrides)
        else:
            length, used = search(overrides, target, shortest, console)
        show(row, length, used)
    console.print(f"\nA process that has started and trains nothing: {idle / MIB:,.0f} MiB.")
    console.print(table)


def search(overrides: list[str], target: int, start: int, console: Console) -> tuple[int, int]:
    """Return the segment that needs the nearest to the target, and what it needs."""
    measured: dict[int, int] = {}

    def needs(length: int) -> int:
        if length not in measured:
            sized = [f"training.segment_length={length}", f"evaluation.segment_length={length}"]
            measured[length], _ = peak([*overrides, *sized])
            console.print(f"  {length}: {measured[length] / MIB:,.0f} MiB")
        return measured[length]

    length = closest(needs, target, start)
    return length, measured[length]


if __name__ == "__main__":
    main(sys.argv[1:])
