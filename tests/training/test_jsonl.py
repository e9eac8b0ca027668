"""`metrics.jsonl`: whole lines, and JSON that every reader accepts."""

import json
import resource
import signal

import torch

from txl.training.loggers.jsonl import JsonLines


def test_each_log_is_one_line(tmp_path):
    logger = JsonLines(tmp_path, {})
    logger.log_metrics({"train/loss": torch.tensor(0.5), "epoch": 0}, step=1)
    logger.log_metrics({"train/loss": float("nan")}, step=2)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": None}]


def test_lines_that_a_full_disk_refuses_wait_whole_for_room(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    logger = JsonLines(tmp_path, {})
    logger.log_metrics({"train/loss": 1.0}, step=1)
    kinds = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, kinds[1]))  # room for part of a line
    try:
        logger.log_metrics({"train/loss": 2.0}, step=2)
        logger.log_metrics({"train/loss": 3.0}, step=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kinds)
        signal.signal(signal.SIGXFSZ, before)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1]
    assert caplog.text.count("its lines are held back, training continues") == 1
    logger.log_metrics({"train/loss": 4.0}, step=4)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]
