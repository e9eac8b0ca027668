"""`metrics.jsonl`: whole lines, and JSON that every reader accepts."""

import json

import torch

from txl.training.metrics import JsonLines


def test_each_log_is_one_line(tmp_path):
    logger = JsonLines(tmp_path / "metrics.jsonl")
    logger.log_metrics({"train/loss": torch.tensor(0.5), "epoch": 0}, step=1)
    logger.log_metrics({"train/loss": float("nan")}, step=2)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": None}]
