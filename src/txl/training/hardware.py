"""The hardware: its precision, its speed at matrix products, its memory."""

import ctypes
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import torch

from txl.model.blocked import QUERIES
from txl.settings.errors import ConfigError
from txl.settings.schema import TrainerSettings

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h


def check_device(settings: TrainerSettings) -> None:
    """Raise ConfigError unless accelerator, precision, strategy and torch.compile work on this machine."""
    available = torch.cuda.is_available() or torch.backends.mps.is_available()
    if settings.accelerator == "gpu" and not available:
        raise ConfigError("trainer.accelerator=gpu: there is no GPU here; use trainer=auto or ddp_cpu")
    on_gpu = available and settings.accelerator != "cpu"
    if settings.precision == "16-mixed" and not on_gpu:
        raise ConfigError("trainer.precision=16-mixed needs a GPU; use bf16-mixed or 32-true on a CPU")
    if settings.strategy == "fsdp" and not on_gpu:
        raise ConfigError("trainer.strategy=fsdp needs GPUs; use trainer=ddp_cpu on a CPU")
    compilers = [os.environ.get("CXX"), "g++", "clang++"]
    if settings.compile and not any(name and shutil.which(name) for name in compilers):
        raise ConfigError(
            "trainer.compile=true needs a C++ compiler, and there is none: install g++, name one in the "
            "variable CXX, or use trainer.compile=false"
        )


def resolve_precision(precision: str, accelerator: str) -> tuple[str, str]:
    """Return the precision, one of Lightning's names, and the reason for it.

    "auto" becomes bfloat16 autocast where the processor computes in bfloat16 (AMX or AVX512-BF16 on a CPU),
    float32 elsewhere.
    """
    if precision != "auto":
        return precision, "as configured"
    if accelerator != "cpu" and torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "the GPU computes in bfloat16"
        return "32-true", "the GPU has no bfloat16"
    if features := _bfloat16_instructions():
        return "bf16-mixed", f"the processor has {' and '.join(features)}"
    return "32-true", "the processor has no bfloat16"


def resolve_attention(attention: str, accelerator: str, compiled: bool, precision: str, length: int) -> str:
    """Return the attention backend, a key of `txl.model.transformer.ATTENTION_BACKENDS`.

    "auto" becomes "blocked" where that measured faster: on a CPU, in float32, with a segment length of more
    than one block. A GPU computes all blocks at once, and a compiled model fuses them.
    """
    if attention != "auto":
        return attention
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    fits = precision == "32-true" and length > QUERIES
    return "blocked" if fits and not (on_gpu or compiled) else "plain"


def _bfloat16_instructions() -> list[str]:
    probes = {"AMX": "_is_amx_tile_supported", "AVX512-BF16": "_is_avx512_bf16_supported"}
    return [name for name, probe in probes.items() if getattr(torch.cpu, probe, lambda: False)()]


def retain_freed_pages() -> None:
    """Make the C library reuse freed memory for the next tensor instead of returning it to the kernel.

    Otherwise the kernel maps and zeroes the pages of every large tensor again in each step. Does nothing
    without glibc, which alone has these settings.
    """
    library, largest = ctypes.CDLL(None), 2**31 - 1
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(TRIM_THRESHOLD, largest)
        library.mallopt(MMAP_THRESHOLD, largest)


def matmul_peak(device: torch.device, precision: str, seconds: float = 0.3) -> float:
    """Measure the floating-point operations a second of large matrix products; the fastest one counts."""
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    size = 1024 if device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds or best == float("inf"):
        start = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: allocated on a GPU, or resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return max(peak, used_memory(device) or 0)  # the kernel updates its peak only occasionally


def used_memory(device: torch.device) -> int | None:
    """Return the current memory in bytes, as `peak_memory` counts it; `None` where it is unknown."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:  # not Linux
        return None
    return pages * resource.getpagesize()


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)"


def failure_reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    lacking = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text
    return f"out of memory: {text}" if lacking else text
