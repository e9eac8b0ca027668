"""The peer of the benchmarks: the same weights in transformers 4.35.2's TransfoXL and here."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from txl.interop.checkpoints import load_foreign
from txl.model import Memory, TransformerXL

SHAPES: dict[str, dict[str, Any]] = {
    "12 layers": {"n_layer": 12, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048},
    "6 layers": {"n_layer": 6, "d_model": 256, "n_head": 4, "d_head": 64, "d_inner": 1024},
    "words": {
        "n_layer": 16, "d_model": 410, "n_head": 10, "d_head": 41, "d_inner": 2100, "vocab_size": 267735,
        "cutoffs": [20000, 40000, 200000], "proj_share_all_but_first": True,
    },
    "quick words": {
        "n_layer": 2, "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "vocab_size": 90,
        "cutoffs": [20, 40, 60], "proj_share_all_but_first": True,
    },
    "24 layers": {"n_layer": 24, "d_model": 1024, "n_head": 8, "d_head": 128, "d_inner": 3072},
    "quick": {"n_layer": 2, "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64},
}  # fmt: skip
VOCABULARY = 204  # of enwik8


def both(
    shape: str, memory_length: int, clamp_length: int | None, same_length: bool, dropout: float = 0.0
) -> tuple[Any, TransformerXL]:
    """Return a TransfoXL of theirs and the same model here, float32, in evaluation mode.

    Args:
        shape: one of `SHAPES`.
        memory_length: of theirs; ours is told when it reads.
        clamp_length: of both.
        same_length: of theirs.
        dropout: everywhere but on the attention probabilities.

    Raises:
        SystemExit: transformers is not there; `make peers` puts it in a folder of its own.
    """
    # The peer lies in a folder of its own, at the end of the path: see the Makefile.
    sys.path.append(os.environ.get("TXL_PEERS", str(Path(sys.prefix) / "peers")))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        try:
            from transformers import TransfoXLConfig, TransfoXLLMHeadModel
        except ImportError as error:
            raise SystemExit(f"transformers 4.35.2 is needed beside this package: {error}") from error
    torch.manual_seed(0)
    config = TransfoXLConfig(
        **{"vocab_size": VOCABULARY, "cutoffs": []} | SHAPES[shape],
        d_embed=SHAPES[shape]["d_model"], div_val=1, untie_r=False, mem_len=memory_length,
        clamp_len=clamp_length or -1, same_length=same_length, dropout=dropout, dropatt=0.0,
        trainer_compatible=True,
    )  # fmt: skip
    theirs = TransfoXLLMHeadModel(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours, _ = load_foreign(Path(folder))
    return theirs, ours


def full_memory(model: TransformerXL, rows: int, slots: int) -> Memory:
    """Return the memory that theirs begins with: all zeros, and all attended to."""
    empty = model.empty_memory(rows, slots)
    return Memory(empty.states, torch.full_like(empty.length, slots))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the extremes of measurements."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def report(result: dict[str, Any], out: Path | None) -> None:
    """Print a result as JSON with what it was measured on, and write it if a path is given."""
    result |= {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "load_average": os.getloadavg(),  # above the number of threads others were at work, too
    }
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n", "utf-8")
