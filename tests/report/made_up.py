"""Sweep directories made by hand, their results in the schema that runs write."""

from __future__ import annotations

import json
import math
from pathlib import Path

LN2 = math.log(2)

TABLE = {
    "title": "Ablation",
    "source": "Dai et al. 2019, Table 6",
    "published_on": "WikiText-103, validation split (inferred), perplexity",
    "columns": {"recurrence": "Recurrence", "encoding": "Encoding"},
    "measures": ["init", "best", "attention_length"],
    "note": "enwiki_sample, a small model",
    "rows": {
        "xl": {
            "label": "Transformer-XL (128M)",
            "recurrence": "yes",
            "encoding": "Ours",
            "published": {"init": 27.02, "best": 26.77, "attention_length": 500},
            "overrides": ["position=relative"],
        },
        "shaw": {
            "label": "-",
            "recurrence": "yes",
            "encoding": "Shaw et al. (2018)",
            "published": {"init": 27.94, "best": 27.94, "attention_length": 256},
            "overrides": ["position=shaw"],
        },
        "no_recurrence": {
            "label": "-",
            "recurrence": "no",
            "encoding": "Ours",
            "published": {"init": 29.59, "best": 29.02, "attention_length": 260},
            "overrides": ["training.memory_length=0"],
        },
    },
}


def results(bits: float = 2.27, seed: int = 1, status: str = "completed", **changes) -> dict:
    """Return results of a run on bytes; `bits` is the score at the attention length of training."""
    lengths = {64: bits + 0.05, 128: bits, 256: bits - 0.02, 512: bits - 0.0204}
    made = {
        "schema": 1,
        "name": "enwiki_sample",
        "status": status,
        "error": None if status == "completed" else "CUDA out of memory.\nTried to allocate 2.00 GiB",
        "seed": seed,
        "overrides": ["position=relative", f"seed={seed}"],
        "config": {
            "model": {"n_layer": 4, "d_model": 128, "n_head": 4, "d_head": 32, "d_inner": 512},
            "position": {"_target_": "txl.model.RelativePosition", "clamp_length": None},
            "data": {"path": f"/home/someone/{seed}", "cache": "/home/someone/cache"},
            "optimizer": {"_target_": "txl.training.optimizers.adamw", "lr": 0.004},
            "training": {
                "batch_size": 32,
                "segment_length": 64,
                "memory_length": 64,
                "attention_length": None,
                "loss": "full",
            },
            "evaluation": {"batch_size": 32, "segment_length": 64, "memory_length": 64, "loss": "full"},
            "trainer": {"max_steps": 1000},
            "name": "enwiki_sample",
            "seed": seed,
            "logger": {},
        },
        "model": {"parameters": 1_013_709, "parameters_non_embedding": 987_000},
        "data": {
            "name": "enwiki_sample",
            "unit": "byte",
            "sha256": "34c1c63050c87cc8477b9ae36b1cb0edf372612c92938b742e579a7109c20fa4",
            "vocabulary": 205,
            "tokens": {"train": 5_480_000, "valid": 304_000, "test": 304_000},
        },
        "training": {
            "steps": 1000,
            "tokens": 2_048_000,
            "seconds": 150.0 + seed,
            "tokens_per_second": 13_000.0 + 10 * seed,
            "model_flops_utilization": 0.1,
            "peak_memory_bytes": 512 * 2**20 + seed,
            "device": "cpu (2 threads)",
            "precision": "bf16-mixed",
            "world_size": 1,
        },
        "valid": score(bits, 128),
        "test": score(bits + 0.01, 128),
        "attention": [
            score(value, length) | {"seconds": 0.5 + length / 100} for length, value in lengths.items()
        ],
        "versions": {"txl": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu"},
        "git": {"commit": "823a5deeb836ab3caec7e8875919546b67b3e447", "changed": False},
        "finished_at": "2026-11-30T14:10:32+00:00",
    }
    if status != "completed":
        made |= {"valid": None, "test": None, "attention": None}
    return made | changes


def score(bits: float, length: int) -> dict:
    """Return the score of a split."""
    return {
        "loss": bits * LN2,
        "perplexity": math.exp(bits * LN2),
        "bits_per_character": bits,
        "tokens_scored": 304_043,
        "segment_length": 64,
        "memory_length": length - 64,
        "attention_length": length,
        "batch_size": 32,
    }


def write_sweep(
    directory: Path, runs: dict[str, list[dict | None]], table: dict | None = TABLE, **changes
) -> Path:
    """Write a sweep directory: of each row the results by seed, from 1 on; `None` for a job without any."""
    jobs = []
    directory.mkdir(parents=True, exist_ok=True)
    for row, seeds in runs.items():
        for seed, made in enumerate(seeds, 1):
            job = {"row": row, "seed": seed, "directory": f"{row}/seed{seed}", "overrides": [f"row={row}"]}
            jobs.append(job)
            (directory / job["directory"]).mkdir(parents=True)
            if made is not None:
                write_run(directory / job["directory"], made)
    described = {"schema": 1, "name": "table6", "scale": "laptop", "words": [], "table": table, "jobs": jobs}
    (directory / "sweep.json").write_text(json.dumps(described | changes))
    return directory


def write_run(directory: Path, made: dict, curve: list[float] = ()) -> Path:
    """Write the results of a run, and its validations if there are any."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(made))
    if curve:
        lines = [
            {"step": 100 * i, "tokens": 1000 * i, "valid/loss": value * LN2, "valid/bits_per_byte": value}
            for i, value in enumerate(curve, 1)
        ]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory
