"""Precision is chosen by what the hardware has, and said."""

from pathlib import Path

import pytest
import torch

from training.test_config import composed
from txl.training import hardware
from txl.training.components import ConfigError
from txl.training.config import check


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ([], ("32-true", "the processor has no bfloat16")),
        (["AMX"], ("bf16-mixed", "the processor has AMX")),
        (["AMX", "AVX512-BF16"], ("bf16-mixed", "the processor has AMX and AVX512-BF16")),
    ],
)
def test_auto_takes_bfloat16_where_the_processor_has_it(monkeypatch, features, expected):
    monkeypatch.setattr(hardware, "_bfloat16_of_the_processor", lambda: features)
    assert hardware.resolve_precision("auto", "cpu") == expected


def test_a_precision_that_was_asked_for_is_kept():
    assert hardware.resolve_precision("32-true", "cpu") == ("32-true", "as asked")


def test_peaks_are_measured():
    device = torch.device("cpu")
    assert 1e8 < hardware.matmul_peak(device, "32-true", seconds=0.05) < 1e15
    assert hardware.peak_memory(device) > 50e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="elsewhere nobody tells")
def test_memory_in_use_grows_and_shrinks_with_what_is_held():
    device = torch.device("cpu")
    before = hardware.used_memory(device)
    held = torch.ones(50_000_000)
    assert hardware.used_memory(device) - before > 150e6
    del held
    assert hardware.used_memory(device) - before < 100e6
    assert hardware.peak_memory(device) - before > 150e6


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.accelerator=cpu", "trainer.precision=16-mixed"], "trainer.precision=16-mixed needs a GPU"),
        (["trainer.precision=16-mixed"], "trainer.precision=16-mixed needs a GPU"),
        (["trainer=ddp"], "trainer.accelerator=gpu: there is no GPU here; use trainer=auto"),
        (["trainer=fsdp", "trainer.accelerator=auto"], "trainer.strategy=fsdp needs GPUs"),
        (["trainer=fsdp", "trainer.accelerator=cpu"], "trainer.strategy=fsdp needs GPUs"),
    ],
)
def test_what_needs_a_gpu_says_so_where_there_is_none(monkeypatch, overrides, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError) as error:
        hardware.check_device(check(composed("name=x", *overrides)).trainer)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
