"""Precision is chosen by what the hardware has, and said."""

import subprocess
import sys

import pytest
import torch

from settings.test_schema import composed
from txl.model.transformer import ATTENTION_BACKENDS
from txl.runs import assemble
from txl.settings.errors import ConfigError
from txl.settings.schema import check
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
    monkeypatch.setattr(hardware, "_bfloat16_instructions", lambda: features)
    assert hardware.resolve_precision("auto", "cpu") == expected


def test_a_precision_that_was_asked_for_is_kept():
    assert hardware.resolve_precision("32-true", "cpu") == ("32-true", "as configured")


@pytest.mark.parametrize(
    ("asked", "accelerator", "compiled", "precision", "length", "expected"),
    [
        ("auto", "cpu", False, "32-true", 512, "blocked"),
        ("auto", "cpu", False, "32-true", 128, "plain"),
        ("auto", "cpu", False, "bf16-mixed", 512, "plain"),
        ("auto", "cpu", True, "32-true", 512, "plain"),
        ("blocked", "cpu", True, "bf16-mixed", 16, "blocked"),
        ("plain", "cpu", False, "32-true", 512, "plain"),
        ("flex", "cpu", False, "32-true", 512, "flex"),
    ],
)
def test_attention_is_blocked_where_it_measured_faster(
    asked, accelerator, compiled, precision, length, expected
):
    assert hardware.resolve_attention(asked, accelerator, compiled, precision, length) == expected


def test_a_model_is_given_the_attention_that_was_asked_for():
    text = ("name=x", "data=text", "data.path=x")
    for asked in ATTENTION_BACKENDS:
        config = check(composed(*text, f"trainer.attention={asked}"))
        assert assemble.network(config, 20).attention == asked
    with pytest.raises(
        ConfigError, match=r"trainer\.attention=flash must be one of auto, plain, blocked, flex"
    ):
        check(composed(*text, "trainer.attention=flash"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nobody tells, or keeps")
@pytest.mark.parametrize("kept", [False, True])
def test_memory_in_use_grows_and_shrinks_unless_freed_memory_is_kept(kept):
    """In a process of its own: the setting is for good."""
    script = (
        "import torch; from txl.training.hardware import *; cpu = torch.device('cpu')\n"
        f"{'retain_freed_pages()' if kept else ''}\n"
        "before = used_memory(cpu); held = torch.ones(50_000_000); print(used_memory(cpu) - before)\n"
        "del held; print(used_memory(cpu) - before); print(peak_memory(cpu) - before)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    held, freed, peak = map(int, done.stdout.split())
    assert held > 150e6
    assert peak > 150e6
    assert (freed > 150e6) if kept else (freed < 100e6)


def test_peaks_are_measured():
    device = torch.device("cpu")
    assert 1e8 < hardware.matmul_peak(device, "32-true", seconds=0.05) < 1e15
    assert hardware.peak_memory(device) > 50e6


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
