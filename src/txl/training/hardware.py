"""What the machine can do: its precision, its speed at matrix products, its memory."""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from pathlib import Path

import torch

from txl.model.blocked import QUERIES
from txl.settings.errors import ConfigError
from txl.settings.schema import TrainerSettings

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h


def check_device(settings: TrainerSettings) -> None:
    """Raise ConfigError unless the device, and what needs it, are here."""
    here = torch.cuda.is_available() or torch.backends.mps.is_available()
    if settings.accelerator == "gpu" and not here:
        raise ConfigError("trainer.accelerator=gpu: there is no GPU here; use trainer=auto or ddp_cpu")
    on_gpu = here and settings.accelerator != "cpu"
    if settings.precision == "16-mixed" and not on_gpu:
        raise ConfigError("trainer.precision=16-mixed needs a GPU; use bf16-mixed or 32-true on a CPU")
    if settings.strategy == "fsdp" and not on_gpu:
        raise ConfigError("trainer.strategy=fsdp needs GPUs; use trainer=ddp_cpu on a CPU")


def resolve_precision(precision: str, accelerator: str) -> tuple[str, str]:
    """Return the precision to use, and why.

    "auto" is bfloat16 autocast where the processor computes in bfloat16 (AMX or AVX512-BF16 on a CPU),
    float32 elsewhere. Any other name is returned as it is.

    Args:
        precision: "auto" or one of Lightning's names.
        accelerator: "auto", "cpu" or "gpu".
    """
    if precision != "auto":
        return precision, "as asked"
    if accelerator != "cpu" and torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "the GPU computes in bfloat16"
        return "32-true", "the GPU has no bfloat16"
    features = _bfloat16_of_the_processor()
    if features:
        return "bf16-mixed", f"the processor has {' and '.join(features)}"
    return "32-true", "the processor has no bfloat16"


def resolve_attention(attention: str, accelerator: str, compiled: bool, precision: str, length: int) -> str:
    """Return how attention is computed, a key of `txl.model.transformer.WAYS`.

    "auto" is the blocked one where it measured faster: on a CPU, in float32, with segments of more than one
    block. A GPU is given all at once, and so is the compiler, which fuses it.

    Args:
        attention: "auto", or one of them, which is returned.
        accelerator: "auto", "cpu" or "gpu".
        compiled: whether the model is.
        precision: one of Lightning's names.
        length: L.
    """
    if attention != "auto":
        return attention
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    fits = precision == "32-true" and length > QUERIES
    return "blocked" if fits and not (on_gpu or compiled) else "plain"


def _bfloat16_of_the_processor() -> list[str]:
    """Return the names of the processor's bfloat16 instructions."""
    probes = {"AMX": "_is_amx_tile_supported", "AVX512-BF16": "_is_avx512_bf16_supported"}
    return [name for name, probe in probes.items() if getattr(torch.cpu, probe, lambda: False)()]


def retain_freed_pages() -> None:
    """Let the C library keep memory that was freed, for the next tensor, instead of giving it back.

    The tensors of a step are large; the library would ask the kernel for each anew, and the kernel would fill
    each of its pages with zeros. Only glibc has these settings; elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    library, largest = ctypes.CDLL(None), 2**31 - 1
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(TRIM_THRESHOLD, largest)
        library.mallopt(MMAP_THRESHOLD, largest)


def matmul_peak(device: torch.device, precision: str, seconds: float = 0.3) -> float:
    """Return the operations a second that large matrix products reach here, measured.

    Args:
        device: where.
        precision: one of Lightning's names; bf16-mixed multiplies in bfloat16.
        seconds: how long to measure. The best product counts.
    """
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    size = 1024 if device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < seconds or best == float("inf"):
        start = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def peak_memory(device: torch.device) -> int:
    """Return the largest memory used so far, in bytes: of the GPU, or resident of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return max(peak, used_memory(device) or 0)  # the kernel brings its peak up to date now and then


def used_memory(device: torch.device) -> int | None:
    """Return the memory in use now, in bytes, of what `peak_memory` counts; `None` where no one tells."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:  # not Linux
        return None
    return pages * resource.getpagesize()


def device_name(device: torch.device) -> str:
    """Return what the device is, for people."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)"


def failure_reason(error: BaseException) -> str:
    """Return in words why something failed, also when memory was all that was missing."""
    text = str(error) or type(error).__name__
    lacking = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text
    return f"out of memory: {text}" if lacking else text
