"""What is logged, and that it is true."""

import json
import re
import time

import pytest
import torch

from conftest import TINY, metrics_of
from txl.data.streams import OrderedStreams

LINE = {
    "step",
    "tokens",
    "seconds",
    "train/loss",
    "train/bits_per_byte",
    "learning_rate",
    "gradient_norm",
    "clipped_share",
    "tokens_per_second",
    "model_flops_utilization",
    "data_wait_seconds",
    "data_wait_share",
    "memory_length",
    "memory_share",
    "used_memory_bytes",
    "peak_memory_bytes",
}


VALIDATION_LINE = {
    "step",
    "tokens",
    "seconds",
    "valid/loss",
    "valid/bits_per_byte",
    "valid/tokens_per_second",
    "valid/model_flops_utilization",
    "valid/data_wait_seconds",
    "valid/data_wait_share",
    "memory_length",
    "memory_share",
    "used_memory_bytes",
    "peak_memory_bytes",
}


@pytest.fixture
def tiny(text_file):
    return [*TINY, f"data.path={text_file}"]


def trained(directory) -> list[dict]:
    return [line for line in metrics_of(directory) if "train/loss" in line]


def test_every_line_says_all_there_is_to_know(run_here, tiny):
    lines = trained(run_here(*tiny, "training.memory_length=24", "trainer.gradient_clip=1e-9"))
    assert all(line.keys() == LINE for line in lines)
    assert [line["memory_length"] for line in lines] == [16.0] + [24.0] * 7
    assert [line["memory_share"] for line in lines] == pytest.approx([16 / 24] + [1.0] * 7)
    assert [line["clipped_share"] for line in lines] == [1.0] * 8
    assert [line["tokens"] for line in lines] == [step * 4 * 16 for step in range(1, 9)]
    for line in lines:
        assert line["train/bits_per_byte"] == pytest.approx(line["train/loss"] / 0.6931471805599453)
        assert 50e6 < line["used_memory_bytes"] <= line["peak_memory_bytes"]
        assert 0 <= line["data_wait_seconds"] < 1
        assert 0 <= line["data_wait_share"] <= 1


def test_a_validation_says_how_fast_it_was(run_here, tiny, tmp_path):
    """Speed and utilization are of the same reading, and a third of the operations of a training step."""

    def lines_of(peak: float) -> list[dict]:
        return metrics_of(run_here(*tiny, f"trainer.peak_flops={peak}", directory=tmp_path / f"{peak}"))

    lines = lines_of(1e12)
    validations = [line for line in lines if "valid/loss" in line]
    assert [line["step"] for line in validations] == [4, 8]
    training = next(line for line in lines if "train/loss" in line)
    for line in validations:
        assert line.keys() == VALIDATION_LINE
        assert line["valid/data_wait_seconds"] > 0
        assert 0 < line["valid/data_wait_share"] < 1
        operations = line["valid/model_flops_utilization"] / line["valid/tokens_per_second"]
        assert 3 * operations == pytest.approx(
            training["model_flops_utilization"] / training["tokens_per_second"]
        )


def test_a_line_is_the_mean_over_its_steps(run_here, tiny, tmp_path):
    each = trained(run_here(*tiny, "trainer.gradient_clip=0.9", directory=tmp_path / "each"))
    some = trained(run_here(*tiny, "trainer.gradient_clip=0.9", "trainer.log_every=4"))
    assert [line["step"] for line in some] == [4, 8]
    for line, steps in zip(some, (each[:4], each[4:]), strict=True):
        assert line["train/loss"] == pytest.approx(sum(step["train/loss"] for step in steps) / 4)
        assert line["clipped_share"] == sum(step["clipped_share"] for step in steps) / 4
    assert 0 < sum(line["clipped_share"] for line in each) < 8


def test_a_peak_that_is_given_is_the_one_that_is_used(run_here, tiny, tmp_path):
    """The same operations a token, so utilization / speed is in proportion to 1 / peak, exactly."""

    def ratio(peak: float, name: str) -> float:
        line = trained(run_here(*tiny, f"trainer.peak_flops={peak}", directory=tmp_path / name))[-1]
        return line["model_flops_utilization"] / line["tokens_per_second"]

    assert ratio(1e12, "a") == pytest.approx(2 * ratio(2e12, "b"))


def test_waiting_for_data_is_seen(run_here, tiny, monkeypatch):
    def slow(self, read=OrderedStreams.__iter__):
        for batch in read(self):
            time.sleep(0.02)
            yield batch

    monkeypatch.setattr(OrderedStreams, "__iter__", slow)
    for line in trained(run_here(*tiny)):
        assert line["data_wait_seconds"] >= 0.02
        assert line["data_wait_share"] > 0.1


def test_a_checkpoint_remembers_what_was_counted(run_here, tiny):
    directory = run_here(*tiny, "trainer.log_every=3", "trainer.max_steps=4")
    progress = torch.load(directory / "checkpoints" / "last.ckpt", weights_only=True)["progress"]
    assert progress["tokens"] == 4 * 4 * 16
    assert progress["seconds"] > progress["validating"] > 0


def test_a_loss_that_explodes_stops_the_run_and_names_a_good_checkpoint(run_here, tiny, tmp_path, caplog):
    """A learning rate that rises without end: learns at first, and then breaks what was learned."""
    rising = ["optimizer.lr=3", "schedule=constant", "schedule.warmup_steps=600", "trainer.max_steps=600"]
    with pytest.raises(SystemExit):
        run_here(
            *tiny, *rising, "trainer.max_loss_rise=0.5", "trainer.log_every=20", "trainer.validate_every=20"
        )
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["status"] == "failed"
    said = results["error"]
    assert "by more than trainer.max_loss_rise=0.5; lower optimizer.lr" in said
    path, step = re.search(r"the last good checkpoint is (\S+), of step (\d+)$", said).groups()
    assert torch.load(path, weights_only=True)["global_step"] == int(step)
    assert int(step) <= int(re.search(r"at step (\d+) by more", said)[1])
    assert said in caplog.text


def test_no_checkpoint_is_written_after_a_loss_that_is_not_finite(run_here, tiny, caplog):
    with pytest.raises(SystemExit):
        run_here(
            *tiny,
            "optimizer.lr=1e12",
            "trainer.gradient_clip=null",
            "trainer.max_steps=400",
            "trainer.log_every=400",
            "trainer.validate_every=2",
        )
    assert "training diverged: at step" in caplog.text
