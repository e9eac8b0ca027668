"""Precision is chosen by what the hardware has, and said."""

from pathlib import Path

import pytest
import torch

from txl.training import hardware


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
